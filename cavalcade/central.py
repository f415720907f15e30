"""Central acting: one actor serves the environments of many workers, many requests at a time.

A worker steps its environments and asks what to do next; its request brings what came of the last step. At the service
every worker has a seat with the memory, the adder and the items of its environments, the same that an actor beside
them would have. Noise is drawn by the worker and sent along, so an action does not depend on whom it was batched with,
and in lock step central and local acting give the same items. Workers are in `env_worker.py`.

Several services share the workers of a program between them (GA3C's predictors), or one lies beside the learner (SEED).
"""

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from cavalcade import tree
from cavalcade.acting import Seat
from cavalcade.env_worker import STEP, blank_request
from cavalcade.envs.vector import Step
from cavalcade.exchange import Client, Desk, Exchange, ServedDesk
from cavalcade.experience import Experience
from cavalcade.policy import Policy
from cavalcade.stopwatch import Stopwatch
from cavalcade.tree import Tree

COMPILED_FOR_A_SHAPE = ("jax",)  # backends that take seconds for every new batch size
DONE = ("obs", "first", "action", "extras", "carry")  # what a seat is told of a step


class Portion:
    """A seat's part of a sink that several write to: room that one was promised is not promised to another."""

    def __init__(self, sink: Any, book: Any, environments: Callable[[], int]):
        """`book.promised`: items for which room was promised to all. `environments`: of all seats."""
        self.sink, self.book, self.environments = sink, book, environments
        self.signature, self.rows, self.take_rows = sink.signature, sink.rows, sink.take_rows
        self.drawn_once = sink.reserving if hasattr(sink, "reserving") else sink.max_times_sampled == 1
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

    def ready(self, environments: int) -> bool:
        """Rows are taken when a step is recorded, and others may come first."""
        return self.sink.ready(self.environments())

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
        self.heard, self.since = 0, 0.0  # the last request that was looked at, and when
        self.turn = 0  # among the answers of the service, that of the last one

    @property
    def waiting(self) -> bool:
        return self.desk.waiting and self.heard == self.desk.number

    def hear(self, now: float) -> bool:
        """Look at a new request, if there is one: what came of the last step is recorded once."""
        desk, seat = self.desk, self.seat
        if not desk.waiting or self.heard == desk.number:
            return False
        self.heard, self.since = desk.number, now
        request = desk.request
        if request["stepped"] and seat.under_way and self.run == request["run"]:
            seat.record(self._step(request))
        else:
            self.run = int(request["run"])
            seat.begin_again()
        return True

    def _step(self, request: Tree) -> Step:
        """Observations are written to the table at once; the small arrays may be kept by an adder."""
        came = {name: request[name].copy() for name in (*STEP, "first")}
        after = request["next_observation"] if request["ended"] else request["obs"]
        return Step(next_observation=after, observation=request["obs"], episodes=[], **came)

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
        }

    def restore(self, state: dict) -> None:
        self.seat.restore(state["seat"])
        self.seat.version, self.run, self.turn = state["version"], state["run"], state["turn"]
        self.seat.under_way = tuple(state["under_way"][name] for name in DONE) if state["under_way"] else None


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
    ):
        """`sinks`: tables, to which workers are dealt out in turn. `envs`: environments of each worker. At most `most`
        workers are answered together; for more of them to ask, nobody waits longer than `patience` seconds."""
        self.policy, self.experience, self.sinks, self.source = policy(), experience, sinks, source
        self.envs, self.most, self.patience = envs, most, patience
        algorithm, spec = self.policy.algorithm, self.policy.model.spec
        request = blank_request(algorithm, spec, envs)
        self.exchange = Exchange(request, {"action": spec.action.zeros(envs)})
        self.guests: list[Guest] = []
        self.kept: dict[str, dict] = {}  # of workers that are to come
        self.beside_table = hasattr(sinks[0], "promised")
        # where items are counted for which room was promised; those of a table in another process are counted here
        self.books = sinks if self.beside_table else [SimpleNamespace(promised=0) for _ in sinks]
        self.padded = self.policy.acts_in in COMPILED_FOR_A_SHAPE
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
        portion = Portion(sink, book, lambda: self.envs * sum(guest.portion.sink is sink for guest in self.guests))
        guest = Guest(desk, Seat(self.experience, self.policy.model, portion, self.envs, number), portion)
        self.guests.append(guest)
        if desk.name in self.kept:
            guest.restore(self.kept.pop(desk.name))
            guest.seat.begin_again()
        return made

    # --- work ---------------------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Requests are answered a turn after they were heard: in between a learner beside us may learn from what they
        brought, and who begins an unroll gets parameters that know of it."""
        self.watch.start()
        held = [guest for guest in self.guests if guest.seat.due]
        chosen = self._chosen()
        moved = bool(chosen) or any(not guest.seat.due for guest in held)
        if chosen:
            self._act(chosen)
        now = time.monotonic()
        heard = [guest for guest in self.guests if guest.hear(now)]
        if heard or moved:
            self.watch.lap("storing")
        return moved or bool(heard)

    def _chosen(self) -> list[Guest]:
        """Whom to answer together, who waits longest first; nobody as long as more of them may still ask in time."""
        waiting = [guest for guest in self.guests if guest.waiting]
        if not waiting:
            return []
        able = [guest for guest in sorted(waiting, key=lambda guest: (guest.since, guest.turn)) if guest.seat.may_act()]
        some_missing = len(able) < self.most and len(waiting) < len(self.guests)
        if not able or (some_missing and time.monotonic() - able[0].since < self.patience):
            return []
        return able[: self.most]

    def _act(self, guests: list[Guest]) -> None:
        policy = self.policy
        self.watch.lap("storing")
        wanting = [guest for guest in guests if guest.seat.wants_params()]  # every one of them counts its steps
        if wanting:
            if newer := self.source.latest(policy.version):
                policy.load(newer[1], newer[2], newer[0])
            self.watch.lap("pulling")
        requests = [guest.desk.request for guest in guests]
        obs, first, noise = (_joined([request[name] for request in requests]) for name in ("obs", "first", "noise"))
        carry = _joined([guest.seat.carry for guest in guests]) if guests[0].seat.carry else {}
        given = {"obs": obs, "carry": carry, "first": first, "noise": noise}
        if self.padded:
            size = self.envs * _power_of_two(len(guests))
            given = tree.map(lambda leaf: _padded(leaf, size), given)
        action, extras, carry = policy.act(**given)
        for number, guest in enumerate(guests):  # whoever waits is answered first
            guest.desk.answer({"action": action[number * self.envs : (number + 1) * self.envs]})
        for number, guest in enumerate(guests):
            mine = slice(number * self.envs, (number + 1) * self.envs)
            after = tree.take(carry, mine) if carry else carry
            own = tree.take(extras, mine) if extras else extras
            guest.seat.acted(tree.take(obs, mine), first[mine], action[mine], own, after, policy.version)
            self.turns += 1
            guest.turn = self.turns
        self.batches += 1
        self.answered += len(first)
        self.watch.lap("acting")

    # --- looking and keeping ------------------------------------------------------------------------------------------

    def account(self) -> str:
        waiting = [guest.desk.name for guest in self.guests if guest.waiting]
        return f"{len(self.guests)} workers; {', '.join(waiting) or 'nobody'} waits for room or for others to ask"

    def report(self) -> dict:
        size, self.answered = self.answered / max(1, self.batches), 0
        self.batches = 0
        left_out = sum(guest.seat.adder.left_out for guest in self.guests)
        return {"batch_acted": size, "steps_left_out": left_out, "seconds": self.watch.drain()}

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
                guest.heard = guest.desk.number if mine["heard"] else 0
                guest.since = time.monotonic()

    def close(self) -> None:
        self.exchange.close()


def _joined(parts: list[Tree]) -> Tree:
    """One batch of all, and a copy: what was asked is overwritten by the next request."""
    if isinstance(parts[0], dict):
        return {key: _joined([part[key] for part in parts]) for key in parts[0]}
    return np.concatenate(parts)


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()


def _padded(leaf: np.ndarray, size: int) -> np.ndarray:
    return np.concatenate([leaf, np.zeros((size - len(leaf), *leaf.shape[1:]), leaf.dtype)])
