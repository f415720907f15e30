"""The items of a table as arrays: preallocated, worked on by the core, saved as they are."""

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
KEY, VERSION, MADE, PRIORITY, TIMES = 0, 8, 16, 24, 28  # bytes before each in `Item` in core.h
HEADER = 32  # bytes before its slots
KEPT = ("counters", "peak", "free")  # arrays that are saved as they are


class Store:
    """Up to `capacity` items, and a place more: there a new item lies while the remover chooses one of all, itself
    included. What is in a place is seen as `key` (-1: nothing), `version`, `made`, `priority`, `times` and `slots`,
    [capacity + 1] each; the leaves of the items are in `own`."""

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
        """Which insert each key was, counted from 0."""
        return keys >> self.bits

    @property
    def bytes(self) -> int:
        """Of the memory that it has from the beginning, full or not."""
        return self.memory.bytes

    def __str__(self) -> str:
        """What it is made of: states can be exchanged by tables with the same text."""
        return f"items {self.own}, rows {self.rows.seen} {self.rows.done}, draws {self.sampler}, removes {self.remover}"

    def _selected(self) -> list[tuple[str, np.ndarray]]:
        return [(f"{i}/{j}", array) for i, arrays in enumerate(self.chosen) for j, array in enumerate(arrays)]

    def items_state(self, copied: bool) -> dict:
        """All of it, rows too; of large arrays a copy, or themselves."""
        own = self.own.state(int(self.counters[HIGH]), copied)
        if copied:  # after a break the clock says nothing, and without it equal runs leave equal checkpoints
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
        if items_state.get("made") != str(self):
            raise UserError(f"The saved table is another one ({items_state.get('made')}) than this one ({self}).")
        self.key[:] = -1  # what was here before
        for name in KEPT:
            getattr(self, name)[:] = items_state[name]
        for name, array in self._selected():
            array[:] = items_state["selectors"][name]
        self.own.restore(items_state["own"])
        self.rows.restore(items_state["rows"])
        self.made[:] = time.time()
