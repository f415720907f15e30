"""The table between acting and learning. Sampler, remover, size and limiter mean what they mean in Reverb."""

import time
from typing import Any, NamedTuple

import numpy as np

from cavalcade.errors import UserError
from cavalcade.table import _core
from cavalcade.table.limiter import Limiter, require_room
from cavalcade.table.rows import Rows
from cavalcade.table.selectors import Selector, prioritised, selector
from cavalcade.table.signature import Items, Signature
from cavalcade.table.store import NEXT
from cavalcade.table.waiting import Waiting, refuse_nonsense
from cavalcade.transport import Memory, available
from cavalcade.tree import Tree

# of a writer in another process, unless the table is told otherwise: rows that it may hold, and the least number of
# items that can be on their way from it
UNDER_WAY, POSTED = 256, 2048


class Sample(NamedTuple):
    """One draw of B items."""

    items: Tree  # [B, ...]
    keys: np.ndarray  # [B] int64, to update priorities by
    probability: np.ndarray  # [B] float64, with which each item was drawn
    weight: np.ndarray  # [B] float32, (N * probability) ** -importance over the largest of them; N items are there
    times_sampled: np.ndarray  # [B] int32, how often each item was drawn, this time included
    age: np.ndarray  # [B] int64, inserts since each item was made, its own included
    version: np.ndarray  # [B] int64, of the params that acted
    made: np.ndarray  # [B] float64, when each item was made: seconds of the wall clock


