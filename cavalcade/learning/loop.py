"""The worker around a learner, and the batch that it has drawn."""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from cavalcade.learning.prefetch import Prefetch
from cavalcade.learning.publishing import Publisher
from cavalcade.learning.updates import ALONE, Means, Recipe, Work
from cavalcade.programs import Stopwatch
from cavalcade.table import Draws, Sample, Table


class Drawn(NamedTuple):
    """A batch that has left the table and was not learned from yet."""

    sample: Sample
    items: Callable[[], dict]  # returns the items on the learner's device


class LearnerLoop(Publisher):
    """Worker: draws a batch when the limiter allows it, makes its updates, and publishes the params."""

    def __init__(
        self,
        learner: Any,
        source: Any,
        batch: int,
        importance: float | None = None,
        max_lag: int = 0,
        prefetch: bool = False,
        updates: Recipe = ALONE,
        partners: Sequence[Any] = (),
        valves: Any = None,
        number: int = 0,
    ):
        """`source`: a table, or shards. `batch`: items of one draw. `importance`: exponent of the weights that correct
        for prioritised draws; None if draws are uniform. `max_lag`: unrolls made more updates ago are left out of the
        loss; 0 leaves out none. `prefetch`: a batch may be drawn while another is learned from. `updates`: how updates
        are made; `partners`: nodes that have a part in them. `valves`: whether the learner `number` may draw."""
        self.learner, self.source, self.batch, self.importance = learner(), source, batch, importance
        self.max_lag = max_lag
        self.lock_step = self.learner.algorithm.lock_step and isinstance(source, Table)
        self.batches, self.prefetch = Prefetch(self._draw, prefetch), prefetch
        self.valves, self.number = valves, number
        self.updates = updates(self.learner, list(partners))
        self.work: Work | None = None  # the updates of the draw that is being learned from
        self.watch = Stopwatch()
        self.means = Means()  # of the metrics, over the draws since the last report
        self.lag, self.dropped = 0.0, 0  # since then: sum of the policy lags of draws; stale unrolls
        self.waited = 0.0  # seconds that items lay in the table, summed over these draws
        self.drawn: Drawn | None = None  # the batch that is being learned from
        self.publish(self.learner)

    def step(self) -> bool:
        """Go on with the updates of the draw under way, or draw if there is none; whether anything moved."""
        self.watch.start()
        began = self.work is None
        if began and not self._begin():
            return False
        assert self.work is not None
        with self.batches.beside():
            try:
                moved = next(self.work)
                self.watch.lap("learning" if moved else "waiting")
                return moved or began
            except StopIteration as done:
                metrics = done.value
            self.watch.lap("learning")
        self.watch.lap("storing")
        self._finish(metrics)
        self.watch.lap("learning")
        return True

    def _closed(self) -> bool:
        """Whether the valves forbid to draw. A batch that is held or asked for already is learned from first."""
        if self.valves is None:
            return False
        trains = self.valves.trains(self.number)
        self.batches.ahead = self.prefetch and trains
        return not trains and self.batches.idle and not (isinstance(self.source, Draws) and self.source.asked)

    def _begin(self) -> bool:
        """Take a batch and begin its updates; False if there is none now."""
        if self._closed():
            return False
        self.drawn = self.batches.take()
        if self.drawn is None:
            return False
        sample, items = self.drawn.sample, self.drawn.items()
        if self.max_lag:
            stale = self.version - sample.version > self.max_lag  # as of now, not as of the draw
            items = {**items, **self._without_stale({"valid": sample.items["valid"]}, stale)}
        self.work = self.updates.update(items)
        if self.lock_step:
            self.source.hold(self.batch)
        self.watch.lap("storing")
        return True

    def _finish(self, metrics: dict[str, float]) -> None:
        assert self.drawn is not None
        sample, self.work, self.drawn = self.drawn.sample, None, None
        if self.importance is not None and self.learner.priorities is not None:
            self.source.update_priorities(sample.keys, self.learner.priorities)
        learned_with = self.version if self.updates.learned_with is None else self.updates.learned_with
        self.lag += float(learned_with - sample.version.mean())
        self.waited += time.time() - float(sample.made.mean())
        self.publish(self.learner)
        if self.lock_step:
            self.source.hold(-self.batch)
        self.means.add({**self.learner.seen, **metrics})

    def _draw(self) -> Drawn | None:
        sample = self.source.sample(self.batch, self.importance or 0.0)
        return None if sample is None else self._sent(sample)

    def _sent(self, sample: Sample) -> Drawn:
        items = sample.items if self.importance is None else {**sample.items, "weight": sample.weight}
        return Drawn(sample, self.learner.backend.send(items))

    def _without_stale(self, items: dict, stale: np.ndarray) -> dict:
        """Mark the steps of stale unrolls [B] as not valid: no gradient and no statistics see them; shapes stay."""
        self.dropped += int(np.count_nonzero(stale))
        return {**items, "valid": items["valid"] * ~stale[:, None]}

    @property
    def draws(self) -> int:
        """Draws that were learned from since the last report."""
        return self.means.count

    def account(self) -> str:
        return f"waits for {self.batch} items; {self.version} updates done"

    def report(self) -> dict:
        learner, draws = self.learner, self.draws
        means = {**self.means.given(), "learning_rate": learner.rule.settings.rate(learner.updates)}
        report = {"updates": self.version, "metrics": means, "seconds": self.watch.drain()}
        if counted := self.updates.counted():
            report["counted"] = counted
        if draws:
            report |= {"policy_lag": self.lag / draws, "seconds_in_table": self.waited / draws}
            if self.max_lag:
                means["dropped_stale"] = float(self.dropped)  # unrolls since the last report
        self.means, self.lag, self.dropped, self.waited = Means(), 0.0, 0, 0.0
        return report

    def state(self) -> dict:
        counted = {"sums": self.means.sums, "draws": self.draws, "totals": [self.lag, self.dropped, self.waited]}
        taken = {"drawn": self.drawn, "held": self.batches.held}  # the table has them no more: they are saved here
        return {**self.learner.state(), **counted, **{key: d.sample._asdict() if d else {} for key, d in taken.items()}}

    def restore(self, state: dict) -> None:
        self.learner.restore({"state": state["state"], "rng": state["rng"]})
        self.means.sums, self.means.count = state["sums"], state["draws"]
        self.lag, self.dropped, self.waited = state["totals"]
        kept = [self._sent(Sample(**state[name])) if state[name] else None for name in ("drawn", "held")]
        self.batches.again, self.batches.held = kept
        self.publish(self.learner)

    def close(self) -> None:
        self.batches.close()
