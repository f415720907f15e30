"""Checkpoints: a tree of arrays and plain values that survives kill -9, power loss and a full disk.

A checkpoint is a folder `step-000012345` with two files. `arrays.safetensors` holds the arrays and opens in
any safetensors reader; `state.json` holds everything else, the size and SHA-256 of the arrays, and a SHA-256
of itself. SHA-256 runs at more than 1 GB/s here, faster than most disks, so no weaker sum is needed.
A folder is written under a hidden name, synced, and only then renamed: under its real name it is always
whole. Nothing is pickled: loading a stranger's checkpoint runs none of their code.

The arrays file is written here and not by the safetensors package because streaming it needs no second copy
of a large replay, sums it in the same pass, and reports a full disk as the OSError that it is.
"""

import contextlib
import errno
import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Iterator
from io import BufferedReader
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from cavalcade.errors import UserError

FORMAT = 3  # 2: tables keep rows and references to them; 3: steps whose rows are still to be written
_ARRAYS, _STATE = "arrays.safetensors", "state.json"
_WRITING, _REPLACED, _REMOVING = (
    ".writing-",
    ".replaced-",
    ".removing-",
)  # folders in transit, never loaded as they are
_STEP_FOLDER = re.compile(r"step-(\d+)")
_CHUNK = 4 << 20  # bytes written and summed at a time: small enough to stay in the cache
_MAPPED = 1 << 30  # bytes from which an array is not read into memory: replay on disk may be larger than that
_EXACT_IN_JSON = 1 << 53  # larger integers lose digits in readers that hold every number as a double
_SAFETENSORS_TYPES = {"|b1": "BOOL", "|u1": "U8", "|i1": "I8", "<u2": "U16", "<i2": "I16", "<f2": "F16"}
_SAFETENSORS_TYPES |= {"<u4": "U32", "<i4": "I32", "<f4": "F32", "<u8": "U64", "<i8": "I64", "<f8": "F64"}


def save(folder: Path, state: dict, step: int, keep: int = 2) -> Path:
    """Write `state` as the newest checkpoint in `folder`, then delete all but the newest `keep`."""
    if step < 0 or keep < 1:
        raise UserError(f"A checkpoint needs step >= 0 and keep >= 1, not step {step} and keep {keep}.")
    arrays: dict[str, np.ndarray] = {}
    encoded = _encode(state, "", arrays)
    final = folder / _name(step)
    writing = folder / f"{_WRITING}{final.name}-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _finish_interrupted(folder)
        writing.mkdir()
        _write_files(writing, encoded, arrays, step)
        if final.exists():  # the same step again: a folder cannot replace a full one in a single rename
            final.rename(folder / f"{_REPLACED}{final.name}")
        writing.rename(final)
        _sync_folder(folder)
    except BaseException as error:
        with contextlib.suppress(OSError):
            _finish_interrupted(folder)  # removes what was half written, puts back what was set aside
        if isinstance(error, OSError):
            raise UserError(_failure_sentence(folder, error)) from error
        raise
    _finish_interrupted(folder)
    _delete_superseded(folder, step, keep)
    return final


def forget_later(folder: Path, step: int) -> None:
    """Delete what was saved after `step`, as when a run goes on from there. Of a checkpoint in several parts some may
    have been written and others not; they would be kept in the place of one that is whole."""
    _delete_superseded(folder, step, keep=2)


def load_latest(folder: Path) -> tuple[dict, int, list[str]]:
    """The newest intact state, its step, and a sentence about each newer checkpoint that was refused."""
    notes: list[str] = []
    for path in reversed(_checkpoints(folder)):
        try:
            return *load(path), notes
        except (OSError, ValueError) as error:
            notes.append(f"Checkpoint {path.name} was refused: {error}.")
    reason = " ".join(notes) or "It holds none."
    raise UserError(f"No usable checkpoint in {folder}, so start the training anew with `cavalcade train`. {reason}")


