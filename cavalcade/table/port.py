"""Writers in other processes write rows straight into the table's shared memory, and then post the items.

Three ring buffers lie between a writer and the owner, which is the process with the table. The owner *grants* free
rows; the writer *posts* items (the slots of their rows, their own leaves, a priority) and *releases* rows that it needs
no more. Each ring has one producer and one consumer, so nothing is locked, and a writer that is killed leaves nothing
half done. Where items have to be asked for before they are made (`reserving`), words of the ring of posts carry that:
all of them count items since the writer began.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from cavalcade.errors import Stopped, UserError
from cavalcade.table.limiter import require_room
from cavalcade.table.planes import Planes
from cavalcade.table.posts import (
    MADE,
    NO_PRIORITY,
    PRIORITY,
    ROWS,
    VERSION,
    Posting,
    insert,
    let_in,
    wait_until,
)
from cavalcade.table.rows import RowData
from cavalcade.table.signature import Items, Signature
from cavalcade.table.table import POSTED, Table
from cavalcade.transport import Attached, Memory, _words, nobody
from cavalcade.tree import Tree

WRITTEN, READ, STOPPED, WANTED, ALLOWED, RETURNED = 0, 8, 16, 24, 32, 40  # indices of words, a cache line apart


class Ring:
    """A ring buffer of `size` records, which one process puts in and another takes out in the same order."""

    def __init__(self, leaves: dict[str, np.ndarray], size: int, memory: Memory):
        self.size, self.words = size, memory.array((48,), np.int64)
        self.records = Planes(leaves, size, memory)
        self.numbers = np.arange(size, dtype=np.int32)

    @property
    def waiting(self) -> int:
        """Records that were put in and not dropped yet."""
        return _words.load(self.words, WRITTEN) - _words.load(self.words, READ)

    def has_room(self, count: int) -> bool:
        return _words.load(self.words, WRITTEN) + count - _words.load(self.words, READ) <= self.size

    def _places(self, start: int, count: int) -> np.ndarray:
        """[count] int32: where the records number `start` and following lie."""
        start %= self.size
        if start + count <= self.size:
            return self.numbers[start : start + count]
        return np.concatenate([self.numbers[start:], self.numbers[: start + count - self.size]])

    def put(self, count: int, columns: dict[str, Any]) -> None:
        """Put in `count` records, given as columns [count, ...]. There must be room."""
        written = _words.load(self.words, WRITTEN)
        self.records.write(self._places(written, count), columns)
        _words.store(self.words, WRITTEN, written + count)

    def look(self, count: int) -> dict[str, np.ndarray]:
        """Columns of the next `count` records, which stay in the ring until `drop`."""
        return self.records.read(self._places(_words.load(self.words, READ), count))

    def drop(self, count: int) -> None:
        _words.store(self.words, READ, _words.load(self.words, READ) + count)


@dataclass(frozen=True)
class Address:
    """What another process needs to write into a table; plain data."""

    signature: Signature
    names: list[str]  # of the shared segments with the rows
    rows: int  # number of rows in them
    ring_names: list[str]  # of the shared segments with the rings
    grants: int  # records of the rings of grants and of releases
    posts: int  # records of the ring of posts
    reserving: bool  # room has to be asked for before items are made
    most: int  # items of one insert, at most; there is never room for more at once

    def connect(self) -> "Writer":
        return Writer(self)


class Rings:
    """The three rings of one writer, which both processes allocate in the same order."""

    def __init__(self, signature: Signature, grants: int, posts: int, memory: Memory):
        slot = {"slot": np.zeros((), np.int32)}
        self.grants, self.releases = Ring(slot, grants, memory), Ring(slot, grants, memory)
        own = {name: np.asarray(leaf) for name, leaf in signature.flatten(signature.own).items()}
        post = {ROWS: np.zeros(signature.length, np.int32), PRIORITY: NO_PRIORITY}
        post |= {VERSION: np.zeros((), np.int64), MADE: np.zeros(())}
        self.posts = Ring({**own, **{name: np.asarray(leaf) for name, leaf in post.items()}}, posts, memory)


class Port:
    """The owner's side of one writer. `grants`: rows that the writer may hold. `posts`: items that can be on their way;
    0 is at least as many as there can be, which is one for each granted row and, of a queue, no more than it takes."""

    def __init__(self, table: Table, writer: int, grants: int, posts: int = 0):
        if table.rows.memory.kind != "shared":
            raise UserError("Only a table whose rows are in shared memory can be written to from other processes.")
        self.table, self.writer = table, writer
        reserving = table.reserving
        room = table.limiter.most_at_once if reserving else inf
        posts = posts or max(POSTED, int(min(grants, room)))
        self.memory = Memory("shared")
        self.rings = Rings(table.signature, grants, posts, self.memory)
        names, rings, most = table.rows.memory.names, self.memory.names, int(min(posts, room))
        self.address = Address(table.signature, names, table.rows.count, rings, grants, posts, reserving, most)
        table.rows.reclaim(writer)  # in a restored table an earlier writer of this number may still hold rows
        self.ring: Callable[[], None] = nobody  # wakes the writer
        self.granted = 0  # rows that the writer has, or finds in the ring of grants
        self.allowed = self.returned = 0  # items that the writer was ever promised room for, and how many it gave back
        self._grant()

    def step(self) -> bool:
        """Insert the posted items that the limiter lets in, free released rows when all posts are in, promise room and
        grant rows. Returns whether anything was inserted or granted."""
        released = self.rings.releases.waiting  # read before the posts: all items with these rows were posted earlier
        waiting = self.rings.posts.waiting
        inserted = self._insert(waiting)
        if released and inserted == waiting:
            slots = self.rings.releases.look(released)["slot"]
            with self.table.lock:
                self.table.rows.release(slots)
            self.rings.releases.drop(released)
            self.granted -= released
        self._promise()
        return self._grant() or inserted > 0

    def _promise(self) -> None:
        """Promise the room that the writer asked for, if there is room beside what was promised to all writers. Room in
        a queue is promised before an unroll begins, so that lock step stays exact with many writers."""
        words = self.rings.posts.words
        returned = _words.load(words, RETURNED)
        self.table.promised -= returned - self.returned
        self.returned = returned
        missing = _words.load(words, WANTED) - self.allowed
        if missing > 0 and self.table.can_insert(self.table.promised + missing):
            self.table.promised += missing
            self.allowed += missing
            _words.store(words, ALLOWED, self.allowed)
            self.ring()

    def _insert(self, waiting: int) -> int:
        """Insert those of `waiting` posts that the limiter lets in; returns how many."""
        count = let_in(self.table, waiting)
        if not count:
            return 0
        insert(self.table, self.rings.posts.look(count))
        self.rings.posts.drop(count)
        if self.address.reserving:
            self.table.promised -= count
        else:
            self.ring()  # the writer may wait for room in the ring
        return count

    def _grant(self) -> bool:
        """Grant rows up to the number that the writer may hold; returns whether it did."""
        missing = self.rings.grants.size - self.granted
        if missing < max(1, self.rings.grants.size // 4):  # granting a few at a time would wake the writer too often
            return False
        slots = self.table.take_rows(missing, self.writer)
        self.rings.grants.put(missing, {"slot": slots})
        self.granted += missing
        self.ring()
        return True

    def reclaim(self) -> None:
        """The writer has died: insert the items it posted as far as the limiter lets them in, free its rows and the
        room it was promised, and let a new writer begin at the same address."""
        while self.rings.posts.waiting and self._insert(self.rings.posts.waiting):
            pass
        left = self.rings.posts.waiting
        self.rings.posts.drop(left)
        if self.address.reserving:
            self.table.promised -= left
        with self.table.lock:
            self.table.rows.reclaim(self.writer)
        for ring in (self.rings.grants, self.rings.releases):
            ring.drop(ring.waiting)
        words = self.rings.posts.words
        written = _words.load(words, WRITTEN)
        self.table.promised -= self.allowed - self.returned - written if self.allowed else 0
        self.allowed, self.returned = written, 0
        for word, value in ((WANTED, written), (ALLOWED, written), (RETURNED, 0)):
            _words.store(words, word, value)
        self.granted = 0
        self._grant()

    def close(self) -> None:
        """A writer that waits gets `Stopped`."""
        _words.store(self.rings.grants.words, STOPPED, 1)
        self.memory.close()


class Writer:
    """The writer's side, which streams and actors in another process use in the place of the table itself."""

    def __init__(self, address: Address):
        self.signature, self.reserving, self.most = address.signature, address.reserving, address.most
        self.rows = RowData(address.signature.rows, address.rows, Attached(address.names))
        self.rows.release = self.release  # type: ignore[attr-defined]
        self.rings = Rings(address.signature, address.grants, address.posts, Attached(address.ring_names))
        self.mine = np.zeros(0, np.int32)  # granted rows that are not used yet
        self.done_with: list[np.ndarray] = []  # released rows that the owner was not told of yet
        self.waiting = 0  # how many these are
        self.ring: Callable[[], None] = nobody  # wakes the owner
        self.posting = Posting(address.signature)
        self.returned = _words.load(self.rings.posts.words, RETURNED)

    def ready(self, environments: int) -> bool:
        """Whether there are rows for a step of `environments` environments, even if all their episodes end in it."""
        return self._has_rows(environments * (1 + self.signature.rows.stack))

    def _has_rows(self, count: int) -> bool:
        """Whether `count` rows were granted. If not, tell the owner at once of released rows: it grants others for
        them."""
        enough = len(self.mine) + self.rings.grants.waiting >= count
        if not enough and self.waiting:
            self._tell_released()
            self.ring()
        return enough

    def can_insert(self, count: int) -> bool:
        """Whether `count` items can be posted now. Asks the owner for room in a queue if there is none promised."""
        fits = self.rings.posts.has_room(count)
        if not self.reserving or not fits:
            return fits
        words = self.rings.posts.words
        needed = _words.load(words, WRITTEN) + self.returned + count
        if _words.load(words, ALLOWED) >= needed:
            return True
        if _words.load(words, WANTED) != needed:
            _words.store(words, WANTED, needed)
            self.ring()
        return False

    def keep(self, count: int) -> None:
        """Give promised room back, all but that for `count` items. What was promised and what was given back are two
        counts that only grow, so the owner cannot take room that was given back for promised room."""
        words = self.rings.posts.words
        surplus = _words.load(words, ALLOWED) - self.returned - _words.load(words, WRITTEN) - count
        if self.reserving and surplus > 0:
            self.returned += surplus
            _words.store(words, RETURNED, self.returned)
            self.ring()

    def take_rows(self, count: int, writer: int = 0) -> np.ndarray:
        """[count] slots of granted rows; waits until the owner has granted enough."""
        if len(self.mine) < count:
            self._wait(lambda: self._has_rows(count), None)
            more = self.rings.grants.waiting
            self.mine = np.concatenate([self.mine, self.rings.grants.look(more)["slot"]])
            self.rings.grants.drop(more)
        slots, self.mine = self.mine[:count], self.mine[count:]
        return slots

    def release(self, slots: np.ndarray) -> None:
        """The writer needs these rows no more. The owner is told with later items, of many at once, or when rows run
        out."""
        self.done_with.append(slots)
        self.waiting += len(slots)

    def insert(
        self, items: Items | Tree, version: int = 0, priority: np.ndarray | None = None, timeout: float | None = 0.0
    ) -> bool:
        """Post items [M, ...]; returns False and posts nothing if there is no room within `timeout` seconds (None:
        waits for ever)."""
        items = self.signature.as_items(items)
        count = len(items.rows)
        if timeout is None:
            require_room(count, self.most)
        if not self.can_insert(count) and not self._wait(lambda: self.can_insert(count), timeout):
            return False
        self.rings.posts.put(count, self.posting(items, priority, version))
        if self.waiting > self.rings.releases.size // 8:
            self._tell_released()
        self.ring()
        return True

    def _tell_released(self) -> None:
        self.rings.releases.put(self.waiting, {"slot": np.concatenate(self.done_with)})
        self.done_with, self.waiting = [], 0

    def _wait(self, ready: Callable[[], bool], timeout: float | None) -> bool:
        return wait_until(ready, timeout, self._require_open)

    def _require_open(self) -> None:
        if _words.load(self.rings.grants.words, STOPPED):
            raise Stopped("The table was stopped.")
