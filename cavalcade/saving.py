"""Checkpoints written beside the run: acting and learning wait for the copy that was handed over, not for the disk."""

import threading
import time
from pathlib import Path
from typing import Any

from cavalcade import checkpoint

SHARE = 20  # a checkpoint that takes long to write is followed by this many times as long without one


class Saver:
    def __init__(self, folder: Path, every: float):
        """`every`: seconds from one checkpoint to the next, more where writing one takes long."""
        self.folder, self.every = folder, every
        self.began, self.took = time.perf_counter(), 0.0
        self.thread: threading.Thread | None = None
        self.error: BaseException | None = None

    @property
    def due(self) -> bool:
        pause = max(self.every, SHARE * self.took if self.took > 1.0 else 0.0)
        return time.perf_counter() - self.began > pause

    def save(self, state: dict, step: int) -> None:
        """Hand over a state whose arrays nobody changes any more; an error of the last one is raised here."""
        self.wait()
        self.began = time.perf_counter()
        self.thread = threading.Thread(target=self._write, args=(_frozen(state), step), name="checkpoint")
        self.thread.start()

    def _write(self, state: dict, step: int) -> None:
        begin = time.perf_counter()
        try:
            checkpoint.save(self.folder, state, step)
        except BaseException as error:  # raised again where somebody can act on it
            self.error = error
        self.took = time.perf_counter() - begin

    def wait(self) -> None:
        """Until everything handed over is on disk."""
        if self.thread is not None:
            self.thread.join()
            self.thread = None
        if self.error is not None:
            error, self.error = self.error, None
            raise error


def _frozen(value: Any) -> Any:
    """The same nest in new dicts and lists: the owners of the old ones go on changing them."""
    if isinstance(value, dict):
        return {key: _frozen(child) for key, child in value.items()}
    return [_frozen(child) for child in value] if isinstance(value, list) else value
