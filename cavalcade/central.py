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
from cavalcade.env_worker import ENDED, FLAGS, LEAVES, RUN, STEPPED, blank_request
from cavalcade.envs.vector import Step
from cavalcade.exchange import Client, Desk, Exchange, ServedDesk
from cavalcade.experience import Experience
from cavalcade.policy import Policy
from cavalcade.stopwatch import Stopwatch
from cavalcade.tree import Tree

COMPILED_FOR_A_SHAPE = ("jax",)  # backends that take seconds for every new batch size
FIRST = FLAGS.index("first")
DONE = ("obs", "first", "action", "extras", "carry")  # what a seat is told of a step


class Portion:
    """A seat's part of a sink that several write to: room that one was promised is not promised to another."""

    def __init__(self, sink: Any, book: Any, steps: Callable[[], int]):
        """`book.promised`: items for which room was promised to all. `steps`: of all seats, of which rows are to be
        taken."""
        self.sink, self.book, self.steps = sink, book, steps
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

    def ready(self, steps: int) -> bool:
        """Rows are taken after a step was recorded, and others may come first. A table beside us has always some."""
        return self.sink is self.book or self.sink.ready(self.steps())

    def insert(self, items: Any, version: int, priority: np.ndarray | None) -> bool:
        if not self.sink.insert(items, version, priority):
            return False
        self.promise(-min(self.promised, len(items.rows)))
        return True


class Heard:
    """Requests that came together, as one batch. It is a copy: a worker's next request overwrites the last."""

    def __init__(self, guests: list["Guest"], envs: int):
        self.guests, requests = guests, [guest.desk.request for guest in guests]
        self.obs, self.noise, self.reward = (
            _joined([request[name] for request in requests]) for name in ("obs", "noise", "reward")
        )
        self.flags = np.concatenate([request["flags"] for request in requests], axis=1)
        self.first = self.flags[FIRST]
        self.next_observation = self.obs
        for number, guest in enumerate(guests):
            guest.asked, guest.mine = self, slice(number * envs, (number + 1) * envs)
            guest.about = requests[number]["about"].tolist()
        if any(guest.about[ENDED] for guest in guests):
            names = ("next_observation" if guest.about[ENDED] else "obs" for guest in guests)
            self.next_observation = _joined([request[name] for request, name in zip(requests, names)])

    def step(self, mine: slice) -> Step:
        """What came of a guest's last step."""
        obs = after = _part(self.obs, mine)
        if self.next_observation is not self.obs:
            after = _part(self.next_observation, mine)
        terminated, truncated, valid, first = self.flags[:, mine]
        return Step(after, self.reward[mine], terminated, truncated, valid, obs, first, [])


class Guest:
    """A worker, seen from the service: where it asks, and its seat."""

    def __init__(self, desk: Desk, seat: Seat, portion: Portion):
        self.desk, self.seat, self.portion = desk, seat, portion
        self.run = -1  # which of the worker's lives
        self.heard, self.since = 0, 0.0  # the number of the last request that was looked at, and when
        self.asked: Heard | None = None  # that request, with others
        self.mine = slice(0)  # its part of them
        self.about = [0, 0, 0, 0]  # RUN, STEPPED, ENDED and LEAVES
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
        return number != self.heard and number > self.desk.answered

    def hear(self, now: float) -> None:
        """What came of the last step is recorded once."""
        seat = self.seat
        self.heard, self.since = self.desk.number, now
        assert self.asked is not None
        if self.about[STEPPED] and seat.under_way and self.run == self.about[RUN]:
            seat.record(self.asked.step(self.mine))
        else:
            self.run = self.about[RUN]
            seat.begin_again()
        self.away = False
        if self.about[LEAVES]:
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
        portion = Portion(sink, book, lambda: self._unwritten(sink))
        guest = Guest(desk, Seat(self.experience, self.policy.model, portion, self.envs, number), portion)
        guest.away = self.moving
        self.guests.append(guest)
        if desk.name in self.kept:
            guest.restore(self.kept.pop(desk.name))
            guest.seat.begin_again()
        return made

    def _unwritten(self, sink: Any) -> int:
        """Steps of which rows of this table may have to be taken after the next answers."""
        mine = (guest.seat for guest in self.guests if guest.portion.sink is sink)
        return self.envs * sum(1 + seat.adder.unwritten for seat in mine)

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
        asking = [guest for guest in self.guests if guest.asks]
        if asking:
            Heard(asking, self.envs)
            now = time.monotonic()
            for guest in asking:
                guest.hear(now)
        if self.moving:
            self._settle()
        if asking or moved:
            self.watch.lap("storing")
        return moved or bool(asking)

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

    def _chosen(self) -> list[Guest]:
        """Whom to answer together, who waits longest first; nobody as long as more of them may still ask in time."""
        waiting = [guest for guest in self.guests if guest.waiting]
        if not waiting:
            return []
        able = [guest for guest in sorted(waiting, key=lambda guest: (guest.since, guest.turn)) if guest.seat.may_act()]
        here = sum(not guest.away for guest in self.guests)
        some_missing = len(able) < self.most and len(waiting) < here
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
        guests, obs, first, noise = self._together(guests)
        carry = _joined([guest.seat.carry for guest in guests]) if guests[0].seat.carry else {}
        given = {"obs": obs, "carry": carry, "first": first, "noise": noise}
        if self.padded:
            size = self.envs * _power_of_two(len(guests))
            given = tree.map(lambda leaf: _padded(leaf, size), given)
        action, extras, carry = policy.act(**given)
        parts = [slice(start, start + self.envs) for start in range(0, len(first), self.envs)]
        for guest, mine in zip(guests, parts):  # whoever waits is answered first
            guest.desk.answer({"action": action[mine]})
        for guest, mine in zip(guests, parts):
            after = _part(carry, mine) if carry else carry
            own = _part(extras, mine) if extras else extras
            guest.seat.acted(_part(obs, mine), first[mine], action[mine], own, after, policy.version)
            self.turns += 1
            guest.turn = self.turns
        self.batches += 1
        self.answered += len(first)
        self.watch.lap("acting")

    def _together(self, guests: list[Guest]) -> tuple[list[Guest], Tree, np.ndarray, Tree]:
        """Their requests as one batch, in any order."""
        heard: Any = guests[0].asked
        if len(guests) == len(heard.guests) and all(guest.asked is heard for guest in guests):
            return heard.guests, heard.obs, heard.first, heard.noise
        asked: list[Any] = [(guest.asked, guest.mine) for guest in guests]
        names = ("obs", "first", "noise")
        return guests, *(_joined([_part(getattr(one, name), mine) for one, mine in asked]) for name in names)

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
                guest.away = mine["away"]
                guest.since = time.monotonic()
                Heard([guest], self.envs)

    def close(self) -> None:
        self.exchange.close()


def _joined(parts: list[Tree]) -> Tree:
    """One batch of all, and a copy."""
    if isinstance(parts[0], dict):
        return {key: _joined([part[key] for part in parts]) for key in parts[0]}
    return np.concatenate(parts)


def _part(batch: Tree, mine: slice) -> Tree:
    return {key: _part(leaf, mine) for key, leaf in batch.items()} if isinstance(batch, dict) else batch[mine]


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()


def _padded(leaf: np.ndarray, size: int) -> np.ndarray:
    return np.concatenate([leaf, np.zeros((size - len(leaf), *leaf.shape[1:]), leaf.dtype)])
