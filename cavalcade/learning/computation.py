"""The arithmetic of learning as pure functions of a learner's state, the same text on every backend.

`step` is one update: gradient, clip, optimiser. `update` is all updates of a draw, in one call that a backend may
compile whole. `gradients` and `apply` are the two halves of an update, for learners that combine their gradients with
those of other learners. The state is a dict: `params` and `target` as one vector [n] each, `optimiser`, `statistics` of
the model, `coefficients`, and `updates`, the number of updates so far.
"""

from typing import Any

from cavalcade import tree
from cavalcade.algorithms import Algorithm, Loss
from cavalcade.backends import Backend
from cavalcade.learning import reward_scaling
from cavalcade.learning.groups import Rule
from cavalcade.networks import Model, forward_of
from cavalcade.tree import Layout, Tree

PRIORITY = "priority"  # key of the new priorities of the samples beside the metrics of a loss


class Computation:
    """The functions of one algorithm and model on one backend. They return a new state and do not keep it."""

    def __init__(self, algorithm: Algorithm, model: Model, backend: Backend, rule: Rule, layout: Layout, updates: int):
        self.algorithm, self.model, self.backend, self.rule, self.layout = algorithm, model, backend, rule, layout
        self.adaptation, self.target = algorithm.adaptation(updates), algorithm.target()
        self.metric_names: list[str] = []  # of the rows that `step` returns; known after its first call
        self.gradient_names: list[str] = []  # the same for `gradients`
        self.seen_names: list[str] = []  # of the metrics of a draw, which `update` returns first
        self._differentiated = backend.differentiate(self._loss, layout)

    def _forward(self, params: Tree, statistics: Tree) -> Any:
        return forward_of(self.model, self.backend.xp, params, statistics)

    def _target(self, state: dict) -> Any:
        if "target" not in state:
            return None
        return self._forward(self.backend.views(state["target"], self.layout), state["statistics"])

    # --- a draw -------------------------------------------------------------------------------------------------------

    def prepare(self, state: dict, items: Tree) -> tuple[dict, Tree, dict]:
        """The state with the drawn items [B, ...] in its statistics, the samples of the draw, and its metrics."""
        xp, statistics = self.backend.xp, state["statistics"]
        if statistics:
            weight = items.get("valid")  # 0 for rows that are no transition
            statistics = {**statistics, **self.model.observe(xp, statistics, items["obs"], weight)}
            if reward_scaling.REWARD in statistics:
                items, statistics = reward_scaling.scaled(xp, statistics, items)
        state = {**state, "statistics": statistics}
        forward = self._forward(self.backend.views(state["params"], self.layout), statistics)
        return state, *self.algorithm.prepare(xp, self.model.spec, forward, self._target(state), items)

    def update(self, state: dict, items: Tree, plan: Tree) -> tuple[dict, Any]:
        """All updates of a draw, one for each row of the plan. Returns the state and one array: the metrics of the
        draw, the mean of each metric over the updates, and the new priorities of the samples if the loss gives any."""
        xp = self.backend.xp
        state, samples, seen = self.prepare(state, items)
        state, rows = self.backend.scan_updates(self.step, self.advance, state, samples, plan)
        count, self.seen_names = len(self.metric_names), list(seen)
        told = [xp.mean(rows[:, :count], axis=0), xp.reshape(rows[:, count:], (-1,))]
        return state, xp.concat([*([xp.stack(list(seen.values()))] if seen else []), *told])

    # --- an update ----------------------------------------------------------------------------------------------------

    def step(self, state: dict, samples: Tree, plan: Tree) -> tuple[dict, Any]:
        """One update from the samples that this row of the plan names. Returns the state and the update's `_row`."""
        gradient, found = self._gradient(state, samples, plan)
        read = self.read(found["metrics"])
        state, more = self._descend(state, gradient)
        self.metric_names, row = self._row({**found, "metrics": {**found["metrics"], **more}})
        return self.adapt(state, read), row  # after `_row`, because coefficients may change in place

    def gradients(self, state: dict, samples: Tree, plan: Tree) -> Any:
        """One array: the gradient [n], not clipped, followed by the `_row` of the loss."""
        gradient, found = self._gradient(state, samples, plan)
        self.gradient_names, row = self._row(found)
        return self.backend.xp.concat([gradient, row])

    def apply(self, state: dict, gradient: Any, read: dict) -> tuple[dict, dict]:
        """The second half of an update; `read`: the metrics that the rule of the coefficients reads."""
        state, metrics = self._descend(state, gradient)
        return self.advance(self.adapt(state, read)), metrics

    def clip(self, gradient: Any) -> tuple[Any, Any]:
        return self.rule.clipped(self.backend.xp, gradient)

    def adapt(self, state: dict, metrics: dict) -> dict:
        """The state with the coefficients changed after an update whose loss had these metrics."""
        if self.adaptation is None:
            return state
        new = self.adaptation.rule(self.backend.xp, state["coefficients"], metrics)
        new = tree.map(lambda old, now: self.backend.assign(old, now, True), state["coefficients"], new)
        return {**state, "coefficients": new}

    def advance(self, state: dict) -> dict:
        """Count the update; after every `period` updates the target params move towards the params."""
        state = {**state, "updates": state["updates"] + 1}
        if self.target:
            now = state["updates"] % self.target.period == 0
            state["target"] = self.backend.assign(state["target"], state["params"], now, self.target.mix)
        return state

    def read(self, metrics: dict) -> dict:
        """Of these metrics, the ones that the rule of the coefficients reads."""
        return {name: metrics[name] for name in self.adaptation.reads} if self.adaptation else {}

    def _loss(self, params: Tree, state: dict, samples: Tree, noise: Tree) -> tuple[Any, dict]:
        forward = self._forward(params, state["statistics"])
        coefficients = state.get("coefficients", {})
        spec, target = self.model.spec, self._target(state)
        return _parted(self.algorithm.loss(self.backend.xp, spec, forward, target, samples, noise, coefficients))

    def _gradient(self, state: dict, samples: Tree, plan: Tree) -> tuple[Any, dict]:
        xp = self.backend.xp
        drawn = tree.map(lambda leaf: xp.rows(leaf, plan["index"]), samples)
        if self.algorithm.gradient is not None:
            gradient, loss = self.algorithm.gradient(xp, self.model.spec, state["params"], drawn, plan["noise"])
            return gradient, _parted(loss)[1]
        given = {name: state[name] for name in ("target", "statistics", "coefficients") if name in state}
        return self._differentiated(state["params"], given, drawn, plan["noise"])

    def _descend(self, state: dict, gradient: Any) -> tuple[dict, dict]:
        gradient, norm = self.clip(gradient)
        params, optimiser = self.rule.update(gradient, state["optimiser"], state["params"])
        return {**state, "params": params, "optimiser": optimiser}, {"gradient_norm": norm}

    def _row(self, found: dict) -> tuple[list[str], Any]:
        """The names of the metrics; and one array with their values, followed by the priorities of the samples if the
        loss gives any. It is one array because copying each array from the device costs time."""
        xp, metrics = self.backend.xp, found["metrics"]
        row = xp.stack(list(metrics.values()))
        return list(metrics), xp.concat([row, found[PRIORITY]]) if PRIORITY in found else row


def _parted(loss: Loss) -> tuple[Any, dict]:
    """The scalar to differentiate, and the rest of the loss as a tree."""
    rest = {"metrics": loss.metrics}
    return loss.value, rest if loss.priority is None else {**rest, PRIORITY: loss.priority}
