"""Small environments whose right answers are known, for tests, examples and `doctor`.

`Corridor` has values in closed form and can end in every way an episode can end. Its observations hold the number of
their episode, so a stored pair that crosses an episode is visible. `MaskedBandit` raises on illegal actions.
`CartPoleNoVelocity` and `MemoryChain` can only be solved with a recurrent model.
"""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

from cavalcade.errors import UserError
from cavalcade.specs import MASK

ENDINGS = ("terminated", "truncated", "both")


class Corridor(gym.Env):
    """Walk `length` steps to the end, whatever the action; every step pays `reward`.

    If `length` is a range (low, high), each episode's length is drawn from it. `numbered` observations are [episode,
    step], with episodes counted since the environment was made; others are the step as a one-hot vector, which a small
    network can learn from.
    """

    metadata = {"render_modes": []}

    def __init__(
        self,
        length: int | tuple[int, int] = 5,
        ending: str = "terminated",
        reward: float = 1.0,
        numbered: bool = True,
        render_mode: str | None = None,
    ) -> None:
        self._shortest, self._longest = (length, length) if isinstance(length, int) else length
        if ending not in ENDINGS or not 1 <= self._shortest <= self._longest:
            raise UserError(f"A Corridor needs a length of at least 1 and an ending out of {', '.join(ENDINGS)}.")
        self.render_mode = render_mode
        self._ending, self._reward, self._numbered = ending, reward, numbered
        size = 2 if numbered else self._longest + 1
        self.observation_space = gym.spaces.Box(0.0, np.inf if numbered else 1.0, (size,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self._episode = -1

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._episode += 1
        self._step = 0
        self._length = int(self.np_random.integers(self._shortest, self._longest + 1))
        return self._observe(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._step += 1
        over = self._step >= self._length
        terminated = over and self._ending in ("terminated", "both")
        truncated = over and self._ending in ("truncated", "both")
        return self._observe(), self._reward, terminated, truncated, {}

    def _observe(self) -> np.ndarray:
        if self._numbered:
            return np.array([self._episode, self._step], np.float32)
        one_hot = np.zeros(self._longest + 1, np.float32)
        one_hot[self._step] = 1.0
        return one_hot

    def value(self, step: int, discount: float) -> float:
        """The discounted sum of the rewards to come after `step` steps, for a fixed length. Truncation does not end the
        task: there the rewards go on for ever, and a learner that bootstraps rightly finds reward / (1 - discount)."""
        if self._ending == "truncated":
            return self._reward / (1.0 - discount)
        return self._reward * sum(discount**k for k in range(self._longest - step))


class MaskedBandit(gym.Env):
    """Arm k pays k / (arms - 1); in each step only some arms are legal, and pulling another raises.

    The best policy pulls the highest legal arm. `where` the mask is: 'observation' (a Dict space) or 'info' (as in
    Taxi).
    """

    metadata = {"render_modes": []}

    def __init__(
        self, arms: int = 6, steps: int = 20, where: str = "observation", render_mode: str | None = None
    ) -> None:
        if arms < 2 or steps < 1 or where not in ("observation", "info"):
            raise UserError("A MaskedBandit needs two arms, one step, and its mask in 'observation' or 'info'.")
        self.render_mode = render_mode
        self._arms, self._steps, self._where = arms, steps, where
        self.action_space = gym.spaces.Discrete(arms)
        progress = gym.spaces.Box(0.0, 1.0, (1,), np.float32)
        self.observation_space: gym.Space = progress
        if where == "observation":
            self.observation_space = gym.spaces.Dict(
                {"observation": progress, MASK: gym.spaces.Box(0, 1, (arms,), np.int8)}
            )

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self._step = 0
        return self._observe()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        if not self._legal[int(action)]:
            raise ValueError(f"arm {action} is not among the legal arms {np.flatnonzero(self._legal).tolist()}")
        self._step += 1
        observation, info = self._observe()
        return observation, int(action) / (self._arms - 1), self._step >= self._steps, False, info

    def _observe(self) -> tuple[Any, dict]:
        self._legal = (self.np_random.random(self._arms) < 0.5).astype(np.int8)
        self._legal[self.np_random.integers(self._arms)] = 1
        progress = np.array([self._step / self._steps], np.float32)
        if self._where == "info":
            return progress, {MASK: self._legal.copy()}
        return {"observation": progress, MASK: self._legal.copy()}, {}


class CartPoleNoVelocity(CartPoleEnv):
    """CartPole that shows only positions: velocities have to be inferred from what the model remembers."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)
        space = self.observation_space
        assert isinstance(space, gym.spaces.Box)
        self.observation_space = gym.spaces.Box(space.low[::2], space.high[::2], dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        observation, info = super().reset(seed=seed, options=options)
        return observation[::2].copy(), info

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation[::2].copy(), reward, terminated, truncated, info


class MemoryChain(gym.Env):
    """The first observation says which of two actions is right in the last of `length` steps.

    That action pays 1 and the other -1; no other step pays, and no other action matters. Observations are [cue, share
    of the steps that are done]: the cue is -1 or 1 at first (action 0 or 1 will be right) and 0 afterwards. A policy
    without memory earns 0 in the mean, whatever it does.
    """

    metadata = {"render_modes": []}

    def __init__(self, length: int = 20, render_mode: str | None = None) -> None:
        if length < 2:
            raise UserError(f"A MemoryChain needs a length of at least 2, but {length} was given; try length=20.")
        self.render_mode = render_mode
        self._length = length
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._step = 0
        self._right = int(self.np_random.integers(2))
        return np.array([2.0 * self._right - 1.0, 0.0], np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._step += 1
        over = self._step == self._length
        reward = 0.0 if not over else 1.0 if int(action) == self._right else -1.0
        return np.array([0.0, self._step / self._length], np.float32), reward, over, False, {}


def register() -> None:
    """Make the toys known to Gymnasium; a second call changes nothing."""
    known = {
        "cavalcade/Corridor-v0": (Corridor, None),
        "cavalcade/MaskedBandit-v0": (MaskedBandit, None),
        "cavalcade/CartPoleNoVelocity-v1": (CartPoleNoVelocity, 500),
        "cavalcade/MemoryChain-v0": (MemoryChain, None),
    }
    for name, (entry_point, limit) in known.items():
        if name not in gym.registry:
            gym.register(name, entry_point=f"{__name__}:{entry_point.__name__}", max_episode_steps=limit)
