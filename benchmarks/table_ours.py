"""Our side of the table's benchmark: python table_ours.py small|frames|processes-small|processes-frames|tree

The peers' workload: 64 environments that give one transition each per insert, draws of 512 with importance weights in
arrays of the caller's own, new priorities for what was drawn. Prints `name value unit`.
"""

import multiprocessing
import sys
import time

import numpy as np
from workload import BATCH, DRAW, FILLED, SIZES, rate

from cavalcade.table import Items, Rows, RowSpec, Signature, Table, _core
from cavalcade.table.port import Address, Port, Writer
from cavalcade.table.rows import ORIGIN
from cavalcade.transport.memory import Memory

OWN = {"action": np.zeros((), np.int64), "reward": np.zeros((), np.float32), "discount": np.zeros((), np.float32)}
POSTED = {"small": 6_000_000, "frames": 1_000_000}


def signature(kind: str) -> Signature:
    obs = np.zeros(4, np.float32) if kind == "small" else np.zeros((4, 84, 84), np.uint8)
    return Signature.transition(RowSpec(obs, stack=1 if kind == "small" else 4), OWN, adjacent=True)


class Environments:
    """64 endless episodes, written to a table (or to a port to one) as a stream does it."""

    def __init__(self, kind: str, table: Table | Writer):
        rng = np.random.default_rng(0)
        self.table, self.stacked = table, kind == "frames"
        shape = (BATCH, 4, 84, 84) if self.stacked else (BATCH, 4)
        values = rng.integers(0, 255, shape, np.uint8) if self.stacked else rng.standard_normal(shape, np.float32)
        self.obs, self.first, self.origin = values, np.zeros(BATCH, np.bool_), np.zeros((BATCH, 3), np.int32)
        self.own = {name: np.ones(BATCH, leaf.dtype) for name, leaf in OWN.items()}
        self.priority = (rng.random(BATCH) + 0.01).astype(np.float32)
        self.here = self._row(None)

    def _row(self, before: np.ndarray | None) -> np.ndarray:
        slots = self.table.take_rows(BATCH)
        obs = self.obs[:, -1] if self.stacked else self.obs
        self.table.rows.seen.write(slots, {"obs": obs, "first": self.first, ORIGIN: self.origin})
        if self.stacked and before is not None:
            self.table.rows.previous[slots] = before
        return slots

    def insert(self) -> None:
        after = self._row(self.here)
        rows = np.empty((BATCH, 2), np.int32)
        rows[:, 0], rows[:, 1] = self.here, after
        self.table.insert(Items(rows, self.own), 0, self.priority, timeout=None)
        self.table.rows.release(self.here)
        self.here = after


def in_one_process(kind: str) -> None:
    item, size = signature(kind), SIZES[kind]
    memory = Memory()
    rows = Rows(item.rows, size * 33 // 32 + 4 * BATCH, memory)
    table = Table.prioritised(item, size, rows=rows, memory=memory, exponent=0.6)
    environments = Environments(kind, table)
    for _ in range(FILLED[kind] // BATCH):
        environments.insert()
    priority = (np.random.default_rng(1).random(DRAW) + 0.01).astype(np.float32)

    def cycle() -> None:
        table.update_priorities(table.sample(DRAW, 0.4).keys, priority)

    print(f"cycle {rate(cycle, DRAW):.6g} items/s")
    print(f"sample {rate(lambda: table.sample(DRAW, 0.4), DRAW):.6g} items/s")
    print(f"insert {rate(environments.insert, BATCH):.6g} items/s")
    print(f"bytes {memory.bytes / size:.6g} B")


def tree() -> None:
    """The core alone: a prioritised draw and new priorities, without the calls around it (see peer_numba.py)."""
    table = Table.prioritised({"nothing": np.zeros((), np.float32)}, SIZES["small"], exponent=0.6)
    rng = np.random.default_rng(0)
    for _ in range(SIZES["small"] // 1000):
        table.insert({"nothing": np.zeros(1000, np.float32)}, 0, rng.random(1000))
    places, times, slots = np.empty(DRAW, np.int32), np.empty(DRAW, np.int32), np.empty((DRAW, 0), np.int32)
    keys, versions = np.empty(DRAW, np.int64), np.empty(DRAW, np.int64)
    made, probability = np.empty(DRAW), np.empty(DRAW)
    weight, priority = np.empty(DRAW, np.float32), rng.random(DRAW).astype(np.float32)

    def cycle() -> None:
        _core.draw(table.core, 0.4, places, keys, versions, made, probability, times, slots, weight)
        _core.update(table.core, keys, priority)

    print(f"cycle {1e6 / rate(cycle, 1):.4g} us")


def write(kind: str, address: Address, count: int) -> None:
    environments = Environments(kind, Writer(address))
    for _ in range(count // BATCH):
        environments.insert()


def between_processes(kind: str) -> None:
    """One writer process; this one owns the table and inserts with priorities."""
    item, size, count = signature(kind), SIZES[kind], POSTED[kind]
    memory = Memory("shared")
    table = Table.prioritised(item, size, rows=Rows(item.rows, size * 33 // 32 + 16384, memory), exponent=0.6)
    port = Port(table, 0, grants=8192)
    writer = multiprocessing.get_context("spawn").Process(target=write, args=(kind, port.address, count))
    writer.start()
    while table.limiter.inserts < count // 4:  # the writer starts, and every page is touched for the first time
        port.step() or time.sleep(1e-4)
    began, before = time.perf_counter(), table.limiter.inserts
    while table.limiter.inserts < count // BATCH * BATCH:
        port.step() or time.sleep(2e-5)
    print(f"insert {(table.limiter.inserts - before) / (time.perf_counter() - began):.6g} items/s")
    writer.join()
    port.close()
    memory.close()


if __name__ == "__main__":
    what = sys.argv[1]
    if what == "tree":
        tree()
    elif what.startswith("processes-"):
        between_processes(what.removeprefix("processes-"))
    else:
        in_one_process(what)
