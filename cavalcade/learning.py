"""The learner: an algorithm's trainable state on a backend, cut in two on purpose.

`gradients(samples)` and `apply(gradient)` are separate, and parameters and gradients are one flat vector: that cut lets
one algorithm learn alone, behind a parameter server or by all-reduce. `update(items)` is both, for every minibatch of a
draw, in one call that a backend may compile whole.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from cavalcade import normaliser, tree
from cavalcade.algorithm import Algorithm
from cavalcade.backends import Backend
from cavalcade.errors import UserError
from cavalcade.model import Model
from cavalcade.optimiser import Optimiser
from cavalcade.params import ParamsBroadcast, ParamsService
from cavalcade.prefetch import Prefetch
from cavalcade.stopwatch import Stopwatch
from cavalcade.table import Sample
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
        self.optimiser = backend.optimiser(optimiser)
        self.state: dict[str, Any] = {
            "params": backend.vector(vector),
            "statistics": tree.map(backend.vector, statistics) if statistics else {},
            "updates": np.int32(0),
        }
        self.priorities: np.ndarray | None = None
        self.state["optimiser"] = self.optimiser.init(self.state["params"])
        if algorithm.target_period:
            self.state["target"] = backend.vector(vector)
        self._differentiated = backend.differentiate(self._loss, self.layout)
        self._update = backend.compile(self._update_text)
        self._gradients = backend.compile(self._gradients_text)
        self._apply = backend.compile(self._apply_text)

    # --- pure text, the same on every backend ---------------------------------------------------------------

    def _forward(self, params: Tree, statistics: Tree) -> Any:
        def forward(obs: Tree, carry: Tree | None = None, first: Any = None) -> dict:
            return self.model.apply(self.backend.xp, params, statistics, obs, carry, first)[0]

        return forward

    def _loss(self, params: Tree, target: Tree | None, statistics: Tree, samples: Tree) -> tuple[Any, dict]:
        xp, spec = self.backend.xp, self.model.spec
        frozen = None if target is None else self._forward(target, statistics)
        return self.algorithm.loss(xp, spec, self._forward(params, statistics), frozen, samples)  # type: ignore[arg-type]

    def _gradients_text(self, state: dict, samples: Tree) -> tuple[Any, dict]:
        target = self.backend.views(state["target"], self.layout) if "target" in state else None
        return self._differentiated(state["params"], target, state["statistics"], samples)

    def _descend(self, state: dict, gradient: Any) -> tuple[dict, dict]:
        """The optimiser's step, clipped by the global norm."""
        xp = self.backend.xp
        norm = xp.sqrt(xp.sum(gradient * gradient))
        if self.settings.clip:
            gradient = gradient * xp.clip(self.settings.clip / (norm + 1e-6), None, 1.0)
        params, optimiser = self.optimiser.update(gradient, state["optimiser"], state["params"])
        return {**state, "params": params, "optimiser": optimiser}, {"gradient_norm": norm}

    def _advance(self, state: dict) -> dict:
        """Count the update; every so often the target network takes the parameters."""
        state = {**state, "updates": state["updates"] + 1}
        if "target" in state:
            now = state["updates"] % self.algorithm.target_period == 0
            state["target"] = self.backend.assign(state["target"], state["params"], now)
        return state

    def _apply_text(self, state: dict, gradient: Any) -> tuple[dict, dict]:
        state, metrics = self._descend(state, gradient)
        return self._advance(state), metrics

    def _step_text(self, state: dict, samples: Tree, index: Any) -> tuple[dict, Any]:
        """One update from the samples at `index`; its metrics, and the samples' priorities if the loss gives any, as
        one array, since each array that leaves costs time."""
        xp = self.backend.xp
        gradient, metrics = self._gradients_text(state, tree.map(lambda leaf: xp.rows(leaf, index), samples))
        state, more = self._descend(state, gradient)
        metrics = {**metrics, **more}
        priority = metrics.pop(PRIORITY, None)
        self.metric_names = list(metrics)
        row = xp.stack(list(metrics.values()))
        return state, row if priority is None else xp.concat([row, priority])

    def _update_text(self, state: dict, items: Tree, indices: Any) -> tuple[dict, Any]:
        xp = self.backend.xp
        items, statistics = self._normalise(items, state["statistics"])
        state = {**state, "statistics": statistics}
        params = self.backend.views(state["params"], self.layout)
        samples = self.algorithm.prepare(xp, self.model.spec, self._forward(params, statistics), items)
        state, rows = self.backend.scan_updates(self._step_text, self._advance, state, samples, indices)
        count = len(self.metric_names)
        return state, xp.concat([xp.mean(rows[:, :count], axis=0), xp.reshape(rows[:, count:], (-1,))])

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

    def gradients(self, samples: Tree) -> tuple[np.ndarray, dict]:
        """The gradient vector of one minibatch of prepared samples; nothing changes."""
        gradient, metrics = self._gradients(self.state, self.backend.from_numpy(samples))
        return self.backend.to_numpy(gradient), self.backend.to_numpy(metrics)

    def apply(self, gradient: np.ndarray) -> dict:
        """One optimiser step with this gradient vector."""
        self.state, metrics = self._apply(self.state, self.backend.from_numpy(gradient))
        return self.backend.to_numpy(metrics)

    def update(self, items: Tree) -> dict[str, float]:
        """All updates of one draw of items [B, ...], which may be on the backend's device already; the mean of each
        metric. `priorities` [B] is what the table may draw them by from now on."""
        count = len(tree.leaves(items)[0])
        indices = self.algorithm.minibatches(self.rng, count)
        arrays = self.backend.from_numpy(items)
        self.state, given = self._update(self.state, arrays, self.backend.from_numpy(indices))
        given = self.backend.to_numpy(given)
        means = dict(zip(self.metric_names, given.tolist()))
        priorities = given[len(means) :]
        if len(priorities):
            self.priorities = np.empty(count, np.float32)
            self.priorities[indices.reshape(-1)] = priorities
        if not np.isfinite(means["loss"]) or not np.isfinite(means["gradient_norm"]):
            raise UserError(
                f"The loss became {means['loss']} at update {self.updates}; lower --learning-rate or "
                "--max-gradient-norm, or set --normalise-observations."
            )
        return means

    @property
    def updates(self) -> int:
        return int(self.state["updates"])

    def params(self) -> tuple[np.ndarray, Tree]:
        """A copy of the parameter vector, and the statistics."""
        vector = np.array(self.backend.to_numpy(self.state["params"]))
        return vector, tree.map(np.array, self.backend.to_numpy(self.state["statistics"]))

    def kept(self) -> dict:
        state = tree.map(np.array, self.backend.to_numpy(self.state))
        return {"state": state, "rng": self.rng.bit_generator.state}

    def put_back(self, kept: dict) -> None:
        self.state = self.backend.load(self.state, kept["state"])
        self.rng.bit_generator.state = kept["rng"]


