"""One step record for every kind of environment, so that no learner ever sees an autoreset convention.

Gymnasium has three ways to begin the next episode, and code written for one of them silently stores
transitions that cross an episode under another. Here there is one record: `next_observation` is always the
true successor of the observation that was acted on, `observation` is what to act on next, and `valid` says
whether a transition happened at all. The classes that fill it in are `EnvironmentLoop` and `VectorAdapter`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from cavalcade import tree
from cavalcade.envs.tally import Tally
from cavalcade.specs import EnvSpec
from cavalcade.tree import Tree


class Episode(NamedTuple):
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
    episodes: list[Episode]

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


class Environments(Protocol):
    """N copies of one environment, stepped together."""

    spec: EnvSpec
    count: int
    resume: str  # what `restore` can do: 'replayed' or 'restored' (both exact), or 'restarted' (new episodes)
    restarted: np.ndarray  # [N] bool; where the last `restore` had to begin a new episode
    metrics: Tally  # numbers that the environments put into their infos

    @property
    def remarks(self) -> dict[str, str]:
        """Sentences on values out of their bounds, which do no harm by themselves, by the field of the observation."""

    def reset(self) -> Tree:
        """Begin a new episode everywhere; [N, ...]."""

    def step(self, action: np.ndarray) -> Step:
        """Discrete actions count from zero; Box actions may lie outside the bounds and are clipped here."""

    def state(self) -> dict:
        """Enough to continue elsewhere: a nested dict of arrays and JSON values."""

    def restore(self, state: dict) -> Tree:
        """Continue from `state`; [N, ...] what to act on next."""

    def render(self) -> np.ndarray | None:
        """A picture of environment 0 as [height, width, 3] uint8, where there is one."""

    def close(self) -> None: ...


def stream_seed(*counters: int) -> int:
    """A seed that depends on nothing but its counters (root seed, actor, environment, episode): adding actors
    or environments changes no existing stream, and any episode can be begun again on its own."""
    return int(np.random.SeedSequence(counters).generate_state(1)[0])


def time_limit(env: Any) -> int:
    """Steps after which a Gymnasium environment says that it cuts its episodes short; 0 if it does not say."""
    spec = getattr(env, "spec", None)
    return (spec.max_episode_steps or 0) if spec is not None else 0
