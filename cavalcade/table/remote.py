"""Writers on other machines: messages carry what `port.py` does through shared memory, each observation once.

A writer keeps its rows in memory of its own and numbers them itself; the table's side maps these numbers to its own
rows. One message is on its way at a time, and what gathers meanwhile goes with the next one. A message carries the rows
that its items are the first to refer to, what was done on them, the items, the rows that the writer needs no more, and
for how many items since its beginning the writer wants room. The answer is for how many there is room. It is given when
all items of the message are in the table and the room can be promised. Where several seats write through one writer
(`guests.py`), it is given after `LINGER` seconds even without the room: the writer may hold items for which room was
promised before, and the learner may wait for just these.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple

import numpy as np

from cavalcade.errors import UserError
from cavalcade.table.limiter import require_room
from cavalcade.table.posts import ROWS, Posting, insert, let_in, wait_until
from cavalcade.table.rows import RowData
from cavalcade.table.signature import Items, Signature
from cavalcade.table.table import Table
from cavalcade.transport import Memory
from cavalcade.tree import Tree

POSTS = 1024  # items that can be on their way to a table that does not promise room
LINGER = 0.002  # seconds that an answer waits for room while the writer has promised room that it has not used


class Message(NamedTuple):
    """From a writer to its table. All rows are given by the writer's numbers."""

    new: np.ndarray  # [n] rows that the table does not know yet
    seen: dict[str, np.ndarray]  # [n, ...] what was seen in them
    links: np.ndarray  # [m, 2] rows of stacked frames, and the row of the frame before each
    acted: np.ndarray  # [k] rows that were acted on since the table got to know them, or are new
    done: dict[str, np.ndarray]  # [k, ...] what was done on them
    items: dict[str, np.ndarray]  # [M, ...] posts
    released: np.ndarray  # [r] rows that no later item refers to
    wanted: int  # items since the beginning for which room is wanted


@dataclass(frozen=True)
class RemoteAddress:
    """What another machine needs to write into a table; plain data."""

    signature: Signature
    rows: int  # that the writer may hold
    reserving: bool  # room has to be asked for before items are made
    most: float  # items of one insert, at most; there is never room for more at once

    def connect(self, ask: Callable[[Message], Any]) -> "RemoteWriter":
        return RemoteWriter(self, ask)


