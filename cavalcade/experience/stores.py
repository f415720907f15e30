"""Where items wait to be learned from. A store says how large its table has to be, and makes it."""

from dataclasses import dataclass, replace
from math import ceil, gcd
from typing import Any, ClassVar, NamedTuple

from cavalcade.table import Limiter, Signature, Table, prioritised

SMALLEST_PRIORITY = 1e-6  # so that what is understood can still be drawn again


class Sizes(NamedTuple):
    """Of the tables of a store, in items."""

    queue: int  # that may wait to be drawn once
    replay: int  # that may be there to be drawn again, with what comes in between two removals
    slack: float = 0.0  # draws by which learning may be ahead or behind


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

    drawn_once: ClassVar[bool] = False
    replay_share: ClassVar[float] = 1.0  # of what is drawn, how much may have been drawn before
    max_lag: ClassVar[int] = 0  # any is borne

    @property
    def correction(self) -> float | None:
        """The exponent of importance weights; None where draws are uniform."""
        return self.importance if self.exponent else None

    @property
    def ahead(self) -> bool:
        """Whether a batch may be drawn while the one before it is learned."""
        return self.tolerance > 0

    def first_draw(self, batch: int) -> int:
        """Items that have to be there."""
        return self.start

    def dealt(self, share: int, whole: int, batch: int) -> tuple["Replay", int]:
        """The store to which `share` of `whole` actors write, and the batch of its draws: that stays whole, because
        all of a draw may fall to one store."""
        size, start = (ceil(items * share / whole) for items in (self.size, self.start))
        return replace(self, size=size, start=start), batch

    def plan(self, batch: int, envs: int, actors: int, at_once: int) -> Sizes:
        """`at_once`: items that an actor may send together. The slack is what is asked for, and at least what comes in
        one piece."""
        ratio = self.samples_per_insert
        slack = max(batch, ratio * at_once, ratio * self.start * self.tolerance, 1.0)
        if not self.trim_every:
            return Sizes(0, self.size, slack)
        between = ceil((self.trim_every * batch + 2 * slack) / ratio) + actors * at_once
        return Sizes(0, self.size + between, slack)

    def table(self, signature: Signature, sizes: Sizes, seed: int, **where: Any) -> Table:
        """Where no slack is asked for there is as little as batches allow: acting and learning go in lock step."""
        sampler = prioritised(self.exponent) if self.exponent else "uniform"
        about: dict[str, Any] = {"trim_every": self.trim_every, "seed": seed, **where}
        limiter = Limiter.ratio(self.samples_per_insert, self.start, sizes.slack)
        return Table(signature, self.size, sampler, limiter=limiter, overflow=sizes.replay - self.size, **about)


@dataclass(frozen=True)
class Queue:
    """Drawn once, in order; a share of every batch may be drawn again from the newest `replay_size` items."""

    batches: int = 1  # that may wait
    max_lag: int = 0  # updates after which what is drawn counts for nothing; 0 bears any lag
    replay_share: float = 0.0
    replay_size: int = 0

    drawn_once: ClassVar[bool] = True
    correction: ClassVar[float | None] = None

    @property
    def ahead(self) -> bool:
        """Whether a batch may be drawn while the one before it is learned."""
        return self.batches > 1

    def first_draw(self, batch: int) -> int:
        """Items that have to be there."""
        return batch

    def dealt(self, share: int, whole: int, batch: int) -> tuple["Queue", int]:
        """The store to which `share` of `whole` actors write, and the batch of its draws."""
        return self, ceil(batch * share / whole)

    def plan(self, batch: int, envs: int, actors: int, at_once: int) -> Sizes:
        """The batches asked for, and as long as less than a batch is there, room for what an actor sends at once."""
        unit = 1 if self.replay_share else gcd(batch, envs)  # what waits is a multiple of it
        queue = max(self.batches * batch, batch - unit + envs)
        return Sizes(queue, self.replay_size if self.replay_share else 0)

    def table(self, signature: Signature, sizes: Sizes, seed: int, **where: Any) -> Table:
        return Table.queue(signature, sizes.queue, **where)
