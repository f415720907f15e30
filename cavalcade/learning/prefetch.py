"""The next batch, drawn by a thread while the learner works on the current one.

The thread draws only while an update is made. Between two steps of the learner no thread uses the table, and at most
one batch is held here, so that a checkpoint is consistent: the held batch has left the table and was not learned from;
the learner saves it with its own state, and learns from it first after `restore`.

To hand a draw to the thread and wait for it costs a tenth of a millisecond, and both threads want the GIL. Where
updates are short that is more than a draw takes, so the thread is used only if the last update took `LONG` seconds.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from time import perf_counter
from typing import Generic, TypeVar

LONG = 4e-3  # seconds: beside updates that take at least so long the next batch is drawn

Batch = TypeVar("Batch")


class Prefetch(Generic[Batch]):
    """Draws batches one after the other, the next one beside an update where that is allowed and saves time."""

    def __init__(self, draw: Callable[[], Batch | None], ahead: bool):
        """`draw`: returns a batch, or None if there is none now. `ahead`: whether `draw` may be called before the last
        batch was learned from; if not, no thread is made."""
        self.draw, self.ahead = draw, ahead
        self.again: Batch | None = None  # was being learned from when a checkpoint was saved, and comes first
        self.held: Batch | None = None
        self.seconds = 0.0  # how long the last update took
        self.threads: ThreadPoolExecutor | None = None

    def take(self) -> Batch | None:
        """The batch that a checkpoint brought, the held one, or one that is drawn now; None if there is none now."""
        if self.again is not None:
            again, self.again = self.again, None
            return again
        if self.held is None:
            return self.draw()
        batch, self.held = self.held, None
        return batch

    @property
    def idle(self) -> bool:
        """Whether no batch was taken out of the table for later."""
        return self.again is None and self.held is None

    @contextmanager
    def beside(self) -> Iterator[None]:
        """`with prefetch.beside():` make an update; beside it the thread draws the next batch if the last update took
        long. An exception of the draw is raised when the update is done."""
        drawing, began = None, perf_counter()
        if self.ahead and self.held is None and self.seconds >= LONG:
            self.threads = self.threads or ThreadPoolExecutor(1, "prefetch")
            drawing = self.threads.submit(self.draw)
        try:
            yield
        finally:
            self.seconds = perf_counter() - began
            if drawing is not None:
                wait([drawing])  # even if the update failed: no thread may use the table when the program ends
        if drawing is not None:
            self.held = drawing.result()

    def close(self) -> None:
        if self.threads is not None:
            self.threads.shutdown()
