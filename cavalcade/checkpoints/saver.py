"""Checkpoints written beside the run: acting and learning wait for the copy that was handed over, not for the disk."""

import threading
import time
from pathlib import Path
from typing import Any

from cavalcade.checkpoints import checkpoint

SHARE = 20  # a checkpoint that takes long to write is followed by this many times as long without one


class Saver:
    def __init__(self, folder: Path):
        self.folder = folder
        self.thread: threading.Thread | None = None
        self.error: BaseException | None = None

    def save(self, state: dict, step: int) -> None:
        """Hand over a state whose arrays nobody changes any more; an error of the last one is raised here."""
        self.wait()
        self.thread = threading.Thread(target=self._write, args=(_frozen(state), step), name="checkpoint")
        self.thread.start()

    def _write(self, state: dict, step: int) -> None:
        try:
            checkpoint.save(self.folder, state, step)
        except BaseException as error:  # raised again where somebody can act on it
            self.error = error

    def finished(self) -> bool:
        if self.thread is not None and self.thread.is_alive():
            return False
        self.wait()
        return True

    def wait(self) -> None:
        """Until everything handed over is on disk."""
        if self.thread is not None:
            self.thread.join()
            self.thread = None
        if self.error is not None:
            error, self.error = self.error, None
            raise error


class Pace:
    """When the next checkpoint is due: every so many seconds, less often where writing one takes long."""

    def __init__(self, every: float):
        self.every, self.began, self.took = every, time.perf_counter(), 0.0
        self.writing = False

    def start(self) -> None:
        self.began, self.writing = time.perf_counter(), True

    def due(self, saved: bool) -> bool:
        """`saved`: nothing is being written any more."""
        now = time.perf_counter()
        if self.writing and saved:
            self.took, self.writing = now - self.began, False
        return now - self.began > max(self.every, SHARE * self.took if self.took > 1.0 else 0.0)


def _frozen(value: Any) -> Any:
    """The same nest in new dicts and lists: the owners of the old ones go on changing them."""
    if isinstance(value, dict):
        return {key: _frozen(child) for key, child in value.items()}
    return [_frozen(child) for child in value] if isinstance(value, list) else value
