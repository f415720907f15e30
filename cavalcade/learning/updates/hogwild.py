"""Parameters and the optimiser's statistics in memory that all learners change, without a lock (Mnih 2016).

A learner computes a gradient with a copy of its own, makes the step on what is shared, and copies that:
    gradient of loss(params'),    g <- decay g + (1 - decay) gradient^2,    params <- params - rate gradient / sqrt(g),
    params' <- params,            where g and params are shared and params' is the learner's.
Where two do it at the same moment one may undo a little of the other's; that is the point: nobody waits.
Normalisers are shared in the same way. What is shared knows of the updates of all, so others may take it from here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from cavalcade import tree
from cavalcade.learning.learner import Learner
from cavalcade.learning.updates import Means, Work
from cavalcade.learning.updates.descent import Descent, fresh
from cavalcade.transport import Attached, Memory, Signpost
from cavalcade.tree import Tree


class Arrays:
    """What is shared, seen from any process."""

    def __init__(self, arrays: Tree):
        self.arrays = arrays

    def latest(self, known: int) -> tuple[int, np.ndarray, Tree] | None:
        """Parameters newer than version `known`, if there are any, as they are while others change them."""
        version = int(self.arrays["version"][0])
        if version == known:
            return None
        return version, self.arrays["params"].copy(), tree.map(np.copy, self.arrays["statistics"])


class SharedParams(Arrays):
    """Node: the arrays. It never moves by itself."""

    def __init__(self, learner: Callable[[], Learner]):
        made = learner()
        vector, statistics = made.params()
        first = {**fresh(made.backend, made.rule, vector), "statistics": statistics}
        first["version"] = np.zeros(1, np.int64)
        self.memory = Memory("shared")  # in one process too: whoever came first must not be left with other arrays
        super().__init__(self.memory.tree(first))
        tree.assign(self.arrays, ..., first)
        self.service = Signpost(ArraysAddress(tree.map(np.zeros_like, first), self.memory.names))

    def share(self, consumer: str) -> Signpost:
        return self.service

    def state(self) -> dict:
        return tree.map(np.copy, self.arrays)

    def restore(self, state: dict) -> None:
        tree.assign(self.arrays, ..., state)

    def close(self) -> None:
        self.memory.close()


@dataclass(frozen=True)
class ArraysAddress:
    blank: Tree  # zeros of their shapes
    names: list[str]

    def connect(self) -> "AttachedArrays":
        return AttachedArrays(Attached(self.names).tree(self.blank))


class AttachedArrays(Arrays):
    """Stands in for the node in another process."""

    ring = None


@dataclass(frozen=True)
class Unlocked:
    fetch_first: bool = False  # what is drawn was not made with the learner's own copy: a newer one is as good

    def __call__(self, learner: Learner, partners: list) -> "LockFree":
        (shared,) = partners
        return LockFree(learner, shared, self.fetch_first)


class LockFree:
    """A learner's updates, made on the shared arrays."""

    learned_with: int | None = None

    def __init__(self, learner: Learner, shared: Any, fetch_first: bool = False):
        self.learner, self.arrays, self.fetch_first = learner, shared.arrays, fetch_first
        steps = {name: self.arrays[name] for name in ("params", "optimiser")}
        self.descent = Descent(learner.backend, learner.rule, steps)
        self._fetch()

    def _fetch(self) -> None:
        self.learner.adopt(self.arrays["params"], int(self.arrays["version"][0]))

    def update(self, items: Any) -> Work:
        means = Means()
        if self.fetch_first:
            self._fetch()
        self.learned_with = self.learner.updates
        self.learner.take_statistics(self.arrays["statistics"])
        for samples, index in self.learner.minibatches(items):
            if not means.count:  # with this draw in them
                tree.assign(self.arrays["statistics"], ..., self.learner.statistics())
            gradient, metrics = self.learner.gradients(samples, index)
            yield True  # others may make their steps in between, in one process too
            gradient, norm = self.learner.clipped(gradient)
            metrics = {**metrics, "gradient_norm": norm}
            self.learner.require_finite(metrics)  # what is shared is not to be spoiled
            self.descent.apply(gradient)
            self.arrays["version"][0] += 1  # as unguarded as the rest
            self._fetch()
            self.learner.adapt(metrics)
            means.add(metrics)
        return means.given()

    def counted(self) -> dict[str, float]:
        return {}
