"""Central acting: one policy chooses the actions for the environments of many workers, many requests at a time.

A worker (`env_worker.py`) steps its environments and sends a request: what came of the last step, and the observations
to act on next. For every worker the central actor keeps a seat with the carry, the adder and the outbox of its
environments, as an actor beside them would. Workers draw the noise and send it along, so an action does not depend on
which requests were answered together, and in lock step central and local acting give the same items.

Several central actors share the workers of a program (GA3C's predictors), or one lies beside the learner (SEED).
"""

import time
from collections.abc import Callable
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import numpy as np

from cavalcade import tree
from cavalcade.acting.guests import Guest, Portion
from cavalcade.acting.policy import Policy
from cavalcade.acting.requests import Heard, RequestLayout
from cavalcade.acting.seat import Seat
from cavalcade.experience import Experience
from cavalcade.programs import Stopwatch
from cavalcade.table import Table
from cavalcade.transport import Client, Desk, Exchange, ServedDesk

BY_PATIENCE = attrgetter("since", "turn")  # first the guest that waits longest, then the one answered longest ago
COMPILED_FOR_A_SHAPE = ("jax",)  # backends that compile for seconds at every new batch size: batches are padded


class CentralActor:
    """Worker: answers the requests of environment workers in batches, and sends their experience to tables."""

    def __init__(
        self,
        policy: Callable[[], Policy],
        experience: Experience,
        sinks: list,
        source: Any,
        envs: int,
        most: int = 64,
        patience: float = 0.001,
        moving: bool = False,
    ):
        """`sinks`: tables; worker i writes to the one at i modulo their number. `source`: gives newer params. `envs`:
        environments of each worker. `most`: workers that are answered together, at most. `patience`: seconds that a
        request waits for others to join it, at most. `moving`: workers may go to another central actor and come back.
        """
        self.policy, self.experience, self.sinks, self.source = policy(), experience, sinks, source
        self.envs, self.most, self.patience, self.moving = envs, most, patience, moving
        algorithm, spec = self.policy.algorithm, self.policy.model.spec
        self.layout = RequestLayout(algorithm, spec)
        self.exchange = Exchange(self.layout.blank(envs), {"action": spec.action.zeros(envs)})
        self.guests: list[Guest] = []
        self.parts: list[slice] = []  # of a batch: which environments are those of its first guest, its second, ...
        self.kept: dict[str, dict] = {}  # by name: saved guests whose workers are not connected yet
        self.beside_table = isinstance(sinks[0], Table)
        # `book.promised` counts the items for which a sink has promised room. A table of this process counts them
        # itself; for a table in another process they are counted here.
        self.books = sinks if self.beside_table else [SimpleNamespace(promised=0) for _ in sinks]
        self.padded = self.policy.acts_in in COMPILED_FOR_A_SHAPE
        self.rows_there: dict[Any, bool] = {}  # by sink: the answer of `_rows_for_all` in this turn
        self.watch = Stopwatch()
        self.turns = 0  # answers since the run began
        self.batches = self.answered = 0  # since the last report: batches, and environments in them

    # --- workers come -------------------------------------------------------------------------------------------------

    def desk(self, name: str) -> Client:
        """A desk for a worker in this process."""
        return self._welcome(self.exchange.desk(name))

    def share(self, consumer: str) -> Desk:
        """A desk for a worker in another process."""
        return self._welcome(self.exchange.share(consumer))

    def serve(self, consumer: str) -> ServedDesk:
        """A desk for a worker that shares no memory with this process."""
        return self._welcome(self.exchange.serve(consumer))

    def _welcome(self, made: Any) -> Any:
        """Make the guest of the worker whose desk was opened last; returns `made`, the worker's end of that desk."""
        desk = self.exchange.desks[-1]
        number = int(desk.name.rpartition("/")[2])
        sink, book = self.sinks[number % len(self.sinks)], self.books[number % len(self.sinks)]
        portion = Portion(sink, book, lambda: self._rows_for_all(sink))
        guest = Guest(desk, Seat(self.experience, self.policy, portion, self.envs, number), portion)
        guest.away = self.moving
        self.guests.append(guest)
        self.parts.append(slice(len(self.parts) * self.envs, len(self.guests) * self.envs))
        if desk.name in self.kept:
            guest.restore(self.kept.pop(desk.name))
            guest.seat.begin_again()
        return made

    def _rows_for_all(self, sink: Any) -> bool:
        """Whether this sink has rows for the next steps of all its guests, because any of them may write first. The
        sink is asked once a turn."""
        if sink not in self.rows_there:
            mine = (guest.seat for guest in self.guests if guest.portion.sink is sink)
            self.rows_there[sink] = sink.ready(self.envs * sum(1 + seat.adder.unwritten for seat in mine))
        return self.rows_there[sink]

    # --- work ---------------------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Answer requests that were read in an earlier turn, then read new ones. Between the two turns a learner in
        this process can learn from the items that the requests brought, so an unroll begins with the newest params."""
        self.watch.start()
        chosen, moved = self._chosen()
        if chosen:
            self._act(chosen)
        asking = [guest for guest in self.guests if guest.asks]
        if asking:
            now = time.monotonic()
            for guest, about in zip(asking, self._listen(asking)):
                guest.hear(about, now)
        if self.moving:
            self._settle()
        if moved or asking:
            self.watch.lap("storing")
        return moved or bool(asking)

    def _listen(self, asking: list[Guest]) -> list[list[int]]:
        """Read the requests of these guests together; returns the `about` of each (`requests.py`)."""
        heard = Heard(asking, np.concatenate([guest.desk.request["rows"] for guest in asking]))
        return [guest.listen(self.layout, heard, mine) for guest, mine in zip(asking, self.parts)]

    def _settle(self) -> None:
        """Deliver the outboxes of guests that have left or died. If no guest waits for an answer, give back the room
        that a table in another process has promised and no guest needs; otherwise a waiting guest may use it."""
        for guest in self.guests:
            if guest.desk.reclaimed:
                guest.leave()
            if guest.away:
                guest.seat.deliver()
        if not self.beside_table and not any(guest.waiting for guest in self.guests):
            for sink, book in zip(self.sinks, self.books):
                sink.keep(book.promised)

    def _chosen(self) -> tuple[list[Guest], bool]:
        """The guests to answer together, longest wait first, and whether anything was done: items that were held back
        may be delivered although no guest is answered. No guest is answered yet while fewer than `most` can act, others
        have not asked, and the longest wait is below `patience` seconds."""
        waiting = [guest for guest in self.guests if guest.waiting]
        if not waiting:
            return [], False
        waiting.sort(key=BY_PATIENCE)
        self.rows_there = {}
        held = [guest for guest in waiting if guest.seat.due]
        able = [guest for guest in waiting if guest.seat.may_act()]
        delivered = any(not guest.seat.due for guest in held)
        if len(able) < self.most and len(waiting) < sum(not guest.away for guest in self.guests):  # some may still ask
            able = [] if not able or time.monotonic() - able[0].since < self.patience else able
        return able[: self.most], delivered or bool(able)

    def _act(self, guests: list[Guest]) -> None:
        """Answer these guests with one forward pass, and keep in their seats what was done."""
        policy = self.policy
        self.watch.lap("storing")
        wanting = [guest for guest in guests if guest.seat.wants_params()]  # asks all: each seat counts its steps by it
        if wanting:
            if newer := self.source.latest(policy.version):
                policy.load(newer[1], newer[2], newer[0])
            self.watch.lap("pulling")
        guests, parts, rows = self._together(guests)
        told = self.layout.fields(rows, "observation", "noise", "first")
        obs = told["observation"]
        carry = tree.joined([guest.seat.carry for guest in guests]) if guests[0].seat.carry else {}
        given = {"obs": obs, "carry": carry, "first": told["first"], "noise": told["noise"]}
        if self.padded:
            size = self.envs * _power_of_two(len(guests))
            given = tree.map(lambda leaf: _padded(leaf, size), given)
        action, extras, carry = policy.act(**given)
        for guest, mine in zip(guests, parts):  # answers go out first: workers wait for them
            guest.desk.answer({"action": action[mine]})
        for guest, mine in zip(guests, parts):
            after = tree.take(carry, mine) if carry else carry
            own = tree.take(extras, mine) if extras else extras
            guest.seat.acted(tree.take(obs, mine), action[mine], own, after, policy.version)
            self.turns += 1
            guest.turn = self.turns
        self.batches += 1
        self.answered += len(rows)
        self.watch.lap("acting")

    def _together(self, guests: list[Guest]) -> tuple[list[Guest], list[slice], np.ndarray]:
        """The requests of these guests as one batch [B, bytes]: the guests in the order of the batch, the part of each,
        and the batch. Requests that were read together are a batch already and are not copied."""
        heard = guests[0].told.heard
        if len(guests) == len(heard.guests) and all(guest.told.heard is heard for guest in guests):
            return heard.guests, [guest.told.mine for guest in heard.guests], heard.rows
        return guests, self.parts[: len(guests)], np.concatenate([guest.told.rows for guest in guests])

    # --- looking and keeping ------------------------------------------------------------------------------------------

    def account(self) -> str:
        waiting = [guest.desk.name for guest in self.guests if guest.waiting]
        return f"{len(self.guests)} workers; {', '.join(waiting) or 'nobody'} waits for room or for others to ask"

    def report(self) -> dict:
        size, self.answered = self.answered / max(1, self.batches), 0
        self.batches = 0
        return {"batch_acted": size, "seconds": self.watch.drain()}

    def state(self) -> dict:
        return {
            "guests": {guest.desk.name: guest.state() for guest in self.guests},
            "policy": {"vector": self.policy.vector.copy(), "statistics": self.policy.statistics},
            "version": self.policy.version,
            "counted": [self.turns, self.batches, self.answered],
        }

    def restore(self, state: dict) -> None:
        """Workers that are connected go on where they were. Workers that connect later begin new episodes, and their
        outboxes are kept. If the table is in another process no guest is restored: that table has forgotten all rows
        that were not part of an inserted item."""
        kept = state["policy"]
        self.policy.load(kept["vector"], tree.map(np.copy, kept["statistics"]), state["version"])
        self.turns, self.batches, self.answered = state["counted"]
        self.kept = dict(state["guests"]) if self.beside_table else {}
        for guest in self.guests:
            if mine := self.kept.pop(guest.desk.name, None):
                guest.restore(mine)
                guest.portion.promise(mine["promised"])
                guest.desk.restore(mine["desk"])
                self._listen([guest])
                guest.heard = guest.desk.number if mine["heard"] else 0
                guest.away = mine["away"]
                guest.since = time.monotonic()

    def close(self) -> None:
        self.exchange.close()


def _power_of_two(count: int) -> int:
    """The smallest power of two that is not below `count`."""
    return 1 << (count - 1).bit_length()


def _padded(leaf: np.ndarray, size: int) -> np.ndarray:
    """`leaf` [B, ...] followed by zeros, as [size, ...]."""
    return np.concatenate([leaf, np.zeros((size - len(leaf), *leaf.shape[1:]), leaf.dtype)])
