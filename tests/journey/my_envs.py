"""Environments as users write them: one that is right, and one for each thing that is easily got wrong."""

import gymnasium as gym
import numpy as np


class Mine(gym.Env):
    """Ten steps; the second action pays."""

    observation_space: gym.Space = gym.spaces.Box(-1.0, 1.0, (3,))
    action_space: gym.Space = gym.spaces.Discrete(2)

    def __init__(self, image: bool = True):
        if image:
            self.observation_space = gym.spaces.Box(0, 255, (40, 40, 3), np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.look(), {}

    def step(self, action):
        self.steps += 1
        return self.look(), float(action), self.steps == 10, False, {}

    def look(self):
        space = self.observation_space
        assert isinstance(space, gym.spaces.Box)
        return self.np_random.uniform(0, 1, space.shape).astype(space.dtype)


class Vector(Mine):
    def __init__(self):
        super().__init__(image=False)


class FloatImage(Vector):
    """A picture of fractions where bytes are declared."""

    observation_space = gym.spaces.Box(0, 255, (6, 6), np.uint8)

    def look(self):
        return self.np_random.uniform(0, 1, (6, 6)).astype(np.float32)


class WrongShape(Vector):
    def step(self, action):
        observation, *rest = super().step(action)
        return observation[:2], *rest


class FourTuple(Vector):
    """As old Gym had it."""

    def step(self, action):
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated, info


class NoSeed(Vector):
    def reset(self):
        return super().reset()


class ShortMask(Vector):
    action_space = gym.spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0], {"action_mask": np.ones(3, np.int8)}


class OutOfRange(Vector):
    observation_space = gym.spaces.Discrete(4)

    def look(self):
        return 0 if self.steps == 0 else 7


class Fails(Vector):
    def step(self, action):
        raise KeyError("no such piece")


def short_cartpole():
    return gym.make("CartPole-v1", max_episode_steps=50)


for kind in (Mine, FloatImage, WrongShape, FourTuple, NoSeed, ShortMask, OutOfRange, Fails):
    gym.register(f"{kind.__name__}-v0", entry_point=f"{__name__}:{kind.__name__}")
