"""Acting: the policy, its memory and the adder, here in one loop with the environments (`central.py` serves many)."""

from collections.abc import Callable
from typing import Any

import numpy as np

from cavalcade import adders, tree
from cavalcade.algorithm import Clock
from cavalcade.envs.vector import Environments
from cavalcade.experience import Experience, Unroll
from cavalcade.model import Model
from cavalcade.policy import Policy
from cavalcade.stopwatch import Stopwatch
from cavalcade.table import Items, Table
from cavalcade.tree import Tree


class Seat:
    """What an actor keeps for the environments of one loop: the model's memory, the adder, items that are gathered, and
    the step that is under way. It is the same whether the actor sits beside the environments or serves many loops.

    Room is reserved before the environments are acted for: an unroll starts only when the table can take it. With a
    queue of one batch that is lock step, and on-policy algorithms are exact. Where an algorithm bears it, items are
    gathered and sent many at a time, and newer parameters asked for every so many steps only.
    """

    def __init__(self, experience: Experience, model: Model, sink: Any, count: int, writer: int):
        """`writer`: the number of the environments' loop."""
        self.experience, self.model, self.sink, self.count, self.writer = experience, model, sink, count, writer
        self.in_unrolls = isinstance(experience.item, Unroll)
        self.patience = experience.patience(count)
        self.outbox: Items | None = None
        self.outbox_version, self.outbox_age = 0, 0  # of the policy that made the oldest; steps since then
        self.since_pull = experience.pull_every  # steps of each environment; it begins by asking
        self.version = 0  # of the policy when the last unroll was begun
        self._begin()

    def _begin(self) -> None:
        experience = self.experience
        self.adder = adders.make(experience.item, self.sink, self.count, self.writer, self.patience)
        self.carry = self.model.carry(self.count)
        self.under_way: tuple | None = None  # observations, actions, extras and the carry after them

    def may_act(self) -> bool:
        """Whether there is room for what a step may lead to; what was held back is delivered before."""
        if self.due and not self._send():
            return False
        room = not (self.in_unrolls and self.starting) or self.sink.can_insert(self.count)
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
        """There is something to send, and enough of it, or it has waited for as long as so much should take."""
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


class EnvLoop:
    """Worker: one step of all its environments at a time, into a table."""

    def __init__(
        self,
        policy: Callable[[], Policy],
        environments: Callable[[int, int], Environments],
        experience: Experience,
        sink: Table,
        source: Any,
        seed: int,
        actor: int = 0,
        actors: int = 1,
        incarnation: int = 0,
    ):
        """`incarnation`: how often this actor was built before, after failures."""
        self.policy, self.environments = policy(), environments(actor, incarnation)
        self.source, self.actor, self.actors = source, actor, actors
        self.rng = actor_rng(seed, actor, incarnation)
        model, self.count = self.policy.model, self.environments.count
        self.spec = model.spec
        self.seat = Seat(experience, model, sink, self.count, actor)
        self.obs = self.environments.reset()
        self.first = np.ones(self.count, np.bool_)
        self.steps = 0  # environment steps so far
        self.episodes: list[tuple[float, int]] = []
        self.watch = Stopwatch()

    @property
    def adder(self) -> adders.Adder:
        return self.seat.adder

    @property
    def outbox(self) -> Items | None:
        return self.seat.outbox

    def step(self) -> bool:
        self.watch.start()
        policy, seat, held = self.policy, self.seat, self.seat.due
        if not seat.may_act():
            delivered = held and not seat.due  # what was held is delivered now, and that is a move
            if delivered:
                self.watch.lap("storing")
            return delivered
        self.watch.lap("storing")
        if seat.wants_params():
            if newer := self.source.latest(policy.version):
                policy.load(newer[1], newer[2], newer[0])
            self.watch.lap("pulling")
        noise = policy.algorithm.noise(self.spec, self.rng, self.count, self.clock)
        action, extras, carry = policy.act(self.obs, seat.carry, self.first, noise)
        seat.acted(self.obs, action, extras, carry, policy.version)
        self.watch.lap("acting")
        step = self.environments.step(action)
        self.watch.lap("environment")
        seat.record(step)
        self.obs, self.first = step.observation, step.first
        self.steps += self.count
        if step.episodes:
            self.episodes.extend((episode.total, episode.length) for episode in step.episodes)
        self.watch.lap("storing")
        return True

    @property
    def clock(self) -> Clock:
        return Clock(self.steps * self.actors, self.actor, self.actors)

    def account(self) -> str:
        waiting = "holds items the table will not take yet" if self.seat.due else "waits for room"
        return f"{waiting}; {self.steps} environment steps done"

    def report(self) -> dict:
        episodes, self.episodes = self.episodes, []
        return {
            "steps": self.steps,
            "episodes": episodes,
            "exploration_rate": self.policy.algorithm.exploration(self.count, self.clock),
            "seconds": self.watch.drain(),
            **said(self.environments),
        }

    def state(self) -> dict:
        return {
            "rng": self.rng.bit_generator.state,
            "environments": self.environments.state(),
            "obs": tree.map(np.copy, self.obs),
            "first": self.first.copy(),
            **self.seat.state(),
            "steps": self.steps,
            "episodes": [list(episode) for episode in self.episodes],
            "environment_metrics": self.environments.metrics.state(),
            "policy": {"vector": self.policy.vector.copy(), "statistics": self.policy.statistics},
            "version": self.policy.version,
        }

    def restore(self, state: dict) -> str:
        self.rng.bit_generator.state = state["rng"]
        self.steps = state["steps"]
        self.episodes = [(total, length) for total, length in state["episodes"]]
        kept = state["policy"]
        self.policy.load(kept["vector"], tree.map(np.copy, kept["statistics"]), state["version"])
        self.seat.restore(state)
        self.seat.version = state["version"]
        self.environments.restore(state["environments"])
        self.environments.metrics.restore(state["environment_metrics"])
        if self.environments.resume != "restarted":
            self.obs, self.first = state["obs"], np.copy(state["first"])
            return f"environments {self.environments.resume}, the run goes on exactly"
        self.seat.begin_again()
        self.obs = self.environments.reset()
        self.first = np.ones(self.count, np.bool_)
        return "environments cannot be saved and were restarted at an episode boundary"

    def close(self) -> None:
        self.environments.close()


def said(environments: Environments) -> dict:
    """For a report, if there is any: what environments put into their infos since the last one, and remarks on them."""
    told = {"environment_metrics": environments.metrics.drain(), "remarks": dict(environments.remarks)}
    return {name: value for name, value in told.items() if value}


def actor_rng(seed: int, actor: int, incarnation: int) -> np.random.Generator:
    """From which an actor draws its noise."""
    return np.random.default_rng((seed, 2, actor, incarnation) if incarnation else (seed, 2, actor))


def _joined(one: Items, other: Items) -> Items:
    if one.priority is None or other.priority is None:
        priority = None
    else:
        priority = np.concatenate([one.priority, other.priority])
    return Items(np.concatenate([one.rows, other.rows]), tree.joined([one.own, other.own]), priority)


def _kept(items: Items) -> dict:
    """Only what there is: a checkpoint holds arrays."""
    return {name: value for name, value in items._asdict().items() if value is not None}