class RemotePort:
    """The table's side of one writer."""

    def __init__(self, table: Table, writer: int):
        self.table, self.writer = table, writer
        self.reserving = table.reserving
        most = table.limiter.most_at_once if self.reserving else inf  # without promises, `_work` inserts by and by
        self.address = RemoteAddress(table.signature, table.writer_rows, self.reserving, most)
        table.rows.reclaim(writer)  # in a restored table an earlier writer of this number may still hold rows
        self._begin()

    def _begin(self) -> None:
        """As for a writer that has sent nothing yet."""
        self.row_of = np.zeros(self.address.rows + 1, np.int32)  # the table's slot for each of the writer's
        self.inserted = 0  # items of this writer so far
        self.allowed = 0  # items that it was promised room for so far
        self.work: Iterator[None] | None = None  # on the message without an answer

    def answer(self, message: Message) -> int | None:
        """How many items the writer may send since its beginning; None if there is no answer yet: the runtime then
        calls again with the same message."""
        if self.work is None:
            self.work = self._work(message)
        for _ in self.work:
            return None
        self.work = None
        return self.allowed

    def _work(self, message: Message) -> Iterator[None]:
        """Everything that a message asks for; yields while the limiter or the lack of room says wait."""
        self._write(message)
        start, count = 0, len(message.items[ROWS]) if message.items else 0
        while start < count:
            end = start + self._insert(message.items, start, count - start)
            if end < count:
                yield
            start = end
        if len(message.released):
            with self.table.lock:
                self.table.rows.release(self.row_of[message.released])
        until = time.monotonic() + LINGER
        while message.wanted > self.allowed and not self._promise(message.wanted - self.allowed):
            if self.allowed > self.inserted and time.monotonic() > until:
                return
            yield

    def _write(self, message: Message) -> None:
        """Write the rows of a message into the table."""
        rows = self.table.rows
        if len(message.new):
            slots = self.row_of[message.new] = self.table.take_rows(len(message.new), self.writer)
            rows.seen.write(slots, message.seen)
        if len(message.links):
            here, before = self.row_of[message.links].T
            rows.previous[here] = before
        if len(message.acted):
            rows.done.write(self.row_of[message.acted], message.done)

    def _insert(self, items: dict[str, np.ndarray], start: int, count: int) -> int:
        """Insert those of `count` items from `start` on that the limiter lets in; returns how many."""
        count = let_in(self.table, count)
        if not count:
            return 0
        insert(self.table, {name: column[start : start + count] for name, column in items.items()}, self.row_of)
        self.inserted += count
        if self.reserving:
            self.table.promised -= count
        return count

    def _promise(self, missing: int) -> bool:
        """Promise room for `missing` more items, if there is room beside what was promised to all writers. Room in a
        queue is promised before an unroll begins, so that lock step stays exact with many writers."""
        if not self.table.can_insert(self.table.promised + missing):
            return False
        self.table.promised += missing
        self.allowed += missing
        return True

    def reclaim(self) -> None:
        """The writer has died: free its rows and the room it was promised; a new writer may begin at the same
        address."""
        with self.table.lock:
            self.table.rows.reclaim(self.writer)
        if self.reserving:
            self.table.promised -= self.allowed - self.inserted
        self._begin()

    def close(self) -> None:
        """There is no shared memory to remove."""


