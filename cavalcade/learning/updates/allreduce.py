"""Several learners that make every update together, with the mean of their gradients (Heess 2017, Espeholt 2018).

    params <- params - step(1/n sum_i gradient_i),    over the n >= W - D of the W learners that were there in time.

At first the learners agree on one state, that of the learner with most updates, because after a checkpoint their
numbers of updates may differ. From then on all learners apply the same means in the same order, so they stay equal. A
round is closed when W - D gradients are there. A learner whose gradient comes later finds it dropped, and applies the
means that it missed. If it missed more rounds than a draw has updates, it draws anew, because the params of the others
are far from those that its batch was made with. No learner gets more than some rounds ahead of the slowest, because the
means are kept for the slowest.

In one process, and between processes that share no memory, a node computes the mean. Between processes of one machine
the learners compute it among themselves (`gloo.py`).
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import numpy as np

from cavalcade import tree
from cavalcade.errors import UserError
from cavalcade.learning.learner import Learner
from cavalcade.learning.updates import Means, Work
from cavalcade.learning.updates.gloo import FEWEST, GlooAttendees
from cavalcade.transport import Client, Exchange, RemoteClient, ServedDesk, Signpost
from cavalcade.tree import Tree

PULL, PUSH, AGREE = 0, 1, 2  # a learner asks for a mean that it missed, brings a gradient, or agrees on the state


class Meeting:
    """Node: where the gradients of learners meet. For learners in its own process, or reached by messages, it computes
    the means as a worker. For learners in other processes of this machine it only gives each an address; then no
    learner may be in its own process."""

    def __init__(self, learner: Callable[[], Learner], learners: int, drop: int = 0):
        """`drop`: D, how many of the `learners` gradients may be missing when a round is closed."""
        if not 0 <= drop < learners:
            raise UserError(f"Of {learners} gradients {drop} cannot be dropped; at least one has to be left.")
        self.size, self.learners, self.drop = contribution(learner()), learners, drop
        blank, number, yes = np.zeros(self.size, np.float32), np.zeros((), np.int64), np.zeros((), np.bool_)
        request = {"vector": blank, "round": number, "what": number}
        self.exchange = Exchange(request, {"vector": blank, "next": number, "included": yes, "more": yes})
        self.round = 0  # the number of the open round
        self.there: dict[str, np.ndarray] = {}  # contributions to the open round, by desk
        self.closed: dict[int, tuple[np.ndarray, set[str]]] = {}  # of a round: its mean, and the desks in it
        self.attendees = GlooAttendees(self.size, learners, drop)

    def step(self) -> bool:
        """Answer the requests that can be answered, and close the open round if enough gradients are there."""
        asking = [desk for desk in self.exchange.desks if desk.waiting]
        if len(asking) == self.learners and all(desk.request["what"] == AGREE for desk in asking):
            return self._agree(asking)
        moved = False
        for desk in asking:
            what, asked = int(desk.request["what"]), int(desk.request["round"])
            if what == AGREE:
                continue  # answered when all learners agree
            if asked < self.round:
                mean, members = self.closed[asked]
                more = asked + 1 < self.round
                desk.answer({"vector": mean, "next": asked + 1, "included": desk.name in members, "more": more})
                moved = True
            elif what == PUSH and desk.name not in self.there:
                self.there[desk.name] = np.copy(desk.request["vector"])
                moved = True
        slowest = min((int(desk.request["round"]) for desk in self.exchange.desks), default=0)
        if len(self.there) >= self.learners - self.drop and slowest > self.round - FEWEST:
            vectors = np.stack([self.there[name] for name in sorted(self.there)])
            self.closed[self.round] = (vectors.mean(axis=0), set(self.there))
            self.closed.pop(self.round - FEWEST, None)  # the slowest learner has this mean already
            self.round, self.there = self.round + 1, {}
            moved = True
        return moved

    def _agree(self, desks: list) -> bool:
        """Answer all desks with one piece of the state of the learner with most updates."""
        furthest = max(desks, key=lambda desk: int(desk.request["round"]))
        vector, self.round = np.copy(furthest.request["vector"]), int(furthest.request["round"])
        for desk in desks:
            desk.answer({"vector": vector, "next": self.round, "included": True, "more": False})
        return True

    def desk(self, name: str) -> "Attendee":
        return Attendee(self.exchange.desk(name), self.size, self.learners)

    def share(self, consumer: str) -> Signpost:
        assert not self.exchange.desks, "Either all learners are in this node's process, or none is."
        return self.attendees.share(consumer)

    def serve(self, consumer: str) -> ServedDesk:
        service: Any = self.exchange.serve(consumer)
        service.address = AttendeeAddress(self.size, self.learners)
        return service

    def account(self) -> str:
        return f"waits for {self.learners - self.drop - len(self.there)} more gradients; {self.round} rounds done"

    def close(self) -> None:
        self.exchange.close()
        self.attendees.close()


class Attendee:
    """A learner's place at the meeting, which asks at a desk of the node."""

    def __init__(self, client: Client | RemoteClient, size: int, learners: int):
        self.client, self.size, self.learners = client, size, learners
        self.round = self.late = 0  # the next round of this learner; its gradients that were dropped
        self.blank = np.zeros(size, np.float32)

    def desk(self, name: str) -> "Attendee":
        return self

    def agree(self, updates: int, state: np.ndarray) -> Generator[bool, None, np.ndarray]:
        """The state [m] that all learners begin with, given this learner's. It is larger than a contribution, so it is
        exchanged in pieces."""
        agreed = np.empty_like(state)
        for start in range(0, len(state), self.size):
            piece = state[start : start + self.size]
            vector = np.concatenate([piece, self.blank[len(piece) :]])
            self.client.send({"vector": vector, "round": updates, "what": AGREE})
            yield True
            while (reply := self.client.take()) is None:
                yield False
            agreed[start : start + len(piece)] = reply["vector"][: len(piece)]
            self.round = int(reply["next"])
        return agreed

    def post(self, vector: np.ndarray | None) -> None:
        """Send a contribution [size] to the open round; None asks for the next mean that was missed."""
        self.pushed = vector is not None
        sent = self.blank if vector is None else vector
        self.client.send({"vector": sent, "round": self.round, "what": PUSH if self.pushed else PULL})

    def take(self) -> tuple[np.ndarray, bool] | None:
        """The mean [size] of the next round, and whether later rounds are closed too; None if it is open."""
        reply = self.client.take()
        if reply is None:
            return None
        self.late += self.pushed and not reply["included"]
        self.round = int(reply["next"])
        return reply["vector"], bool(reply["more"])


