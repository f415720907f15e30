"""Flow control by one invariant (Reverb's): the balance `inserts * samples_per_insert - samples` stays in a window.

An insert or a draw that would leave the window has to wait, so the ratio of learning to acting does not depend on how
many actors there are or how fast they run. Queues, minimum sizes and ratios are settings of the same four numbers.
"""

from dataclasses import dataclass, field
from math import floor, inf

from cavalcade.errors import UserError


@dataclass
class Limiter:
    """Says when a table may be written to and drawn from. All counts are items."""

    samples_per_insert: float  # how often an inserted item is drawn, on average
    min_size: int  # items in the table before it may be drawn from; up to them inserts never wait
    min_diff: float  # a draw may not lower the balance below this
    max_diff: float  # an insert may not raise the balance above this
    inserts: int = field(default=0, init=False)  # items inserted so far
    deletes: int = field(default=0, init=False)  # items removed so far
    samples: int = field(default=0, init=False)  # items drawn so far

    def __post_init__(self) -> None:
        if not self.samples_per_insert > 0 or not self.min_size >= 1:  # so asked, NaN is refused too
            raise UserError("A limiter needs samples_per_insert above 0 and min_size of at least 1.")
        # where every item is drawn once, the balance is a whole number and its window may be as narrow as 1
        whole = self.samples_per_insert == 1 and self.min_diff % 1 == 0 and self.max_diff % 1 == 0
        needed = 1.0 if whole else 2 * max(1.0, self.samples_per_insert)
        if not self.max_diff - self.min_diff >= needed:
            raise UserError(
                f"The limiter's window of {self.max_diff - self.min_diff:g} must deadlock: with "
                f"{self.samples_per_insert:g} samples per insert it has to be at least {needed:g} wide."
            )

    @classmethod
    def at_least(cls, min_size: int) -> "Limiter":
        """Inserts never wait; draws wait only until `min_size` items are there."""
        return cls(1.0, min_size, -inf, inf)

    @classmethod
    def queue(cls, size: int) -> "Limiter":
        """Each item is drawn once; an insert waits while it would make more than `size` items."""
        return cls(1.0, 1, 0.0, float(size))

    @classmethod
    def ratio(cls, samples_per_insert: float, min_size: int, slack: float) -> "Limiter":
        """Draw each item `samples_per_insert` times on average; the number of draws may differ by `slack`."""
        centre = samples_per_insert * min_size
        return cls(samples_per_insert, min_size, centre - slack, centre + slack)

    def can_insert(self, count: int) -> bool:
        after = self.inserts + count
        return after - self.deletes <= self.min_size or after * self.samples_per_insert - self.samples <= self.max_diff

    @property
    def most_at_once(self) -> float:
        """The most items that one insert can hold; a larger one would wait for ever. Draws lower the balance to
        `min_diff` at least, from where one insert may raise it by the width of the window. Regardless of the balance an
        empty table takes `min_size` items."""
        width = (self.max_diff - self.min_diff) / self.samples_per_insert
        return max(self.min_size, floor(width + 1e-9) if width < inf else inf)

    def can_sample(self, count: int) -> bool:
        if self.inserts - self.deletes < self.min_size:
            return False
        return self.inserts * self.samples_per_insert - self.samples - count >= self.min_diff

    def account(self) -> str:
        """One line on why the table waits, for the message when no node of a program can move."""
        balance = self.inserts * self.samples_per_insert - self.samples
        return (
            f"{self.inserts - self.deletes} items (needs {self.min_size}), {self.inserts} inserted, "
            f"{self.samples} drawn, balance {balance:g} in the window [{self.min_diff:g}, {self.max_diff:g}]"
        )


def require_room(count: int, most: float) -> None:
    """Refuse an insert of `count` items if there can never be room for more than `most` at once."""
    if count > most:
        raise UserError(f"There is never room for {count:,} items at once: insert {most:,} or fewer.")