class Table(Waiting):
    """A table in this process. The class methods `queue`, `stack`, `uniform` and `prioritised` make the usual kinds.

    Calls do not wait unless they are given a timeout: `False` and `None` mean "not now". They may come from any thread.
    Tables that are given the same `rows` share observations.
    """

    def __init__(
        self,
        signature: Signature | Tree,
        size: int,
        sampler: str | Selector = "uniform",
        remover: str | Selector = "fifo",
        *,
        limiter: Limiter | None = None,
        max_times_sampled: int = 0,  # an item is removed when it was drawn so often; 0: never for that
        overflow: int = 0,  # items by which `size` may be exceeded until the table is trimmed
        trim_every: int = 0,  # draws after which a table with `overflow` is trimmed to `size`; 0: never by itself
        rows: Rows | None = None,
        writer_rows: int = UNDER_WAY,  # rows that a writer in another process may hold
        writer_items: int = 0,  # items that can be on their way from such a writer; 0: as many as it can make
        memory: Memory | None = None,
        compressed: bool = False,
        seed: int = 0,
    ):
        self.limiter = limiter or Limiter.at_least(1)
        self.size, self.overflow, self.trim_every = size, overflow, trim_every
        refuse_nonsense(self.limiter, size, overflow, max_times_sampled)
        given = signature if isinstance(signature, Signature) else Signature.whole(signature)
        capacity, memory = size + overflow, memory or Memory()
        if rows is None:
            rows = Rows(given.rows, given.length * capacity + UNDER_WAY if given.length else 1, memory, compressed)
        choosers = (selector(sampler), selector(remover))
        super().__init__(given, capacity, *choosers, max_times_sampled, rows, memory, compressed, seed)
        self.lock = rows.lock  # one thread at a time changes tables that share rows
        self.draws, self.stopped, self.copied = 0, False, True
        self.writer_rows, self.writer_items = writer_rows, writer_items
        self.held = 0  # items that were drawn and still take room, see `hold`
        self.promised = 0  # items that writers in other processes were promised room for and have not inserted yet

    @classmethod
    def queue(cls, signature: Signature | Tree, size: int, **more: Any) -> "Table":
        """First in, first out, each item drawn once; inserts wait while the queue is full."""
        return cls(signature, size, "fifo", "fifo", limiter=Limiter.queue(size), max_times_sampled=1, **more)

    @classmethod
    def stack(cls, signature: Signature | Tree, size: int, **more: Any) -> "Table":
        """Last in, first out, each item drawn once; inserts wait while the stack is full."""
        return cls(signature, size, "lifo", "fifo", limiter=Limiter.queue(size), max_times_sampled=1, **more)

    @classmethod
    def uniform(cls, signature: Signature | Tree, size: int, limiter: Limiter | None = None, **more: Any) -> "Table":
        """Replay: keeps the newest `size` items and draws them uniformly, with replacement."""
        return cls(signature, size, "uniform", "fifo", limiter=limiter, **more)

    @classmethod
    def prioritised(
        cls, signature: Signature | Tree, size: int, limiter: Limiter | None = None, exponent: float = 0.6, **more: Any
    ) -> "Table":
        """Replay: keeps the newest `size` items and draws them in proportion to priority ** exponent. An item that is
        inserted without a priority gets the highest one so far."""
        return cls(signature, size, prioritised(exponent), "fifo", limiter=limiter, **more)

    # --- moving ---------------------------------------------------------------------------------------------------

    def insert(
        self,
        items: Items | Tree,
        version: int = 0,
        priority: np.ndarray | None = None,
        timeout: float | None = 0.0,
        made: float | None = None,
    ) -> bool:
        """Store items [M, ...]; returns False and stores nothing if the limiter does not allow it within `timeout`
        seconds (None: waits for ever). `made`: when the items were made, in seconds of the wall clock; None is now."""
        items = self.signature.as_items(items)
        count = len(items.rows)
        with self.lock:
            if not self.can_insert(count):
                if timeout is None:
                    require_room(count, self.limiter.most_at_once)
                if not self._wait(lambda: self.can_insert(count), timeout):
                    return False
            own = self.own.verified(self.signature.flatten(items.own), count)
            places = np.empty(count, np.int32)
            given = None if priority is None else np.ascontiguousarray(priority, np.float32)
            rows = np.ascontiguousarray(items.rows, np.int32)
            removed = _core.insert(self.core, rows, given, version, made or time.time(), places)
            self.own.put(places, own)
            self.limiter.inserts += count
            self.limiter.deletes += removed
            self._changed()
        return True

    def sample(self, count: int, importance: float = 0.0, timeout: float | None = 0.0) -> Sample | None:
        """Draw `count` items; None if the limiter does not allow it within `timeout` seconds (None: waits for ever)."""
        with self.lock:
            most = self.capacity * self.max_times_sampled
            if timeout is None and 0 < most < count:
                raise UserError(f"This table never has {count:,} items to draw at once: draw {most:,} or fewer.")
            if not self.can_sample(count) and not self._wait(lambda: self.can_sample(count), timeout):
                return None
            places, times = np.empty(count, np.int32), np.empty(count, np.int32)
            keys, versions = np.empty(count, np.int64), np.empty(count, np.int64)
            made, probability = np.empty(count), np.empty(count)
            weight, slots = np.empty(count, np.float32), np.empty((count, self.signature.length), np.int32)
            live = len(self)
            _core.draw(self.core, importance, places, keys, versions, made, probability, times, slots, weight)
            items = self.signature.build(self.rows, slots, self.own.read(places))
            age = self.counters[NEXT] - self.numbers(keys)
            self.limiter.samples += count
            self.limiter.deletes += live - len(self)
            self.draws += 1
            if self.trim_every and self.draws % self.trim_every == 0:
                self._remove(len(self) - self.size)
            self._changed()
        return Sample(items, keys, probability, weight, times, age, versions, made)

    def update_priorities(self, keys: np.ndarray, priority: np.ndarray) -> int:
        """Set priorities [M] of the items with these keys; returns how many were still there, others are ignored."""
        with self.lock:
            return _core.update(
                self.core, np.ascontiguousarray(keys, np.int64), np.ascontiguousarray(priority, np.float32)
            )

    def delete(self, keys: np.ndarray) -> int:
        """Remove the items with these keys; returns how many were still there."""
        with self.lock:
            found = _core.delete(self.core, np.ascontiguousarray(keys, np.int64))
            self.limiter.deletes += found
            self._changed()
        return found

    def trim(self) -> None:
        """Remove the items that exceed `size`, as the remover chooses."""
        with self.lock:
            self._remove(len(self) - self.size)
            self._changed()

    def take_rows(self, count: int, writer: int = 0) -> np.ndarray:
        """[count] slots of free rows for a writer to fill. If too few are free (short episodes take more rows for each
        item), a replay removes items until there are enough; a queue refuses, because it may lose no item."""
        with self.lock:
            while (slots := self.rows.take(count, writer)) is None:
                if not len(self) or self.max_times_sampled:
                    raise UserError(
                        f"All {self.rows.count - 1:,} rows are in use, by writers or by tables that share them, and "
                        f"{count:,} more are needed: give the table more rows."
                    )
                self._remove(1)
                self._changed()
        return slots

    def share(self, consumer: str) -> Any:
        """A port for a writer in another process; the writer's number is that of its node ("actor/3")."""
        from cavalcade.table.port import Port

        return Port(self, int(consumer.rpartition("/")[2]), self.writer_rows, self.writer_items)

    def serve(self, consumer: str) -> Any:
        """As `share`, for a writer that shares no memory with this process."""
        from cavalcade.table.remote import RemotePort

        return RemotePort(self, int(consumer.rpartition("/")[2]))

    def _remove(self, count: int) -> None:
        live = len(self)
        _core.remove(self.core, max(0, count))
        self.limiter.deletes += live - len(self)

    # --- looking and keeping ---------------------------------------------------------------------------------------

    def tables(self) -> dict[str, "Table"]:
        """The tables that are saved as parts of this one, by name; a single table needs no name."""
        return {"": self}

    def state(self) -> dict:
        """A copy of everything, made under the lock, which a thread writes to disk later. Where memory has no room for
        a copy the arrays themselves are returned: `copied` is then False, and nobody may change the table before they
        are written."""
        with self.lock:
            self.copied = self.bytes < available() / 2
            limits = {name: getattr(self.limiter, name) for name in ("inserts", "deletes", "samples")}
            return {**self.items_state(self.copied), "limiter": limits, "draws": self.draws}

    def restore(self, state: dict) -> None:
        with self.lock:
            self.restore_items(state)
            for name, value in state["limiter"].items():
                setattr(self.limiter, name, value)
            self.draws = state["draws"]

    def check(self) -> None:
        """Raise AssertionError unless the table's arrays are consistent; slow, for tests."""
        from cavalcade.table.invariants import check

        check(self)

    def close(self) -> None:
        self.stop()
        self.memory.close()
