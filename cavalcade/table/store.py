"""The items of a table as preallocated arrays, which the core works on and a checkpoint saves as they are."""

import time
from typing import Any

import numpy as np

from cavalcade.errors import UserError
from cavalcade.table import _core
from cavalcade.table.planes import Planes
from cavalcade.table.rows import Rows
from cavalcade.table.selectors import Selector
from cavalcade.table.signature import Signature
from cavalcade.transport import Memory

LIVE, NEXT, HIGH, SPENT, RANDOM, SAMPLER, _, REMOVER, _ = range(9)  # counters, in the order of core.h
KEY, VERSION, MADE, PRIORITY, TIMES = 0, 8, 16, 24, 28  # offsets in bytes of the fields of `Item` in core.h
HEADER = 32  # bytes of these fields; the slots follow
KEPT = ("counters", "peak", "free")  # names of arrays that are saved


class Store:
    """Up to `capacity` items, each in a place of its own, and one place more: there a new item lies while the remover
    chooses among all items, the new one included. `key` (-1: no item), `version`, `made`, `priority`, `times` and
    `slots` are views [capacity + 1, ...] of the records; `own` holds the leaves of the items."""

    def __init__(
        self,
        signature: Signature,
        capacity: int,
        sampler: Selector,
        remover: Selector,
        max_times_sampled: int,
        rows: Rows,
        memory: Memory,
        compressed: bool,
        seed: int,
    ):
        self.signature, self.capacity, self.sampler, self.remover = signature, capacity, sampler, remover
        self.max_times_sampled, self.rows, self.memory = max_times_sampled, rows, memory
        places = capacity + 1
        own = {name: np.asarray(leaf) for name, leaf in signature.flatten(signature.own).items()}
        header = HEADER + -(-signature.length // 2) * 8
        self.own = Planes(own, places, memory, compressed, header)
        self.bits = (places - 1).bit_length()
        self.counters = np.zeros(REMOVER + 2, np.int64)
        self.counters[RANDOM] = np.random.SeedSequence(seed).generate_state(1, np.uint64).view(np.int64)[0]
        for at, kind in ((SAMPLER, sampler.kind), (REMOVER, remover.kind)):
            self.counters[at : at + 2] = -1 if kind in ("fifo", "lifo") else 0
        self.peak = np.ones(1)
        self.free = np.arange(places - 1, -1, -1, dtype=np.int32)
        self.chosen = (sampler.arrays(places), remover.arrays(places))
        records: Any = self.own.planes[0]
        self.key, self.version = records.view(KEY, (), np.int64), records.view(VERSION, (), np.int64)
        self.made = records.view(MADE, (), np.float64)
        self.priority, self.times = records.view(PRIORITY, (), np.float32), records.view(TIMES, (), np.int32)
        self.slots = records.view(HEADER, (signature.length,), np.int32)
        self.key[:] = -1
        self.core = _core.open_table(
            rows.core,
            capacity,
            signature.length,
            records.stride,
            max_times_sampled,
            self.bits,
            *(getattr(self, name) for name in KEPT),
            records.records,
            sampler.opened(self.chosen[0]),
            remover.opened(self.chosen[1]),
        )

    def __len__(self) -> int:
        return int(self.counters[LIVE])

    def numbers(self, keys: np.ndarray) -> np.ndarray:
        """The number of the insert of each key, counted from 0."""
        return keys >> self.bits

    @property
    def bytes(self) -> int:
        """Bytes of items and rows, all of which are allocated from the beginning."""
        return self.memory.bytes

    def __str__(self) -> str:
        """What the store is made of. A saved state fits every store with the same text."""
        return f"items {self.own}, rows {self.rows.seen} {self.rows.done}, draws {self.sampler}, removes {self.remover}"

    def _selected(self) -> list[tuple[str, np.ndarray]]:
        """The arrays of sampler and remover by names."""
        return [(f"{i}/{j}", array) for i, arrays in enumerate(self.chosen) for j, array in enumerate(arrays)]

    def items_state(self, copied: bool) -> dict:
        """Items and rows for a checkpoint. `copied`: large arrays are copied; else they are given as they are."""
        own = self.own.state(int(self.counters[HIGH]), copied)
        if copied:  # times mean nothing after a break, and without them equal runs leave equal checkpoints
            records = own["0"]["bytes"].reshape(-1, self.own.planes[0].stride)  # type: ignore[union-attr]
            records[:, MADE : MADE + 8] = 0
        return {
            "made": str(self),
            **{name: getattr(self, name).copy() for name in KEPT},
            "selectors": {name: array.copy() for name, array in self._selected()},
            "own": own,
            "rows": self.rows.state(copied),
        }

    def restore_items(self, items_state: dict) -> None:
        """Restore items and rows; a UserError if they are those of a table of another kind."""
        if items_state.get("made") != str(self):
            raise UserError(f"The saved table is another one ({items_state.get('made')}) than this one ({self}).")
        self.key[:] = -1  # forget the items from before; only places in use are saved
        for name in KEPT:
            getattr(self, name)[:] = items_state[name]
        for name, array in self._selected():
            array[:] = items_state["selectors"][name]
        self.own.restore(items_state["own"])
        self.rows.restore(items_state["rows"])
        self.made[:] = time.time()
