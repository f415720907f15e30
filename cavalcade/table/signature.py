"""What one item of a table holds: rows that it shares with other items and leaves of its own; how both become a sample.

A slot is the number of a row in the table's memory.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from cavalcade.table.rows import Rows, RowSpec
from cavalcade.tree import Tree, leaves, rebuild


class Items(NamedTuple):
    """M items to insert, by reference to their rows."""

    rows: np.ndarray  # [M, length] int32 slots; items that are shorter than `length` end with slots of 0
    own: Tree  # [M, ...] the leaves that belong to one item alone
    priority: np.ndarray | None = None  # [M] float32; None: the table chooses


@dataclass(frozen=True)
class Signature:
    """What every item of a table holds; plain data."""

    own: Tree  # zeros in the shapes of the leaves that belong to one item alone
    rows: RowSpec = field(default_factory=lambda: RowSpec(np.zeros((), np.uint8)))
    length: int = 0  # the most rows that an item can refer to
    is_transition: bool = False  # a sample has the observations of two rows, instead of all rows
    adjacent: bool = False  # of a transition: the second row is the step directly after the first

    @classmethod
    def whole(cls, blank: Tree) -> "Signature":
        """Items without rows: any tree, in the shapes of `blank`."""
        return cls(blank)

    @classmethod
    def transition(cls, rows: RowSpec, own: Tree, adjacent: bool = False) -> "Signature":
        """Items of two rows: a sample has the observation of the first as `obs` and of the second as `next_obs`."""
        return cls(own, rows, 2, True, adjacent)

    @classmethod
    def sequence(cls, rows: RowSpec, own: Tree, length: int) -> "Signature":
        """Items of up to `length` consecutive rows. The last one gives its observation only: nobody has acted on it yet
        when the item is made."""
        return cls(own, rows, length)

    @cached_property
    def flat(self) -> bool:
        """Whether the item's own leaves are a dict without dicts in it, which needs no renaming."""
        return isinstance(self.own, dict) and not any(isinstance(leaf, dict) for leaf in self.own.values())

    def flatten(self, own: Tree) -> dict[str, Any]:
        """The item's own leaves by the names that they have in its record."""
        return own if self.flat else {str(number): leaf for number, leaf in enumerate(leaves(own))}

    def unflatten(self, own: dict[str, Any]) -> Tree:
        """The inverse of `flatten`."""
        return own if self.flat else rebuild(self.own, (own[str(number)] for number in range(len(own))))

    def as_items(self, given: "Items | Tree") -> "Items":
        """`given` as `Items`. Items without rows may be given as a tree [M, ...]."""
        if isinstance(given, Items):
            return given
        return Items(np.zeros((len(leaves(given)[0]), self.length), np.int32), given)

    @property
    def item_bytes(self) -> int:
        """Bytes of one item with its bookkeeping, without its rows."""
        own = sum(np.asarray(leaf).nbytes for leaf in self.flatten(self.own).values())
        return own + 56 + 4 * self.length

    def build(self, rows: Rows, slots: np.ndarray, own: dict) -> Tree:
        """Samples [B, ...] of the items with these `slots` [B, length] and own leaves [B, ...]."""
        whole = self.unflatten(own)
        if not self.length:
            return whole
        return {**whole, **(self._transition(rows, slots) if self.is_transition else self._sequence(rows, slots))}

    def _transition(self, rows: Rows, slots: np.ndarray) -> Tree:
        if self.adjacent and self.rows.stack > 1:  # the two stacks share all frames but one: read those once
            frames = rows.read_observations(slots, 1, 2, extra=1)
            return {"obs": frames[:, :-1], "next_obs": frames[:, 1:]}
        return {"obs": rows.read_observations(slots, 0, 2), "next_obs": rows.read_observations(slots, 1, 2)}

    def _sequence(self, rows: Rows, slots: np.ndarray) -> Tree:
        acted = slots.copy()
        last = np.count_nonzero(slots, axis=1) - 1
        # the last row may have been acted on since, as the first row of the next item: that is no part of this item
        acted[np.arange(len(slots)), last] = 0
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
