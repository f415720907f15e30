"""A tree of arrays and plain values as a JSON value and one safetensors file, exactly and without pickle.

The file is not written by the safetensors package: writing it here in pieces needs no second copy of a large replay,
computes its SHA-256 in the same pass, and reports a full disk as an OSError.
"""

import hashlib
import json
import math
import os
from collections.abc import Iterator
from io import BufferedReader
from itertools import chain
from typing import Any, BinaryIO

import numpy as np

from cavalcade.errors import UserError

CHUNK = 4 << 20  # bytes that are written and hashed at a time: few enough to stay in the cache
MAPPED = 1 << 30  # bytes from which an array is mapped instead of read, because a replay may exceed memory
EXACT_IN_JSON = 1 << 53  # integers from here on lose digits in readers that hold every number as a double
SAFETENSORS_TYPES = {"|b1": "BOOL", "|u1": "U8", "|i1": "I8", "<u2": "U16", "<i2": "I16", "<f2": "F16"}
SAFETENSORS_TYPES |= {"<u4": "U32", "<i4": "I32", "<f4": "F32", "<u8": "U64", "<i8": "I64", "<f8": "F64"}


def write_arrays(file: BinaryIO, arrays: dict[str, np.ndarray]) -> dict:
    """Write a safetensors file: the length of the header in eight bytes, a JSON header, data without gaps. Returns its
    description, which `read_arrays` needs: types and shapes in the order of the file, size in bytes, SHA-256."""
    # Wide items first, so that every array is aligned to its item size.
    ordered = sorted(arrays.items(), key=lambda item: -item[1].itemsize)
    header, offset = {}, 0
    for name, array in ordered:
        native = SAFETENSORS_TYPES.get(array.dtype.str)  # other types are written as bytes: state.json has the type
        shape, end = array.shape if native else (array.nbytes,), offset + array.nbytes
        header[name] = {"dtype": native or "U8", "shape": shape, "data_offsets": (offset, end)}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    data = (chunk for _, array in ordered for chunk in _chunks(np.asarray(array, order="C")))
    pieces: Iterator[bytes | memoryview] = chain((len(text).to_bytes(8, "little"), text), data)
    for piece in pieces:
        digest.update(piece)
        file.write(piece)
    contents = {name: [array.dtype.str, list(array.shape)] for name, array in ordered}
    return {"contents": contents, "bytes": 8 + len(text) + offset, "sha256": digest.hexdigest()}


def read_arrays(file: BufferedReader, description: dict) -> dict[str, np.ndarray]:
    """The arrays by name; ValueError if the file is not the one that was described."""
    size, file_name = os.fstat(file.fileno()).st_size, os.path.basename(file.name)
    if size != description["bytes"]:
        raise ValueError(f"{file_name} has {size:,} bytes instead of {description['bytes']:,}")
    contents = {name: (np.dtype(dtype), shape) for name, (dtype, shape) in description["contents"].items()}
    # The description has order, types and shapes, so the header is hashed but not parsed.
    header = size - sum(math.prod(shape) * dtype.itemsize for dtype, shape in contents.values())
    digest = hashlib.sha256(file.read(header))
    arrays: dict[str, np.ndarray] = {}
    for name, (dtype, shape) in contents.items():
        mapped = math.prod(shape) * dtype.itemsize >= MAPPED
        array = np.memmap(file, dtype, "c", file.tell(), tuple(shape)) if mapped else np.empty(shape, dtype)
        for chunk in _chunks(array):
            if mapped:
                file.seek(len(chunk), os.SEEK_CUR)
            else:
                file.readinto(chunk)
            digest.update(chunk)
        arrays[name] = array
    if digest.hexdigest() != description["sha256"]:
        raise ValueError(f"{file_name} is not what was written (its SHA-256 differs)")
    return arrays


def _chunks(array: np.ndarray) -> Iterator[memoryview]:
    """The memory of a contiguous array as views of up to `CHUNK` bytes."""
    if array.nbytes:
        flat = array.reshape(-1).view(np.uint8).data
        yield from (flat[start : start + CHUNK] for start in range(0, len(flat), CHUNK))


# `{"$array": name}`, `{"$int": hex}` and `{"$float": "nan"}` stand for values that JSON lacks. A key of a state that
# begins with a dollar gets a second one.


def encode(value: Any, path: str, arrays: dict[str, np.ndarray]) -> Any:
    """`value` as a JSON value; its arrays are put into `arrays` by name. `path`: where the value lies in the state."""
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        if array.dtype.hasobject or array.dtype.kind == "V":
            raise UserError(f"A checkpoint cannot hold {path}, an array of {array.dtype}: use numbers or strings.")
        name = _free_name(path, arrays)
        arrays[name] = array
        return {"$array": name}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        pairs = ((key, encode(child, f"{path}/{key}" if path else key, arrays)) for key, child in value.items())
        return {f"${key}" if key.startswith("$") else key: child for key, child in pairs}
    if isinstance(value, list):
        return [encode(child, f"{path}/{index}", arrays) for index, child in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": str(value)}
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= EXACT_IN_JSON:
        return {"$int": hex(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    kind = "dict with keys that are not strings" if isinstance(value, dict) else type(value).__name__
    raise UserError(f"A checkpoint cannot hold {path or 'this state'}, a {kind}: use arrays, JSON values and dicts.")


def _free_name(path: str, taken: dict[str, np.ndarray]) -> str:
    """A name for an array in the file: its path, with a number where keys with slashes make two paths equal."""
    path = path.encode(errors="replace").decode()
    name, number = path, 1
    while name in taken or name == "__metadata__":  # a name that safetensors reserves
        number += 1
        name = f"{path}#{number}"
    return name


def decode(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    """The inverse of `encode`."""
    if isinstance(value, list):
        return [decode(child, arrays) for child in value]
    if not isinstance(value, dict):
        return value
    if "$array" in value:
        return arrays[value["$array"]]
    if "$int" in value:
        return int(value["$int"], 16)
    if "$float" in value:
        return float(value["$float"])
    return {key.removeprefix("$"): decode(child, arrays) for key, child in value.items()}
