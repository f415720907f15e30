"""Several tables that a learner draws from in the place of one.

`Mixture` takes a fixed share of every draw from each part (each table), as IMPALA with replay does. `Shards` are one
table in pieces: an item is drawn as often as if all of them were in one table.

Parts are written to, saved and closed on their own; the state here is only what decides the next draws. Nobody else may
draw from the parts. A draw is all or nothing: it takes items only when every part can give its number. Should items
vanish from a part between that question and the draw (deleted, or removed for want of rows), the draw waits for new
ones, because items that other parts have given already cannot be put back.

A key here is `key in its part * parts + part`. Keys of a table stay below 2 * capacity * inserts, so keys here fit an
int64 for 2 ** 62 / (parts * capacity) inserts into each part: 5e10 for 8 parts of ten million items. `age` counts the
inserts into an item's own part.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import ceil, floor, inf, isclose
from typing import Any

import numpy as np

from cavalcade import tree
from cavalcade.errors import Stopped, UserError
from cavalcade.table import _core
from cavalcade.table.planes import Recycler
from cavalcade.table.table import Sample, Table

SLICE = 0.02  # seconds: a wait is woken by one part at once, and looks at the other parts and for a stop this often


class _Parts:
    """What mixtures and shards have in common: waiting, keys, and joining the draws of several tables to one batch."""

    def __init__(self, parts: dict[str, Table]):
        self.names, self.tables = list(parts), list(parts.values())
        self.mutex = threading.Lock()  # one thread at a time decides the next draw and draws
        self.recycler = Recycler()
        if not self.tables:
            raise UserError("At least one table is needed to draw from.")
        if len({id(table) for table in self.tables}) < len(self.tables):
            raise UserError("The same table was given twice; each may be there once.")
        for name, table in parts.items():
            if _contents(table) != _contents(self.tables[0]):
                raise UserError(f"The items of {name} and {self.names[0]} differ: one batch cannot hold both.")

    def _plan(self, count: int) -> list[int] | None:
        """How many items the next draw takes from each part; None if that cannot be decided yet. The answer stays the
        same until the draw."""
        raise NotImplementedError

    def _finish(self, counts: list[int], drawn: list[Sample], importance: float) -> Sample:
        """One sample out of `drawn`, the samples of the parts with a count above 0."""
        raise NotImplementedError

    def __len__(self) -> int:
        return sum(map(len, self.tables))

    def can_sample(self, count: int) -> bool:
        with self.mutex:
            return self._missing(self._plan(count)) is None

    def sample(self, count: int, importance: float = 0.0, timeout: float | None = 0.0) -> Sample | None:
        """Draw `count` items; None, and nothing is drawn, if a part cannot give its number within `timeout` seconds
        (None: waits for ever)."""
        end = inf if timeout is None else time.monotonic() + timeout
        while True:
            with self.mutex:
                counts = self._plan(count)
                missing = self._missing(counts)
                if counts is not None and missing is None:
                    return self._draw(counts, importance)
            if timeout == 0.0:
                return None
            if any(table.stopped for table in self.tables):
                raise Stopped("The table was stopped.")
            left = end - time.monotonic()
            if left <= 0:
                return None
            assert missing is not None  # else the draw would have been made
            missing.wait(min(left, SLICE))

    def _missing(self, counts: list[int] | None) -> Table | None:
        """A part that cannot give its number now, or None if all can. Without `counts` it is the first part, only so
        that there is one to wait for."""
        if counts is None:
            return self.tables[0]
        return next((table for table, n in zip(self.tables, counts) if n and not table.can_sample(n)), None)

    def _draw(self, counts: list[int], importance: float) -> Sample:
        drawn = []
        for part, (table, count) in enumerate(zip(self.tables, counts)):
            if count:
                sample = table.sample(count, importance, timeout=None)
                assert sample is not None  # because without a timeout it waits
                drawn.append(sample._replace(keys=self._outer(sample.keys, part)))
        return self._finish(counts, drawn, importance)

    def _outer(self, keys: np.ndarray, part: int) -> np.ndarray:
        """The keys [n] of a part as keys of the whole."""
        if int(keys.max()) >= 2**63 // len(self.tables):
            raise OverflowError("So many items were inserted that their keys no longer fit; use fewer parts.")
        return keys * len(self.tables) + part

    def _joined(self, samples: list[Sample], places: list[Any]) -> Sample:
        """One sample, in which the items of samples[i] lie at the indices places[i]."""
        return Sample(*(tree.placed(columns, places, self.recycler.empty) for columns in zip(*samples)))

    def update_priorities(self, keys: np.ndarray, priority: np.ndarray) -> int:
        """Set priorities [M] of the items with these keys; returns how many were still there, others are ignored."""
        inner, part = np.divmod(np.asarray(keys, np.int64), len(self.tables))
        priority = np.asarray(priority, np.float32)
        if inner.shape != priority.shape:
            raise ValueError("one priority for each key is needed")
        here = [part == number for number in range(len(self.tables))]
        return sum(table.update_priorities(inner[at], priority[at]) for table, at in zip(self.tables, here))

    def account(self) -> str:
        return "; ".join(f"{name}: {table.account()}" for name, table in zip(self.names, self.tables))

    def report(self) -> dict:
        return {"table_size": len(self), "table_capacity": sum(table.size for table in self.tables)}

    def stop(self) -> None:
        """Stop every part: calls that wait, here or at a part, raise `Stopped`."""
        for table in self.tables:
            table.stop()


class Mixture(_Parts):
    """`Mixture({"queue": (queue, 0.5), "replay": (replay, 0.5)})`: each part gives its share of every draw.

    Every draw has exactly the number of items asked for. Where a part's share of a draw is no whole number, the
    fraction is carried over: the number of items that a part has given differs from its share of all drawn items by
    less than 1.

    Items lie part after part, in the order of the parts, so a learner that cuts a draw into minibatches has to shuffle
    it first. An item's probability is that within its part times the part's share of this draw. Weights are those of
    each part by itself: they correct how its sampler chooses, but not the shares, which are intended. The largest is 1.

    Without `start_alone` nothing is drawn until every part can give its share. If a replay needs more items than the
    queue beside it holds, and the same actors fill both, that never happens: the queue is full, the actors wait, and
    the replay does not grow. With `start_alone`, parts that keep their items (no `max_times_sampled`) are left out
    while they hold fewer items than the minimum size of their limiter, and the other parts give the whole draw in
    proportion to their shares. A part that was left out gives no more later for that. A part that waits for another
    reason, or an empty queue, still holds up the draw.
    """

    def __init__(
        self,
        parts: Mapping[str, tuple[Table, float]] | Sequence[tuple[Table, float]],
        start_alone: bool = False,
    ):
        pairs = parts if isinstance(parts, Mapping) else {f"part {i}": pair for i, pair in enumerate(parts)}
        super().__init__({name: table for name, (table, _) in pairs.items()})
        given = [share for _, share in pairs.values()]
        if not all(share >= 0 for share in given) or not isclose(sum(given), 1.0, abs_tol=1e-6):
            shares = ", ".join(f"{share:g}" for share in given)
            raise UserError(f"The shares of a mixture are {shares}: none may be negative, and their sum has to be 1.")
        exact = [Fraction(share) for share in given]  # floats would round whether an item is due in this draw
        self.shares = [share / sum(exact) for share in exact]
        self.start_alone = start_alone
        self.giving: tuple[int, ...] = ()  # the parts that the next draw comes from
        self.given: dict[tuple[int, ...], list[int]] = {}  # by `giving`: how many items each part has given so far

    def _plan(self, count: int) -> list[int] | None:
        _at_least_one(count)
        self.giving = tuple(i for i, share in enumerate(self.shares) if share and not self._left_out(self.tables[i]))
        if not self.giving:
            return None
        before = self._so_far()
        return [now - then for now, then in zip(self._after(before, sum(before) + count), before)]

    def _left_out(self, table: Table) -> bool:
        return self.start_alone and not table.max_times_sampled and len(table) < table.limiter.min_size

    def _so_far(self) -> list[int]:
        return self.given.get(self.giving, [0] * len(self.tables))

    def _after(self, before: list[int], total: int) -> list[int]:
        """How many items each part has given once `total` items are drawn: its share, rounded up or down.

        Every part first gives its share rounded down; the rest falls to the parts whose next item is due soonest. In
        this order a draw never has fewer items than are due. With the largest remainder first that can happen, from
        five parts on.
        """
        whole = sum(self.shares[i] for i in self.giving)
        ideal = [self.shares[i] / whole * total if i in self.giving else Fraction(0) for i in range(len(self.shares))]
        after = [max(then, floor(share)) for then, share in zip(before, ideal)]
        open_to = [i for i, share in enumerate(ideal) if after[i] < ceil(share)]
        for i in sorted(open_to, key=lambda i: (after[i] + 1) / self.shares[i])[: total - sum(after)]:
            after[i] += 1
        return after

    def _finish(self, counts: list[int], drawn: list[Sample], importance: float) -> Sample:
        self.given[self.giving] = [now + more for now, more in zip(self._so_far(), counts)]
        size = sum(counts)
        ends = np.cumsum([len(sample.keys) for sample in drawn]).tolist()
        places = [slice(start, end) for start, end in zip([0, *ends], ends)]
        scaled = [sample._replace(probability=sample.probability * (len(sample.keys) / size)) for sample in drawn]
        return self._joined(scaled, places)

    def state(self) -> dict:
        """How many items each part has given so far; the parts are saved on their own."""
        with self.mutex:
            return {"given": [[list(parts), list(items)] for parts, items in self.given.items()]}

    def restore(self, state: dict) -> None:
        with self.mutex:
            self.given = {tuple(parts): list(items) for parts, items in state["given"]}


class Shards(_Parts):
    """Tables of one process, drawn from as if they were one table, with the probabilities and weights of that table.

    For each item of a draw a shard is chosen in proportion to the sum of its items' shares (the number of its items if
    it draws uniformly), then the shard draws an item. So the numbers of items are multinomial. Items lie in the order
    in which shards were chosen, so any slice of a batch is a fair sample. If all priorities are zero the draw is
    uniform. A shard without items is never chosen.

    A choice stands until its shard can give the item, however long that takes: choosing again would favour shards that
    never wait. An item's probability is that with which it was really drawn: the shard's share when it was chosen times
    the item's share in the shard. Over all items they sum to 1 at any moment. No choice is made while a shard has
    items, but fewer than the minimum size of its limiter.

    As all items of a draw may fall to one shard, the window of its limiter has to be wider than a draw. If limiters
    have windows, each shard also needs writers of its own: a writer that waits at one shard cannot bring the items that
    another shard needs.
    """

    def __init__(self, tables: Sequence[Table], seed: int = 0):
        super().__init__({f"shard {i}": table for i, table in enumerate(tables)})
        for name, table in zip(self.names, self.tables):
            if table.sampler.kind not in ("uniform", "prioritised"):
                raise UserError(f"{name} draws '{table.sampler.kind}'; shards have to draw uniformly or prioritised.")
            if table.max_times_sampled:
                raise UserError(
                    f"{name} drops items after {table.max_times_sampled} draws; shards need max_times_sampled=0."
                )
        samplers = [str(table.sampler) for table in self.tables]
        if len(set(samplers)) > 1:
            raise UserError(f"The shards draw {', '.join(samplers)}: all have to draw alike.")
        self.rng = np.random.default_rng(seed)
        self.chosen = np.zeros(0, np.int64)  # shards that were chosen and have not given their items yet
        self.share = np.zeros(0)  # the probability with which each of them was chosen

    def _plan(self, count: int) -> list[int] | None:
        _at_least_one(count)
        more = count - len(self.chosen)
        if more > 0:
            sizes = [len(table) for table in self.tables]
            if any(0 < size < table.limiter.min_size for size, table in zip(sizes, self.tables)):
                return None
            totals = np.array([_core.total(table.core) for table in self.tables])
            if not totals.any():  # if all priorities are zero a table draws uniformly
                totals = np.array(sizes, np.float64)
            if not totals.any():
                return None
            share = totals / totals.sum()
            chosen = self.rng.choice(len(share), more, p=share)
            self.chosen = np.concatenate([self.chosen, chosen])
            self.share = np.concatenate([self.share, share[chosen]])
        return np.bincount(self.chosen[:count], minlength=len(self.tables)).tolist()

    def _finish(self, counts: list[int], drawn: list[Sample], importance: float) -> Sample:
        size = sum(counts)
        places = [np.flatnonzero(self.chosen[:size] == part) for part, count in enumerate(counts) if count]
        sample = self._joined(drawn, places)
        probability = sample.probability * self.share[:size]
        self.chosen, self.share = self.chosen[size:], self.share[size:]
        weight = probability**-importance  # without the factor N ** -importance: the maximum has it too
        return sample._replace(probability=probability, weight=(weight / weight.max()).astype(np.float32))

    def account(self) -> str:
        chosen = np.bincount(self.chosen, minlength=len(self.tables)).tolist()
        return f"{super().account()}; to be drawn next: {chosen}"

    def state(self) -> dict:
        """What decides the next choices; the shards are saved on their own."""
        with self.mutex:
            rng = self.rng.bit_generator.state
            return {"rng": rng, "chosen": self.chosen.copy(), "share": self.share.copy()}

    def restore(self, state: dict) -> None:
        with self.mutex:
            self.rng.bit_generator.state = state["rng"]
            self.chosen, self.share = state["chosen"].copy(), state["share"].copy()


def _at_least_one(count: int) -> None:
    if count < 1:
        raise UserError(f"A draw takes at least 1 item, not {count}.")


def _contents(table: Table) -> tuple:
    """Everything that decides the shapes of the table's samples, to be compared."""
    kept = table.signature
    leaves = tree.named({"own": kept.own, "obs": kept.rows.obs, "done": kept.rows.done})
    return kept.length, kept.rows.stack, [(path, leaf.shape, leaf.dtype) for path, leaf in leaves]
