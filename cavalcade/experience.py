"""What an algorithm learns from, as declarations. Adders build it, tables keep it, architectures read it."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from cavalcade.specs import EnvSpec
from cavalcade.tree import Tree


@dataclass(frozen=True)
class NStep:
    """Transitions (obs, action, sum of n rewards, discount, obs n steps later)."""

    n: int
    discount: float


@dataclass(frozen=True)
class Unroll:
    """`length` steps of one environment and the observation after them, with the carry before them."""

    length: int
    discount: float


@dataclass(frozen=True)
class Replay:
    """Kept and drawn many times: a uniform table."""

    size: int
    start: int  # items before the first draw
    samples_per_insert: float


@dataclass(frozen=True)
class Queue:
    """Drawn once, in order."""


@dataclass(frozen=True)
class Experience:
    item: NStep | Unroll
    store: Replay | Queue
    batch: int  # items of one update; for a queue 0 means one from each environment


def item_spec(item: NStep | Unroll, spec: EnvSpec, carry: Tree, extras: Tree) -> dict[str, Any]:
    """A zero item: its shapes and dtypes are the table's. `carry` and `extras` are of one environment."""
    if isinstance(item, NStep):
        scalar = np.zeros((), np.float32)
        return {
            "obs": spec.zeros(),
            "action": spec.action.zeros(),
            "reward": scalar,
            "discount": scalar,
            "next_obs": spec.zeros(),
        }
    rows = item.length + 1
    per_row = np.zeros(rows, np.float32)
    unroll = {
        "obs": spec.zeros(rows),
        "action": spec.action.zeros(rows),
        "reward": per_row,
        "discount": per_row,
        "valid": per_row,
        "first": np.zeros(rows, np.bool_),
        **{name: np.zeros((rows, *np.shape(extra)), extra.dtype) for name, extra in extras.items()},
    }
    return {**unroll, "carry": carry} if carry else unroll
