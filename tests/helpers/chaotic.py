"""Environments that misbehave, for runs that must survive them."""

import ctypes
import os
import signal
import time
from pathlib import Path

import gymnasium as gym
import numpy as np


def once(trace: Path) -> bool:
    """Whether this is the first time that `trace` is asked for, in whatever process."""
    try:
        os.close(os.open(trace, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


class Chaotic(gym.Wrapper):
    """CartPole that once, in the whole run, does `what` at its `when`-th step; `trace` remembers that it has."""

    def __init__(self, what: str, trace: str, when: int = 200):
        super().__init__(gym.make("CartPole-v1"))
        self.what, self.trace, self.when, self.steps = what, Path(trace), when, 0

    def step(self, action):
        self.steps += 1
        if self.steps == self.when and once(self.trace):
            if self.what == "segfault":
                ctypes.string_at(0)
            if self.what == "sleep":
                time.sleep(3600)
            raise RuntimeError("the environment broke")
        return self.env.step(action)


class Unreliable(gym.Wrapper):
    """CartPole whose resets fail, one in a hundred."""

    def __init__(self):
        super().__init__(gym.make("CartPole-v1"))

    def reset(self, **options):
        if int.from_bytes(os.urandom(2), "little") % 100 == 0:
            raise RuntimeError("reset failed")
        return self.env.reset(**options)


class Hopeless(gym.Wrapper):
    """CartPole that never takes a third step."""

    LINE = 0  # of the failure in this file

    def __init__(self):
        super().__init__(gym.make("CartPole-v1"))

    def reset(self, **options):
        self.steps = 0
        return self.env.reset(**options)

    def step(self, action):
        self.steps += 1
        if self.steps == 3:
            raise RuntimeError("nothing can be done")
        return self.env.step(action)


Hopeless.LINE = Hopeless.step.__code__.co_firstlineno + 3
gym.register("Hopeless-v0", "tests.helpers.chaotic:Hopeless")


class Mortal(gym.Env):
    """Tells its process and the moment of its life. Once, in the whole run, it kills its process at its `when`-th step;
    `trace` remembers that it has."""

    observation_space = gym.spaces.Box(0.0, np.inf, (2,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, trace: str, when: int):
        self.trace, self.when, self.moment, self.steps = Path(trace), when, 0, 0

    def _seen(self):
        self.moment += 1
        return np.array([os.getpid(), self.moment], np.float32)

    def reset(self, **options):
        self.left = 13
        return self._seen(), {}

    def step(self, action):
        self.steps, self.left = self.steps + 1, self.left - 1
        if self.steps == self.when and once(self.trace):
            os.kill(os.getpid(), signal.SIGKILL)
        return self._seen(), 1.0, False, self.left == 0, {}


class OneIsSlow(gym.Wrapper):
    """CartPole, of which one outside of the process `driver` takes its time; `trace` remembers which."""

    def __init__(self, trace: str, driver: int):
        super().__init__(gym.make("CartPole-v1"))
        self.pause = 0.02 if os.getpid() != driver and once(Path(trace)) else 0.0

    def step(self, action):
        time.sleep(self.pause)
        return self.env.step(action)


class Patient(gym.Wrapper):
    """CartPole that after some steps goes slowly as long as `trace` is not there: no run is over before that."""

    def __init__(self, trace: str):
        super().__init__(gym.make("CartPole-v1"))
        self.trace, self.steps = Path(trace), 0

    def step(self, action):
        self.steps += 1
        if self.steps > 300 and not self.trace.exists():
            time.sleep(0.05)
        return self.env.step(action)


gym.register("Patient-v0", "tests.helpers.chaotic:Patient")
