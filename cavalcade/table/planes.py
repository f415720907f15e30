"""Records in preallocated arrays: small leaves of a tree lie packed side by side, large ones in an array of their own.

Reading a packed record costs one cache miss; with an array for each leaf it would cost one for each (four times slower
at 48 bytes). A column holds one leaf of many records. One call copies all leaves between records and columns.
"""

import math
import sys
from typing import Any

import numpy as np

from cavalcade.errors import UserError
from cavalcade.table import _core
from cavalcade.transport import Memory

LARGE = 256  # bytes from which a leaf has an array of its own
MOST_LEAVES = 256  # MOST_FIELDS in columns.c
RECYCLED = 1 << 20  # bytes from which the memory of a column that was read is used again


def _references_of_an_unused_block() -> int:
    """How many references the loop in `Recycler.empty` counts for a block that nobody else uses. It is measured here,
    because versions of Python count the loop's own references differently."""
    blocks, found = [np.empty(1)], 0
    for block in blocks:
        found = sys.getrefcount(block)
    return found


_UNUSED = _references_of_an_unused_block()


class Recycler:
    """Makes arrays that a caller may keep. The memory of large ones is used again when nobody refers to it any more,
    because touching fresh pages for the first time costs as much as filling them."""

    def __init__(self) -> None:
        self.blocks: list[np.ndarray] = []

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """An array with any content."""
        size = math.prod(shape) * dtype.itemsize
        if size < RECYCLED:
            return np.empty(shape, dtype)
        for block in self.blocks:
            if block.nbytes == size and sys.getrefcount(block) == _UNUSED:
                return np.ndarray(shape, dtype, block)
        block = np.empty(size, np.uint8)
        self.blocks = [*self.blocks[-5:], block]
        return np.ndarray(shape, dtype, block)