class RemoteWriter:
    """The writer's side, which streams and actors on another machine use in the place of the table itself."""

    def __init__(self, address: RemoteAddress, ask: Callable[[Message], Any]):
        self.signature, self.reserving, self.most = address.signature, address.reserving, address.most
        self.ask = ask
        self.rows = RowData(address.signature.rows, address.rows + 1, Memory())
        self.rows.release = self.release  # type: ignore[attr-defined]
        self.free = np.arange(1, address.rows + 1, dtype=np.int32)
        # [rows] each: whether the table knows the row, its link to the frame before, and what was done on it
        self.known, self.linked, self.acted = np.zeros((3, address.rows + 1), np.bool_)
        self.done_with: list[np.ndarray] = []  # released rows; they are free when the next message is made
        self.outbox: list[dict[str, np.ndarray]] = []  # posts for the next message
        self.on_way: Any = None  # the future of a message without an answer
        self.items_on_way = 0  # items of that message and of the outbox
        self.written = self.allowed = self.wanted = 0  # items since the beginning
        self.reserved = 0  # items of the last question `can_insert`

    def ready(self, environments: int) -> bool:
        """Whether there are rows for a step of `environments` environments, even if all their episodes end in it."""
        return self._has_rows(environments * (1 + self.signature.rows.stack))

    def _has_rows(self, count: int) -> bool:
        self._exchange(hurry=len(self.free) < count)
        return len(self.free) >= count

    def can_insert(self, count: int) -> bool:
        """Whether `count` items can be sent now. Asks the table for room in a queue if there is none promised."""
        self.reserved = count
        return self._room(count)

    def _room(self, count: int) -> bool:
        """Whether `count` items can be sent now; asks for room if it is not promised."""
        self._exchange()
        if not self.reserving:
            return not self.items_on_way or self.items_on_way + count <= POSTS
        needed = self.written + count
        if self.allowed < needed and self.wanted != needed:
            self.wanted = needed
            self._exchange()
        return self.allowed >= needed

    def take_rows(self, count: int, writer: int = 0) -> np.ndarray:
        """[count] slots of rows to fill; waits for released rows that the table has to be told of first."""
        if len(self.free) < count:
            wait_until(lambda: self._has_rows(count) or self.on_way is None, None)
        if len(self.free) < count:
            raise UserError(f"All {len(self.known) - 1:,} rows of a writer are in use and {count:,} more are needed.")
        slots, self.free = self.free[:count], self.free[count:]
        self.rows.previous[slots] = 0
        return slots

    def release(self, slots: np.ndarray) -> None:
        """The writer needs these rows no more; the table is told with the next message."""
        self.done_with.append(slots)

    def insert(
        self, items: Items | Tree, version: int = 0, priority: np.ndarray | None = None, timeout: float | None = 0.0
    ) -> bool:
        """Send items [M, ...]; returns False and sends nothing if there is no room within `timeout` seconds (None:
        waits for ever)."""
        items = self.signature.as_items(items)
        count = len(items.rows)
        if timeout is None:
            require_room(count, self.most)
        if not wait_until(lambda: self._room(count), timeout):
            return False
        self.outbox.append(Posting(self.signature)(items, priority, version))  # a new one each: posts are read later
        self.written += count
        self.items_on_way += count
        if self.reserving and self.reserved:  # ask for the room of the next items now, which saves a message
            self.wanted = max(self.wanted, self.written + self.reserved)
        self._exchange()
        return True

    def _exchange(self, hurry: bool = False) -> None:
        """Take the answer if it has come; if no message is on its way, send what has gathered. `hurry`: rows run out,
        so that released rows are worth a message of their own."""
        if self.on_way is not None:
            if not self.on_way.ready():
                return
            self.allowed, self.on_way = self.on_way.get(), None
            self.items_on_way = sum(len(post[ROWS]) for post in self.outbox)
        if self.outbox or self.wanted > self.allowed or (hurry and self.done_with):
            self.on_way = self.ask(self._message())

    def _message(self) -> Message:
        """All that has gathered. The message copies its rows, so released rows can be used again at once."""
        outbox, self.outbox = self.outbox, []
        items = {name: np.concatenate([post[name] for post in outbox]) for name in outbox[0]} if outbox else {}
        rows = items[ROWS] if items else np.zeros((0, self.signature.length), np.int32)
        used, links = self._reached(_unlike_zero(rows))
        new = used[~self.known[used]]
        acted = np.zeros(0, np.int32)
        if self.signature.rows.done:
            acted = _unlike_zero(_without_last(rows))
            acted = acted[~self.acted[acted]]
        self.known[new] = self.acted[acted] = self.linked[links] = True
        pairs = np.stack([links, self.rows.previous[links]], axis=1)
        seen, done = self.rows.seen.read(new), self.rows.done.read(acted) if len(acted) else {}
        freed = np.concatenate([np.zeros(0, np.int32), *self.done_with])
        released = freed[self.known[freed]]
        self.free, self.done_with = np.concatenate([self.free, freed]), []
        self.known[freed] = self.acted[freed] = self.linked[freed] = False
        return Message(new, seen, pairs, acted, done, items, released, self.wanted)

    def _reached(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """[n] these rows with the older frames of their stacks, and [m] those whose link to the frame before the table
        does not know. The table needs a link before it counts an item's references along it, and never more links than
        items use."""
        reached, links = [rows], [np.zeros(0, np.int32)]
        for _ in range(self.signature.rows.stack - 1):
            links.append(rows)
            rows = _unlike_zero(self.rows.previous[rows])
            reached.append(rows)
        linked = np.unique(np.concatenate(links))
        return np.unique(np.concatenate(reached)), linked[~self.linked[linked]]


def _unlike_zero(rows: np.ndarray) -> np.ndarray:
    """Each row once, sorted, without row 0, which is blank on both sides."""
    found = np.unique(rows)
    return found[1:] if len(found) and not found[0] else found


def _without_last(rows: np.ndarray) -> np.ndarray:
    """A copy of rows [M, length] with 0 for the last row of each item, which gives its observation only."""
    acted = rows.copy()
    acted[np.arange(len(rows)), np.count_nonzero(rows, axis=1) - 1] = 0
    return acted
