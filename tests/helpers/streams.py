"""Vector environments with known streams, in every autoreset mode, for tests of adders and returns."""

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

MODES = [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED]


class Streams(VectorEnv):
    """Episodes of random length that end by termination, truncation or both, all environments at once in NumPy.

    An observation is [episode number over all environments, step, how the episode will end, its length]; the reward
    of a step is a known function of both, so that anything stored can be checked against what must have happened.
    """

    def __init__(self, count: int, mode: AutoresetMode, longest: int = 7, endings: tuple = (0, 1, 2), seed: int = 0):
        self.num_envs, self.mode, self.longest, self.endings = count, mode, longest, endings
        self.metadata = {"autoreset_mode": mode}
        self.single_observation_space = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
        self.single_action_space = gym.spaces.Discrete(2)
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, count)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, count)
        self.rng = np.random.default_rng(seed)
        self.begun = 0
        self.now = np.zeros((count, 4), np.float32)
        self.over = np.zeros(count, bool)

    def _begin(self, which: np.ndarray) -> None:
        count = int(which.sum())
        self.now[which, 0] = np.arange(self.begun, self.begun + count)
        self.now[which, 1] = 0
        self.now[which, 2] = self.rng.choice(self.endings, count)
        self.now[which, 3] = self.rng.integers(1, self.longest + 1, count)
        self.begun += count

    def reset(self, *, seed=None, options=None):
        which = options["reset_mask"] if options else np.ones(self.num_envs, bool)
        self._begin(which)
        self.over = self.over & ~which
        return self.now.copy(), {}

    def step(self, actions):
        resetting = self.over if self.mode is AutoresetMode.NEXT_STEP else np.zeros(self.num_envs, bool)
        self.now[~resetting, 1] += 1
        reward = np.where(resetting, 0.0, reward_of(self.now))
        ended = ~resetting & (self.now[:, 1] >= self.now[:, 3])
        terminated, truncated = ended & (self.now[:, 2] != 1), ended & (self.now[:, 2] != 0)
        info = {}
        if resetting.any():
            self._begin(resetting)
        if self.mode is AutoresetMode.SAME_STEP and ended.any():
            final = np.empty(self.num_envs, object)
            for i in np.flatnonzero(ended):
                final[i] = self.now[i].copy()
            info = {"final_obs": final, "_final_obs": ended}
            self._begin(ended)
        self.over = ended
        return self.now.copy(), reward, terminated, truncated, info


def reward_of(after: np.ndarray) -> np.ndarray:
    """The reward of the step that led to this observation [..., 4]."""
    return 1.0 + 0.1 * after[..., 1] + 0.01 * (after[..., 0] % 7)


def value_of(obs: np.ndarray) -> np.ndarray:
    """Some value function [...]; any will do to check bootstrapping."""
    return 3.0 - 0.5 * obs[..., 1] + 0.3 * (obs[..., 0] % 5)
