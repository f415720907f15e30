"""What environments of every kind can do; `EnvironmentLoop` and `VectorAdapter` are the classes that do it."""

import math
from typing import Any, Protocol

import numpy as np

from cavalcade.envs.tally import Tally
from cavalcade.specs import EnvSpec
from cavalcade.step import Step
from cavalcade.tree import Tree


class Environments(Protocol):
    """N copies of one environment, stepped together (N is `count`)."""

    spec: EnvSpec
    count: int
    resume: str  # what `restore` can do: 'replayed' or 'restored' (both exact), or 'restarted' (new episodes)
    restarted: np.ndarray  # [N] bool; where the last `restore` had to begin a new episode
    metrics: Tally  # numbers that the environments put into their infos

    @property
    def remarks(self) -> dict[str, str]:
        """By field of the observation: a sentence on a value out of its bounds, which is harmless by itself."""

    def reset(self) -> Tree:
        """Begin a new episode everywhere; gives the observations [N, ...]."""

    def step(self, action: np.ndarray) -> Step:
        """Take actions [N, ...]: discrete ones count from zero, those of a Box are clipped to its bounds."""

    def state(self) -> dict:
        """All that `restore` needs in another process: a nested dict of arrays and JSON values."""

    def restore(self, state: dict) -> Tree:
        """Go on from `state`; gives the observations [N, ...] to act on next."""

    def render(self) -> np.ndarray | None:
        """A picture of environment 0 as [height, width, 3] uint8; None if it gives none."""

    def close(self) -> None: ...


def stream_seed(*counters: int) -> int:
    """A seed that depends on its counters only (seed of the run, actor, environment, episode): more actors or
    environments change no existing stream, and every episode can be begun again on its own."""
    return int(np.random.SeedSequence(counters).generate_state(1)[0])


def time_limit(env: Any) -> int:
    """Steps after which a Gymnasium environment truncates its episodes, as it declares; 0 if it declares nothing."""
    spec = getattr(env, "spec", None)
    limits = [spec.max_episode_steps] if spec is not None and spec.max_episode_steps else []
    suite = getattr(env, "unwrapped", None)
    if type(suite).__module__.startswith("shimmy.dm_control"):  # DeepMind's suite has limits that Gymnasium cannot see
        own = getattr(suite, "_step_limit", math.inf)  # in steps; infinite if there is none
        limits += [math.ceil(own)] if own < math.inf else []
    return min(limits, default=0)
