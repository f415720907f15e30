"""The latest value, from one process to many: a versioned triple buffer in shared memory.

The writer copies into the oldest of three slots and then publishes its version; a reader looks at one integer to know
whether there is anything new, copies, and makes sure that the slot was not overwritten meanwhile. Nobody waits.
"""

from dataclasses import dataclass

import numpy as np

from cavalcade.transport import _words
from cavalcade.transport.memory import Attached, Memory
from cavalcade.tree import Tree, leaves, map, rebuild

SLOTS = 3
WRITING, WRITTEN = 0, 8  # words: how many values were begun, how many are whole; a cache line apart


@dataclass(frozen=True)
class BroadcastAddress:
    blank: Tree  # zeros of one value
    names: list[str]

    def connect(self) -> "BroadcastReader":
        return BroadcastReader(self)


class _Slots:
    def __init__(self, blank: Tree, memory: Memory):
        self.blank = blank
        self.words = memory.array((16,), np.int64)
        self.version = memory.array((SLOTS,), np.int64)
        self.values = [leaves(memory.tree(blank)) for _ in range(SLOTS)]


class Broadcast(_Slots):
    """The writer's side. One serves all readers."""

    def __init__(self, blank: Tree):
        self.memory = Memory("shared")
        super().__init__(map(np.zeros_like, blank), self.memory)
        self.address = BroadcastAddress(self.blank, self.memory.names)
        self.count = 0

    def publish(self, version: int, value: Tree) -> None:
        self.count += 1
        _words.store(self.words, WRITING, self.count)
        slot = self.count % SLOTS
        for place, leaf in zip(self.values[slot], leaves(value)):
            place[...] = leaf
        self.version[slot] = version
        _words.store(self.words, WRITTEN, self.count)

    def step(self) -> bool:
        return False  # readers help themselves

    def reclaim(self) -> None:
        """A reader that dies leaves nothing."""

    def close(self) -> None:
        self.memory.close()


class BroadcastReader(_Slots):
    def __init__(self, address: BroadcastAddress):
        super().__init__(address.blank, Attached(address.names))

    def latest(self, known: int) -> tuple[int, Tree] | None:
        """The newest value and its version, as a copy; None if it is the known one or nothing was published yet."""
        while True:
            count = _words.load(self.words, WRITTEN)
            slot = count % SLOTS
            version = int(self.version[slot])
            if not count or version == known:
                if _words.load(self.words, WRITTEN) == count:
                    return None
                continue  # something newer came while we looked
            copies = [value.copy() for value in self.values[slot]]
            if _words.load(self.words, WRITING) < count + SLOTS:  # else the writer came round: once more
                return version, rebuild(self.blank, iter(copies))
