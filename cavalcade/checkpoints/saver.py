"""Checkpoints written by a thread of their own: acting and learning wait for the copy of their state, not for the
disk."""

import threading
import time
from pathlib import Path
from typing import Any

from cavalcade.checkpoints import checkpoint

SHARE = 20  # if writing takes more than a second, the next checkpoint begins this many times as long after it at least


class Saver:
    """Writes checkpoints into `folder`, one at a time."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.thread: threading.Thread | None = None
        self.error: BaseException | None = None

    def save(self, state: dict, step: int) -> None:
        """Begin to write `state`, whose arrays nobody may change any more. Waits for the checkpoint before; its error
        is raised here."""
        self.wait()
        self.thread = threading.Thread(target=self._write, args=(_frozen(state), step), name="checkpoint")
        self.thread.start()

    def _write(self, state: dict, step: int) -> None:
        try:
            checkpoint.save(self.folder, state, step)
        except BaseException as error:  # `wait` raises it in the thread of the run
            self.error = error

    def finished(self) -> bool:
        """Whether nothing is being written any more; an error of the writing thread is raised here."""
        if self.thread is not None and self.thread.is_alive():
            return False
        self.wait()
        return True

    def wait(self) -> None:
        """Wait until the checkpoint is on disk; an error of the writing thread is raised here."""
        if self.thread is not None:
            self.thread.join()
            self.thread = None
        if self.error is not None:
            error, self.error = self.error, None
            raise error


class Pace:
    """When the next checkpoint is due: after `every` seconds, or later if writing the last one took long (`SHARE`)."""

    def __init__(self, every: float):
        self.every, self.began, self.took = every, time.perf_counter(), 0.0
        self.writing = False

    def start(self) -> None:
        """A checkpoint is begun now."""
        self.began, self.writing = time.perf_counter(), True

    def due(self, saved: bool) -> bool:
        """Whether to begin the next one. `saved`: no checkpoint is being written any more."""
        now = time.perf_counter()
        if self.writing and saved:
            self.took, self.writing = now - self.began, False
        return now - self.began > max(self.every, SHARE * self.took if self.took > 1.0 else 0.0)


def _frozen(value: Any) -> Any:
    """The same values in new dicts and lists, because the nodes go on changing the old ones."""
    if isinstance(value, dict):
        return {key: _frozen(child) for key, child in value.items()}
    return [_frozen(child) for child in value] if isinstance(value, list) else value
