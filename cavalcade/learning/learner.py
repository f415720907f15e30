"""A learner: the trainable state of an algorithm on a backend, and the updates of that state.

`gradients(samples)` and `apply(gradient)` are separate, so that servers, an all-reduce or hogwild can come between them
and the same algorithm learns with other learners as it does alone. `update(items)` does both for every minibatch of a
draw. The arithmetic is in `computation.py`; here are the state, and the NumPy arrays that go in and out.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from cavalcade import tree
from cavalcade.algorithms import DRAW, Algorithm
from cavalcade.backends import Backend
from cavalcade.errors import UserError
from cavalcade.learning import groups, reward_scaling
from cavalcade.learning.computation import Computation
from cavalcade.learning.groups import Rule
from cavalcade.networks import Model
from cavalcade.tree import Layout, Tree


class Learner:
    """The params, the optimiser's state, the statistics, the coefficients and the target params of one algorithm."""

    def __init__(self, algorithm: Algorithm, model: Model, backend: Backend, updates: int, seed: int):
        """`updates`: how many the learner will make in the whole run, over which its schedules move."""
        self.algorithm, self.model, self.backend = algorithm, model, backend
        self.rng = np.random.default_rng((seed, 1))
        params = model.init(np.random.default_rng((seed, 0)))
        self.layout = Layout.of(params)
        vector = self.layout.flatten(params)
        statistics = model.statistics()
        if algorithm.scales_rewards:
            statistics |= reward_scaling.fresh()
        self.moments_layout = Layout.of(statistics)
        optimiser = algorithm.optimiser(updates)
        self.rule = Rule(backend, optimiser, groups.ranges(self.layout, model, optimiser))
        self.arrays: dict[str, Any] = {
            "params": backend.vector(vector),
            "statistics": tree.map(backend.vector, statistics) if statistics else {},
            "updates": backend.load(np.int32(0), np.int32(0)),
        }
        self.arrays["optimiser"] = self.rule.init(self.arrays["params"])
        text = Computation(algorithm, model, backend, self.rule, self.layout, updates)
        self.text, self.adaptation, self.target = text, text.adaptation, text.target
        if self.target:
            self.arrays["target"] = backend.vector(vector)
        if self.adaptation:
            self.arrays["coefficients"] = tree.map(
                lambda x: backend.vector(np.array(x, np.float32)), self.adaptation.initial
            )
        self.seen: dict[str, float] = {}  # metrics of the last draw, made before its first update
        self.priorities: np.ndarray | None = None  # [B] new priorities of the items of the last draw
        self.judged: np.ndarray | None = None  # [samples] the same of the last minibatch
        self._update, self._prepare = backend.compile(text.update), backend.compile(text.prepare)
        self._gradients, self._clip = backend.record(text.gradients), backend.compile(text.clip)
        self._apply, self._adapt = backend.compile(text.apply), backend.compile(text.adapt)

    # --- updates ------------------------------------------------------------------------------------------------------

    def update(self, items: Tree) -> dict[str, float]:
        """All updates of one draw of items [B, ...], which may be on the backend's device already. Returns the mean of
        each metric; `priorities` [B] is set if the loss gives priorities."""
        count = len(tree.leaves(items)[0])
        plan = self._plan(count)
        arrays = self.backend.from_numpy(items)
        self.arrays, given = self._update(self.arrays, arrays, self.backend.from_numpy(plan))
        given = self.backend.to_numpy(given)
        names = self.text.seen_names
        self.seen, given = dict(zip(names, given.tolist())), given[len(names) :]
        means = dict(zip(self.text.metric_names, given.tolist()))
        priorities = given[len(means) :]
        if len(priorities):
            self.priorities = np.empty(count, np.float32)
            self.priorities[plan["index"].reshape(-1)] = priorities
        self.require_finite(means)
        return means

    def _plan(self, count: int) -> Tree:
        """The plan of a draw of `count` items, arrays [updates, ...]: `index` of samples, and `noise` of the loss."""
        indices = self.algorithm.minibatches(self.rng, count)
        return {"index": indices, "noise": self.algorithm.learning_noise(self.model.spec, self.rng, indices)}

    def minibatches(self, items: Tree) -> Iterator[tuple[Tree, Tree]]:
        """For updates with other learners: all samples of the draw and a row of the plan, once for each update."""
        count = len(tree.leaves(items)[0])
        plan = self._plan(count)
        self.updates_per_draw = len(plan["index"])
        self.arrays, samples, seen = self._prepare(self.arrays, self.backend.from_numpy(items))
        self.seen = tree.map(float, self.backend.to_numpy(seen))
        self.priorities, priorities = None, np.empty(count, np.float32)
        for number in range(self.updates_per_draw):
            yield samples, tree.take(plan, number)
            if self.judged is not None:  # by `gradients`, which the caller calls once for each row
                priorities[plan["index"][number]] = self.judged
                self.priorities = priorities

    def gradients(self, samples: Tree, plan: Tree | None = None) -> tuple[np.ndarray, dict[str, float]]:
        """The gradient [n], not clipped, of the samples that a row of the plan names (None: all); and the metrics."""
        if plan is None:
            plan = {"index": np.arange(len(tree.leaves(samples)[0])), "noise": {}}
        arrays = self.backend.from_numpy({"samples": samples, "plan": plan})
        packed = self.backend.to_numpy(self._gradients(self.arrays, arrays["samples"], arrays["plan"]))
        gradient, row = packed[: self.layout.size], packed[self.layout.size :]
        metrics = dict(zip(self.text.gradient_names, row.tolist()))
        self.judged = row[len(metrics) :] if len(row) > len(metrics) else None
        return gradient, metrics

    def clipped(self, gradient: np.ndarray) -> tuple[np.ndarray, float]:
        """The gradient [n], clipped as `apply` clips it, and its norm before."""
        gradient, norm = self._clip(self.backend.from_numpy(gradient))
        return self.backend.to_numpy(gradient), float(norm)

    def apply(self, gradient: np.ndarray, metrics: dict | None = None) -> dict:
        """One update with this gradient [n], clipped here; `metrics` of its loss, which coefficients change by."""
        given = self.backend.from_numpy({"gradient": gradient, "read": _numbers(self.read(metrics or {}))})
        self.arrays, metrics = self._apply(self.arrays, given["gradient"], given["read"])
        return self.backend.to_numpy(metrics)

    def adapt(self, metrics: dict[str, float]) -> None:
        """Change the coefficients after an update that servers or shared arrays made with this learner's gradient."""
        if self.adaptation:
            self.arrays = self._adapt(self.arrays, self.backend.from_numpy(_numbers(self.read(metrics))))

    def read(self, metrics: dict) -> dict:
        """Of these metrics, the ones that the rule of the coefficients reads."""
        return self.text.read(metrics)

    def require_finite(self, metrics: dict[str, float]) -> None:
        if not np.isfinite(metrics["loss"]) or not np.isfinite(metrics["gradient_norm"]):
            raise UserError(
                f"The loss became {metrics['loss']} at update {self.updates}; lower --learning-rate or "
                "--max-gradient-norm, or set --normalise-observations."
            )

    # --- what others bring and take -----------------------------------------------------------------------------------
    def begin_with(self, vector: np.ndarray, statistics: Tree) -> None:
        """Before the first update, take the params [n] of another policy, for the target too, and those of its moments
        that this model has as well."""
        copies = {name: vector for name in ("params", "target") if name in self.arrays}
        loaded = self.backend.load({name: self.arrays[name] for name in copies}, copies)
        self.arrays = {**self.arrays, **loaded}
        fresh = self.statistics()
        self.take_statistics({name: statistics.get(name, moments) for name, moments in fresh.items()})

    def adopt(self, vector: np.ndarray, updates: int) -> None:
        """Take params [n] that all learners have brought to `updates`; the target follows as if this learner had."""
        before = self.updates
        new = {"params": vector, "updates": np.int32(updates)}
        changed = self.backend.load({name: self.arrays[name] for name in new}, new)
        self.arrays = {**self.arrays, **changed}
        moves = updates // self.target.period - before // self.target.period if self.target else 0
        if self.target and moves > 0:
            share = 1.0 - (1.0 - self.target.mix) ** moves
            self.arrays["target"] = self.backend.assign(self.arrays["target"], self.arrays["params"], True, share)

    def moments(self) -> np.ndarray:
        """All moments as one vector, which is averaged with those of other learners."""
        return self.moments_layout.flatten(self.backend.to_numpy(self.arrays["statistics"]))

    def take_moments(self, vector: np.ndarray) -> None:
        self.take_statistics(self.moments_layout.unflatten(vector))

    def statistics(self) -> Tree:
        """A copy of the moments of all that is normalised, as a tree."""
        return tree.map(np.array, self.backend.to_numpy(self.arrays["statistics"]))

    def take_statistics(self, statistics: Tree) -> None:
        if statistics:
            loaded = self.backend.load(self.arrays["statistics"], statistics)
            self.arrays = {**self.arrays, "statistics": loaded}

    @property
    def updates(self) -> int:
        return int(self.arrays["updates"])

    def params(self) -> tuple[np.ndarray, Tree]:
        """Copies of the params [n] and of the statistics."""
        return np.array(self.backend.to_numpy(self.arrays["params"])), self.statistics()

    def state(self) -> dict:
        state = tree.map(np.array, self.backend.to_numpy(self.arrays))
        return {"state": state, "rng": self.rng.bit_generator.state}

    def restore(self, kept: dict) -> None:
        state = kept["state"]
        if self.adaptation and DRAW in self.adaptation.initial:  # learn anew from an interrupted draw
            anew = tree.map(np.float32, self.adaptation.initial[DRAW])
            state = {**state, "coefficients": {**state["coefficients"], DRAW: anew}}
        self.arrays = self.backend.load(self.arrays, state)
        self.rng.bit_generator.state = kept["rng"]


def _numbers(metrics: dict) -> dict:
    """The metrics as float32 arrays, which every backend takes."""
    return {name: np.array(value, np.float32) for name, value in metrics.items()}
