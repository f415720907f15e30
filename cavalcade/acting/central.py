"""Central acting: one actor serves the environments of many workers, many requests at a time.

A worker steps its environments and asks what to do next; its request brings what came of the last step. At the service
every worker has a seat with the memory, the adder and the items of its environments, the same that an actor beside
them would have. Noise is drawn by the worker and sent along, so an action does not depend on whom it was batched with,
and in lock step central and local acting give the same items. Workers are in `env_worker.py`.

Several services share the workers of a program between them (GA3C's predictors), or one lies beside the learner (SEED).
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

BY_PATIENCE = attrgetter("since", "turn")  # who waits longest comes first
COMPILED_FOR_A_SHAPE = ("jax",)  # backends that take seconds for every new batch size


class CentralActor:
    """Worker: answers the requests of environment workers together, and keeps what they experience."""

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
        """`sinks`: tables, to which workers are dealt out in turn. `envs`: environments of each worker. At most `most`
        workers are answered together; for more of them to ask, nobody waits longer than `patience` seconds. `moving`:
        workers come and go."""
        self.policy, self.experience, self.sinks, self.source = policy(), experience, sinks, source
        self.envs, self.most, self.patience, self.moving = envs, most, patience, moving
        algorithm, spec = self.policy.algorithm, self.policy.model.spec
        self.layout = RequestLayout(algorithm, spec)
        self.exchange = Exchange(self.layout.blank(envs), {"action": spec.action.zeros(envs)})
        self.guests: list[Guest] = []
        self.parts: list[slice] = []  # of a batch: of the first who asks, of the second and so on
        self.kept: dict[str, dict] = {}  # of workers that are to come
        self.beside_table = isinstance(sinks[0], Table)
        # where items are counted for which room was promised; those of a table in another process are counted here
        self.books = sinks if self.beside_table else [SimpleNamespace(promised=0) for _ in sinks]
        self.padded = self.policy.acts_in in COMPILED_FOR_A_SHAPE
        self.rows_there: dict[Any, bool] = {}  # by table
        self.watch = Stopwatch()
        self.turns = 0  # answers so far
        self.batches = self.answered = 0  # since the last report: batches, and environments in them

    # --- workers come -------------------------------------------------------------------------------------------------

    def desk(self, name: str) -> Client:
        """For a worker of this process."""
        return self._welcome(self.exchange.desk(name))

    def share(self, consumer: str) -> Desk:
        """For a worker in another process."""
        return self._welcome(self.exchange.share(consumer))

    def serve(self, consumer: str) -> ServedDesk:
        """For a worker that shares no memory with this process."""
        return self._welcome(self.exchange.serve(consumer))

    def _welcome(self, made: Any) -> Any:
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
        """Whether this table has rows for all steps that may have to be written after the next answers: others may
        come first. Looked at once a turn."""
        if sink not in self.rows_there:
            mine = (guest.seat for guest in self.guests if guest.portion.sink is sink)
            self.rows_there[sink] = sink.ready(self.envs * sum(1 + seat.adder.unwritten for seat in mine))
        return self.rows_there[sink]

    # --- work ---------------------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Requests are answered a turn after they were heard: in between a learner beside us may learn from what they
        brought, and who begins an unroll gets parameters that know of it."""
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
        """Take their requests together; gives what each is about."""
        heard = Heard(asking, np.concatenate([guest.desk.request["rows"] for guest in asking]))
        return [guest.listen(self.layout, heard, mine) for guest, mine in zip(asking, self.parts)]

    def _settle(self) -> None:
        """Of those who left, or died: what is whole is delivered, and room promised to nobody given back. As long as
        somebody waits here it is his."""
        for guest in self.guests:
            if guest.desk.reclaimed:
                guest.leave()
            if guest.away:
                guest.seat.deliver()
        if not self.beside_table and not any(guest.waiting for guest in self.guests):
            for sink, book in zip(self.sinks, self.books):
                sink.keep(book.promised)

    def _chosen(self) -> tuple[list[Guest], bool]:
        """Whom to answer together, who waits longest first; nobody as long as more of them may still ask in time. And
        whether anything was done: what was held back may be delivered, even if nobody is chosen."""
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
        policy = self.policy
        self.watch.lap("storing")
        wanting = [guest for guest in guests if guest.seat.wants_params()]  # every one of them counts its steps
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
        for guest, mine in zip(guests, parts):  # whoever waits is answered first
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
        """Their requests as one batch, in any order, and which part of it is whose."""
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
        """Workers that are here go on where they were; those that are to come begin anew, with what they had finished.
        A table in another process has forgotten all that was not inserted."""
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
    return 1 << (count - 1).bit_length()


def _padded(leaf: np.ndarray, size: int) -> np.ndarray:
    return np.concatenate([leaf, np.zeros((size - len(leaf), *leaf.shape[1:]), leaf.dtype)])
