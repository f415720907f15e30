"""Workers that step environments with the actions that a central actor (`central.py`) chooses.

A request (`requests.py`) holds the observations to act on, the noise for acting, and what came of the last step.
Nothing here computes a policy: a worker's process imports no deep-learning library.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from cavalcade import tree
from cavalcade.acting.env_loop import actor_rng, said
from cavalcade.acting.noise import NoiseStream
from cavalcade.acting.requests import FLAGS, RequestLayout
from cavalcade.algorithms import Algorithm, Clock
from cavalcade.envs import Environments
from cavalcade.programs import Stopwatch
from cavalcade.specs import EnvSpec
from cavalcade.step import Step
from cavalcade.transport import Client
from cavalcade.tree import Tree


class EnvWorker:
    """Worker: asks a central actor for actions and steps its environments with them."""

    def __init__(
        self,
        environments: Callable[[int, int], Environments],
        algorithm: Algorithm,
        spec: EnvSpec,
        central: Any,
        seed: int,
        actor: int = 0,
        actors: int = 1,
        budget: int = 0,
        incarnation: int = 0,
        valves: Any = None,
    ):
        """`budget`: environment steps that the whole run will make. `incarnation`: how often this worker was built
        before, after failures. With `valves`, `central` is a list of central actors, and the valves say which of them
        to ask, and whether to step at all (`adjusting.py`)."""
        self.environments = environments(actor, incarnation)
        self.algorithm, self.actor, self.actors, self.budget = algorithm, actor, actors, budget
        self.count = self.environments.count
        self.desks: list[Client] = [c.desk(f"actor/{actor}") for c in (central if valves is not None else [central])]
        self.valves, self.at = valves, 0  # at: which of the desks it asks at
        layout = RequestLayout(algorithm, spec)
        self.rows = layout.blank(self.count)["rows"]
        self.told = layout.fields(self.rows)
        self.rng = actor_rng(seed, actor, incarnation)
        self.noise = NoiseStream(algorithm, spec, self.rng, self.count)
        self.run = incarnation  # sent with every request; another number means that other episodes have begun
        self.asked = self.begins = False  # asked: a request is out. begins: its reply is dropped, then `_begin`
        self.paused: tuple[Tree, np.ndarray] | None = None  # observations and first, to go on with at another desk
        self.steps = 0  # environment steps so far
        self.episodes: list[tuple[float, int]] = []  # return and length of those that ended since the last report
        self.watch = Stopwatch()

    def step(self) -> bool:
        """If the reply has come, step the environments with its actions and send the next request."""
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
        if ended:  # else `next_observation` is `observation`, which is sent in any case
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
        """Send a request that tells of no step: the first one of all, or at another desk. False, and nothing is sent,
        while the valves let this worker rest."""
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
        """Write observations [N, ...] and other fields into the records of the next request."""
        tree.assign(self.told["observation"], ..., obs)
        for name, values in more.items():
            self.told[name][:] = values

    def _leave(self, request: dict[str, Any], step: Step) -> None:
        """Send what came of the last step to a desk that is left. No actions are wanted: the reply only confirms it."""
        self._send(request)
        self.begins, self.paused = True, (step.observation, step.first)

    def _ask(self, request: dict[str, Any]) -> None:
        """Send a request for actions, with the noise for them."""
        tree.assign(self.told["noise"], ..., self.noise.draw(self.clock, self.told["first"]))
        self._send(request)
        self.watch.lap("acting")

    def _send(self, request: dict[str, Any]) -> None:
        self.desk.send({"rows": self.rows, **request})
        self.asked = True

    @property
    def clock(self) -> Clock:
        """Environment steps of the whole run, taking all workers to be as fast as this one."""
        return Clock(self.steps * self.actors, self.actor, self.actors, self.budget)

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
            "noise": self.noise.state(),
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
        """Returns a remark on how exactly the environments go on."""
        self.rng.bit_generator.state = state["rng"]
        self.noise.restore(state["noise"])
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
