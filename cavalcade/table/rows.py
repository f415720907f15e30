"""Rows: the steps of environments. Each observation is stored once, however many items and tables refer to it.

A row has two parts. *seen* (the observation) is written when the row is taken. *done* (action, reward and so on) is
written when the actor has acted on the observation, so the last row of an item has no *done* yet. A row is in use as
long as its writer or an item of any table refers to it. A slot is the number of a row. Row 0 is blank: it fills items
that are shorter than others.

Where an observation is a stack of frames, a row holds the newest frame and the slot of the frame before; stacks are
rebuilt when they are read.
"""

import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cavalcade.errors import UserError
from cavalcade.table import _core
from cavalcade.table.planes import Planes
from cavalcade.transport import Memory
from cavalcade.tree import Tree, leaves, rebuild

MOST_WRITERS = 32_767  # the number of a row's writer takes 16 bits
ORIGIN = "#origin"  # leaf [3] int32 of each row: environment, episode and step, to tell where an item came from


@dataclass(frozen=True)
class RowSpec:
    """What one row holds; plain data."""

    obs: Tree  # zeros in the shapes of one observation
    done: dict[str, np.ndarray] = field(default_factory=dict)  # zeros of what is stored when a row was acted on
    stack: int = 1  # frames of an observation, on its first axis, oldest first

    @property
    def seen(self) -> dict[str, np.ndarray]:
        """Zeros of what is stored when a row is taken."""
        obs = self.obs[-1] if self.stack > 1 else self.obs
        return {**observed(obs), "first": np.zeros((), np.bool_), ORIGIN: np.zeros(3, np.int32)}

    @property
    def bytes(self) -> int:
        """Bytes of one row with its bookkeeping."""
        return sum(leaf.nbytes for leaf in [*self.seen.values(), *self.done.values()]) + 14


def observed(obs: Tree) -> dict[str, Any]:
    """The leaves of an observation by the names that they have in a row."""
    if not isinstance(obs, dict):
        return {"obs": obs}
    return {f"obs/{number}": leaf for number, leaf in enumerate(leaves(obs))}


class RowData:
    """The memory of rows, without counting who refers to them: all that a writer in another process needs."""

    def __init__(self, spec: RowSpec, count: int, memory: Memory, compressed: bool = False):
        self.spec, self.count, self.memory = spec, count, memory
        self.seen = Planes(spec.seen, count, memory, compressed)
        self.done = Planes(spec.done, count, memory)
        self.previous = memory.array((count,), np.int32)  # the slot of the frame before; 0: there is none
        self.observed = tuple(observed(spec.obs))

    def read_observations(self, slots: np.ndarray, start: int = 0, step: int = 1, extra: int = 0) -> Tree:
        """Observations [n, ...] of the rows slots[start::step], with `extra` older frames in front of each stack."""
        if self.spec.stack > 1:
            flat, depth = slots.reshape(-1), self.spec.stack + extra
            chains = np.empty((len(range(start, len(flat), step)), depth), np.int32)
            _core.chain(self.previous, flat, start, step, depth, chains)
            frames = self.seen.read(chains, names=self.observed)["obs"]
            return frames.reshape(len(chains), depth, *frames.shape[1:])
        found = self.seen.read(slots, start, step, self.observed)
        return rebuild(self.spec.obs, (found[name] for name in self.observed))


class Rows(RowData):
    """`count` rows of one spec, with the count of references to each. Tables that share rows share `lock`."""

    def __init__(self, spec: RowSpec, count: int, memory: Memory | None = None, compressed: bool = False):
        super().__init__(spec, count + 1, memory or Memory(), compressed)
        self.lock = threading.Condition(threading.Lock())
        self.waiting = 0  # threads that wait for a change of a table
        self.ends = np.array([0, count], np.int64)
        self.free = np.zeros(count + 1, np.int32)
        self.free[:count] = np.arange(1, count + 1)
        self.refs = np.zeros(count + 1, np.int32)
        self.refs[0] = 1
        self.holder = np.zeros(count + 1, np.int16)
        self.core = _core.open_rows(self.count, spec.stack, self.ends, self.free, self.refs, self.previous, self.holder)

    @property
    def vacant(self) -> int:
        """How many rows are free."""
        return int(self.ends[1] - self.ends[0])

    @property
    def high(self) -> int:
        """One more than the highest row that was ever taken."""
        return min(int(self.ends[0]) + 1, self.count)

    def take(self, count: int, writer: int = 0) -> np.ndarray | None:
        """[count] int32 slots for a writer to fill, or None if fewer are free."""
        if not 0 <= writer < MOST_WRITERS:
            raise UserError(f"A table has writers 0 to {MOST_WRITERS - 1:,}, not {writer}.")
        slots = np.empty(count, np.int32)
        return slots if _core.take(self.core, writer + 1, slots) else None

    def release(self, slots: np.ndarray) -> None:
        """The writer of these rows needs them no more. Those that no item refers to become free."""
        _core.release(self.core, slots)

    def reclaim(self, writer: int) -> int:
        """Release all rows that a dead writer held; returns how many."""
        held = np.flatnonzero(self.holder == writer + 1).astype(np.int32)
        self.release(held)
        return len(held)

    def state(self, copied: bool = True) -> dict:
        kept = {name: getattr(self, name).copy() for name in ("ends", "free", "refs", "previous", "holder")}
        return {**kept, "seen": self.seen.state(self.high, copied), "done": self.done.state(self.high, copied)}

    def restore(self, state: dict) -> None:
        for name in ("ends", "free", "refs", "previous", "holder"):
            getattr(self, name)[:] = state[name]
        self.seen.restore(state["seen"])
        self.done.restore(state["done"])

    def check(self, expected: np.ndarray) -> None:
        """Raise AssertionError unless the references fit. `expected`: [rows] how often items refer to each row."""
        free = self.free[np.arange(self.ends[0], self.ends[1]) % self.count]
        assert len(set(free.tolist())) == len(free) and 0 not in free, "a row is free twice"
        assert np.array_equal(self.refs[1:], (expected + (self.holder > 0))[1:]), "references are miscounted"
        assert np.array_equal(np.sort(free), np.flatnonzero(self.refs == 0)), "free rows are those nobody refers to"
