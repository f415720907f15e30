"""Run folders: which files a run leaves on disk, and what is in them.

    config.json     everything needed to start this run again
    metrics.jsonl   rows of metrics, one JSON object a line: what the display, TensorBoard and the plots show
    events.out.*    the same for TensorBoard (`tensorboard --logdir runs`)
    curve.png       return against environment steps
    report.json     where the time went, what bounded the run, what failed and was recovered
    faults.jsonl    each failure as it happened, if there was one
    loggers.json    the ids under which loggers keep this run, if there are any
    checkpoints/    what `cavalcade resume` continues from
    policy/         what `evaluate`, `play` and `serve` load

Every other module asks a `Run` for these paths, so the layout is written down once.
"""

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from cavalcade.checkpoints import is_disk_full, write_atomically
from cavalcade.errors import UserError
from cavalcade.records.figures import number


class Run:
    """One run folder. Use `create` or `open`, which check it; the constructor only names its files."""

    def __init__(self, path: Path, config: dict[str, Any]):
        self.path = path
        self.config = config
        self.config_file = path / "config.json"
        self.metrics_file = path / "metrics.jsonl"
        self.curve = path / "curve.png"
        self.report_file = path / "report.json"
        self.faults_file = path / "faults.jsonl"
        self.loggers_file = path / "loggers.json"
        self.checkpoints = path / "checkpoints"
        self.policy = path / "policy"
        self._made: list[Path] = []  # folders that were not there before `create`, the innermost first

    def __repr__(self) -> str:
        """As in `Run('runs/first': ppo on CartPole-v1, seed 1, 4,000 of 4,000 steps, best evaluation 500)`."""
        system, environment, seed, steps = (self.config.get(n) for n in ("system", "environment", "seed", "steps"))
        rows = self.rows()
        done, judged = rows[-1]["step"] if rows else 0, [row["evaluation"] for row in rows if "evaluation" in row]
        total = f"{steps:,}" if isinstance(steps, int) else steps  # else config.json was written by hand
        best = f", best evaluation {number(max(judged))}" if judged else ""
        return f"Run('{self.path}': {system} on {environment}, seed {seed}, {done:,} of {total} steps{best})"

    @classmethod
    def create(cls, path: str | Path, config: dict[str, Any]) -> "Run":
        """Start a new run in `path`, which is made if needed and must not hold a run yet."""
        text = json.dumps(config, indent=2, default=_as_json)
        run = cls(Path(path), json.loads(text))  # the config as `open` will read it, with lists for tuples
        run._made = [folder for folder in (run.path, *run.path.parents) if not folder.exists()]
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
        """A run that exists; refused if it is no run folder."""
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

    def discard(self) -> None:
        """Undo `create` after a start that failed. Nothing is removed if the run has rows, checkpoints, a policy or
        faults; files of others stay in any case."""
        if self.rows() or any((self.path / name).exists() for name in ("checkpoints", "policy", "faults.jsonl")):
            return
        with contextlib.suppress(OSError):
            for file in (self.metrics_file, self.config_file):
                file.unlink(missing_ok=True)
            for folder in self._made:
                folder.rmdir()  # fails if there is a file in it

    def change(self, **settings: Any) -> None:
        """Change settings in config.json, all at once or not at all."""
        self.config = {**self.config, **settings}
        try:
            write_atomically(self.config_file, json.dumps(self.config, indent=2).encode())
        except OSError as error:
            raise UserError(write_failure(self.config_file, error)) from error

    def rows(self) -> list[dict[str, Any]]:
        """The rows of metrics in the order they were written. A line torn by a crash is left out."""
        return [row for _, row in self._lines()]

    def truncate(self, step: int) -> None:
        """Delete the rows after `step`: they were written after the checkpoint from which the run resumes."""
        if not self.metrics_file.exists():
            return
        # Rewritten even if no row is deleted, because this also drops a torn last line before more are appended.
        kept = [line + b"\n" for line, row in self._lines() if row.get("step", 0) <= step]
        try:
            write_atomically(self.metrics_file, b"".join(kept))
        except OSError as error:
            raise UserError(write_failure(self.metrics_file, error)) from error

    def _lines(self) -> Iterator[tuple[bytes, dict[str, Any]]]:
        """The intact lines of metrics.jsonl, as bytes and as rows."""
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
    """`runs/<system>-<environment>-s<seed>`, with -2, -3 and so on if that exists."""
    name = re.sub(r"[^\w.+-]+", "-", f"{system}-{environment}-s{seed}")  # ALE/Pong-v5, my_module:Env-v0
    path, number = Path("runs") / name, 1
    while path.exists():
        number += 1
        path = Path("runs") / f"{name}-{number}"
    return path


def written(environment: Any, name: str) -> str:
    """An environment as config.json and policy.json hold it: its id or module:function, or `<name>` if only the user's
    code can make it."""
    return environment if isinstance(environment, str) else f"<{name}>"


def environment_of(text: str, given: Any, what: str) -> Any:
    """The environment of a text that `written` gave, or the one that is `given` in its place; refused if only code can
    make it and none is given. `what` was made with it: words for the message."""
    if given is not None:
        return given
    if text.startswith("<"):
        raise UserError(
            f"{what} was made with an environment object, {text}; name a function that makes it with --environment "
            "module:function, or use Python and give environment=... ."
        )
    return text


def write_failure(path: Path, error: OSError) -> str:
    """The sentence for a file that could not be written."""
    if is_disk_full(error):
        return f"The disk is full, so {path} could not be written: free some space and resume the run."
    return f"{path} could not be written ({error.strerror or error}): check its permissions or change --out."


def _as_json(value: Any) -> Any:
    """For `json.dumps`: values that JSON does not know."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise UserError(f"A config cannot hold {value!r}: use numbers, strings, lists and dicts.")
