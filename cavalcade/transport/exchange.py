"""Requests and replies between nodes: one node answers many clients, several at a time.

Every client has a desk: arrays for one request, arrays for its reply, and two bells. The answering node looks at all
desks and answers together those that ask at the same time. On one machine desks lie in shared memory. A request counts
only after its bell was rung, so a client that is killed while it writes leaves nothing half done. Nothing is pickled.
Nodes of one process use desks in ordinary memory. Where no memory is shared, a desk lies beside the answering node and
messages carry its arrays.
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

ASKED, ANSWERED, CLOSED = 0, 8, 16  # indices of a desk's words, a cache line apart; bells begin at the first two
SLICE = 0.05  # seconds between two looks of a blocked client whether the answering node has closed the desk


class Places:
    """The arrays of a desk, which client and answering node allocate in the same order. `request`, `reply`: trees with
    the shapes and dtypes of the largest request and reply."""

    def __init__(self, request: Tree, reply: Tree, memory: Memory):
        self.words = memory.array((24,), np.int64)
        self.asked, self.answered = Bell(self.words, ASKED), Bell(self.words, ANSWERED)
        self.request, self.reply = memory.tree(request), memory.tree(reply)


class Client:
    """The asking side of a desk: one request at a time. `ring`: wakes the answering node."""

    def __init__(self, places: Places, ring: Callable[[], None]):
        self.places, self.ring = places, ring
        self.number = places.answered.rung()  # replies before the one that is waited for

    def desk(self, name: str) -> "Client":
        """Where to ask. A client has one desk already, so that a node may be given a client or the whole exchange."""
        return self

    def send(self, request: Tree) -> None:
        """Write a request and ring. The last reply must have been taken. Leaves that `request` lacks keep the values of
        the request before."""
        _fill(self.places.request, request)
        self.number = self.places.answered.rung()
        self.places.asked()
        self.ring()

    def take(self) -> Tree | None:
        """The reply as views of the desk's arrays, valid until the next `send`; None if there is no reply yet."""
        if _words.load(self.places.words, CLOSED):
            raise Stopped("The server has gone.")
        return self.places.reply if self.places.answered.rung() > self.number else None

    def ask(self, request: Tree, timeout: float = float("inf")) -> Tree | None:
        """Send a request and wait for its reply; None after `timeout` seconds."""
        self.send(request)
        end = time.monotonic() + timeout
        while (reply := self.take()) is None and time.monotonic() < end:
            self.places.answered.rest(self.number, min(SLICE, timeout))
        return reply


@dataclass(frozen=True)
class DeskAddress:
    """What a client in another process needs to ask; plain data."""

    request: Tree  # zeros in the shapes of one request
    reply: Tree  # zeros in the shapes of one reply
    names: list[str]  # of the desk's shared segments
    bell_names: list[str]  # of the shared segment with the answering node's bell

    def connect(self) -> Client:
        bell = Bell(Attached(self.bell_names).array((8,), np.int64), 0)
        return Client(Places(self.request, self.reply, Attached(self.names)), bell)


class Desk:
    """The answering side of one client's desk."""

    def __init__(self, name: str, request: Tree, reply: Tree, memory: Memory, bell_names: list[str]):
        self.name, self.memory = name, memory
        self.places = Places(request, reply, memory)
        blank = (map(np.zeros_like, request), map(np.zeros_like, reply))
        self.address = DeskAddress(*blank, memory.names, bell_names)
        self.ring: Callable[[], None] = nobody
        self.answered = 0  # the number of the last request that waits no more: it was answered, or its client has died
        self.since: Any = None  # monotonic seconds when `collect` first saw the request that waits; None if none waits
        self.reclaimed = False  # the client has died; the answering node sets this back when it has taken notice
        self.given: Tree = {}  # the last reply, as views of the filled part of its arrays

    @property
    def request(self) -> Tree:
        return self.places.request

    @property
    def number(self) -> int:
        """How many requests were sent, which is the number of the last one."""
        return self.places.asked.rung()

    @property
    def waiting(self) -> bool:
        """Whether there is a request without an answer."""
        return self.number > self.answered

    def answer(self, reply: Tree) -> None:
        """Answer the request that waits, and wake the client."""
        self.given = _fill(self.places.reply, reply)
        self.since = None
        self.answered += 1
        self.places.answered()
        self.ring()

    def step(self) -> bool:
        return False  # the answering node looks at its desks in its own `step`

    def reclaim(self) -> None:
        """The client has died: drop its request, so that a new client may use this desk."""
        self.since, self.reclaimed = None, True
        self._answered_up_to(self.number)

    def state(self) -> dict:
        """The last request, whether it waits for its answer, and the last reply, which may not have been taken yet."""
        return {
            "request": map(np.copy, self.request),
            "reply": map(np.copy, self.places.reply),
            "asked": self.number > 0,
            "waits": self.waiting,
        }

    def restore(self, state: dict) -> None:
        """Put a saved request and reply back, for a client of this process that has not asked yet. The numbers begin
        anew: as if the client had asked once, and been answered if the saved request was."""
        _fill(self.places.request, state["request"])
        _fill(self.places.reply, state["reply"])
        _words.store(self.places.words, ASKED, int(state["asked"]))
        self._answered_up_to(int(state["asked"] and not state["waits"]))

    def _answered_up_to(self, number: int) -> None:
        self.answered = number
        _words.store(self.places.words, ANSWERED, number)

    def close(self) -> None:
        """Wake a client that waits; its next `take` raises `Stopped`."""
        _words.store(self.places.words, CLOSED, 1)
        self.places.answered()
        self.memory.close()


