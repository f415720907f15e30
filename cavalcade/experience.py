"""What an algorithm learns from, as declarations. Adders build it, tables keep it, architectures read it."""

from dataclasses import dataclass


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
    period: int = 0  # steps from the start of one unroll to the start of the next; 0 is `length`, without overlap


@dataclass(frozen=True)
class Episode:
    """Whole episodes of up to `length` steps and the observation after them; longer ones in pieces."""

    length: int
    discount: float


@dataclass(frozen=True)
class Replay:
    """Kept and drawn many times, in proportion to priority ** exponent; an exponent of 0 is uniform."""

    size: int
    start: int  # items before the first draw
    samples_per_insert: float
    exponent: float = 0.0
    importance: float = 0.0  # exponent of the weights that correct for it


@dataclass(frozen=True)
class Queue:
    """Drawn once, in order."""


@dataclass(frozen=True)
class Experience:
    item: NStep | Unroll | Episode
    store: Replay | Queue
    batch: int  # items of one update; for a queue 0 means one from each environment
