"""One record of a step for every kind of environment, so that no adder or learner depends on an autoreset mode.

Gymnasium has three autoreset modes, and code that was written for one of them silently stores transitions across the
end of an episode under another. Here there is one record: `next_observation` is always the true successor of the
observation that was acted on, `observation` is what to act on next, and `valid` says whether a transition happened at
all. The room `envs` makes the record, the room `experience` stores it.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cavalcade import tree
from cavalcade.tree import Tree


class FinishedEpisode(NamedTuple):
    """An episode that finished in this step."""

    environment: int  # its number among the N environments
    total: float  # sum of the raw rewards
    length: int  # environment steps


class Step(NamedTuple):
    """What one step of N environments gave. Arrays are new at every step. Treat them as read-only, because
    `observation` and `next_observation` are the same arrays if no episode ended."""

    next_observation: Tree  # [N, ...] the true successor; where an episode ended, its final observation
    reward: np.ndarray  # [N] float32, raw
    terminated: np.ndarray  # [N] bool
    truncated: np.ndarray  # [N] bool; where both are set, `terminated` counts
    valid: np.ndarray  # [N] bool; False where the environment spent the step on a reset and ignored the action
    observation: Tree  # [N, ...] what to act on next
    first: np.ndarray  # [N] bool; `observation` is the first of an episode
    episodes: list[FinishedEpisode]

    @property
    def resets_at_once(self) -> bool:
        """Whether in some environment an episode ended and the next began in this same step."""
        return self.next_observation is not self.observation

    @staticmethod
    def joined(steps: Sequence["Step"]) -> "Step":
        """T steps of [N, ...] as one of [T * N, ...], without the finished episodes."""
        reward, terminated, truncated, valid, first = (
            np.concatenate([getattr(step, name) for step in steps])
            for name in ("reward", "terminated", "truncated", "valid", "first")
        )
        after = here = tree.joined([step.next_observation for step in steps])
        if np.count_nonzero(first):  # if no episode begins, both observations are the same
            here = tree.joined([step.observation for step in steps])
        return Step(after, reward, terminated, truncated, valid, here, first, [])
