"""Workers that step environments and leave it to a central actor (`central.py`) what to do in them.

A request (`requests.py`) holds what is to be acted on, the noise for it, and what came of the last step. Nothing here
computes a policy: a worker's process imports no deep-learning library.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from cavalcade import tree
from cavalcade.acting.env_loop import actor_rng, said
from cavalcade.acting.requests import FLAGS, RequestLayout
from cavalcade.algorithms import Algorithm, Clock
from cavalcade.envs import Environments
from cavalcade.programs import Stopwatch
from cavalcade.specs import EnvSpec
from cavalcade.step import Step
from cavalcade.transport import Client
from cavalcade.tree import Tree


class EnvWorker:
    """Worker: steps its environments as a central actor says. It knows no policy, and needs nothing to compute one."""

    def __init__(
        self,
        environments: Callable[[int, int], Environments],
        algorithm: Algorithm,
        spec: EnvSpec,
        central: Any,
        seed: int,
        actor: int = 0,
        actors: int = 1,
        incarnation: int = 0,
        valves: Any = None,
    ):
        """`incarnation`: how often this worker was built before, after failures. `valves`: say which of several central
        actors to ask, and whether to step at all (see `adjusting.py`)."""
        self.environments = environments(actor, incarnation)
        self.algorithm, self.spec, self.actor, self.actors = algorithm, spec, actor, actors
        self.count = self.environments.count
        self.desks: list[Client] = [c.desk(f"actor/{actor}") for c in (central if valves is not None else [central])]
        self.valves, self.at = valves, 0  # and at which desk
        layout = RequestLayout(algorithm, spec)
        self.rows = layout.blank(self.count)["rows"]
        self.told = layout.fields(self.rows)
        self.rng = actor_rng(seed, actor, incarnation)
        self.run = incarnation  # another number: other episodes
        self.asked = self.begins = False  # a request is out; the next begins anew, whatever the reply was
        self.paused: tuple[Tree, np.ndarray] | None = None  # observations and first, where episodes go on elsewhere
        self.steps = 0  # environment steps so far
        self.episodes: list[tuple[float, int]] = []
        self.watch = Stopwatch()

    def step(self) -> bool:
        self.watch.start()
        if not self.asked:
            return self._begin()
        reply = self.desk.take()
        if reply is None:
            return False
        if self.begins:
            self.asked = self.begins = False
            return True
        step = self.environments.step(np.copy(reply["action"]))
        self.watch.lap("environment")
        self.steps += self.count
        if step.episodes:
            self.episodes.extend((episode.total, episode.length) for episode in step.episodes)
        request = {}
        ended = step.resets_at_once
        if ended:  # else both are the same, and large ones need not be sent twice
            request["next_observation"] = step.next_observation
        self._tell(step.observation, {"reward": step.reward, **{name: getattr(step, name) for name in FLAGS}})
        if self.valves is not None and self.valves.predictor_for(self.actor) != self.at:
            self._leave({**request, "about": (self.run, True, ended, True)}, step)
        else:
            self._ask({**request, "about": (self.run, True, ended, False)})
        return True

    @property
    def desk(self) -> Client:
        return self.desks[self.at]

    def _begin(self) -> bool:
        if self.valves is not None:
            at = self.valves.predictor_for(self.actor)
            if at is None:
                return False
            self.at = at
        obs, first = self.paused or (self.environments.reset(), np.ones(self.count, np.bool_))
        self.paused = None
        self._tell(obs, {"first": first, **dict.fromkeys(("reward", *FLAGS[:-1]), 0)})
        self._ask({"about": (self.run, False, False, False)})
        return True

    def _tell(self, obs: Tree, more: dict[str, Any]) -> None:
        tree.assign(self.told["observation"], ..., obs)
        for name, values in more.items():
            self.told[name][:] = values

    def _leave(self, request: dict[str, Any], step: Step) -> None:
        """Bring what came of the last step and ask for nothing; the reply says that it was heard."""
        self._send(request)
        self.begins, self.paused = True, (step.observation, step.first)

    def _ask(self, request: dict[str, Any]) -> None:
        noise = self.algorithm.noise(self.spec, self.rng, self.count, self.clock)
        tree.assign(self.told["noise"], ..., noise)
        self._send(request)
        self.watch.lap("acting")

    def _send(self, request: dict[str, Any]) -> None:
        self.desk.send({"rows": self.rows, **request})
        self.asked = True

    @property
    def clock(self) -> Clock:
        return Clock(self.steps * self.actors, self.actor, self.actors)

    def account(self) -> str:
        return f"waits for its actions; {self.steps} environment steps done"

    def report(self) -> dict:
        episodes, self.episodes = self.episodes, []
        seconds = self.watch.drain()
        return {
            "steps": self.steps,
            "episodes": episodes,
            "exploration_rate": self.algorithm.exploration(self.count, self.clock),
            "seconds": seconds,
            **said(self.environments),
        }

    def state(self) -> dict:
        return {
            "rng": self.rng.bit_generator.state,
            "environments": self.environments.state(),
            "run": self.run,
            "asked": self.asked,
            "begins": self.begins,
            "paused": tree.map(np.copy, dict(zip(("obs", "first"), self.paused))) if self.paused else {},
            "at": self.at,
            "steps": self.steps,
            "episodes": [list(episode) for episode in self.episodes],
            "environment_metrics": self.environments.metrics.state(),
        }

    def restore(self, state: dict) -> str:
        self.rng.bit_generator.state = state["rng"]
        self.steps, self.run = state["steps"], state["run"]
        self.asked, self.begins, self.at = state["asked"], state["begins"], state["at"]
        self.paused = (state["paused"]["obs"], state["paused"]["first"]) if state["paused"] else None
        self.episodes = [(total, length) for total, length in state["episodes"]]
        self.environments.restore(state["environments"])
        self.environments.metrics.restore(state["environment_metrics"])
        if self.environments.resume != "restarted":
            return f"environments {self.environments.resume}, the run goes on exactly"
        self.run, self.begins, self.paused = self.run + 1, self.asked, None
        return "environments cannot be saved and were restarted at an episode boundary"

    def close(self) -> None:
        self.environments.close()
