"""Posts: items on their way to a table from another process, as columns.

Ports on one machine (`port.py`) and across machines (`remote.py`) make and insert posts alike; they carry them
differently.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from cavalcade.table.signature import Items, Signature
from cavalcade.table.table import Table

ROWS, PRIORITY, VERSION, MADE = "#rows", "#priority", "#version", "#made"  # columns beside the item's own leaves
NO_PRIORITY = np.float32(-1.0)  # the table chooses the priority
PAUSE = 50e-6  # seconds between two looks of a writer that waits


class Posting:
    """Makes columns [M, ...] of posts. Version and time are the same for all M posts of a call, so their columns are
    one value with a stride of 0, which the next call overwrites."""

    def __init__(self, signature: Signature):
        self.signature, self.version, self.made = signature, np.zeros(1, np.int64), np.zeros(1)
        self.unset = np.full(1, NO_PRIORITY)
        self.same: dict[int, tuple[np.ndarray, ...]] = {}

    def __call__(self, items: Items, priority: np.ndarray | None, version: int) -> dict[str, Any]:
        """The columns of these items, made now. The caller must copy them before the next call."""
        count = len(items.rows)
        if count not in self.same:
            seen = (self.version, self.made, self.unset)
            self.same[count] = tuple(np.ndarray((count,), one.dtype, one, 0, (0,)) for one in seen)
        self.version[0], self.made[0] = version, time.time()
        versions, made, unset = self.same[count]
        given = unset if priority is None else priority
        return {**self.signature.flatten(items.own), ROWS: items.rows, PRIORITY: given, VERSION: versions, MADE: made}


def let_in(table: Table, waiting: int) -> int:
    """How many of `waiting` posts the limiter lets in now; the answer is found by halving and may be too low."""
    while waiting and not table.can_insert(waiting):
        waiting //= 2
    return waiting


def insert(table: Table, posts: dict[str, np.ndarray], row_of: np.ndarray | None = None) -> None:
    """Insert posts [M, ...], which the limiter must let in. `row_of`: the table's slot for each slot of the writer, if
    the writer numbers its rows itself."""
    posts = dict(posts)
    rows, priority, version, made = (posts.pop(name) for name in (ROWS, PRIORITY, VERSION, MADE))
    rows = rows if row_of is None else row_of[rows]
    # one insert for all posts, unless version or the presence of priorities changes among them
    chosen_here = priority < 0
    differs = (version[1:] != version[:-1]) | (chosen_here[1:] != chosen_here[:-1])
    changes = [at + 1 for at in differs.nonzero()[0].tolist()]
    for start, end in zip([0, *changes], [*changes, len(rows)]):
        own = table.signature.unflatten({name: column[start:end] for name, column in posts.items()})
        given = None if priority[start] < 0 else priority[start:end]
        assert table.insert(Items(rows[start:end], own), int(version[start]), given, made=float(made[start]))


def wait_until(ready: Callable[[], bool], timeout: float | None, meanwhile: Callable[[], None] | None = None) -> bool:
    """Look every `PAUSE` seconds; returns whether `ready()` became true within `timeout` seconds (None: wait for ever).
    `meanwhile` is called between the looks and may raise."""
    end = None if timeout is None else time.monotonic() + timeout
    while not ready():
        if meanwhile is not None:
            meanwhile()
        if end is not None and time.monotonic() >= end:
            return False
        time.sleep(PAUSE)
    return True
