"""CartPole in which one worker is hindered: every step takes longer, or now and then a reward is absurd.

    cavalcade train gorila-dqn benchmarks.hindrance:HinderedCartPole-v1 --runtime process --option pause=0.025

The process of an actor has its name; in any other, and where policies are judged, this is plain CartPole.
"""

import multiprocessing
import time
from typing import Any

import gymnasium as gym

WARM_UP = 500  # steps of each environment that are as usual: a judge of losses has to see some first


class Hindered(gym.Wrapper):
    def __init__(
        self, worker: str = "worker/1", pause: float = 0.0, spike: float = 0.0, chance: float = 5e-4, **given: Any
    ):
        """`pause`: seconds of each step. `spike`: the reward of a step, with a probability of `chance`."""
        super().__init__(gym.make("CartPole-v1", **given))
        here = multiprocessing.current_process().name == f"cavalcade {worker}"
        self.pause, self.spike, self.chance = (pause, spike, chance) if here else (0.0, 0.0, 0.0)
        self.steps = 0

    def step(self, action: Any) -> tuple:
        self.steps += 1
        if self.pause:
            time.sleep(self.pause)
        observation, reward, terminated, truncated, info = self.env.step(action)
        if self.spike and self.steps > WARM_UP and self.np_random.random() < self.chance:
            reward = self.spike
        return observation, reward, terminated, truncated, info


gym.register("HinderedCartPole-v1", entry_point=Hindered)
