"""Hogwild: params and the optimiser's state in memory that all learners change, without a lock (Mnih 2016).

A learner computes a gradient with its own copy of the params, makes the step on the shared params, and copies these:
    gradient of loss(params'),    g <- decay g + (1 - decay) gradient^2,    params <- params - rate gradient / sqrt(g),
    params' <- params,            where g and params are shared and params' is the learner's.
If two learners make a step at the same moment, one may undo a little of the other's; in return no learner waits.
Statistics are shared in the same way. Actors take the params from the shared arrays, which have the updates of all.
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
    """The shared arrays, seen from any process: params [n], optimiser, statistics and version."""

    def __init__(self, arrays: Tree):
        self.arrays = arrays

    def latest(self, known: int) -> tuple[int, np.ndarray, Tree] | None:
        """Version, copied params [n] and statistics; None if the version is still `known`. Learners may change the
        arrays while they are copied."""
        version = int(self.arrays["version"][0])
        if version == known:
            return None
        return version, self.arrays["params"].copy(), tree.map(np.copy, self.arrays["statistics"])


class SharedParams(Arrays):
    """Node: owns the shared arrays. It is no worker: the learners change them."""

    def __init__(self, learner: Callable[[], Learner]):
        made = learner()
        vector, statistics = made.params()
        first = {**fresh(made.backend, made.rule, vector), "statistics": statistics}
        first["version"] = np.zeros(1, np.int64)
        self.memory = Memory("shared")  # in one process too: arrays that were given out cannot be moved into it later
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
    """By which a consumer in another process of this machine attaches the shared arrays."""

    blank: Tree  # zeros of the shapes of the arrays
    names: list[str]  # of the blocks of shared memory

    def connect(self) -> "AttachedArrays":
        return AttachedArrays(Attached(self.names).tree(self.blank))


class AttachedArrays(Arrays):
    """Stands in for the node in another process."""

    ring = None  # no bell: a change of the arrays wakes nobody


@dataclass(frozen=True)
class Unlocked:
    """The recipe of `LockFree`."""

    fetch_first: bool = False  # refresh the params before the first gradient; the batch came from other params anyway

    def __call__(self, learner: Learner, partners: list) -> "LockFree":
        (shared,) = partners
        return LockFree(learner, shared, self.fetch_first)


class LockFree:
    """A learner's updates, made on the shared arrays without a lock."""

    learned_with: int | None = None

    def __init__(self, learner: Learner, shared: Any, fetch_first: bool = False):
        self.learner, self.arrays, self.fetch_first = learner, shared.arrays, fetch_first
        steps = {name: self.arrays[name] for name in ("params", "optimiser")}
        self.descent = Descent(learner.backend, learner.rule, steps)
        self._fetch()

    def _fetch(self) -> None:
        """Copy the shared params into the learner."""
        self.learner.adopt(self.arrays["params"], int(self.arrays["version"][0]))

    def update(self, items: Any) -> Work:
        means = Means()
        if self.fetch_first:
            self._fetch()
        self.learned_with = self.learner.updates
        self.learner.take_statistics(self.arrays["statistics"])
        for samples, index in self.learner.minibatches(items):
            if not means.count:  # once for a draw: the statistics now include it
                tree.assign(self.arrays["statistics"], ..., self.learner.statistics())
            gradient, metrics = self.learner.gradients(samples, index)
            yield True  # so that other learners make steps in between in one process, too
            gradient, norm = self.learner.clipped(gradient)
            metrics = {**metrics, "gradient_norm": norm}
            self.learner.require_finite(metrics)  # before the shared params are changed
            self.descent.apply(gradient)
            self.arrays["version"][0] += 1  # without a lock, too: two learners may count one update
            self._fetch()
            self.learner.adapt(metrics)
            means.add(metrics)
        return means.given()

    def counted(self) -> dict[str, float]:
        return {}