@dataclass(frozen=True)
class AttendeeAddress:
    """By which a learner that shares no memory with the meeting reaches it."""

    size: int
    learners: int

    def connect(self, ask: Callable[[Tree], Any]) -> Attendee:
        return Attendee(RemoteClient(ask), self.size, self.learners)


@dataclass(frozen=True)
class ByAllReduce:
    """The recipe of `Reduced`."""

    name: str  # of the learner's node
    summed: bool = False  # gradients are added up instead of averaged

    def __call__(self, learner: Learner, partners: list) -> "Reduced":
        (meeting,) = partners
        return Reduced(learner, self.name, meeting, self.summed)


class Reduced:
    """A learner's updates, made with the mean of the gradients of all learners. Moments are averaged with the
    gradients, and so are the metrics that coefficients change by: moments and coefficients stay equal everywhere."""

    learned_with: int | None = None

    def __init__(self, learner: Learner, name: str, meeting: Any, summed: bool = False):
        """`summed`: the loss is a sum over its batch, so the gradients of all learners are added up, too."""
        self.learner, self.attendee = learner, meeting.desk(name)
        self.scale = np.float32(self.attendee.learners if summed else 1.0)
        self.agreed = False

    def update(self, items: Any) -> Work:
        learner, attendee, means = self.learner, self.attendee, Means()
        if not self.agreed:
            yield from self._agree()
        for samples, index in learner.minibatches(items):
            gradient, metrics = learner.gradients(samples, index)
            read = learner.read(metrics)
            moments, numbers = learner.moments(), np.array(list(read.values()), np.float32)
            attendee.post(np.concatenate([gradient, moments, numbers]))
            ends = [len(gradient), len(gradient) + len(moments)]
            yield True
            more, rounds = True, 0
            while more:
                while (got := attendee.take()) is None:
                    yield False
                mean, more = got
                rounds += 1
                gradient, moments, numbers = np.split(mean, ends)
                norm = learner.apply(self.scale * gradient, dict(zip(read, numbers)))["gradient_norm"]
                learner.take_moments(moments)
                if more:
                    attendee.post(None)
                    yield True
            metrics = {**metrics, "gradient_norm": float(norm)}
            learner.require_finite(metrics)
            means.add(metrics)
            if rounds > learner.updates_per_draw:
                learner.priorities = None  # the rest of the draw has no new priorities
                break
        return means.given()

    def _agree(self) -> Generator[bool, None, None]:
        """Replace the learner's state by the one that all learners begin with, as one float32 vector on its way."""
        kept = self.learner.state()
        leaves = tree.leaves(kept["state"])
        own = np.concatenate([np.reshape(leaf, -1).astype(np.float32) for leaf in leaves])
        parts = np.split(
            (yield from self.attendee.agree(self.learner.updates, own)), np.cumsum([x.size for x in leaves])
        )
        same = (np.reshape(part, leaf.shape).astype(leaf.dtype) for part, leaf in zip(parts, leaves))
        self.learner.restore({**kept, "state": tree.rebuild(kept["state"], same)})
        self.agreed = True

    def counted(self) -> dict[str, float]:
        late, self.attendee.late = self.attendee.late, 0
        return {"dropped_late": float(late)}


def contribution(learner: Learner) -> int:
    """How many numbers a learner brings to a round: its gradient, its moments, and the metrics that coefficients
    change by."""
    read = learner.adaptation.reads if learner.adaptation else ()
    return learner.layout.size + len(learner.moments()) + len(read)
