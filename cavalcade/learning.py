"""The learner: an algorithm's trainable state on a backend, cut in two on purpose.

`gradients(samples)` and `apply(gradient)` are separate, and parameters and gradients are one flat vector: that cut lets
one algorithm learn alone, behind a parameter server or by all-reduce. `update(items)` is both, for every minibatch of a
draw, in one call that a backend may compile whole.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from cavalcade import normaliser, tree
from cavalcade.algorithm import DRAW, Algorithm
from cavalcade.backends import Backend
from cavalcade.errors import UserError
from cavalcade.model import Model
from cavalcade.optimiser import Optimiser
from cavalcade.tree import Layout, Tree

PRIORITY = "priority"  # key of the new priorities of the samples among the metrics of a loss
REWARD = "reward"  # key of the reward's statistics beside the observations'


class Learner:
    def __init__(self, algorithm: Algorithm, model: Model, backend: Backend, optimiser: Optimiser, seed: int):
        self.algorithm, self.model, self.backend, self.settings = algorithm, model, backend, optimiser
        self.rng = np.random.default_rng((seed, 1))
        params = model.init(np.random.default_rng((seed, 0)))
        self.layout = Layout.of(params)
        vector = self.layout.flatten(params)
        statistics = model.statistics()
        if getattr(algorithm, "normalise_rewards", False):
            statistics[REWARD] = normaliser.fresh(())
        self.moments_layout = Layout.of(statistics)
        self.optimiser = backend.optimiser(optimiser)
        self.state: dict[str, Any] = {
            "params": backend.vector(vector),
            "statistics": tree.map(backend.vector, statistics) if statistics else {},
            "updates": backend.load(np.int32(0), np.int32(0)),
        }
        self.seen: dict[str, float] = {}  # metrics of the last draw before it was learned from
        self.priorities: np.ndarray | None = None
        self.judged: np.ndarray | None = None  # new priorities of the last minibatch
        self.state["optimiser"] = self.optimiser.init(self.state["params"])
        if algorithm.target_period:
            self.state["target"] = backend.vector(vector)
        self.adaptation = algorithm.adaptation()
        if self.adaptation:
            self.state["coefficients"] = tree.map(
                lambda x: backend.vector(np.array(x, np.float32)), self.adaptation.initial
            )
        self._differentiated = backend.differentiate(self._loss, self.layout)
        self._update = backend.compile(self._update_text)
        self._prepare = backend.compile(self._prepare_text)
        self._gradients = backend.record(self._packed_gradients_text)
        self._clip = backend.compile(self._clip_text)
        self._apply = backend.compile(self._apply_text)
        self._adapt = backend.compile(self._adapt_text)

    # --- pure text, the same on every backend ---------------------------------------------------------------

    def _forward(self, params: Tree, statistics: Tree) -> Any:
        def forward(obs: Tree, carry: Tree | None = None, first: Any = None) -> dict:
            return self.model.apply(self.backend.xp, params, statistics, obs, carry, first)[0]

        return forward

    def _loss(
        self, params: Tree, target: Tree | None, statistics: Tree, samples: Tree, coefficients: Tree
    ) -> tuple[Any, dict]:
        xp, spec = self.backend.xp, self.model.spec
        frozen: Any = None if target is None else self._forward(target, statistics)
        return self.algorithm.loss(xp, spec, self._forward(params, statistics), frozen, samples, coefficients)

    def _gradients_text(self, state: dict, samples: Tree, index: Any) -> tuple[Any, dict]:
        xp = self.backend.xp
        target = self.backend.views(state["target"], self.layout) if "target" in state else None
        drawn = tree.map(lambda leaf: xp.rows(leaf, index), samples)
        coefficients = state.get("coefficients", {})
        return self._differentiated(state["params"], target, state["statistics"], drawn, coefficients)

    def _row(self, metrics: dict) -> tuple[list[str], Any]:
        """The metrics' names; their values, and the samples' priorities if there are any, as one array, since each
        array that leaves costs time."""
        xp = self.backend.xp
        priority = metrics.pop(PRIORITY, None)
        row = xp.stack(list(metrics.values()))
        return list(metrics), row if priority is None else xp.concat([row, priority])

    def _packed_gradients_text(self, state: dict, samples: Tree, index: Any) -> Any:
        gradient, metrics = self._gradients_text(state, samples, index)
        self.gradient_metrics, row = self._row(metrics)
        return self.backend.xp.concat([gradient, row])

    def _clip_text(self, gradient: Any) -> tuple[Any, Any]:
        """By the global norm, which is given too."""
        xp = self.backend.xp
        norm = xp.sqrt(xp.sum(gradient * gradient))
        if self.settings.clip:
            gradient = gradient * xp.clip(self.settings.clip / (norm + 1e-6), None, 1.0)
        return gradient, norm

    def _descend(self, state: dict, gradient: Any) -> tuple[dict, dict]:
        gradient, norm = self._clip_text(gradient)
        params, optimiser = self.optimiser.update(gradient, state["optimiser"], state["params"])
        return {**state, "params": params, "optimiser": optimiser}, {"gradient_norm": norm}

    def _advance(self, state: dict) -> dict:
        """Count the update; every so often the target network takes the parameters."""
        state = {**state, "updates": state["updates"] + 1}
        if "target" in state:
            now = state["updates"] % self.algorithm.target_period == 0
            state["target"] = self.backend.assign(state["target"], state["params"], now)
        return state

    def _adapt_text(self, state: dict, metrics: dict) -> dict:
        if self.adaptation is None:
            return state
        new = self.adaptation.rule(self.backend.xp, state["coefficients"], metrics)
        new = tree.map(lambda old, now: self.backend.assign(old, now, True), state["coefficients"], new)
        return {**state, "coefficients": new}

    def _apply_text(self, state: dict, gradient: Any, read: dict) -> tuple[dict, dict]:
        state, metrics = self._descend(state, gradient)
        return self._advance(self._adapt_text(state, read)), metrics

    def _step_text(self, state: dict, samples: Tree, index: Any) -> tuple[dict, Any]:
        """One update from the samples at `index`, and its metrics in a row."""
        gradient, metrics = self._gradients_text(state, samples, index)
        read = self.read(metrics)
        state, more = self._descend(state, gradient)
        self.metric_names, row = self._row({**metrics, **more})
        return self._adapt_text(state, read), row  # after the row: coefficients may change in place

    def _prepare_text(self, state: dict, items: Tree) -> tuple[dict, Tree, dict]:
        """The state with the statistics of a draw in it, the draw's samples, and its metrics."""
        items, statistics = self._normalise(items, state["statistics"])
        params = self.backend.views(state["params"], self.layout)
        forward = self._forward(params, statistics)
        samples, seen = self.algorithm.prepare(self.backend.xp, self.model.spec, forward, items)
        return {**state, "statistics": statistics}, samples, seen

    def _update_text(self, state: dict, items: Tree, indices: Any) -> tuple[dict, Any]:
        xp = self.backend.xp
        state, samples, seen = self._prepare_text(state, items)
        state, rows = self.backend.scan_updates(self._step_text, self._advance, state, samples, indices)
        count, self.seen_names = len(self.metric_names), list(seen)
        told = [xp.mean(rows[:, :count], axis=0), xp.reshape(rows[:, count:], (-1,))]
        return state, xp.concat([*([xp.stack(list(seen.values()))] if seen else []), *told])

    def _normalise(self, items: Tree, statistics: Tree) -> tuple[Tree, Tree]:
        """Statistics with this draw in them, and rewards in units of the deviation of their discounted sums."""
        xp = self.backend.xp
        if not statistics:
            return items, statistics
        weight = items.get("valid")  # rows that are no transition do not count
        statistics = {**statistics, **self.model.observe(xp, statistics, items["obs"], weight)}
        if REWARD in statistics:
            reward, discount, valid = (xp.swapaxes(items[name], 0, 1) for name in ("reward", "discount", "valid"))

            def accumulate(total: Any, r_t: Any, ongoing_t: Any) -> tuple[Any, Any]:
                return (total + r_t) * ongoing_t, total + r_t

            _, totals = xp.scan(accumulate, xp.zeros_like(reward[0]), (reward, discount * valid))
            moments = normaliser.merge(xp, statistics[REWARD], xp.reshape(totals, (-1,)), xp.reshape(valid, (-1,)))
            statistics[REWARD] = moments
            items = {**items, "reward": normaliser.scaled(xp, moments, items["reward"], centre=False)}
        return items, statistics

    # --- calls ------------------------------------------------------------------------------------------------

    def minibatches(self, items: Tree) -> Iterator[tuple[Any, np.ndarray]]:
        """Prepared samples of a draw and the rows of each minibatch; what `update` goes through by itself."""
        count = len(tree.leaves(items)[0])
        indices = self.algorithm.minibatches(self.rng, count)
        self.updates_per_draw = len(indices)
        self.state, samples, seen = self._prepare(self.state, self.backend.from_numpy(items))
        self.seen = tree.map(float, self.backend.to_numpy(seen))
        self.priorities, priorities = None, np.empty(count, np.float32)
        for index in indices:
            yield samples, index
            if self.judged is not None:
                priorities[index] = self.judged
                self.priorities = priorities

    def gradients(self, samples: Tree, index: np.ndarray | None = None) -> tuple[np.ndarray, dict[str, float]]:
        """The gradient vector of the samples at `index`, or of all, not clipped; no parameter changes."""
        index = np.arange(len(tree.leaves(samples)[0])) if index is None else index
        arrays = self.backend.from_numpy({"samples": samples, "index": index})
        packed = self.backend.to_numpy(self._gradients(self.state, arrays["samples"], arrays["index"]))
        gradient, row = packed[: self.layout.size], packed[self.layout.size :]
        metrics = dict(zip(self.gradient_metrics, row.tolist()))
        self.judged = row[len(metrics) :] if len(row) > len(metrics) else None
        return gradient, metrics

    def clipped(self, gradient: np.ndarray) -> tuple[np.ndarray, float]:
        """As an update clips it, and its norm."""
        gradient, norm = self._clip(self.backend.from_numpy(gradient))
        return self.backend.to_numpy(gradient), float(norm)

    def read(self, metrics: dict) -> dict:
        """Those that coefficients change by."""
        return {name: metrics[name] for name in self.adaptation.reads} if self.adaptation else {}

    def apply(self, gradient: np.ndarray, metrics: dict | None = None) -> dict:
        """One optimiser step with this gradient vector; `metrics` of its loss, where there are coefficients."""
        given = self.backend.from_numpy({"gradient": gradient, "read": self._numbers(metrics or {})})
        self.state, metrics = self._apply(self.state, given["gradient"], given["read"])
        return self.backend.to_numpy(metrics)

    def adapt(self, metrics: dict[str, float]) -> None:
        """Change the coefficients after an update that was made elsewhere, with this learner's gradient."""
        if self.adaptation:
            self.state = self._adapt(self.state, self.backend.from_numpy(self._numbers(metrics)))

    def _numbers(self, metrics: dict) -> dict:
        return {name: np.array(value, np.float32) for name, value in self.read(metrics).items()}

    def update(self, items: Tree) -> dict[str, float]:
        """All updates of one draw of items [B, ...], which may be on the backend's device already; the mean of each
        metric. `priorities` [B] is what the table may draw them by from now on."""
        count = len(tree.leaves(items)[0])
        indices = self.algorithm.minibatches(self.rng, count)
        arrays = self.backend.from_numpy(items)
        self.state, given = self._update(self.state, arrays, self.backend.from_numpy(indices))
        given = self.backend.to_numpy(given)
        self.seen, given = dict(zip(self.seen_names, given.tolist())), given[len(self.seen_names) :]
        means = dict(zip(self.metric_names, given.tolist()))
        priorities = given[len(means) :]
        if len(priorities):
            self.priorities = np.empty(count, np.float32)
            self.priorities[indices.reshape(-1)] = priorities
        self.require_finite(means)
        return means

    def require_finite(self, metrics: dict[str, float]) -> None:
        if not np.isfinite(metrics["loss"]) or not np.isfinite(metrics["gradient_norm"]):
            raise UserError(
                f"The loss became {metrics['loss']} at update {self.updates}; lower --learning-rate or "
                "--max-gradient-norm, or set --normalise-observations."
            )

    def begin_with(self, vector: np.ndarray, statistics: Tree) -> None:
        """Before the first update: parameters of another policy, for the target network too, and those of its
        normalisers that are here as well."""
        copies = {name: vector for name in ("params", "target") if name in self.state}
        loaded = self.backend.load({name: self.state[name] for name in copies}, copies)
        self.state = {**self.state, **loaded}
        fresh = self.statistics()
        self.take_statistics({name: statistics.get(name, moments) for name, moments in fresh.items()})

    def adopt(self, vector: np.ndarray, updates: int) -> None:
        """Parameters that others have brought so far; the target network follows as if the updates were made here."""
        before, period = self.updates, self.algorithm.target_period
        new = {"params": vector, "updates": np.int32(updates)}
        changed = self.backend.load({name: self.state[name] for name in new}, new)
        if period and updates // period > before // period:
            changed["target"] = self.backend.load(self.state["target"], vector)
        self.state = {**self.state, **changed}

    def moments(self) -> np.ndarray:
        """The normalisers as one vector, to be averaged with those of others."""
        return self.moments_layout.flatten(self.backend.to_numpy(self.state["statistics"]))

    def take_moments(self, vector: np.ndarray) -> None:
        self.take_statistics(self.moments_layout.unflatten(vector))

    def statistics(self) -> Tree:
        """A copy of the normalisers."""
        return tree.map(np.array, self.backend.to_numpy(self.state["statistics"]))

    def take_statistics(self, statistics: Tree) -> None:
        if statistics:
            loaded = self.backend.load(self.state["statistics"], statistics)
            self.state = {**self.state, "statistics": loaded}

    @property
    def updates(self) -> int:
        return int(self.state["updates"])

    def params(self) -> tuple[np.ndarray, Tree]:
        """A copy of the parameter vector, and the statistics."""
        return np.array(self.backend.to_numpy(self.state["params"])), self.statistics()

    def kept(self) -> dict:
        state = tree.map(np.array, self.backend.to_numpy(self.state))
        return {"state": state, "rng": self.rng.bit_generator.state}

    def put_back(self, kept: dict) -> None:
        state = kept["state"]
        if self.adaptation and DRAW in self.adaptation.initial:  # a draw that was interrupted is learned from anew
            anew = tree.map(np.float32, self.adaptation.initial[DRAW])
            state = {**state, "coefficients": {**state["coefficients"], DRAW: anew}}
        self.state = self.backend.load(self.state, state)
        self.rng.bit_generator.state = kept["rng"]
