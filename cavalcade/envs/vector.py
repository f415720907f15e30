"""What environments of every kind can do, whoever made them: the classes are `EnvironmentLoop` and `VectorAdapter`."""

from typing import Any, Protocol

import numpy as np

from cavalcade.envs.tally import Tally
from cavalcade.specs import EnvSpec
from cavalcade.step import Step
from cavalcade.tree import Tree


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
