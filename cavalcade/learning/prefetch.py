"""The next batch, drawn by a thread while the learner works on the current one.

The thread works only while an update does. Between two steps of the learner the table is at rest and at most one batch
is held here, so a checkpoint has one meaning: what is held has left the table and was not learned from; the learner
saves it with its own state and learns from it first when it is restored.

To hand a draw over and to wait for it costs a tenth of a millisecond, and both threads want the GIL. Where updates
are short that is more than a draw takes, so the thread is used only once updates take long.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from time import perf_counter
from typing import Generic, TypeVar

LONG = 4e-3  # seconds of an update from which on the next batch is drawn beside it

Batch = TypeVar("Batch")


class Prefetch(Generic[Batch]):
    """`draw` gives a batch, or None if there is none now. `ahead`: whether it may be called before the last batch was
    learned from; without it there is no thread."""

    def __init__(self, draw: Callable[[], Batch | None], ahead: bool):
        self.draw, self.ahead = draw, ahead
        self.held: Batch | None = None
        self.seconds = 0.0  # that the last update took
        self.threads: ThreadPoolExecutor | None = None

    def take(self) -> Batch | None:
        """The batch that is held, or else one that is drawn now."""
        if self.held is None:
            return self.draw()
        batch, self.held = self.held, None
        return batch

    @contextmanager
    def beside(self) -> Iterator[None]:
        """`with` this an update is made: beside it the next batch is drawn, if that is worth it. An error of the draw
        is raised at the end."""
        drawing, began = None, perf_counter()
        if self.ahead and self.held is None and self.seconds >= LONG:
            self.threads = self.threads or ThreadPoolExecutor(1, "prefetch")
            drawing = self.threads.submit(self.draw)
        try:
            yield
        finally:
            self.seconds = perf_counter() - began
            if drawing is not None:
                wait([drawing])  # even if the update failed: whoever ends the program finds the table at rest
        if drawing is not None:
            self.held = drawing.result()

    def close(self) -> None:
        if self.threads is not None:
            self.threads.shutdown()
