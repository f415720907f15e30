"""A store with a limiter: when it may be written to and drawn from, and waiting until it may."""

import time
from collections.abc import Callable
from threading import Condition

import numpy as np

from cavalcade.errors import Stopped, UserError
from cavalcade.table.limiter import Limiter
from cavalcade.table.store import Store


class Waiting(Store):
    limiter: Limiter
    lock: Condition  # one thread at a time changes tables that share rows
    size: int
    held: int  # items that were drawn and still take room, see `hold`
    stopped: bool

    def ready(self, environments: int) -> bool:
        """Whether a step of `environments` environments can be written now. In the table's own process it always can;
        a writer in another process needs granted rows."""
        return True

    def can_insert(self, count: int) -> bool:
        return self.limiter.can_insert(count + self.held)

    @property
    def reserving(self) -> bool:
        """Whether an actor has to ask for room before it makes an item. It has to if each item is drawn once: an item
        that was not drawn yet may not be pushed out by another."""
        return self.max_times_sampled == 1

    def hold(self, count: int) -> None:
        """Let `count` drawn items still take room; a negative count gives room back. In lock step actors therefore wait
        until the learner has learned from the drawn items and published its params."""
        with self.lock:
            self.held += count
            self._changed()

    def can_sample(self, count: int) -> bool:
        live, _, _, spent, *_ = self.counters.tolist()
        left = live * self.max_times_sampled - spent if self.max_times_sampled else live * count
        return live > 0 and left >= count and self.limiter.can_sample(count)

    def stop(self) -> None:
        """End all waiting: calls that wait now or would wait later raise `Stopped`."""
        with self.lock:
            self.stopped = True
            self._changed()

    def wait(self, seconds: float | None) -> None:
        """Sleep until this table or one that shares its rows changes, at most for `seconds` (None: for ever)."""
        with self.lock:
            self._rest(seconds)

    def _rest(self, seconds: float | None) -> None:
        self.rows.waiting += 1
        try:
            self.lock.wait(seconds)
        finally:
            self.rows.waiting -= 1

    def _changed(self) -> None:
        if self.rows.waiting:  # this question costs less than notifying nobody
            self.lock.notify_all()

    def _wait(self, ready: Callable[[], bool], timeout: float | None) -> bool:
        end = None if timeout is None else time.monotonic() + timeout
        while timeout != 0.0:
            if self.stopped:
                raise Stopped("The table was stopped.")
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                return False
            self._rest(left)
            if ready():
                return True
        return False

    def account(self) -> str:
        return self.limiter.account()

    def report(self) -> dict:
        return {"table_size": len(self), "table_capacity": self.size}


def refuse_nonsense(limits: Limiter, size: int, overflow: int, most: int) -> None:
    """Raise a UserError for settings with which the table cannot work. `most`: `max_times_sampled`."""
    if size < 1 or overflow < 0 or most < 0:
        raise UserError("A table needs a size of at least 1, and no negative overflow or max_times_sampled.")
    if limits.min_size > size:
        raise UserError(f"The table must hold {limits.min_size} items before the first draw but its size is {size}.")
    if most and limits.samples_per_insert > most and np.isfinite(limits.max_diff):
        raise UserError(
            f"The table must deadlock: {limits.samples_per_insert:g} samples per insert are asked for, but an item "
            f"goes after {most}; raise max_times_sampled or lower samples_per_insert."
        )