class Plane:
    """`count` records of equal size, which begin with `header` bytes and then hold one value of each leaf."""

    def __init__(self, leaves: dict[str, np.ndarray], count: int, memory: Memory, header: int = 0):
        if len(leaves) > MOST_LEAVES:
            raise UserError(f"An item or a row can have {MOST_LEAVES} small leaves, not {len(leaves)}: stack some.")
        self.leaves, self.recycler, offset = leaves, Recycler(), header
        self.offsets: dict[str, int] = {}
        for name in sorted(leaves, key=lambda name: (-leaves[name].dtype.itemsize, name)):  # so all are aligned
            self.offsets[name] = offset
            offset += leaves[name].nbytes
        unit = max([leaf.dtype.itemsize for leaf in leaves.values()] + ([8] if header else [1]))
        self.stride = -(-offset // unit) * unit
        self.records = memory.allocate(self.stride * count)[: self.stride * count]
        self.names, self.plans = tuple(leaves), {}  # type: tuple[str, ...], dict[tuple, tuple]

    def view(self, offset: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """[count, *shape]: a view of the values at `offset` bytes of every record."""
        item = np.dtype(dtype)
        inner = np.empty(shape, item).strides
        count = len(self.records) // self.stride
        return np.ndarray((count, *shape), item, self.records, offset, (self.stride, *inner))

    def _plan(self, names: tuple[str, ...]) -> tuple:
        """For these leaves: [n, 2] int64 of offset and size in bytes for the core, and names with shapes and types.
        Made once for each set of names."""
        plan = self.plans.get(names)
        if plan is None:
            here = [name for name in self.leaves if name in names]
            layout = np.array([[self.offsets[name], self.leaves[name].nbytes] for name in here], np.int64)
            plan = self.plans[names] = (layout, [(n, self.leaves[n].shape, self.leaves[n].dtype) for n in here])
        return plan

    def write(self, index: np.ndarray, columns: dict[str, Any]) -> None:
        """Write entry i of each column into record index[i]; `index`: [n] int32."""
        layout, shapes = self._plan(tuple(columns))
        arrays = [_rows(columns[n], d, s) if s else np.asarray(columns[n], d) for n, s, d in shapes]
        _core.scatter(self.records, self.stride, index, 0, 1, layout, arrays)

    def put(self, index: np.ndarray, columns: dict[str, np.ndarray]) -> None:
        """As `write`, for columns of all leaves that `Planes.verified` has checked."""
        if self.leaves:
            layout, shapes = self._plan(self.names)
            _core.scatter(self.records, self.stride, index, 0, 1, layout, [columns[name] for name, _, _ in shapes])

    def read(self, index: np.ndarray, count: int, names: tuple[str, ...], start: int, step: int) -> dict:
        """Columns [count, ...] of the records index[start::step]."""
        layout, shapes = self._plan(names)
        empty = self.recycler.empty
        columns = {name: empty((count, *shape), dtype) for name, shape, dtype in shapes}
        _core.gather(self.records, self.stride, index, start, step, layout, list(columns.values()))
        return columns


def _rows(column: Any, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """The column with every entry contiguous, as the core needs it. A slice of a larger array, such as the newest frame
    of every stack, may be so already and is then not copied."""
    if len(shape) > 1 and column.dtype == dtype and len(column) and column[0].flags.c_contiguous:
        return column
    return np.ascontiguousarray(column, dtype)


class CompressedPlane:
    """Records of one large leaf, each compressed by itself (LZ4). Frames of most games shrink 14 to 38 times."""

    def __init__(self, leaves: dict[str, np.ndarray], count: int, memory: Memory):
        try:
            from lz4 import block
        except ImportError as error:
            raise UserError("--storage compressed needs lz4; run: pip install 'cavalcade[compression]'.") from error
        ((self.name, self.leaf),) = leaves.items()
        self.leaves, self.codec, self.recycler = leaves, block, Recycler()
        self.records: list[bytes] = [block.compress(bytes(self.leaf.nbytes), store_size=False)] * count

    def write(self, index: np.ndarray, columns: dict[str, Any]) -> None:
        values = np.ascontiguousarray(columns[self.name], self.leaf.dtype)
        for at, value in zip(index.tolist(), values):
            self.records[at] = self.codec.compress(value, store_size=False)

    put = write

    def read(self, index: np.ndarray, count: int, names: tuple[str, ...], start: int, step: int) -> dict:
        wanted = index[start::step].tolist()
        column = self.recycler.empty((count, *self.leaf.shape), self.leaf.dtype)
        flat, size = column.reshape(-1).view(np.uint8), self.leaf.nbytes
        for i, at in enumerate(wanted):
            frame = self.codec.decompress(self.records[at], uncompressed_size=size)
            flat[i * size : (i + 1) * size] = np.frombuffer(frame, np.uint8)
        return {self.name: column}


class Planes:
    """Records of named leaves: one plane for all small leaves, with the header if there is one, and one plane for each
    large leaf."""

    def __init__(
        self, leaves: dict[str, np.ndarray], count: int, memory: Memory, compressed: bool = False, header: int = 0
    ):
        small = {name: leaf for name, leaf in leaves.items() if leaf.nbytes < LARGE}
        self.count, self.names = count, tuple(leaves)
        self.planes: list[Plane | CompressedPlane] = [Plane(small, count, memory, header)] if small or header else []
        self.shapes = {name: (leaf.shape, leaf.dtype) for name, leaf in leaves.items()}
        for name, leaf in leaves.items():  # always in this order: other processes attach to the same memory
            if name not in small:
                kind: Any = CompressedPlane if compressed and leaf.dtype == np.uint8 else Plane
                self.planes.append(kind({name: leaf}, count, memory))

    def verified(self, columns: dict[str, Any], count: int) -> dict[str, np.ndarray]:
        """The columns as arrays of the leaves' types; ValueError unless there is one [count, ...] for each leaf."""
        if columns.keys() != self.shapes.keys():
            raise ValueError(f"items have the leaves {sorted(self.shapes)}, but {sorted(columns)} were given")
        arrays = {}
        for name, (shape, dtype) in self.shapes.items():
            array = columns[name]
            if type(array) is not np.ndarray or array.dtype != dtype:
                array = np.asarray(array, dtype)
            if array.shape != (count, *shape):
                raise ValueError(f"'{name}' of {count} items has the shape {(count, *shape)}, not {array.shape}")
            arrays[name] = array if array.flags.c_contiguous else _rows(array, dtype, shape)
        return arrays

    def put(self, index: np.ndarray, verified: dict[str, np.ndarray]) -> None:
        """Write entry i of each verified column into record index[i]."""
        for plane in self.planes:
            plane.put(index, verified)

    def __str__(self) -> str:
        """Number, names, types and shapes: a saved state fits every object with the same text."""
        return f"{self.count} x {{{', '.join(f'{n}: {d}{list(s)}' for n, (s, d) in self.shapes.items())}}}"

    def write(self, index: np.ndarray, columns: dict[str, Any]) -> None:
        """Write entry i of each column into record index[i]; leaves without a column stay as they are."""
        if len(self.planes) == 1:
            self.planes[0].write(index, columns)
            return
        for plane in self.planes:
            here = {name: column for name, column in columns.items() if name in plane.leaves}
            if here:
                plane.write(index, here)

    def read(self, index: np.ndarray, start: int = 0, step: int = 1, names: tuple[str, ...] | None = None) -> dict:
        """Columns {name: [n, ...]} of the records index[start::step]; an index of any shape is flattened first."""
        index, wanted = index.reshape(-1), names or self.names
        count = len(range(start, len(index), step))
        if len(self.planes) == 1:
            return self.planes[0].read(index, count, wanted, start, step)
        found: dict[str, np.ndarray] = {}
        for plane in self.planes:
            if any(name in wanted for name in plane.leaves):
                found.update(plane.read(index, count, wanted, start, step))
        return found

    def state(self, high: int, copied: bool = True) -> dict:
        """The bytes of the first `high` records, copied or as views."""
        kept = {}
        for number, plane in enumerate(self.planes):
            if isinstance(plane, CompressedPlane):
                sizes = np.array([len(record) for record in plane.records[:high]], np.int64)
                joined = np.frombuffer(b"".join(plane.records[:high]), np.uint8)
                kept[str(number)] = {"sizes": sizes, "bytes": joined}
            else:
                records = plane.records[: high * plane.stride]
                kept[str(number)] = {"bytes": records.copy() if copied else records}
        return kept

    def restore(self, state: dict) -> None:
        for number, plane in enumerate(self.planes):
            kept = state[str(number)]
            if isinstance(plane, CompressedPlane):
                ends = np.cumsum(kept["sizes"])
                joined = kept["bytes"].tobytes()
                for at, (size, end) in enumerate(zip(kept["sizes"].tolist(), ends.tolist())):
                    plane.records[at] = joined[end - size : end]
            else:
                plane.records[: len(kept["bytes"])] = kept["bytes"]
