"""Stores, where items wait to be learned from: replay and queue. A store says how large its table is, and makes it."""

from dataclasses import dataclass, replace
from math import ceil, gcd
from typing import Any, ClassVar, NamedTuple

from cavalcade.table import Limiter, Signature, Table, prioritised

SMALLEST_PRIORITY = 1e-6  # added by algorithms, so that items with an error of zero can still be drawn


class Sizes(NamedTuple):
    """Of the tables of a store, in items."""

    queue: int  # items that may wait to be drawn once
    replay: int  # items that may be there to be drawn many times, with those that are inserted between two trims
    slack: float = 0.0  # drawn items by which learning may be ahead of acting or behind it


@dataclass(frozen=True)
class Replay:
    """Items are kept and drawn many times, in proportion to priority ** exponent; an exponent of 0 is uniform."""

    size: int  # items
    start: int  # items before the first draw
    samples_per_insert: float  # how often an item is drawn, on average
    exponent: float = 0.0
    importance: float = 0.0  # exponent of the weights that correct for drawing by priority
    tolerance: float = 0.0  # times `start` items: what learning may be ahead of acting or behind it; 0 is lock step
    trim_every: int = 0  # draws between two removals of items that exceed `size`; 0 removes them at once
    eviction: float = 0.0  # items that exceed `size` are removed in proportion to priority ** this; 0: the oldest

    drawn_once: ClassVar[bool] = False
    replay_share: ClassVar[float] = 1.0  # the share of a batch that may have been drawn before
    max_lag: ClassVar[int] = 0  # 0: no limit

    @property
    def correction(self) -> float | None:
        """The exponent of importance weights; None where draws are uniform."""
        return self.importance if self.exponent else None

    @property
    def ahead(self) -> bool:
        """Whether a batch may be drawn while the one before it is learned."""
        return self.tolerance > 0

    def first_draw(self, batch: int) -> int:
        """Items that have to be there before the first draw."""
        return self.start

    def dealt(self, share: int, whole: int, batch: int) -> tuple["Replay", int]:
        """One of several stores, into which `share` of `whole` actors write, and the batch of its draws. The batch
        stays as large as before, because all items of a draw may fall to one store."""
        size, start = (ceil(items * share / whole) for items in (self.size, self.start))
        return replace(self, size=size, start=start), batch

    def plan(self, batch: int, envs: int, actors: int, at_once: int) -> Sizes:
        """The sizes of the table. `at_once`: the most items that an actor sends together. The slack is what `tolerance`
        asks for, but at least one draw and one insert."""
        ratio = self.samples_per_insert
        slack = max(batch, ratio * at_once, ratio * self.start * self.tolerance, 1.0)
        if not self.trim_every:
            return Sizes(0, self.size, slack)
        between = ceil((self.trim_every * batch + 2 * slack) / ratio) + actors * at_once
        return Sizes(0, self.size + between, slack)

    def table(self, signature: Signature, sizes: Sizes, seed: int, **where: Any) -> Table:
        """The table. With a tolerance of 0 the limiter's window is as narrow as draws and inserts allow, so that acting
        and learning go in lock step."""
        sampler = prioritised(self.exponent) if self.exponent else "uniform"
        about: dict[str, Any] = {"trim_every": self.trim_every, "seed": seed, **where}
        limiter = Limiter.ratio(self.samples_per_insert, self.start, sizes.slack)
        remover = prioritised(self.eviction) if self.eviction else "fifo"
        return Table(
            signature, self.size, sampler, remover, limiter=limiter, overflow=sizes.replay - self.size, **about
        )


@dataclass(frozen=True)
class Queue:
    """Items are drawn once, in order. A share of every batch may come from a replay of the newest items beside it."""

    batches: int = 1  # batches that may wait
    max_lag: int = 0  # items whose lag is larger are not learned from; 0: no limit
    replay_share: float = 0.0  # the share of every batch that comes from the replay
    replay_size: int = 0  # items

    drawn_once: ClassVar[bool] = True
    correction: ClassVar[float | None] = None

    @property
    def ahead(self) -> bool:
        """Whether a batch may be drawn while the one before it is learned."""
        return self.batches > 1

    def first_draw(self, batch: int) -> int:
        """Items that have to be there before the first draw."""
        return batch

    def dealt(self, share: int, whole: int, batch: int) -> tuple["Queue", int]:
        """One of several stores, into which `share` of `whole` actors write, and the batch of its draws."""
        return self, ceil(batch * share / whole)

    def plan(self, batch: int, envs: int, actors: int, at_once: int) -> Sizes:
        """The sizes of the tables: room for `batches` batches, and for an actor's items (`envs`) as long as less than a
        batch waits, so that the queue never blocks an actor while the learner waits for more."""
        unit = 1 if self.replay_share else gcd(batch, envs)  # the number of waiting items is a multiple of this
        queue = max(self.batches * batch, batch - unit + envs)
        return Sizes(queue, self.replay_size if self.replay_share else 0)

    def table(self, signature: Signature, sizes: Sizes, seed: int, **where: Any) -> Table:
        return Table.queue(signature, sizes.queue, **where)
