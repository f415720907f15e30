"""Checkpoints: a tree of arrays and plain values that survives kill -9, power loss and a full disk.

A checkpoint is a folder `step-000012345` with two files. `arrays.safetensors` holds the arrays and opens in
any safetensors reader; `state.json` holds everything else, the size and SHA-256 of the arrays, and a SHA-256
of itself. SHA-256 runs at more than 1 GB/s here, faster than most disks, so no weaker sum is needed.
A folder is written under a hidden name, synced, and only then renamed: under its real name it is always
whole. Nothing is pickled: loading a stranger's checkpoint runs none of their code.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from cavalcade.checkpoints.archive import decode, encode, read_arrays, write_arrays
from cavalcade.checkpoints.disk import is_disk_full, sync_file, sync_folder
from cavalcade.errors import UserError

# Added by format: 2: rows of tables and references to them; 3: steps whose rows are not written yet; 4: central acting;
# 5: config, spec and shapes that the run was made with; 6: unrolls that end early where truncated episodes leave no
# room; 7: one place more than items in tables, and in heaps when each item was changed;
# 9: the sums by which rewards are scaled, and the last noise of actors.
FORMAT = 9
_ARRAYS, _STATE = "arrays.safetensors", "state.json"
_WRITING, _REPLACED, _REMOVING = (
    ".writing-",
    ".replaced-",
    ".removing-",
)  # beginnings of the names of folders that are being written, replaced or removed
_STEP_FOLDER = re.compile(r"step-(\d+)")


def save(folder: Path, state: dict, step: int, keep: int = 2) -> Path:
    """Write `state` as the newest checkpoint in `folder`, then delete all but the newest `keep`."""
    if step < 0 or keep < 1:
        raise UserError(f"A checkpoint needs step >= 0 and keep >= 1, not step {step} and keep {keep}.")
    arrays: dict[str, np.ndarray] = {}
    encoded = encode(state, "", arrays)
    final = folder / _name(step)
    writing = folder / f"{_WRITING}{final.name}-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _finish_interrupted(folder)
        writing.mkdir()
        _write_files(writing, encoded, arrays, step)
        if final.exists():  # the same step again: no single rename can replace a folder that is not empty
            final.rename(folder / f"{_REPLACED}{final.name}")
        writing.rename(final)
        sync_folder(folder)
    except BaseException as error:
        with contextlib.suppress(OSError):
            _finish_interrupted(folder)
        if isinstance(error, OSError):
            raise UserError(_failure_sentence(folder, error)) from error
        raise
    _finish_interrupted(folder)
    _delete_superseded(folder, step, keep)
    return final


def forget_later(folder: Path, step: int) -> None:
    """Delete the checkpoints after `step`, from which a run goes on. They may be parts of a checkpoint of several
    processes that never became whole, and would be kept in the place of parts of a whole one."""
    _delete_superseded(folder, step, keep=2)


def load_latest(folder: Path) -> tuple[dict, int, list[str]]:
    """The newest intact state, its step, and a sentence about each newer checkpoint that could not be read."""
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
    """The state and step of one checkpoint folder; ValueError if it is damaged or has another format."""
    document = json.loads((path / _STATE).read_bytes())
    if not isinstance(document, dict) or document.pop("sha256", None) != _sha256_of(document):
        raise ValueError(f"{_STATE} is not what was written")
    if document["format"] != FORMAT:
        raise ValueError(f"it has format {document['format']} and this version of cavalcade reads format {FORMAT}")
    with open(path / _ARRAYS, "rb") as file:
        arrays = read_arrays(file, document["arrays"])
    return decode(document["state"], arrays), document["step"]


# Folders


def _name(step: int) -> str:
    return f"step-{step:09d}"


def _checkpoints(folder: Path) -> list[Path]:
    """Whole checkpoints, oldest first. One that was moved aside counts if its replacement was never written."""
    found: dict[int, Path] = {}
    for path in folder.glob("*step-*"):
        match = _STEP_FOLDER.fullmatch(path.name.removeprefix(_REPLACED))
        if match and (path.name == match[0] or int(match[1]) not in found):
            found[int(match[1])] = path
    return [found[step] for step in sorted(found)]


def _finish_interrupted(folder: Path) -> None:
    """Clean up after a `save` that was killed or failed: remove half-written folders, and put a replaced checkpoint
    back if its replacement is missing. A run has one writer, so no other process uses these folders."""
    for path in folder.glob(".*"):
        original = folder / path.name.removeprefix(_REPLACED)
        if path.name.startswith(_REPLACED) and not original.exists():
            path.rename(original)
        elif path.name.startswith((_WRITING, _REPLACED, _REMOVING)):
            shutil.rmtree(path, ignore_errors=True)


def _delete_superseded(folder: Path, step: int, keep: int) -> None:
    # Checkpoints of later steps are damaged, or were written before the run was resumed from an earlier step.
    by_step = {int(path.name.removeprefix("step-")): path for path in _checkpoints(folder)}
    kept = sorted((s for s in by_step if s <= step), reverse=True)[:keep]
    for path in (path for s, path in by_step.items() if s not in kept):
        # Renamed first: a crash while deleting must not leave half a folder under the name of a checkpoint.
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
        description = write_arrays(file, arrays)
        sync_file(file)
    document = {"format": FORMAT, "step": step, "arrays": description, "state": encoded}
    with open(folder / _STATE, "wb") as file:
        file.write(json.dumps({**document, "sha256": _sha256_of(document)}, indent=1).encode())
        sync_file(file)
    sync_folder(folder)


def _sha256_of(document: dict) -> str:
    return hashlib.sha256(json.dumps(document).encode()).hexdigest()
