"""What acting keeps for the environments of one loop, wherever the policy is."""

from typing import Any

import numpy as np

from cavalcade import tree
from cavalcade.acting.policy import Policy
from cavalcade.experience import Experience
from cavalcade.table import Items
from cavalcade.tree import Tree


class Seat:
    """What an actor keeps for the environments of one loop: the model's memory, the adder, items that are gathered, and
    the step that is under way. It is the same whether the actor sits beside the environments or serves many loops.

    Room is reserved before the environments are acted for: an unroll starts only when the table can take it. With a
    queue of one batch that is lock step, and on-policy algorithms are exact. Where an algorithm bears it, items are
    gathered and sent many at a time, and newer parameters asked for every so many steps only.
    """

    def __init__(self, experience: Experience, policy: Policy, sink: Any, count: int, writer: int):
        """`writer`: the number of the environments' loop."""
        self.experience, self.policy, self.sink, self.count, self.writer = experience, policy, sink, count, writer
        self.patience = experience.patience(count)
        self.outbox: Items | None = None
        self.outbox_version, self.outbox_age = 0, 0  # of the policy that made the oldest; steps since then
        self.since_pull = experience.pull_every  # steps of each environment; it begins by asking
        self.version = 0  # of the policy when the last unroll was begun
        self._begin()

    def _begin(self) -> None:
        experience = self.experience
        about = (self.sink, self.count, self.writer, self.patience, self.policy.algorithm.priority)
        self.adder = experience.item.adder(*about)
        self.carry = self.policy.model.carry(self.count)
        self.under_way: tuple | None = None  # observations, actions, extras and the carry after them

    def may_act(self) -> bool:
        """Whether there is room for what a step may lead to; what was held back is delivered before."""
        if self.due and not self._send():
            return False
        room = not (self.experience.item.reserves and self.starting) or self.sink.can_insert(self.count)
        return room and self.sink.ready(self.count * (1 + self.adder.unwritten))

    @property
    def starting(self) -> bool:
        return self.adder.steps == 0

    def wants_params(self) -> bool:
        """Asked before each step: whether it should be acted with the newest parameters."""
        wants = self.starting and self.since_pull >= self.experience.pull_every
        self.since_pull = 1 if wants else self.since_pull + 1
        return wants

    def acted(self, obs: Tree, action: Any, extras: Tree, carry: Tree, version: int) -> None:
        """What was done, by the policy of this version; what came of it is to be recorded."""
        self.under_way = (obs, action, extras, carry)
        if self.starting:
            self.version = version

    def record(self, step: Any) -> None:
        assert self.under_way is not None
        obs, action, extras, carry = self.under_way
        self._gather(self.adder.add(obs, action, extras, self.carry, step))
        self.carry, self.under_way = carry, None
        if self.due:
            self._send()

    def _gather(self, items: Items | None) -> None:
        if self.outbox is not None:
            self.outbox_age += 1
            self.outbox = self.outbox if items is None else _joined(self.outbox, items)
        elif items is not None:
            self.outbox, self.outbox_version, self.outbox_age = items, self.version, 0

    @property
    def due(self) -> bool:
        """There is something to send, and it is enough, or its oldest item has waited `patience` steps."""
        if self.outbox is None:
            return False
        return len(self.outbox.rows) >= self.experience.flush or self.outbox_age >= self.patience

    def _send(self) -> bool:
        assert self.outbox is not None
        if not self.sink.insert(self.outbox, self.outbox_version, self.outbox.priority):
            return False
        self.outbox = None
        return True

    def begin_again(self) -> None:
        """New episodes: what was under way is dropped, so that no item joins two episodes. What is whole stays."""
        stream = self.adder.stream.state()
        self._begin()
        self.adder.stream.begin_again(stream)

    def leave(self) -> None:
        """The environments go elsewhere: what is under way is dropped, what is whole is sent, be it little."""
        self.begin_again()
        self.deliver()

    def deliver(self) -> bool:
        """Whether nothing is left to be sent."""
        return self.outbox is None or self._send()

    def state(self) -> dict:
        """Between two steps."""
        return {
            "adder": self.adder.state(),
            "carry": tree.map(np.copy, self.carry) if self.carry else {},
            "outbox": {} if self.outbox is None else _kept(self.outbox),
            "outbox_version": self.outbox_version,
            "outbox_age": self.outbox_age,
            "since_pull": self.since_pull,
        }

    def restore(self, state: dict) -> None:
        self.outbox = Items(**state["outbox"]) if state["outbox"] else None
        self.outbox_version, self.outbox_age = state["outbox_version"], state["outbox_age"]
        self.since_pull, self.carry = state["since_pull"], state["carry"]
        self.adder.restore(state["adder"])


def _joined(one: Items, other: Items) -> Items:
    if one.priority is None or other.priority is None:
        priority = None
    else:
        priority = np.concatenate([one.priority, other.priority])
    return Items(np.concatenate([one.rows, other.rows]), tree.joined([one.own, other.own]), priority)


def _kept(items: Items) -> dict:
    """Only what there is: a checkpoint holds arrays."""
    return {name: value for name, value in items._asdict().items() if value is not None}
