"""Requests and replies between nodes, answered many at a time.

Every client has a desk: arrays for one request, arrays for its reply, and two bells. The server looks at all desks and
answers those together that ask at the same time. On one machine desks lie in shared memory. A request is there when its
bell was rung, so a client that is killed while it writes leaves nothing half done, and nothing is pickled. Nodes of one
process use the same desks in ordinary memory; where no memory is shared, a desk stands beside the server and messages
carry its arrays.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from cavalcade.errors import Stopped
from cavalcade.transport import _words
from cavalcade.transport.bell import Bell, nobody
from cavalcade.transport.memory import Attached, Memory
from cavalcade.tree import Tree, joined, map

ASKED, ANSWERED, CLOSED = 0, 8, 16  # words of a desk, a cache line apart; the first two are bells
SLICE = 0.05  # seconds: a blocked client looks this often whether the server has gone


class Places:
    """The arrays of a desk, which both sides allocate in the same order."""

    def __init__(self, request: Tree, reply: Tree, memory: Memory):
        self.words = memory.array((24,), np.int64)
        self.asked, self.answered = Bell(self.words, ASKED), Bell(self.words, ANSWERED)
        self.request, self.reply = memory.tree(request), memory.tree(reply)


class Client:
    """The asking side: one request at a time."""

    def __init__(self, places: Places, ring: Callable[[], None]):
        self.places, self.ring = places, ring
        self.number = places.answered.rung()

    def desk(self, name: str) -> "Client":
        """Here as at the exchange itself: where to ask."""
        return self

    def send(self, request: Tree) -> None:
        """The last reply must have been taken. What a request leaves out stays as it was in the last."""
        _fill(self.places.request, request)
        self.number = self.places.answered.rung()
        self.places.asked()
        self.ring()

    def take(self) -> Tree | None:
        """The reply, valid until the next request is sent; None if it is not there yet."""
        if _words.load(self.places.words, CLOSED):
            raise Stopped("The server has gone.")
        return self.places.reply if self.places.answered.rung() > self.number else None

    def ask(self, request: Tree, timeout: float = float("inf")) -> Tree | None:
        """Send, and wait for the reply."""
        self.send(request)
        end = time.monotonic() + timeout
        while (reply := self.take()) is None and time.monotonic() < end:
            self.places.answered.rest(self.number, min(SLICE, timeout))
        return reply


@dataclass(frozen=True)
class DeskAddress:
    """What a client in another process needs to ask; plain data."""

    request: Tree  # zeros of one request
    reply: Tree  # zeros of one reply
    names: list[str]
    bell_names: list[str]  # of the server

    def connect(self) -> Client:
        bell = Bell(Attached(self.bell_names).array((8,), np.int64), 0)
        return Client(Places(self.request, self.reply, Attached(self.names)), bell)


class Desk:
    """The answering side of one client."""

    def __init__(self, name: str, request: Tree, reply: Tree, memory: Memory, bell_names: list[str]):
        self.name, self.memory = name, memory
        self.places = Places(request, reply, memory)
        blank = (map(np.zeros_like, request), map(np.zeros_like, reply))
        self.address = DeskAddress(*blank, memory.names, bell_names)
        self.ring: Callable[[], None] = nobody
        self.answered = 0  # the number of the last request that waits no more: it was answered, or its client has died
        self.since: Any = None  # when the request was first seen
        self.reclaimed = False  # its client has died, and the server has not looked since
        self.given: Tree = {}  # the last reply: what of its arrays was filled

    @property
    def request(self) -> Tree:
        return self.places.request

    @property
    def number(self) -> int:
        """Of the last request."""
        return self.places.asked.rung()

    @property
    def waiting(self) -> bool:
        return self.number > self.answered

    def answer(self, reply: Tree) -> None:
        self.given = _fill(self.places.reply, reply)
        self.since = None
        self.answered += 1
        self.places.answered()
        self.ring()

    def step(self) -> bool:
        return False  # the node that offers the exchange looks at its desks itself

    def reclaim(self) -> None:
        """The client has died; what it asked is not answered any more, and a new one may begin."""
        self.since, self.reclaimed = None, True
        self._answered_up_to(self.number)

    def state(self) -> dict:
        """With a request that still waits for its answer, and the last answer, which may not have been taken."""
        return {
            "request": map(np.copy, self.request),
            "reply": map(np.copy, self.places.reply),
            "asked": self.number > 0,
            "waits": self.waiting,
        }

    def restore(self, state: dict) -> None:
        """For a client of this process, before it has asked: as if it had asked, or been answered, once."""
        _fill(self.places.request, state["request"])
        _fill(self.places.reply, state["reply"])
        _words.store(self.places.words, ASKED, int(state["asked"]))
        self._answered_up_to(int(state["asked"] and not state["waits"]))

    def _answered_up_to(self, number: int) -> None:
        self.answered = number
        _words.store(self.places.words, ANSWERED, number)

    def close(self) -> None:
        """A client that waits gets `Stopped`."""
        _words.store(self.places.words, CLOSED, 1)
        self.places.answered()
        self.memory.close()


class Exchange:
    """The desks of a server."""

    def __init__(self, request: Tree, reply: Tree):
        self.request, self.reply = request, reply
        self.memory: Memory | None = None
        self.desks: list[Desk] = []

    @property
    def bell(self) -> Bell:
        """For a server that has nothing else to do."""
        if self.memory is None:
            self.memory = Memory("shared")
            self._bell = Bell(self.memory.array((8,), np.int64), 0)
        return self._bell

    def share(self, name: str) -> Desk:
        """A desk for a client in another process."""
        assert self.bell is not None
        return self._opened(name, Memory("shared"), self.memory.names)  # type: ignore[union-attr]

    def desk(self, name: str) -> Client:
        """For a client in this process."""
        return Client(self._opened(name, Memory(), []).places, nobody)

    def serve(self, name: str) -> "ServedDesk":
        """A desk for a client with which no memory is shared."""
        return ServedDesk(self._opened(name, Memory(), []))

    def _opened(self, name: str, memory: Memory, bell_names: list[str]) -> Desk:
        self.desks.append(Desk(name, self.request, self.reply, memory, bell_names))
        return self.desks[-1]

    def collect(self, most: int, patience: float) -> list[Desk]:
        """Desks to be answered together, or none yet: it is time when all ask, when `most` do, or when one has been
        waiting for `patience` seconds. Never blocks."""
        asking = [desk for desk in self.desks if desk.waiting]
        if not asking:
            return []
        now = time.monotonic()
        for desk in asking:
            desk.since = now if desk.since is None else desk.since
        asking.sort(key=lambda desk: desk.since)  # who waits longest comes first
        if len(asking) < min(most, len(self.desks)) and now - asking[0].since < patience:
            return []
        return asking[:most]

    def close(self) -> None:
        for desk in self.desks:
            desk.close()
        if self.memory is not None:
            self.memory.close()


class ServedDesk:
    """A desk whose client sends its requests as messages."""

    def __init__(self, desk: Desk):
        self.own, self.client = desk, Client(desk.places, nobody)
        self.address = ServedAddress()
        self.asked = False

    def answer(self, message: Tree) -> Tree | None:
        """None as long as there is no reply: asked again, the message is the same."""
        if not self.asked:
            self.client.send(message)
            self.asked = True
        if self.client.take() is None:
            return None
        self.asked = False
        return map(np.copy, self.own.given)

    def reclaim(self) -> None:
        self.asked = False
        self.own.reclaim()

    def close(self) -> None:
        self.own.close()


@dataclass(frozen=True)
class ServedAddress:
    def connect(self, ask: Callable[[Tree], Any]) -> "RemoteClient":
        return RemoteClient(ask)


class RemoteClient:
    """A client that shares no memory with the server."""

    def __init__(self, ask: Callable[[Tree], Any]):
        self.call, self.on_way = ask, None  # type: Callable[[Tree], Any], Any

    def desk(self, name: str) -> "RemoteClient":
        return self

    def send(self, request: Tree) -> None:
        self.on_way = self.call(map(np.array, request))

    def take(self) -> Tree | None:
        return self.on_way.get() if self.on_way.ready() else None


def stacked(requests: list[Tree]) -> Tree:
    """Several requests as one, joined along their first axis."""
    return requests[0] if len(requests) == 1 else joined(requests)


def _fill(places: Tree, values: Tree) -> Tree:
    """What was filled. An array may be shorter than its place: of what counts, there may be less than there is room."""
    if isinstance(places, dict):
        return {key: _fill(places[key], value) for key, value in values.items()}
    filled = places[: len(values)] if np.ndim(values) else places
    filled[...] = values
    return filled
