"""Workers as a central actor sees them: where each asks, and its seat."""

from collections.abc import Callable
from typing import Any

import numpy as np

from cavalcade import tree
from cavalcade.acting.requests import ENDED, LEAVES, RUN, STEPPED, Heard, RequestLayout, Told
from cavalcade.acting.seat import Seat
from cavalcade.transport import Desk

DONE = ("obs", "action", "extras", "carry")  # what a seat is told of a step


class Portion:
    """A seat's part of a sink that several write to: room that one was promised is not promised to another."""

    def __init__(self, sink: Any, book: Any, rows_for_all: Callable[[], bool]):
        """`book.promised`: items for which room was promised to all. `rows_for_all`: whether there are rows for the
        steps of all seats."""
        self.sink, self.book, self.rows_for_all = sink, book, rows_for_all
        self.signature, self.rows, self.take_rows = sink.signature, sink.rows, sink.take_rows
        self.drawn_once = sink.reserving
        self.promised = 0  # of these, to this seat

    def can_insert(self, count: int) -> bool:
        if not self.drawn_once:
            return self.sink.can_insert(count)
        missing = max(0, count - self.promised)
        if missing and not self.sink.can_insert(self.book.promised + missing):
            return False
        self.promise(missing)
        return True

    def promise(self, count: int) -> None:
        self.promised += count
        self.book.promised += count

    def ready(self, steps: int) -> bool:
        """Rows are taken after a step was recorded, and others may come first. A table beside us has always some."""
        return self.sink is self.book or self.rows_for_all()

    def insert(self, items: Any, version: int, priority: np.ndarray | None) -> bool:
        if not self.sink.insert(items, version, priority):
            return False
        self.promise(-min(self.promised, len(items.rows)))
        return True


class Guest:
    """A worker, seen from the service: where it asks, and its seat."""

    def __init__(self, desk: Desk, seat: Seat, portion: Portion):
        self.desk, self.seat, self.portion = desk, seat, portion
        self.run = -1  # which of the worker's lives
        self.heard, self.since = 0, 0.0  # the number of the last request that was looked at, and when
        self.told: Any = None  # that request
        self.turn = 0  # among the answers of the service, that of the last one
        self.away = False  # at another service, or asleep

    @property
    def waiting(self) -> bool:
        """For an answer to a request that was heard; who has died waits no more."""
        return self.desk.answered < self.heard

    @property
    def asks(self) -> bool:
        """For the first time."""
        number = self.desk.number
        return number > self.desk.answered and number != self.heard

    def listen(self, layout: RequestLayout, heard: Heard, mine: slice) -> list[int]:
        """Take the request, which is this part of what was heard; gives what it is about."""
        request = self.desk.request
        about = request["about"].tolist()
        self.heard = self.desk.number
        self.told = Told(layout, heard, mine, tree.map(np.copy, request["next_observation"]) if about[ENDED] else None)
        return about

    def hear(self, about: list[int], now: float) -> None:
        """What came of the last step is recorded once."""
        seat, self.since = self.seat, now
        if about[STEPPED] and seat.under_way and self.run == about[RUN]:
            seat.record(self.told)
        else:
            self.run = about[RUN]
            seat.begin_again()
        self.away = False
        if about[LEAVES]:
            self.leave()
            self.desk.answer({})

    def leave(self) -> None:
        """Nobody comes back to what was under way: the room promised for it is another's."""
        self.away, self.desk.reclaimed = True, False
        self.seat.leave()
        whole = 0 if self.seat.outbox is None else len(self.seat.outbox.rows)
        self.portion.promise(min(0, whole - self.portion.promised))

    def state(self) -> dict:
        under_way = dict(zip(DONE, self.seat.under_way)) if self.seat.under_way else {}
        return {
            "seat": self.seat.state(),
            "version": self.seat.version,
            "under_way": tree.map(np.copy, under_way),
            "desk": self.desk.state(),
            "heard": self.heard == self.desk.number,
            "turn": self.turn,
            "promised": self.portion.promised,
            "run": self.run,
            "away": self.away,
        }

    def restore(self, state: dict) -> None:
        self.seat.restore(state["seat"])
        self.seat.version, self.run, self.turn = state["version"], state["run"], state["turn"]
        self.seat.under_way = tuple(state["under_way"][name] for name in DONE) if state["under_way"] else None