class Exchange:
    """All desks of an answering node. `request`, `reply`: trees with the shapes of the largest request and reply."""

    def __init__(self, request: Tree, reply: Tree):
        self.request, self.reply = request, reply
        self.memory: Memory | None = None
        self.desks: list[Desk] = []

    @property
    def bell(self) -> Bell:
        """Rung by clients in other processes with every request; the answering node may rest by it. Made when it is
        first asked for."""
        if self.memory is None:
            self.memory = Memory("shared")
            self._bell = Bell(self.memory.array((8,), np.int64), 0)
        return self._bell

    def share(self, name: str) -> Desk:
        """A desk for a client in another process."""
        assert self.bell is not None
        return self._opened(name, Memory("shared"), self.memory.names)  # type: ignore[union-attr]

    def desk(self, name: str) -> Client:
        """Open a desk for a client in this process, and return that client."""
        return Client(self._opened(name, Memory(), []).places, nobody)

    def serve(self, name: str) -> "ServedDesk":
        """A desk for a client with which no memory is shared."""
        return ServedDesk(self._opened(name, Memory(), []))

    def _opened(self, name: str, memory: Memory, bell_names: list[str]) -> Desk:
        self.desks.append(Desk(name, self.request, self.reply, memory, bell_names))
        return self.desks[-1]

    def collect(self, most: int, patience: float) -> list[Desk]:
        """The desks to answer together now, at most `most`; empty while it pays to wait for more. It is time when all
        desks ask, when `most` of them ask, or when the oldest request has waited `patience` seconds. Never blocks."""
        asking = [desk for desk in self.desks if desk.waiting]
        if not asking:
            return []
        now = time.monotonic()
        for desk in asking:
            desk.since = now if desk.since is None else desk.since
        asking.sort(key=lambda desk: desk.since)  # the oldest request first
        if len(asking) < min(most, len(self.desks)) and now - asking[0].since < patience:
            return []
        return asking[:most]

    def close(self) -> None:
        for desk in self.desks:
            desk.close()
        if self.memory is not None:
            self.memory.close()


class ServedDesk:
    """A desk beside the answering node, for a client that sends its requests as messages."""

    def __init__(self, desk: Desk):
        self.own, self.client = desk, Client(desk.places, nobody)
        self.address = ServedAddress()
        self.asked = False

    def answer(self, message: Tree) -> Tree | None:
        """A copy of the reply to `message`, or None if there is none yet: the runtime then calls again with the same
        message, which is written to the desk only once."""
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
    """Stands for a `ServedDesk` at its client. `ask`, given by the runtime, sends a message and returns a future."""

    def connect(self, ask: Callable[[Tree], Any]) -> "RemoteClient":
        return RemoteClient(ask)


class RemoteClient:
    """A client that shares no memory with the answering node."""

    def __init__(self, ask: Callable[[Tree], Any]):
        self.call, self.on_way = ask, None  # type: Callable[[Tree], Any], Any

    def desk(self, name: str) -> "RemoteClient":
        return self

    def send(self, request: Tree) -> None:
        self.on_way = self.call(map(np.array, request))

    def take(self) -> Tree | None:
        return self.on_way.get() if self.on_way.ready() else None


def stacked(requests: list[Tree]) -> Tree:
    """Several requests [N, ...] as one, joined along their first axis."""
    return requests[0] if len(requests) == 1 else joined(requests)


def _fill(places: Tree, values: Tree) -> Tree:
    """Copy `values` into the beginning of `places`, and return the filled part as views. Arrays may be shorter than
    their places along the first axis; leaves that `values` lacks are left as they are."""
    if isinstance(places, dict):
        return {key: _fill(places[key], value) for key, value in values.items()}
    filled = places[: len(values)] if np.ndim(values) else places
    filled[...] = values
    return filled
