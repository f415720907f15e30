"""Params that an actor changes for a while before it acts with them: the exploration of evolution strategies."""

from typing import Any

import numpy as np

from cavalcade import tree
from cavalcade.acting.policy import Policy
from cavalcade.tree import Tree


class Perturbation:
    """Held until each of the actor's environments has ended an episode since it began."""

    def __init__(self, policy: Policy, count: int):
        self.policy, self.count = policy, count
        self.base = policy.vector.copy()  # the params as the learner gave them
        self.running = np.zeros(count, np.bool_)  # environments that have not ended an episode since
        self.extras: Tree = {}  # [N, ...], what `Algorithm.perturb` says of it, stored with every step

    @property
    def due(self) -> bool:
        return not self.running.any()

    def renew(self, newer: tuple[int, np.ndarray, Tree] | None, rng: np.random.Generator) -> None:
        """Begin the next, from newer params if there are any."""
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
        self.running &= ~(step.terminated | step.truncated)

    def state(self) -> dict:
        return tree.map(np.copy, {"base": self.base, "running": self.running, "extras": self.extras})

    def restore(self, state: dict) -> None:
        self.base, self.running = np.copy(state["base"]), np.copy(state["running"])
        self.extras = tree.map(np.copy, state["extras"])
