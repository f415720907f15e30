"""Local acting: the policy in one loop with its environments (in `central.py` one policy answers many loops)."""

from collections.abc import Callable
from typing import Any

import numpy as np

from cavalcade import tree
from cavalcade.acting.noise import NoiseStream
from cavalcade.acting.perturbation import Perturbation
from cavalcade.acting.policy import Policy
from cavalcade.acting.seat import Seat
from cavalcade.algorithms import Clock
from cavalcade.envs import Environments
from cavalcade.experience import Adder, Experience
from cavalcade.programs import Stopwatch
from cavalcade.table import Items, Table


class EnvLoop:
    """Worker: in each turn one step of all its environments, whose items go into a table."""

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
        budget: int = 0,
        incarnation: int = 0,
    ):
        """`source`: gives newer params. `actor`: the number of this one of `actors`. `budget`: environment steps that
        the whole run will make. `incarnation`: how often this actor was built before, after failures."""
        self.policy, self.environments = policy(), environments(actor, incarnation)
        self.source, self.actor, self.actors, self.budget = source, actor, actors, budget
        self.rng = actor_rng(seed, actor, incarnation)
        self.count, self.spec = self.environments.count, self.policy.model.spec
        self.noise = NoiseStream(self.policy.algorithm, self.spec, self.rng, self.count)
        self.seat = Seat(experience, self.policy, sink, self.count, actor)
        perturbs = self.policy.algorithm.perturb is not None
        self.perturbation = Perturbation(self.policy, self.count) if perturbs else None
        self.obs = self.environments.reset()
        self.first = np.ones(self.count, np.bool_)
        self.steps = 0  # environment steps so far
        self.episodes: list[tuple[float, int]] = []  # return and length of those that ended since the last report
        self.watch = Stopwatch()

    @property
    def adder(self) -> Adder:
        return self.seat.adder

    @property
    def outbox(self) -> Items | None:
        return self.seat.outbox

    def step(self) -> bool:
        """One step of all environments. If the table has no room for what the step may lead to, at most items that
        were held back are sent; whether anything was done."""
        self.watch.start()
        policy, seat, held = self.policy, self.seat, self.seat.due
        if not seat.may_act():
            delivered = held and not seat.due  # items that were held back are sent now, which counts as work
            if delivered:
                self.watch.lap("storing")
            return delivered
        self.watch.lap("storing")
        if self.perturbation is not None:
            if self.perturbation.due:
                self.perturbation.renew(self.source.latest(policy.version), self.rng)
            self.watch.lap("pulling")
        elif seat.wants_params():
            if newer := self.source.latest(policy.version):
                policy.load(newer[1], newer[2], newer[0])
            self.watch.lap("pulling")
        noise = self.noise.draw(self.clock, self.first)
        action, extras, carry = policy.act(self.obs, seat.carry, self.first, noise)
        if self.perturbation is not None:
            extras = {**extras, **self.perturbation.extras}
        seat.acted(self.obs, action, extras, carry, policy.version)
        self.watch.lap("acting")
        step = self.environments.step(action)
        self.watch.lap("environment")
        seat.record(step)
        if self.perturbation is not None:
            self.perturbation.record(step)
        self.obs, self.first = step.observation, step.first
        self.steps += self.count
        if step.episodes:
            self.episodes.extend((episode.total, episode.length) for episode in step.episodes)
        self.watch.lap("storing")
        return True

    @property
    def clock(self) -> Clock:
        """Environment steps of the whole run, taking all actors to be as fast as this one."""
        return Clock(self.steps * self.actors, self.actor, self.actors, self.budget)

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
            "noise": self.noise.state(),
            "environments": self.environments.state(),
            "obs": tree.map(np.copy, self.obs),
            "first": self.first.copy(),
            **self.seat.state(),
            "steps": self.steps,
            "episodes": [list(episode) for episode in self.episodes],
            "environment_metrics": self.environments.metrics.state(),
            "policy": {"vector": self.policy.vector.copy(), "statistics": self.policy.statistics},
            "version": self.policy.version,
            "perturbation": self.perturbation.state() if self.perturbation else {},
        }

    def restore(self, state: dict) -> str:
        """Returns a remark on how exactly the environments go on."""
        self.rng.bit_generator.state = state["rng"]
        self.noise.restore(state["noise"])
        self.steps = state["steps"]
        self.episodes = [(total, length) for total, length in state["episodes"]]
        kept = state["policy"]
        self.policy.load(kept["vector"], tree.map(np.copy, kept["statistics"]), state["version"])
        if self.perturbation is not None:
            self.perturbation.restore(state["perturbation"])
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
    """For a report, where not empty: sums of the numbers that environments put into their infos since the last report,
    and remarks on values out of bounds."""
    told = {"environment_metrics": environments.metrics.drain(), "remarks": dict(environments.remarks)}
    return {name: value for name, value in told.items() if value}


def actor_rng(seed: int, actor: int, incarnation: int) -> np.random.Generator:
    """The generator from which an actor draws its noise."""
    return np.random.default_rng((seed, 2, actor, incarnation) if incarnation else (seed, 2, actor))
