"""Ways to choose which item is drawn or removed. `selectors.c` chooses; here the arrays that it works on are made."""

from dataclasses import dataclass

import numpy as np

from cavalcade.errors import UserError, nearest
from cavalcade.table import _core

KINDS = ("uniform", "prioritised", "fifo", "lifo", "min_heap", "max_heap")  # in the order of `Kind` in core.h


@dataclass(frozen=True)
class Selector:
    """One way to choose an item (`KINDS`).

    `prioritised` chooses in proportion to an item's share, priority ** exponent. A priority of zero has a share of
    zero, also under an exponent of 0; if all shares are zero the choice is uniform. Under a negative exponent
    priorities below 1e-8 count as 1e-8. Heaps choose the lowest or highest priority, and among equals the item that was
    inserted or updated longest ago.
    """

    kind: str
    exponent: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UserError(f"There is no selector '{self.kind}'.{nearest(self.kind, KINDS)}")
        if not np.isfinite(self.exponent):
            raise UserError(f"The exponent of a prioritised selector must be a number, not {self.exponent}.")

    def arrays(self, places: int) -> tuple[np.ndarray, ...]:
        """The arrays that the core needs to choose among `places` items; `Selector` in core.h explains them."""
        if self.kind == "uniform":
            return ()
        if self.kind == "prioritised":
            leaves, inner = _core.tree_size(places)
            return _aligned(leaves, np.float32), _aligned(inner, np.float64)
        listed = np.zeros(places, np.int32), np.zeros(places, np.int32)
        return listed if self.kind in ("fifo", "lifo") else (*listed, np.zeros(places, np.int64))

    def opened(self, arrays: tuple[np.ndarray, ...]) -> tuple:
        """The selector as an argument of `_core.open_table`."""
        return (KINDS.index(self.kind), float(self.exponent), *arrays)

    def __str__(self) -> str:
        return f"{self.kind} ({self.exponent:g})" if self.kind == "prioritised" else self.kind


def prioritised(exponent: float = 0.6) -> Selector:
    return Selector("prioritised", exponent)


def selector(given: str | Selector) -> Selector:
    return given if isinstance(given, Selector) else Selector(given)


def _aligned(count: int, dtype: type) -> np.ndarray:
    """[count] zeros that begin at a cache line, so that no node of the tree of sums straddles two."""
    block = np.zeros(count * np.dtype(dtype).itemsize + 64, np.uint8)
    start = -block.ctypes.data % 64
    return block[start : start + count * np.dtype(dtype).itemsize].view(dtype)