class Drawn(NamedTuple):
    sample: Sample
    items: Callable[[], dict]  # on the learner's device


class LearnerLoop:
    """Worker: draws from the table when it may, updates, and publishes the parameters under a new version."""

    def __init__(
        self,
        learner: Any,
        source: Any,
        batch: int,
        importance: float | None = None,
        max_lag: int = 0,
        prefetch: bool = False,
    ):
        """`source`: a table, or several drawn from as one. `importance`: exponent of the weights that correct for
        prioritised draws; None where draws are uniform. `max_lag`: unrolls made more updates ago count for nothing; 0
        bears any lag. `prefetch`: a batch may be drawn while the one before it is learned."""
        self.learner, self.source, self.batch, self.importance = learner(), source, batch, importance
        self.max_lag = max_lag
        self.batches = Prefetch(self._draw, prefetch)
        self.watch = Stopwatch()
        self.sums: dict[str, float] = {}
        self.draws, self.lag, self.dropped = 0, 0.0, 0
        self.waited = 0.0  # seconds that items lay in the table, of the draws
        self.broadcast: Any = None  # to nodes in other processes
        self._publish()

    def _publish(self) -> None:
        self.version = self.learner.updates
        self.published = self.learner.params()
        if self.broadcast is not None:
            self.broadcast.publish_params(self.version, *self.published)

    def latest(self, known: int) -> tuple[int, np.ndarray, Tree] | None:
        """Parameters newer than version `known`, if there are any."""
        return None if known == self.version else (self.version, *self.published)

    def share(self, consumer: str) -> ParamsBroadcast:
        """For nodes in other processes: the parameters, one broadcast for all of them."""
        if self.broadcast is None:
            self.broadcast = ParamsBroadcast(*self.published)
            self.broadcast.publish_params(self.version, *self.published)
        return self.broadcast

    def serve(self, consumer: str) -> ParamsService:
        """The same for nodes that share no memory with this process."""
        if self.broadcast is None:
            self.broadcast = ParamsService(self.version, *self.published)
        return self.broadcast

    def step(self) -> bool:
        self.watch.start()
        drawn = self.batches.take()
        if drawn is None:
            return False
        sample, items = drawn.sample, drawn.items()
        if self.max_lag:
            stale = self.version - sample.version > self.max_lag  # by now, however long ago it was drawn
            items = {**items, **self._without_stale({"valid": sample.items["valid"]}, stale)}
        self.watch.lap("storing")
        with self.batches.beside():
            metrics = self.learner.update(items)
            self.watch.lap("learning")
        self.watch.lap("storing")
        if self.importance is not None and self.learner.priorities is not None:
            self.source.update_priorities(sample.keys, self.learner.priorities)
        self.lag += float(self.version - sample.version.mean())
        self.waited += time.time() - float(sample.made.mean())
        self._publish()
        for name, value in metrics.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
        self.draws += 1
        self.watch.lap("learning")
        return True

    def _draw(self) -> Drawn | None:
        sample = self.source.sample(self.batch, self.importance or 0.0)
        return None if sample is None else self._sent(sample)

    def _sent(self, sample: Sample) -> Drawn:
        items = sample.items if self.importance is None else {**sample.items, "weight": sample.weight}
        return Drawn(sample, self.learner.backend.send(items))

    def _without_stale(self, items: dict, stale: np.ndarray) -> dict:
        """Steps that are not valid reach neither gradients nor statistics, and the shapes stay what they were."""
        self.dropped += int(np.count_nonzero(stale))
        return {**items, "valid": items["valid"] * ~stale[:, None]}

    def account(self) -> str:
        return f"waits for {self.batch} items; {self.version} updates done"

    def report(self) -> dict:
        draws = max(1, self.draws)
        means = {name: total / draws for name, total in self.sums.items()} if self.draws else {}
        report = {"updates": self.version, "metrics": means, "seconds": self.watch.drain()}
        if self.draws:
            report |= {"policy_lag": self.lag / draws, "seconds_in_table": self.waited / draws}
            if self.max_lag:
                means["dropped_stale"] = float(self.dropped)  # unrolls since the last report
        self.sums, self.draws, self.lag, self.dropped, self.waited = {}, 0, 0.0, 0, 0.0
        return report

    def state(self) -> dict:
        counted = {"sums": self.sums, "draws": self.draws, "lag": self.lag, "dropped": self.dropped}
        held = self.batches.held  # it has left the table, and would be lost
        return {**self.learner.kept(), **counted, "held": held.sample._asdict() if held else {}}

    def restore(self, state: dict) -> None:
        self.learner.put_back({"state": state["state"], "rng": state["rng"]})
        self.sums, self.draws, self.lag = state["sums"], state["draws"], state["lag"]
        self.dropped = state["dropped"]
        self.batches.held = self._sent(Sample(**state["held"])) if state["held"] else None
        self._publish()

    def close(self) -> None:
        self.batches.close()
