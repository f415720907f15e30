"""Environments that misbehave, for runs that must survive them."""

import ctypes
import os
import time
from pathlib import Path

import gymnasium as gym


class Chaotic(gym.Wrapper):
    """CartPole that once, in the whole run, does `what` at its `when`-th step; `trace` remembers that it has."""

    def __init__(self, what: str, trace: str, when: int = 200):
        super().__init__(gym.make("CartPole-v1"))
        self.what, self.trace, self.when, self.steps = what, Path(trace), when, 0

    def step(self, action):
        self.steps += 1
        if self.steps == self.when and not self._done_before():
            if self.what == "segfault":
                ctypes.string_at(0)
            if self.what == "sleep":
                time.sleep(3600)
            raise RuntimeError("the environment broke")
        return self.env.step(action)

    def _done_before(self) -> bool:
        try:
            os.close(os.open(self.trace, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return True
        return False


class Unreliable(gym.Wrapper):
    """CartPole whose resets fail, one in a hundred."""

    def __init__(self):
        super().__init__(gym.make("CartPole-v1"))

    def reset(self, **options):
        if int.from_bytes(os.urandom(2), "little") % 100 == 0:
            raise RuntimeError("reset failed")
        return self.env.reset(**options)


class Hopeless(gym.Wrapper):
    """CartPole that never takes a second step."""

    def __init__(self):
        super().__init__(gym.make("CartPole-v1"))

    def step(self, action):
        raise RuntimeError("nothing can be done")