def load_step(folder: Path, step: int) -> dict:
    """The state that was saved at this step."""
    return load(folder / _name(step))[0]


def load(path: Path) -> tuple[dict, int]:
    """The state and step of one checkpoint folder. Raises ValueError when it is not what was written."""
    document = json.loads((path / _STATE).read_bytes())
    if not isinstance(document, dict) or document.pop("sha256", None) != _sha256_of(document):
        raise ValueError(f"{_STATE} is not what was written")
    if document["format"] != FORMAT:
        raise ValueError(f"it has format {document['format']} and this version of cavalcade reads format {FORMAT}")
    with open(path / _ARRAYS, "rb") as file:
        arrays = _read_arrays(file, document["arrays"])
    return _decode(document["state"], arrays), document["step"]


def write_atomically(path: Path, data: bytes) -> None:
    """Replace one file so that a reader, or a crash, sees the old content or the new and nothing between."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            _sync_file(file)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def is_disk_full(error: BaseException) -> bool:
    """No space, no quota, or the file grew beyond the limit that the system administrator set."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


# Folders


def _name(step: int) -> str:
    return f"step-{step:09d}"


def _checkpoints(folder: Path) -> list[Path]:
    """Whole checkpoints, oldest first. One set aside counts if its replacement never arrived."""
    found: dict[int, Path] = {}
    for path in folder.glob("*step-*"):
        match = _STEP_FOLDER.fullmatch(path.name.removeprefix(_REPLACED))
        if match and (path.name == match[0] or int(match[1]) not in found):
            found[int(match[1])] = path
    return [found[step] for step in sorted(found)]


def _finish_interrupted(folder: Path) -> None:
    """Undo or complete what a killed `save` left behind. A run has one writer, so nothing here is in use."""
    for path in folder.glob(".*"):
        original = folder / path.name.removeprefix(_REPLACED)
        if path.name.startswith(_REPLACED) and not original.exists():
            path.rename(original)
        elif path.name.startswith((_WRITING, _REPLACED, _REMOVING)):
            shutil.rmtree(path, ignore_errors=True)


def _delete_superseded(folder: Path, step: int, keep: int) -> None:
    # Steps beyond the one just saved are damaged, or of a future that this run left when it resumed earlier.
    by_step = {int(path.name.removeprefix("step-")): path for path in _checkpoints(folder)}
    kept = sorted((s for s in by_step if s <= step), reverse=True)[:keep]
    for path in (path for s, path in by_step.items() if s not in kept):
        # Hidden first: a crash half way through deleting must not leave half a folder under a real name.
        with contextlib.suppress(OSError):
            shutil.rmtree(path.rename(folder / f"{_REMOVING}{path.name}"), ignore_errors=True)


def _failure_sentence(folder: Path, error: OSError) -> str:
    if is_disk_full(error):
        what = f"The disk is full, so no checkpoint could be written to {folder}: free some space and resume"
    else:
        what = f"No checkpoint could be written to {folder} ({error.strerror or error}): mend that and resume"
    with contextlib.suppress(OSError):
        if earlier := _checkpoints(folder):
            return f"{what}; nothing was lost: the last checkpoint is {earlier[-1].name}."
    return f"{what}; there is no earlier checkpoint."


# Files


def _write_files(folder: Path, encoded: Any, arrays: dict[str, np.ndarray], step: int) -> None:
    with open(folder / _ARRAYS, "wb") as file:
        description = _write_arrays(file, arrays)
        _sync_file(file)
    document = {"format": FORMAT, "step": step, "arrays": description, "state": encoded}
    with open(folder / _STATE, "wb") as file:
        file.write(json.dumps({**document, "sha256": _sha256_of(document)}, indent=1).encode())
        _sync_file(file)
    _sync_folder(folder)


