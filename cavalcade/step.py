"""One record of a step for every kind of environment, so that no learner ever sees an autoreset convention.

Gymnasium has three ways to begin the next episode, and code written for one of them silently stores
transitions that cross an episode under another. Here there is one record: `next_observation` is always the
true successor of the observation that was acted on, `observation` is what to act on next, and `valid` says
whether a transition happened at all. The rooms `envs` (which fills it in) and `experience` (which keeps it) share it.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cavalcade import tree
from cavalcade.tree import Tree


class FinishedEpisode(NamedTuple):
    """An episode that just finished, as the user would score it: raw rewards, environment steps."""

    environment: int
    total: float
    length: int


class Step(NamedTuple):
    """What one step of N environments gave. Arrays are new at every step; treat them as read-only, because
    `observation` and `next_observation` are the same arrays when no episode ended."""

    next_observation: Tree  # [N, ...] the final observation where an episode ended
    reward: np.ndarray  # [N] float32, raw
    terminated: np.ndarray  # [N] bool
    truncated: np.ndarray  # [N] bool; with `terminated` as well, the state is terminal
    valid: np.ndarray  # [N] bool; False where the environment was busy resetting and ignored the action
    observation: Tree  # [N, ...] what to act on next
    first: np.ndarray  # [N] bool; `observation` is the first of an episode
    episodes: list[FinishedEpisode]

    @property
    def resets_at_once(self) -> bool:
        """Whether somewhere an episode ended and the next began in this step."""
        return self.next_observation is not self.observation

    @staticmethod
    def joined(steps: Sequence["Step"]) -> "Step":
        """[N, ...] of each as one [T * N, ...], without the episodes."""
        reward, terminated, truncated, valid, first = (
            np.concatenate([getattr(step, name) for step in steps])
            for name in ("reward", "terminated", "truncated", "valid", "first")
        )
        after = here = tree.joined([step.next_observation for step in steps])
        if np.count_nonzero(first):  # where no episode begins both are the same
            here = tree.joined([step.observation for step in steps])
        return Step(after, reward, terminated, truncated, valid, here, first, [])
