"""Flow control as one invariant (Reverb's): `inserts * samples_per_insert - samples` stays inside a window.

Whichever side would leave the window has to wait, so the ratio of learning to acting does not depend on how many actors
there are or how fast they run. Queues, minimum sizes and ratios are settings of the same four numbers.
"""

from dataclasses import dataclass, field
from math import floor, inf

from cavalcade.errors import UserError


@dataclass
class Limiter:
    samples_per_insert: float
    min_size: int
    min_diff: float
    max_diff: float
    inserts: int = field(default=0, init=False)
    deletes: int = field(default=0, init=False)
    samples: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if not self.samples_per_insert > 0 or not self.min_size >= 1:  # so asked, NaN is refused too
            raise UserError("A limiter needs samples_per_insert above 0 and min_size of at least 1.")
        # a queue counts whole items, so its window may be as narrow as one
        whole = self.samples_per_insert == 1 and self.min_diff % 1 == 0 and self.max_diff % 1 == 0
        needed = 1.0 if whole else 2 * max(1.0, self.samples_per_insert)
        if not self.max_diff - self.min_diff >= needed:
            raise UserError(
                f"The limiter's window of {self.max_diff - self.min_diff:g} must deadlock: with "
                f"{self.samples_per_insert:g} samples per insert it has to be at least {needed:g} wide."
            )

    @classmethod
    def at_least(cls, min_size: int) -> "Limiter":
        """Draw as much as you like once `min_size` items are there; inserts never wait."""
        return cls(1.0, min_size, -inf, inf)

    @classmethod
    def queue(cls, size: int) -> "Limiter":
        """At most `size` items wait; each is drawn once."""
        return cls(1.0, 1, 0.0, float(size))

    @classmethod
    def ratio(cls, samples_per_insert: float, min_size: int, slack: float) -> "Limiter":
        """Draw `samples_per_insert` times as much as is inserted, give or take `slack` samples."""
        centre = samples_per_insert * min_size
        return cls(samples_per_insert, min_size, centre - slack, centre + slack)

    def can_insert(self, count: int) -> bool:
        after = self.inserts + count
        return after - self.deletes <= self.min_size or after * self.samples_per_insert - self.samples <= self.max_diff

    @property
    def most_at_once(self) -> float:
        """Items of one insert above which it waits for ever: draws leave a balance of `min_diff` or more, from where it
        may rise by the width of the window, and even an emptied table takes no more than `min_size` regardless."""
        width = (self.max_diff - self.min_diff) / self.samples_per_insert
        return max(self.min_size, floor(width + 1e-9) if width < inf else inf)

    def can_sample(self, count: int) -> bool:
        if self.inserts - self.deletes < self.min_size:
            return False
        return self.inserts * self.samples_per_insert - self.samples - count >= self.min_diff

    def account(self) -> str:
        balance = self.inserts * self.samples_per_insert - self.samples
        return (
            f"{self.inserts - self.deletes} items (needs {self.min_size}), {self.inserts} inserted, "
            f"{self.samples} drawn, balance {balance:g} in the window [{self.min_diff:g}, {self.max_diff:g}]"
        )


def require_room(count: int, most: float) -> None:
    """Refuse to wait for room that there will never be."""
    if count > most:
        raise UserError(f"There is never room for {count:,} items at once: insert {most:,} or fewer.")
