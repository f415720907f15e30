"""The seat: what acting keeps for the environments of one loop, whether the policy is beside them or central."""

from typing import Any

import numpy as np

from cavalcade import tree
from cavalcade.acting.policy import Policy
from cavalcade.experience import Experience
from cavalcade.table import Items
from cavalcade.tree import Tree


class Seat:
    """The carry, the adder, the outbox and the step under way of the environments of one loop.

    Room is reserved before the environments are acted for: an unroll begins only when the table can take it. With a
    queue of one batch that is lock step, and on-policy algorithms are exact. Where an algorithm allows it, `flush`
    items are gathered and sent together, and newer params are asked for only every `pull_every` steps.
    """

    def __init__(self, experience: Experience, policy: Policy, sink: Any, count: int, writer: int):
        """`sink`: the table, or this end of it. `count`: environments of the loop. `writer`: the number of the loop."""
        self.experience, self.policy, self.sink, self.count, self.writer = experience, policy, sink, count, writer
        self.patience = experience.patience(count)
        self.outbox: Items | None = None
        self.outbox_version, self.outbox_age = 0, 0  # policy version of its oldest item; steps since then
        self.since_pull = experience.pull_every  # steps since params were asked for; the first step asks
        self.version = 0  # of the policy that acted when the last item was begun
        self._begin()

    def _begin(self) -> None:
        """An adder without unfinished items, and the carry of episodes that begin."""
        experience = self.experience
        about = (self.sink, self.count, self.writer, self.patience, self.policy.algorithm.priority)
        self.adder = experience.item.adder(*about)
        self.carry = self.policy.model.carry(self.count)
        self.under_way: tuple | None = None  # observations, actions, extras and the next carry

    def may_act(self) -> bool:
        """Whether the next step may be acted: the outbox is sent if it is due, and the table has room and rows for what
        the step may lead to."""
        if self.due and not self._send():
            return False
        room = not (self.experience.item.reserves and self.starting) or self.sink.can_insert(self.count)
        return room and self.sink.ready(self.count * (1 + self.adder.unwritten))

    @property
    def starting(self) -> bool:
        """Whether the next step begins an item, as every step does where items overlap."""
        return self.adder.steps == 0

    def wants_params(self) -> bool:
        """Whether to act the next step with the newest params. Call it once before each step: it counts them."""
        wants = self.starting and self.since_pull >= self.experience.pull_every
        self.since_pull = 1 if wants else self.since_pull + 1
        return wants

    def acted(self, obs: Tree, action: Any, extras: Tree, carry: Tree, version: int) -> None:
        """Keep what the policy of this version did, until `record` is told what came of it."""
        self.under_way = (obs, action, extras, carry)
        if self.starting:
            self.version = version

    def record(self, step: Any) -> None:
        """Finish the step under way with what came of it, and send the outbox if it is due."""
        assert self.under_way is not None
        obs, action, extras, carry = self.under_way
        self._gather(self.adder.add(obs, action, extras, self.carry, step))
        self.carry, self.under_way = carry, None
        if self.due:
            self._send()

    def _gather(self, items: Items | None) -> None:
        """Put the items that one step finished, if any, into the outbox."""
        if self.outbox is not None:
            self.outbox_age += 1
            self.outbox = self.outbox if items is None else _joined(self.outbox, items)
        elif items is not None:
            self.outbox, self.outbox_version, self.outbox_age = items, self.version, 0

    @property
    def due(self) -> bool:
        """Whether the outbox has to be sent: it holds `flush` items, or its oldest item has waited `patience` steps."""
        if self.outbox is None:
            return False
        return len(self.outbox.rows) >= self.experience.flush or self.outbox_age >= self.patience

    def _send(self) -> bool:
        """Send the outbox; False, and it stays, if the sink does not take it now."""
        assert self.outbox is not None
        if not self.sink.insert(self.outbox, self.outbox_version, self.outbox.priority):
            return False
        self.outbox = None
        return True

    def begin_again(self) -> None:
        """New episodes begin: drop unfinished items, so that no item joins two episodes. The outbox stays."""
        stream = self.adder.stream.state()
        self._begin()
        self.adder.stream.begin_again(stream)

    def leave(self) -> None:
        """The environments go elsewhere: drop unfinished items, and send the outbox even if it is not due."""
        self.begin_again()
        self.deliver()

    def deliver(self) -> bool:
        """Send the outbox if there is one; whether nothing is left to send."""
        return self.outbox is None or self._send()

    def state(self) -> dict:
        """Without the step under way: to be called between two steps, or with `under_way` saved beside it."""
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
    """The fields that are not None, because a checkpoint holds arrays."""
    return {name: value for name, value in items._asdict().items() if value is not None}
