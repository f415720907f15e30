"""Params that an actor perturbs and acts with for whole episodes: how evolution strategies explore."""

from typing import Any

import numpy as np

from cavalcade import tree
from cavalcade.acting.policy import Policy
from cavalcade.tree import Tree


class Perturbation:
    """Perturbed params, kept until each of the actor's environments has ended an episode since they were perturbed."""

    def __init__(self, policy: Policy, count: int):
        self.policy, self.count = policy, count
        self.base = policy.vector.copy()  # [size] the params as the learner gave them
        self.running = np.zeros(count, np.bool_)  # [N] has not ended an episode since the last perturbation
        self.extras: Tree = {}  # [N, ...] what `Algorithm.perturb` says of the perturbation, stored with every step

    @property
    def due(self) -> bool:
        """Whether it is time to perturb anew."""
        return not self.running.any()

    def renew(self, newer: tuple[int, np.ndarray, Tree] | None, rng: np.random.Generator) -> None:
        """Perturb anew, from newer params (version, vector, statistics) if there are any."""
        policy, version, statistics = self.policy, self.policy.version, self.policy.statistics
        if newer is not None:
            version, vector, statistics = newer
            self.base = np.copy(vector)
        assert policy.algorithm.perturb is not None
        vector, extras = policy.algorithm.perturb(rng, self.base)
        policy.load(vector, statistics, version)
        self.extras = tree.map(lambda leaf: np.repeat(np.asarray(leaf)[None], self.count, 0), extras)
        self.running[:] = True

    def record(self, step: Any) -> None:
        """Note which environments have ended an episode in this step."""
        self.running &= ~(step.terminated | step.truncated)

    def state(self) -> dict:
        return tree.map(np.copy, {"base": self.base, "running": self.running, "extras": self.extras})

    def restore(self, state: dict) -> None:
        self.base, self.running = np.copy(state["base"]), np.copy(state["running"])
        self.extras = tree.map(np.copy, state["extras"])
