"""Recording: rows of metrics go to `metrics.jsonl`, from which everything else is drawn, and to TensorBoard's events.

A line is handed to the operating system as soon as it is made, so kill -9 loses no row. A value that is no number yet,
such as a return before any episode has ended, is left out and never written as NaN, which is not JSON. TensorBoard
shows metrics in groups, by the tags of `metric_names.py`; events are made from TensorBoard's protobufs, so torch is not
needed.
"""

import json
import os
import socket
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from cavalcade.errors import UserError
from cavalcade.records.folder import Run, write_failure
from cavalcade.records.metric_names import tagged


class Recorder:
    """Appends rows to a run. With `resume_step`, rows after that step are deleted first. `notify` gets messages."""

    def __init__(self, run: Run, resume_step: int | None = None, notify: Callable[[str], None] = warnings.warn):
        self._path, self._faults = run.metrics_file, run.faults_file
        if resume_step is not None:
            run.truncate(resume_step)
        try:
            # Unbuffered: a line that could not be written must not stay in a buffer and fail again on closing.
            self._file = open(run.metrics_file, "ab", buffering=0)  # noqa: SIM115 (closed in `close`)
        except OSError as error:
            raise UserError(write_failure(run.metrics_file, error)) from error
        self._events = _Events(run.path, resume_step, notify)

    def write(self, row: dict[str, Any]) -> dict[str, Any]:
        """Record one row, and return it as it was written. It needs a `step`; values that are None, NaN or infinite are
        left out."""
        if "step" not in row:
            raise UserError(
                f"A metrics row needs a 'step', and this one has only {', '.join(sorted(row)) or 'nothing'}."
            )
        row = {key: plain for key, value in row.items() if (plain := _plain(key, value)) is not None}
        line = json.dumps(row).encode() + b"\n"
        path = self._path
        try:
            while line:  # one call writes all of it, unless the disk becomes full meanwhile
                line = line[self._file.write(line) :]
            path = self._events.folder
            self._events.add(row)
        except OSError as error:
            raise UserError(write_failure(path, error)) from error
        return row

    def fault(self, fault: dict[str, Any]) -> None:
        """Append a fault to faults.jsonl: which node failed, why, and what was done about it."""
        path = self._faults
        try:
            with open(path, "a") as file:
                file.write(json.dumps(fault) + "\n")
        except OSError as error:
            raise UserError(write_failure(path, error)) from error

    def close(self) -> None:
        """Write what is pending. Safe to call twice."""
        self._file.close()
        try:
            self._events.close()
        except OSError as error:
            raise UserError(write_failure(self._events.folder, error)) from error


class _Events:
    """TensorBoard's file of a run. It is opened at the first update: importing tensorboard would delay that update."""

    def __init__(self, folder: Path, resume_step: int | None, notify: Callable[[str], None]):
        self.folder = folder
        self._notify = notify
        self._resume_step = resume_step
        self._waiting: list[tuple[float, dict[str, Any]]] = []  # seconds and row of those not written yet
        self._writer: Any = None
        self._off = False

    def add(self, row: dict[str, Any]) -> None:
        if self._off:
            return
        self._waiting.append((time.time(), row))
        if row.get("updates", 1) > 0:
            self._write_waiting()

    def close(self) -> None:
        if self._waiting and not self._off:
            self._write_waiting()
        self._off = True
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _write_waiting(self) -> None:
        try:
            from tensorboard.compat.proto.event_pb2 import Event, SessionLog
            from tensorboard.compat.proto.summary_pb2 import Summary
            from tensorboard.summary.writer.record_writer import RecordWriter
        except ImportError:
            self._off = True
            self._notify("TensorBoard is not installed, so no events are written (pip install tensorboard).")
            return
        if self._writer is None:
            # not TensorBoard's own writer, because its thread would print a traceback on a full disk
            path = self.folder / f"events.out.tfevents.{time.time():017.6f}.{socket.gethostname()}.{os.getpid()}"
            self._writer = RecordWriter(open(path, "wb", buffering=0))  # noqa: SIM115 (closed in `close`)
            self._write(Event(wall_time=time.time(), file_version="brain.Event:2"))
            if self._resume_step is not None:
                # tells TensorBoard to hide what earlier files of this folder hold from this step on
                start = SessionLog(status=SessionLog.START)
                self._write(Event(wall_time=time.time(), step=self._resume_step + 1, session_log=start))
        for moment, row in self._waiting:
            values = [Summary.Value(tag=tag, simple_value=value) for tag, value in tagged(row).items()]
            self._write(Event(wall_time=moment, step=int(row["step"]), summary=Summary(value=values)))
        self._waiting.clear()

    def _write(self, event: Any) -> None:
        self._writer.write(event.SerializeToString())


def _plain(name: str, value: Any) -> Any:
    """The value as JSON can hold it; None if it is not to be recorded."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return None
    except TypeError as error:
        raise UserError(f"Metric '{name}' is a {type(value).__name__}: report a number instead.") from error
    return value
