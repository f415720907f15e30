"""What one item of a table is: rows that it shares with others, what is its own, and how both become a sample."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from cavalcade.table.rows import Rows, RowSpec
from cavalcade.tree import Tree, leaves, rebuild


class Items(NamedTuple):
    """Items to be inserted, as references."""

    rows: np.ndarray  # [M, length] int32; row 0 fills up short ones
    own: Tree  # [M, ...]
    priority: np.ndarray | None = None  # [M], where whoever made them knows it


@dataclass(frozen=True)
class Signature:
    own: Tree  # zeros of what belongs to the item alone
    rows: RowSpec = field(default_factory=lambda: RowSpec(np.zeros((), np.uint8)))
    length: int = 0  # rows of an item, at most
    is_transition: bool = False
    adjacent: bool = False  # of a transition: the second row directly follows the first

    @classmethod
    def whole(cls, blank: Tree) -> "Signature":
        """Items that share nothing: any tree."""
        return cls(blank)

    @classmethod
    def transition(cls, rows: RowSpec, own: Tree, adjacent: bool = False) -> "Signature":
        """Two rows: the sample has the observation of the first as `obs`, of the second as `next_obs`."""
        return cls(own, rows, 2, True, adjacent)

    @classmethod
    def sequence(cls, rows: RowSpec, own: Tree, length: int) -> "Signature":
        """`length` rows in a row; the last one is there for its observation only."""
        return cls(own, rows, length)

    @cached_property
    def flat(self) -> bool:
        """The item's own leaves are a dict without dicts in it."""
        return isinstance(self.own, dict) and not any(isinstance(leaf, dict) for leaf in self.own.values())

    def flatten(self, own: Tree) -> dict[str, Any]:
        """The item's own leaves, by the names they have in its record."""
        return own if self.flat else {str(number): leaf for number, leaf in enumerate(leaves(own))}

    def unflatten(self, own: dict[str, Any]) -> Tree:
        return own if self.flat else rebuild(self.own, (own[str(number)] for number in range(len(own))))

    def as_items(self, given: "Items | Tree") -> "Items":
        """Whatever is to be inserted; items without rows come as a tree."""
        if isinstance(given, Items):
            return given
        return Items(np.zeros((len(leaves(given)[0]), self.length), np.int32), given)

    @property
    def item_bytes(self) -> int:
        """Of one item without its rows, with its bookkeeping."""
        own = sum(np.asarray(leaf).nbytes for leaf in self.flatten(self.own).values())
        return own + 56 + 4 * self.length

    def build(self, rows: Rows, slots: np.ndarray, own: dict) -> Tree:
        """Samples [B, ...] of the items with these rows [B, length]."""
        whole = self.unflatten(own)
        if not self.length:
            return whole
        return {**whole, **(self._transition(rows, slots) if self.is_transition else self._sequence(rows, slots))}

    def _transition(self, rows: Rows, slots: np.ndarray) -> Tree:
        if self.adjacent and self.rows.stack > 1:  # the two stacks differ in one frame: read it once, look at it twice
            frames = rows.read_observations(slots, 1, 2, extra=1)
            return {"obs": frames[:, :-1], "next_obs": frames[:, 1:]}
        return {"obs": rows.read_observations(slots, 0, 2), "next_obs": rows.read_observations(slots, 1, 2)}

    def _sequence(self, rows: Rows, slots: np.ndarray) -> Tree:
        acted = slots.copy()
        last = np.count_nonzero(slots, axis=1) - 1
        acted[np.arange(len(slots)), last] = 0  # by now it may be the first row of the next item: not ours to read
        flat = {
            "obs": rows.read_observations(slots),
            "first": rows.seen.read(slots, names=("first",))["first"],
            **rows.done.read(acted),
        }
        return _fold(flat, slots.shape)


def _fold(tree: Tree, shape: tuple[int, ...]) -> Tree:
    """[B * L, ...] as [B, L, ...]."""
    if isinstance(tree, dict):
        return {key: _fold(child, shape) for key, child in tree.items()}
    return tree.reshape(*shape, *tree.shape[1:])
