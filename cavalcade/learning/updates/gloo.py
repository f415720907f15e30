"""All-reduce between processes of one machine by torch.distributed, with gloo, because gradients are NumPy arrays.

A sum over processes blocks, and a learner must not block: so each process has a thread that takes part in every round
for its learner. With D = 0 the thread waits for the learner's gradient and then joins the sum. With D > 0 the threads
agree, by sums of one flag each, when W - D gradients are there, and a thread whose learner is late contributes zeros.
"""

import atexit
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np

from cavalcade.errors import Stopped, UserError
from cavalcade.transport import Signpost

FEWEST, MOST = 8, 512  # bounds on the rounds that the fastest learner may be ahead of the slowest
HELD = 2**26  # bytes of means that are kept for the slowest, as far as the bounds allow
HOST = "127.0.0.1"
SHORTEST, LONGEST = 200e-6, 2e-3  # seconds between two sums of flags: doubled each time, up to the longest
LOOK, LOOK_LAST = 50e-6, 500e-6  # the same between two looks whether a sum is done (seconds)
FORMING = timedelta(minutes=5)  # how long a group waits for all processes
TIMEOUT = timedelta(hours=1)  # of a sum: long, for slow learners; a process that dies is noticed at once

Total = Callable[[np.ndarray], np.ndarray]


