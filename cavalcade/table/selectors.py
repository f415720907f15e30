"""Ways to choose an item, to draw it or to remove it. The work is done in `selectors.c`; here they get their arrays."""

from dataclasses import dataclass

import numpy as np

from cavalcade.errors import UserError, nearest
from cavalcade.table import _core

KINDS = ("uniform", "prioritised", "fifo", "lifo", "min_heap", "max_heap")  # in the order of `Kind` in core.h


@dataclass(frozen=True)
class Selector:
    """`prioritised` chooses in proportion to priority ** exponent; with all shares zero it chooses uniformly.

    Heaps choose the lowest or highest priority, and the oldest item among equals. Under a negative exponent priorities
    below 1e-8 count as 1e-8.
    """

    kind: str
    exponent: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UserError(f"There is no selector '{self.kind}'.{nearest(self.kind, KINDS)}")
        if not np.isfinite(self.exponent):
            raise UserError(f"The exponent of a prioritised selector must be a number, not {self.exponent}.")

    def arrays(self, capacity: int) -> tuple[np.ndarray, np.ndarray]:
        if self.kind == "uniform":
            return np.zeros(0, np.int32), np.zeros(0, np.int32)
        if self.kind == "prioritised":
            leaves, inner = _core.tree_size(capacity)
            return _aligned(leaves, np.float32), _aligned(inner, np.float64)
        return np.zeros(capacity, np.int32), np.zeros(capacity, np.int32)

    def opened(self, arrays: tuple[np.ndarray, np.ndarray]) -> tuple:
        kind = "uniform" if self.kind == "prioritised" and self.exponent == 0 else self.kind
        return (KINDS.index(kind), float(self.exponent), *arrays)


def prioritised(exponent: float = 0.6) -> Selector:
    return Selector("prioritised", exponent)


def selector(given: str | Selector) -> Selector:
    return given if isinstance(given, Selector) else Selector(given)


def _aligned(count: int, dtype: type) -> np.ndarray:
    """Zeros whose nodes do not straddle cache lines."""
    block = np.zeros(count * np.dtype(dtype).itemsize + 64, np.uint8)
    start = -block.ctypes.data % 64
    return block[start : start + count * np.dtype(dtype).itemsize].view(dtype)
