"""Items in preallocated arrays: drawn uniformly or in order, removed oldest first, gated by a limiter."""

from typing import NamedTuple

import numpy as np

from cavalcade import tree
from cavalcade.errors import UserError
from cavalcade.table.limiter import Limiter
from cavalcade.tree import Tree


class Sample(NamedTuple):
    items: Tree  # [B, ...]
    keys: np.ndarray  # [B] int64, the number of the item since the table began
    probability: np.ndarray  # [B] float32, with which each was drawn
    version: np.ndarray  # [B] int64, of the policy that made it


class Table:
    """A store of equal items. `queue` and `uniform` are its two settings.

    Calls never block: ask `can_insert` and `can_sample` first, or take `False` and `None` for "not now".
    """

    def __init__(self, blank: Tree, size: int, sampler: str, max_times_sampled: int, limiter: Limiter, seed: int = 0):
        self.size, self.sampler, self.max_times_sampled, self.limiter = (
            size,
            sampler,
            max_times_sampled,
            limiter,
        )
        self.store = tree.map(lambda leaf: np.zeros((size, *np.shape(leaf)), leaf.dtype), blank)
        self.version = np.zeros(size, np.int64)
        self.oldest, self.next = (
            0,
            0,
        )  # keys of the oldest item and of the one to come; a key's place is key % size
        self.rng = np.random.default_rng(seed)

    @classmethod
    def queue(cls, blank: Tree, size: int) -> "Table":
        """First in, first out, each item drawn once."""
        return cls(blank, size, "fifo", 1, Limiter.queue(size))

    @classmethod
    def uniform(cls, blank: Tree, size: int, limiter: Limiter, seed: int = 0) -> "Table":
        """Replay: the newest `size` items, each draw with replacement."""
        if limiter.min_size > size:
            raise UserError(
                f"The table must hold {limiter.min_size} items before the first draw but its size is {size}."
            )
        return cls(blank, size, "uniform", 0, limiter, seed)

    def __len__(self) -> int:
        return self.next - self.oldest

    @property
    def bytes(self) -> int:
        return sum(leaf.nbytes for leaf in tree.leaves(self.store))

    def can_insert(self, count: int) -> bool:
        fits = self.sampler != "fifo" or len(self) + count <= self.size
        return fits and self.limiter.can_insert(count)

    def can_sample(self, count: int) -> bool:
        return len(self) >= (count if self.sampler == "fifo" else 1) and self.limiter.can_sample(count)

    def insert(self, items: Tree, version: int) -> bool:
        """Store items [M, ...]; False, and nothing stored, if the limiter says wait."""
        count = len(tree.leaves(items)[0])
        if not self.can_insert(count):
            return False
        place = self.next % self.size
        if place + count <= self.size:
            where: slice | np.ndarray = slice(place, place + count)
        else:
            where = np.arange(self.next, self.next + count) % self.size
        tree.assign(self.store, where, items)
        self.version[where] = version
        self.next += count
        self.limiter.inserts += count
        self._forget(max(0, len(self) - self.size))
        return True

    def _forget(self, count: int) -> None:
        self.oldest += count
        self.limiter.deletes += count

    def sample(self, count: int) -> Sample | None:
        """Draw `count` items; None if the limiter says wait."""
        if not self.can_sample(count):
            return None
        if self.sampler == "fifo":
            keys = np.arange(self.oldest, self.oldest + count)
            probability = np.ones(count, np.float32)
        else:
            keys = self.rng.integers(self.oldest, self.next, count)
            probability = np.full(count, 1.0 / len(self), np.float32)
        places = keys % self.size
        items = tree.map(lambda store: np.take(store, places, axis=0), self.store)
        sample = Sample(items, keys, probability, self.version[places])
        self.limiter.samples += count
        if self.max_times_sampled == 1:
            self._forget(count)
        return sample

    def account(self) -> str:
        return self.limiter.account()

    def report(self) -> dict:
        return {"table_size": len(self), "table_capacity": self.size}

    def state(self) -> dict:
        places = np.arange(self.oldest, self.next) % self.size
        return {
            "items": tree.map(lambda store: store[places], self.store),
            "version": self.version[places],
            "oldest": self.oldest,
            "next": self.next,
            "limiter": {k: getattr(self.limiter, k) for k in ("inserts", "deletes", "samples")},
            "rng": self.rng.bit_generator.state,
        }

    def restore(self, state: dict) -> None:
        self.oldest, self.next = state["oldest"], state["next"]
        places = np.arange(self.oldest, self.next) % self.size
        tree.assign(self.store, places, state["items"])
        self.version[places] = state["version"]
        for name, value in state["limiter"].items():
            setattr(self.limiter, name, value)
        self.rng.bit_generator.state = state["rng"]