def _write_arrays(file: BinaryIO, arrays: dict[str, np.ndarray]) -> dict:
    """Write a safetensors file: the length of the header in eight bytes, a JSON header, data without gaps."""
    # Wide items first, so that every array is aligned to its item size.
    ordered = sorted(arrays.items(), key=lambda item: -item[1].itemsize)
    header, offset = {}, 0
    for name, array in ordered:
        native = _SAFETENSORS_TYPES.get(array.dtype.str)  # others travel as bytes: state.json has the type
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


def _read_arrays(file: BufferedReader, description: dict) -> dict[str, np.ndarray]:
    size = os.fstat(file.fileno()).st_size
    if size != description["bytes"]:
        raise ValueError(f"{_ARRAYS} has {size:,} bytes instead of {description['bytes']:,}")
    contents = {name: (np.dtype(dtype), shape) for name, (dtype, shape) in description["contents"].items()}
    # state.json vouches for order, types and shapes, so the header is summed and need not be understood.
    header = size - sum(math.prod(shape) * dtype.itemsize for dtype, shape in contents.values())
    digest = hashlib.sha256(file.read(header))
    arrays: dict[str, np.ndarray] = {}
    for name, (dtype, shape) in contents.items():
        mapped = math.prod(shape) * dtype.itemsize >= _MAPPED
        array = np.memmap(file, dtype, "c", file.tell(), tuple(shape)) if mapped else np.empty(shape, dtype)
        for chunk in _chunks(array):
            if mapped:
                file.seek(len(chunk), os.SEEK_CUR)
            else:
                file.readinto(chunk)
            digest.update(chunk)
        arrays[name] = array
    if digest.hexdigest() != description["sha256"]:
        raise ValueError(f"{_ARRAYS} is not what was written (its SHA-256 differs)")
    return arrays


def _chunks(array: np.ndarray) -> Iterator[memoryview]:
    """The memory of a contiguous array as views of bytes."""
    if array.nbytes:
        flat = array.reshape(-1).view(np.uint8).data
        yield from (flat[start : start + _CHUNK] for start in range(0, len(flat), _CHUNK))


def _sha256_of(document: dict) -> str:
    return hashlib.sha256(json.dumps(document).encode()).hexdigest()


def _sync_file(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":  # Windows cannot open a folder; its renames are journaled
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# Values. `{"$array": name}`, `{"$int": hex}` and `{"$float": "nan"}` stand for what JSON lacks; a user's own
# key that begins with a dollar gets a second one.


def _encode(value: Any, path: str, arrays: dict[str, np.ndarray]) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        if array.dtype.hasobject or array.dtype.kind == "V":
            raise UserError(f"A checkpoint cannot hold {path}, an array of {array.dtype}: use numbers or strings.")
        name = _free_name(path, arrays)
        arrays[name] = array
        return {"$array": name}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        pairs = ((key, _encode(child, f"{path}/{key}" if path else key, arrays)) for key, child in value.items())
        return {f"${key}" if key.startswith("$") else key: child for key, child in pairs}
    if isinstance(value, list):
        return [_encode(child, f"{path}/{index}", arrays) for index, child in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": str(value)}
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= _EXACT_IN_JSON:
        return {"$int": hex(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    kind = "dict with keys that are not strings" if isinstance(value, dict) else type(value).__name__
    raise UserError(f"A checkpoint cannot hold {path or 'this state'}, a {kind}: use arrays, JSON values and dicts.")


def _free_name(path: str, taken: dict[str, np.ndarray]) -> str:
    """A name for the arrays file: the path, told apart where keys with slashes make two paths look alike."""
    path = path.encode(errors="replace").decode()
    name, number = path, 1
    while name in taken or name == "__metadata__":  # the one name that safetensors keeps for itself
        number += 1
        name = f"{path}#{number}"
    return name


def _decode(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    if isinstance(value, list):
        return [_decode(child, arrays) for child in value]
    if not isinstance(value, dict):
        return value
    if "$array" in value:
        return arrays[value["$array"]]
    if "$int" in value:
        return int(value["$int"], 16)
    if "$float" in value:
        return float(value["$float"])
    return {key.removeprefix("$"): _decode(child, arrays) for key, child in value.items()}
