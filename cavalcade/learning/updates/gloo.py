"""All-reduce between processes of one machine by torch.distributed: gloo, since what is summed lies in its memory.

Collectives block, learners must not: each process has a thread that takes part in every round for its learner. With
D = 0 it waits for the learner's gradient and goes straight into the sum. Otherwise the threads agree, by sums of single
flags, when W - D gradients are there, and a thread whose learner is late contributes nothing.
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

FEWEST, MOST = 8, 512  # rounds that the fastest may be ahead of the slowest, whose means are kept for it
HELD = 2**26  # bytes of means: what is kept between those bounds
HOST = "127.0.0.1"
SHORTEST, LONGEST = 200e-6, 2e-3  # seconds between two rounds of flags, doubled from one to the other
LOOK, LOOK_LAST = 50e-6, 500e-6  # the same between two looks whether a sum is done
FORMING = timedelta(minutes=5)  # until all processes have come
TIMEOUT = timedelta(hours=1)  # of a sum: a peer that dies is noticed at once; one that is slow has time

Total = Callable[[np.ndarray], np.ndarray]


def most_ahead(size: int) -> int:
    """Rounds that the fastest may be ahead of the slowest, where a contribution has `size` numbers. A worker that is
    many times slower than the others holds them up only when it has missed so many."""
    return max(FEWEST, min(MOST, HELD // (4 * size)))


@dataclass(frozen=True)
class GlooAddress:
    """Where a learner sits; plain data."""

    port: int  # where the learners find each other
    rank: int
    learners: int
    size: int
    drop: int

    def connect(self) -> "GlooAttendee":
        return GlooAttendee(self)


class GlooAttendee:
    """A learner's place: what a `Attendee` offers, of which its thread does the work."""

    def __init__(self, address: GlooAddress):
        self.address, self.learners = address, address.learners
        self.most_ahead = most_ahead(address.size)
        self.ring: Any = None  # means come by no edge of the program: the learner looks again soon
        self.change = threading.Condition()
        self.beginning: tuple[int, np.ndarray] | None = None  # the learner's updates and state before the first round
        self.agreed: np.ndarray | None = None
        self.given: np.ndarray | None = None  # for the open round
        self.counts = True  # whether it does in the round that is being closed: with D = 0 always
        self.means: deque[np.ndarray] = deque()  # that the learner has not taken
        self.late = 0
        self.error: BaseException | None = None
        threading.Thread(target=self._run, name="allreduce", daemon=True).start()

    def desk(self, name: str) -> "GlooAttendee":
        return self

    def agree(self, updates: int, state: np.ndarray) -> Generator[bool, None, np.ndarray]:
        with self.change:
            self.beginning = (updates, state)
            self.change.notify_all()
        while self.agreed is None:
            self._require_others()
            yield False
        return self.agreed

    def post(self, vector: np.ndarray | None) -> None:
        """A gradient for the open round; it is dropped if rounds were closed while it was made."""
        if vector is None:
            return  # what was missed is here already
        with self.change:
            if self.means:
                self.late += 1
            else:
                self.given = vector
                self.change.notify_all()

    def take(self) -> tuple[np.ndarray, bool] | None:
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
        """The state of whoever has come furthest, for all: the others add nothing to it."""
        with self.change:
            self.change.wait_for(lambda: self.beginning is not None)
            assert self.beginning is not None
            updates, state = self.beginning
        all_updates = np.zeros(self.learners)
        all_updates[self.address.rank] = updates
        furthest = int(np.argmax(total(all_updates)))
        self.agreed = total(np.array(state) if furthest == self.address.rank else np.zeros_like(state))

    def _round(self, total: Total) -> None:
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
            self.late += given is None and self.given is not None  # it came when the round was being closed
            self.given = None
            self.means.append(summed / np.float32(there))

    def _enough(self, total: Total) -> int:
        """Wait until W - D gradients are there; how many are."""
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
    """A sum over all learners, in place, bit for bit the same for each. The group is formed when all have come."""
    import torch
    from torch import distributed as dist

    store = dist.TCPStore(HOST, address.port, None, False, FORMING)
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=HOST)]
    options._timeout = TIMEOUT
    group: Any = dist.ProcessGroupGloo(store, address.rank, address.learners, options)

    calls = threading.Lock()
    # A thread that comes back from such a call while Python ends would end the process with an error: from then on
    # none is made any more.
    atexit.register(calls.acquire)

    def total(array: np.ndarray) -> np.ndarray:
        pause = LOOK
        with calls:
            work = group.allreduce([torch.from_numpy(array)])
        while True:
            with calls:
                if work.is_completed():
                    work.wait()  # raises what went wrong
                    return array
            time.sleep(pause)
            pause = min(LOOK_LAST, 2 * pause)

    return total


class GlooAttendees:
    """For the node where gradients meet: who sits where."""

    def __init__(self, size: int, learners: int, drop: int):
        self.size, self.learners, self.drop = size, learners, drop
        self.store: Any = None
        self.taken = 0

    def share(self, consumer: str) -> Signpost:
        """A group cannot go on without a member: learners fail together, and the program goes on from a checkpoint."""
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
