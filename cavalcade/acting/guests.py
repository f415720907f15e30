"""Guests: the workers of a central actor, each with its desk and its seat."""

from collections.abc import Callable
from typing import Any

import numpy as np

from cavalcade import tree
from cavalcade.acting.requests import ENDED, LEAVES, RUN, STEPPED, Heard, RequestLayout, Told
from cavalcade.acting.seat import Seat
from cavalcade.transport import Desk

DONE = ("obs", "action", "extras", "carry")  # names of what `Seat.under_way` holds


class Portion:
    """What one seat has of a sink that several seats write to: room promised to one is not promised to another."""

    def __init__(self, sink: Any, book: Any, rows_for_all: Callable[[], bool]):
        """`book.promised`: items for which the sink has promised room, to all seats together. `rows_for_all`: whether
        the sink has rows for the next steps of all seats."""
        self.sink, self.book, self.rows_for_all = sink, book, rows_for_all
        self.signature, self.rows, self.take_rows = sink.signature, sink.rows, sink.take_rows
        self.drawn_once = sink.reserving
        self.promised = 0  # of `book.promised`, those of this seat

    def can_insert(self, count: int) -> bool:
        """Whether the sink has room for `count` items; if it is a queue, that room is then promised to this seat."""
        if not self.drawn_once:
            return self.sink.can_insert(count)
        missing = max(0, count - self.promised)
        if missing and not self.sink.can_insert(self.book.promised + missing):
            return False
        self.promise(missing)
        return True

    def promise(self, count: int) -> None:
        """Book room for `count` more items for this seat; a negative count gives room back."""
        self.promised += count
        self.book.promised += count

    def ready(self, steps: int) -> bool:
        """Whether the next step of this seat will find rows. They are taken when the step is recorded, and other seats
        may record theirs first, so there have to be rows for all. A table in this process always has some."""
        return self.sink is self.book or self.rows_for_all()

    def insert(self, items: Any, version: int, priority: np.ndarray | None) -> bool:
        """Insert items, which uses up the room promised for them; False if the sink does not take them now."""
        if not self.sink.insert(items, version, priority):
            return False
        self.promise(-min(self.promised, len(items.rows)))
        return True


class Guest:
    """One worker: its desk, its seat, and how far its requests were read and answered."""

    def __init__(self, desk: Desk, seat: Seat, portion: Portion):
        self.desk, self.seat, self.portion = desk, seat, portion
        self.run = -1  # the number in its last request; another one means that other episodes have begun
        self.heard, self.since = 0, 0.0  # the number of the last request that was read, and when (seconds)
        self.told: Any = None  # that request
        self.turn = 0  # the number of its last answer among all answers of the central actor
        self.away = False  # its worker asks another central actor, or rests

    @property
    def waiting(self) -> bool:
        """Whether a request was read and not answered yet; the request of a worker that died counts as answered."""
        return self.desk.answered < self.heard

    @property
    def asks(self) -> bool:
        """Whether the worker has a request that was not read yet."""
        number = self.desk.number
        return number > self.desk.answered and number != self.heard

    def listen(self, layout: RequestLayout, heard: Heard, mine: slice) -> list[int]:
        """Read the request, whose records are the part `mine` of `heard`; returns its `about` (`requests.py`)."""
        request = self.desk.request
        about = request["about"].tolist()
        self.heard = self.desk.number
        self.told = Told(layout, heard, mine, tree.map(np.copy, request["next_observation"]) if about[ENDED] else None)
        return about

    def hear(self, about: list[int], now: float) -> None:
        """Record the step that the request tells of; if it tells of none, or of other episodes, begin again. `now`: in
        seconds, when the request was read."""
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
        """The worker goes elsewhere or has died: drop what is under way, and give back the room promised for it."""
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
