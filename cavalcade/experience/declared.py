"""What an algorithm learns from, as declarations. Adders build it, tables keep it, architectures read it."""

from dataclasses import dataclass

SMALLEST_PRIORITY = 1e-6  # so that what is understood can still be drawn again


@dataclass(frozen=True)
class NStep:
    """Transitions (obs, action, sum of n rewards, discount, obs n steps later)."""

    n: int
    discount: float
    clip_rewards: bool = False  # each to [-1, 1], before they are summed
    judged: bool = False  # items come with a priority, from the values that acting computed anyway (Ape-X)


@dataclass(frozen=True)
class Unroll:
    """`length` steps of one environment and the observation after them, with the carry before them. Where episodes are
    cut short, their final observations take the places of steps."""

    length: int
    discount: float
    period: int = 0  # places from the start of one unroll to the start of the next; 0 is `length`, without overlap


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
    tolerance: float = 0.0  # draws may run this share of the first `start` items' draws ahead or behind; 0 is lock step
    trim_every: int = 0  # draws between removals of what exceeds `size`; 0 removes at once


@dataclass(frozen=True)
class Queue:
    """Drawn once, in order; a share of every batch may be drawn again from the newest `replay_size` items."""

    batches: int = 1  # that may wait
    max_lag: int = 0  # updates after which what is drawn counts for nothing; 0 bears any lag
    replay_share: float = 0.0
    replay_size: int = 0


@dataclass(frozen=True)
class Experience:
    item: NStep | Unroll | Episode
    store: Replay | Queue
    batch: int  # items of one update; for a queue 0 means one from each environment
    flush: int = 1  # items that an actor gathers before it sends them
    pull_every: int = 0  # steps of each environment between two looks for newer parameters; 0 looks whenever it may

    @property
    def replay_share(self) -> float:
        """Of what is drawn, how much may have been drawn before."""
        return 1.0 if isinstance(self.store, Replay) else self.store.replay_share

    def patience(self, environments: int) -> int:
        """Steps after which an actor sends what it has gathered, be it less than `flush`: in so many, one item per step
        of each of its environments would have been enough."""
        return -(-self.flush // environments) - 1
