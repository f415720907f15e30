"""The latest value, from one process to many: a versioned triple buffer in shared memory.

The writer copies each value into the oldest of three slots and then raises a count. The count tells a reader whether
there is a newer value, copies it, and copies again if the writer has overwritten the slot meanwhile. Nobody waits.
"""

from dataclasses import dataclass

import numpy as np

from cavalcade.transport import _words
from cavalcade.transport.memory import Attached, Memory
from cavalcade.tree import Tree, leaves, map, rebuild

SLOTS = 3
WRITING, WRITTEN = 0, 8  # indices of two words, a cache line apart: how many values were begun, and how many are whole


@dataclass(frozen=True)
class BroadcastAddress:
    """What a reader in another process needs; plain data."""

    blank: Tree  # zeros in the shapes of one value
    names: list[str]  # of the shared segments

    def connect(self) -> "BroadcastReader":
        return BroadcastReader(self)


class _Slots:
    """The arrays of a broadcast, which writer and readers allocate in the same order."""

    def __init__(self, blank: Tree, memory: Memory):
        self.blank = blank
        self.words = memory.array((16,), np.int64)
        self.version = memory.array((SLOTS,), np.int64)
        self.values = [leaves(memory.tree(blank)) for _ in range(SLOTS)]


class Broadcast(_Slots):
    """The writer's side; one object serves all readers. `blank`: a tree with the shapes and dtypes of every value."""

    def __init__(self, blank: Tree):
        self.memory = Memory("shared")
        super().__init__(map(np.zeros_like, blank), self.memory)
        self.address = BroadcastAddress(self.blank, self.memory.names)
        self.count = 0

    def publish(self, version: int, value: Tree) -> None:
        """Copy `value`, which readers then find as the latest."""
        self.count += 1
        _words.store(self.words, WRITING, self.count)
        slot = self.count % SLOTS
        for place, leaf in zip(self.values[slot], leaves(value)):
            place[...] = leaf
        self.version[slot] = version
        _words.store(self.words, WRITTEN, self.count)

    def step(self) -> bool:
        return False  # readers copy values themselves; there is nothing to do for them here

    def reclaim(self) -> None:
        """A reader that dies leaves nothing behind, because readers write nothing."""

    def close(self) -> None:
        self.memory.close()


class BroadcastReader(_Slots):
    """A reader's side, in another process than the writer."""

    def __init__(self, address: BroadcastAddress):
        super().__init__(address.blank, Attached(address.names))

    def latest(self, known: int) -> tuple[int, Tree] | None:
        """The newest version and a copy of its value; None if its version is `known`, or nothing was published yet."""
        while True:
            count = _words.load(self.words, WRITTEN)
            slot = count % SLOTS
            version = int(self.version[slot])
            if not count or version == known:
                if _words.load(self.words, WRITTEN) == count:
                    return None
                continue  # the writer published again while we looked
            copies = [value.copy() for value in self.values[slot]]
            if _words.load(self.words, WRITING) < count + SLOTS:  # else the writer has begun to overwrite this slot
                return version, rebuild(self.blank, iter(copies))
