"""Run folders: what one training leaves on disk, and where each part lies.

    config.json     everything needed to start this run again
    metrics.jsonl   one JSON object a line: the truth that the display, TensorBoard and the plots show
    events.out.*    the same for TensorBoard (`tensorboard --logdir runs`)
    curve.png       return against environment steps
    report.json     where the time went, what bounded the run, what failed and was recovered
    faults.jsonl    each failure as it happened, if there was one
    loggers.json    under which id loggers keep this run, if there are any
    checkpoints/    what `cavalcade resume` continues from
    policy/         what `evaluate`, `play` and `serve` load

Every other module asks a `Run` for these places, so the layout is written down once.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from cavalcade.disk import is_disk_full, write_atomically
from cavalcade.errors import UserError


class Run:
    """One run folder. Made by `create` or `open`, which check it; the constructor only names its parts."""

    def __init__(self, path: Path, config: dict[str, Any]):
        self.path = path
        self.config = config
        self.config_file = path / "config.json"
        self.metrics_file = path / "metrics.jsonl"
        self.curve = path / "curve.png"
        self.report_file = path / "report.json"
        self.loggers_file = path / "loggers.json"
        self.checkpoints = path / "checkpoints"
        self.policy = path / "policy"

    @classmethod
    def create(cls, path: str | Path, config: dict[str, Any]) -> "Run":
        """Start a new run in `path`, which is made if needed and must not hold a run yet."""
        text = json.dumps(config, indent=2, default=_as_json)
        run = cls(Path(path), json.loads(text))  # the config as `open` will see it: tuples are lists
        try:
            run.path.mkdir(parents=True, exist_ok=True)
            if any(part.exists() for part in (run.config_file, run.metrics_file, run.checkpoints)):
                raise UserError(
                    f"{run.path} already holds a run: continue it with `cavalcade resume {run.path}` "
                    "or choose another folder with --out."
                )
            write_atomically(run.config_file, text.encode())
        except (FileExistsError, NotADirectoryError) as error:
            raise UserError(f"{run.path} is a file, not a folder: choose another folder with --out.") from error
        except OSError as error:
            raise UserError(write_failure(run.path, error)) from error
        return run

    @classmethod
    def open(cls, path: str | Path) -> "Run":
        """An existing run."""
        run = cls(Path(path), {})
        if not run.path.is_dir():
            raise UserError(f"There is no run folder {run.path}: give the folder that `cavalcade train` printed.")
        try:
            config = json.loads(run.config_file.read_bytes())
        except FileNotFoundError as error:
            raise UserError(
                f"{run.path} is not a run folder (it has no config.json): "
                "give the folder that `cavalcade train` printed."
            ) from error
        except (OSError, ValueError) as error:
            raise UserError(f"{run.config_file} cannot be read ({error}): mend it or start a new run.") from error
        if not isinstance(config, dict):
            raise UserError(f"{run.config_file} must hold a JSON object: mend it or start a new run.")
        run.config = config
        return run

    def rows(self) -> list[dict[str, Any]]:
        """The metric rows in the order they were written. A line torn by a crash is passed over."""
        return [row for _, row in self._lines()]

    def truncate(self, step: int) -> None:
        """Forget the rows after `step`: they were written after the checkpoint that training resumes from."""
        if not self.metrics_file.exists():
            return
        # Rewritten even if no row goes, because that also drops a torn last line before more are appended.
        kept = [line + b"\n" for line, row in self._lines() if row.get("step", 0) <= step]
        try:
            write_atomically(self.metrics_file, b"".join(kept))
        except OSError as error:
            raise UserError(write_failure(self.metrics_file, error)) from error

    def _lines(self) -> Iterator[tuple[bytes, dict[str, Any]]]:
        if not self.metrics_file.exists():
            return
        for line in self.metrics_file.read_bytes().splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict):
                yield line, row


def default_path(system: str, environment: str, seed: int) -> Path:
    """`runs/<system>-<environment>-s<seed>`, with -2, -3 and so on when that is taken."""
    name = re.sub(r"[^\w.+-]+", "-", f"{system}-{environment}-s{seed}")  # ALE/Pong-v5, my_module:Env-v0
    path, number = Path("runs") / name, 1
    while path.exists():
        number += 1
        path = Path("runs") / f"{name}-{number}"
    return path


def write_failure(path: Path, error: OSError) -> str:
    """The sentence for a file that could not be written."""
    if is_disk_full(error):
        return f"The disk is full, so {path} could not be written: free some space and resume the run."
    return f"{path} could not be written ({error.strerror or error}): check its permissions or change --out."


def _as_json(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise UserError(f"A config cannot hold {value!r}: use numbers, strings, lists and dicts.")
