"""Workers that act: environments, the policy, its memory and the adder, in one loop."""

from collections.abc import Callable
from typing import Any

import numpy as np

from cavalcade import adders, tree
from cavalcade.algorithm import Clock
from cavalcade.envs.vector import Environments
from cavalcade.experience import Experience, Unroll
from cavalcade.policy import Policy
from cavalcade.stopwatch import Stopwatch
from cavalcade.table import Items, Table


class EnvLoop:
    """Worker: one step of all its environments at a time, into a table.

    It reserves room before it acts: an unroll starts only when the table can take it, and then with the newest
    parameters. With a queue of one batch that is lock step, and on-policy algorithms are exact. Where an algorithm
    bears it, items are gathered and sent many at a time, and newer parameters asked for every so many steps only.
    """

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
        self.sink, self.source, self.actor, self.actors = sink, source, actor, actors
        self.rng = np.random.default_rng((seed, 2, actor, incarnation) if incarnation else (seed, 2, actor))
        model, count = self.policy.model, self.environments.count
        self.spec, self.count = model.spec, count
        self.flush, self.pull_every = experience.flush, experience.pull_every
        self.patience = experience.patience(count)
        self.adder = adders.make(experience.item, sink, count, actor, self.patience)
        self.in_unrolls = isinstance(experience.item, Unroll)
        self.obs = self.environments.reset()
        self.first = np.ones(count, np.bool_)
        self.carry = model.carry(count)
        self.outbox: Items | None = None
        self.outbox_version, self.outbox_age = 0, 0  # of the policy that made the oldest; steps since then
        self.since_pull = 0  # steps of each environment
        self.steps = 0  # environment steps so far
        self.episodes: list[tuple[float, int]] = []
        self.watch = Stopwatch()

    def step(self) -> bool:
        self.watch.start()
        held = self._due()
        if held and not self._send():
            return False
        starting = self.adder.steps == 0
        room = not (starting and self.in_unrolls) or self.sink.can_insert(self.count)
        if not room or not self.sink.ready(self.count):
            if held:  # what was held is delivered now, and that is a move
                self.watch.lap("storing")
            return held
        self.watch.lap("storing")
        policy = self.policy
        if starting and self.since_pull >= self.pull_every:
            self.since_pull = 0
            if newer := self.source.latest(policy.version):
                policy.load(newer[1], newer[2], newer[0])
            self.watch.lap("pulling")
        self.since_pull += 1
        clock = Clock(self.steps * self.actors, self.actor, self.actors)
        noise = policy.algorithm.noise(self.spec, self.rng, self.count, clock)
        action, extras, carry = policy.act(self.obs, self.carry, self.first, noise)
        self.watch.lap("acting")
        step = self.environments.step(action)
        self.watch.lap("environment")
        self._gather(self.adder.add(self.obs, self.first, action, extras, self.carry, step))
        self.obs, self.first, self.carry = step.observation, step.first, carry
        self.steps += self.count
        if step.episodes:
            self.episodes.extend((episode.total, episode.length) for episode in step.episodes)
        if self._due():
            self._send()
        self.watch.lap("storing")
        return True

    def _gather(self, items: Items | None) -> None:
        if self.outbox is not None:
            self.outbox_age += 1
            self.outbox = self.outbox if items is None else _joined(self.outbox, items)
        elif items is not None:
            self.outbox, self.outbox_version, self.outbox_age = items, self.policy.version, 0

    def _due(self) -> bool:
        """There is something to send, and enough of it, or it has waited for as long as so much should take."""
        if self.outbox is None:
            return False
        return len(self.outbox.rows) >= self.flush or self.outbox_age >= self.patience

    def _send(self) -> bool:
        assert self.outbox is not None
        if not self.sink.insert(self.outbox, self.outbox_version, self.outbox.priority):
            return False
        self.outbox = None
        return True

    def account(self) -> str:
        waiting = "holds items the table will not take yet" if self._due() else "waits for room"
        return f"{waiting}; {self.steps} environment steps done"

    def report(self) -> dict:
        episodes, self.episodes = self.episodes, []
        return {
            "steps": self.steps,
            "episodes": episodes,
            "steps_left_out": self.adder.left_out,
            "seconds": self.watch.drain(),
        }

    def state(self) -> dict:
        return {
            "rng": self.rng.bit_generator.state,
            "adder": self.adder.state(),
            "environments": self.environments.state(),
            "obs": tree.map(np.copy, self.obs),
            "first": self.first.copy(),
            "carry": tree.map(np.copy, self.carry) if self.carry else {},
            "outbox": {} if self.outbox is None else _kept(self.outbox),
            "outbox_version": self.outbox_version,
            "outbox_age": self.outbox_age,
            "since_pull": self.since_pull,
            "steps": self.steps,
            "episodes": [list(episode) for episode in self.episodes],
            "policy": {"vector": self.policy.vector.copy(), "statistics": self.policy.statistics},
            "version": self.policy.version,
        }

    def restore(self, state: dict) -> str:
        self.rng.bit_generator.state = state["rng"]
        self.steps, self.since_pull = state["steps"], state["since_pull"]
        self.episodes = [(total, length) for total, length in state["episodes"]]
        kept = state["policy"]
        self.policy.load(kept["vector"], tree.map(np.copy, kept["statistics"]), state["version"])
        self.outbox = Items(**state["outbox"]) if state["outbox"] else None
        self.outbox_version, self.outbox_age = state["outbox_version"], state["outbox_age"]
        self.environments.restore(state["environments"])
        if self.environments.resume == "replayed":
            self.adder.restore(state["adder"])
            self.obs, self.first, self.carry = state["obs"], np.copy(state["first"]), state["carry"]
            return "environments replayed, the run goes on exactly"
        # new episodes: what was under way is dropped, so that no item joins two episodes
        self.adder.stream.begin_again(state["adder"]["stream"])
        self.obs = self.environments.reset()
        self.first = np.ones(self.count, np.bool_)
        self.carry = self.policy.model.carry(self.count)
        return "environments cannot be saved and were restarted at an episode boundary"

    def close(self) -> None:
        self.environments.close()


def _joined(one: Items, other: Items) -> Items:
    if one.priority is None or other.priority is None:
        priority = None
    else:
        priority = np.concatenate([one.priority, other.priority])
    own = tree.map(lambda *parts: np.concatenate(parts), one.own, other.own)
    return Items(np.concatenate([one.rows, other.rows]), own, priority)


def _kept(items: Items) -> dict:
    """Only what there is: a checkpoint holds arrays."""
    return {name: value for name, value in items._asdict().items() if value is not None}