def most_ahead(size: int) -> int:
    """Rounds that the fastest learner may be ahead of the slowest, where a contribution has `size` numbers. A learner
    that is many times slower than the others holds them up only when it has missed so many rounds."""
    return max(FEWEST, min(MOST, HELD // (4 * size)))


@dataclass(frozen=True)
class GlooAddress:
    """By which a learner in another process of this machine takes its place in the group."""

    port: int  # of the store where the learners find each other
    rank: int  # the learner's number in the group
    learners: int
    size: int  # numbers of a contribution
    drop: int  # D

    def connect(self) -> "GlooAttendee":
        return GlooAttendee(self)


class GlooAttendee:
    """A learner's place at the meeting, with the methods of `Attendee`; a thread takes part in the sums."""

    def __init__(self, address: GlooAddress):
        self.address, self.learners = address, address.learners
        self.most_ahead = most_ahead(address.size)
        self.ring: Any = None  # no edge brings the means, so no bell wakes the learner: it looks again soon
        self.change = threading.Condition()
        self.beginning: tuple[int, np.ndarray] | None = None  # the learner's updates and state at first
        self.agreed: np.ndarray | None = None  # the state that all learners begin with
        self.given: np.ndarray | None = None  # the learner's contribution to the open round
        self.counts = True  # whether `given` is part of the round that is being closed; with D = 0 always
        self.means: deque[np.ndarray] = deque()  # of closed rounds, which the learner has not taken yet
        self.late = 0  # dropped gradients of this learner
        self.error: BaseException | None = None  # that ended the thread
        threading.Thread(target=self._run, name="allreduce", daemon=True).start()

    def desk(self, name: str) -> "GlooAttendee":
        return self

    def agree(self, updates: int, state: np.ndarray) -> Generator[bool, None, np.ndarray]:
        """The state [m] that all learners begin with, given this learner's."""
        with self.change:
            self.beginning = (updates, state)
            self.change.notify_all()
        while self.agreed is None:
            self._require_others()
            yield False
        return self.agreed

    def post(self, vector: np.ndarray | None) -> None:
        """Give a contribution [size] to the open round; it is dropped if a round was closed while it was made."""
        if vector is None:
            return  # the means that the learner missed are here already
        with self.change:
            if self.means:
                self.late += 1
            else:
                self.given = vector
                self.change.notify_all()

    def take(self) -> tuple[np.ndarray, bool] | None:
        """The mean [size] of the next round, and whether there are more; None if the round is still open."""
        with self.change:
            if self.means:
                mean = self.means.popleft()
                self.change.notify_all()
                return mean, bool(self.means)
        self._require_others()
        return None

    def _require_others(self) -> None:
        if self.error is not None:
            raise Stopped(f"Another learner has gone ({self.error}).") from self.error

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            total = _group(self.address)
            self._begin(total)
            while True:
                self._round(total)
        except BaseException as error:
            self.error = error

    def _begin(self, total: Total) -> None:
        """All learners get the state of the learner with most updates: it is the sum, to which the others add zeros."""
        with self.change:
            self.change.wait_for(lambda: self.beginning is not None)
            assert self.beginning is not None
            updates, state = self.beginning
        all_updates = np.zeros(self.learners)
        all_updates[self.address.rank] = updates
        furthest = int(np.argmax(total(all_updates)))
        self.agreed = total(np.array(state) if furthest == self.address.rank else np.zeros_like(state))

    def _round(self, total: Total) -> None:
        """Take part in one round, as soon as the learner is not too far behind."""
        with self.change:
            self.change.wait_for(lambda: len(self.means) < self.most_ahead)
            if not self.address.drop:
                self.change.wait_for(lambda: self.given is not None)
        there = self._enough(total) if self.address.drop else self.learners
        with self.change:
            given = self.given if self.counts else None
            summed = np.zeros(self.address.size, np.float32) if given is None else np.array(given)
        total(summed)
        with self.change:
            self.late += given is None and self.given is not None  # came after the last flag
            self.given = None
            self.means.append(summed / np.float32(there))

    def _enough(self, total: Total) -> int:
        """Wait until W - D gradients are there; returns how many there are."""
        pause = SHORTEST
        while True:
            self.counts = self.given is not None
            there = int(total(np.array([self.counts], np.float32))[0])
            if there >= self.learners - self.address.drop:
                return there
            with self.change:
                if self.counts:
                    self.change.wait(pause)
                else:
                    self.change.wait_for(lambda: self.given is not None, pause)
            pause = min(LONGEST, 2 * pause)


def _group(address: GlooAddress) -> Total:
    """Wait until all learners have joined the group; returns a function that sums an array over all learners, in place
    and with the same bits for each of them."""
    import torch
    from torch import distributed as dist

    store = dist.TCPStore(HOST, address.port, None, False, FORMING)
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=HOST)]
    options._timeout = TIMEOUT
    group: Any = dist.ProcessGroupGloo(store, address.rank, address.learners, options)

    calls = threading.Lock()
    # A thread that returns from a call of torch while Python ends would end the process with an error. So Python takes
    # the lock when it ends, and the thread makes no call any more.
    atexit.register(calls.acquire)

    def total(array: np.ndarray) -> np.ndarray:
        pause = LOOK
        with calls:
            work = group.allreduce([torch.from_numpy(array)])
        while True:
            with calls:
                if work.is_completed():
                    work.wait()  # raises the error of the sum, if there was one
                    return array
            time.sleep(pause)
            pause = min(LOOK_LAST, 2 * pause)

    return total


class GlooAttendees:
    """The addresses that a `Meeting` gives to learners in other processes of this machine."""

    def __init__(self, size: int, learners: int, drop: int):
        self.size, self.learners, self.drop = size, learners, drop
        self.store: Any = None
        self.taken = 0  # addresses given so far

    def share(self, consumer: str) -> Signpost:
        """An address for one more learner. A group cannot go on without one of its learners: if one fails, all do, and
        the program goes on from a checkpoint."""
        if self.taken == self.learners:
            raise UserError(f"{consumer} is one learner more than the {self.learners} that make updates together.")
        if self.store is None:
            from torch import distributed as dist

            self.store = dist.TCPStore(HOST, 0, None, True, FORMING, wait_for_workers=False)
        address = GlooAddress(self.store.port, self.taken, self.learners, self.size, self.drop)
        self.taken += 1
        return Signpost(address)

    def close(self) -> None:
        self.store = None
