"""Transitions over n steps, with or without a priority that the actor computes."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from cavalcade import tree
from cavalcade.experience.item import Adder, Item, Prioritise
from cavalcade.experience.stream import Stream
from cavalcade.specs import EnvSpec
from cavalcade.table import Items, RowSpec, Signature, Table
from cavalcade.tree import Tree


@dataclass(frozen=True)
class NStep(Item):
    """Transitions (obs, action, discounted sum of n rewards, discount ** n or 0, obs n steps later)."""

    n: int
    discount: float
    clip_rewards: bool = False  # each reward to [-1, 1], before they are summed
    prioritised: bool = False  # actors compute the priority of new items by `Algorithm.priority`
    extras: tuple[str, ...] = ()  # names of extras that the item keeps, as they were at its first step

    def signature(self, spec: EnvSpec, carry: Tree, extras: Tree) -> Signature:
        scalar = np.zeros((), np.float32)
        own = {"action": spec.action.zeros(), "reward": scalar, "discount": scalar}
        own |= {name: extras[name] for name in self.extras}
        return Signature.transition(RowSpec(spec.zeros(), stack=spec.frames), own, adjacent=self.n == 1)

    def _adder(self, sink: Table, count: int, writer: int, priority: Prioritise | None) -> Adder:
        if not self.prioritised:
            return NStepAdder(self, sink, count, writer)
        assert priority is not None, "it comes with the algorithm"
        return PrioritisingAdder(self, sink, count, writer, priority)

    @property
    def at_once(self) -> int:
        return self.n  # an episode's end finishes the items of its last n steps

    @property
    def horizon(self) -> int:
        return self.n + 1 + self.prioritised

    def rows_each(self, stack: int) -> tuple[int, int]:
        return 1, 1 + stack


class NStepAdder:
    """Every step begins an item, which is finished after n steps, or earlier if its episode ends. Unfinished items lie
    in arrays [n, N, ...], in the slot `clock % n` of the step with which they began."""

    def __init__(self, item: NStep, sink: Table, count: int, writer: int = 0):
        self.item, self.count, self.clock = item, count, 0
        self.stream = Stream(sink, count, writer, item.n + 1)
        self.steps, self.unwritten = 0, 0  # an item begins at every step, and no steps are gathered
        own = sink.signature.own
        self.start = np.zeros((item.n, count), np.int32)  # first row
        self.reward = np.zeros((item.n, count), np.float32)  # discounted sum so far
        self.discount = np.ones((item.n, count), np.float32)  # of the next reward
        self.pending = np.zeros((item.n, count), np.bool_)  # whether there is an unfinished item
        self.action = np.zeros((item.n, count, *own["action"].shape), own["action"].dtype)
        kept = {name: own[name] for name in item.extras}
        self.extras = tree.map(lambda leaf: np.zeros((item.n, count, *leaf.shape), leaf.dtype), kept)

    def add(self, obs: Tree, action: np.ndarray, extras: Tree, carry: Tree, step: Any) -> Items | None:
        start, end = self.stream.advance(obs, {}, step)
        slot = self.clock % self.item.n
        self.clock += 1
        self.start[slot], self.action[slot] = start, action
        if self.extras:
            tree.assign(self.extras, slot, extras)
        self.reward[slot], self.discount[slot], self.pending[slot] = 0.0, 1.0, step.valid
        reward = np.clip(step.reward, -1.0, 1.0) if self.item.clip_rewards else step.reward
        self.reward += self.discount * reward  # slots that are not pending hold meaningless numbers, which nobody reads
        self.discount *= np.float32(self.item.discount)
        self.discount[:, step.terminated] = 0.0
        ended = step.terminated | step.truncated
        oldest = self.clock % self.item.n
        if not np.count_nonzero(ended) and np.count_nonzero(self.pending[oldest]) == self.count:
            self.pending[oldest] = False  # the usual step: it finishes one item of every environment
            return self._items(oldest, end)
        done = self.pending & ended
        done[oldest] |= self.pending[oldest]
        if not done.any():
            return None
        self.pending &= ~done
        which = np.nonzero(done)
        return self._items(which, end[which[1]])

    def _items(self, which: Any, end: np.ndarray) -> Items:
        """The items at the index `which` of the arrays; `end`: [M] their last rows."""
        rows = np.empty((len(end), 2), np.int32)
        rows[:, 0], rows[:, 1] = self.start[which], end
        own = {"action": self.action, "reward": self.reward, "discount": self.discount, **self.extras}
        return Items(rows, tree.map(lambda values: np.array(values[which]), own))

    def state(self) -> dict:
        return {"clock": self.clock, "stream": self.stream.state(), **tree.map(np.copy, self._under_way())}

    def restore(self, state: dict) -> None:
        self.clock = state["clock"]
        self.stream.restore(state["stream"])
        for name, values in self._under_way().items():
            tree.assign(values, ..., state[name])

    def _under_way(self) -> dict:
        names = ("start", "action", "reward", "discount", "pending", "extras")
        return {name: getattr(self, name) for name in names}


class PrioritisingAdder(NStepAdder):
    """N-step items with a priority (Ape-X, Horgan 2018), computed from the extras of acting at the item's first and
    last observation. The extras at the last observation are known when it is acted on, so items wait for one step
    more."""

    def __init__(self, item: NStep, sink: Table, count: int, writer: int, priority: Prioritise):
        super().__init__(item, sink, count, writer)
        self.stream.horizon += 1
        self.priority = priority
        self.begun: Tree = {}  # [n, N, ...] extras of the first step of each unfinished item
        self.last: Tree = {}  # [N, ...] extras of the step before
        self.cut = np.zeros(count, np.bool_)  # [N] whether the step before truncated the episode
        self.waiting: dict[str, Any] = {}  # finished items without priority: rows, own, environment and first extras

    def add(self, obs: Tree, action: np.ndarray, extras: Tree, carry: Tree, step: Any) -> Items | None:
        if not self.begun:
            self.begun = tree.map(lambda leaf: np.zeros((self.item.n, *leaf.shape), leaf.dtype), extras)
        ready = self._with_priority(extras) if self.waiting else None
        tree.assign(self.begun, self.clock % self.item.n, extras)
        self.waiting = {}
        super().add(obs, action, extras, carry, step)
        self.last, self.cut = extras, step.truncated
        return ready

    def _items(self, which: Any, end: np.ndarray) -> Items:
        items = super()._items(which, end)
        environment = which[1] if isinstance(which, tuple) else np.arange(self.count)
        begun = tree.map(lambda values: np.array(values[which]), self.begun)
        self.waiting = {"rows": items.rows, "own": items.own, "environment": environment, "extras": begun}
        return items

    def _with_priority(self, extras: Tree) -> Items:
        """The waiting items with their priorities; `extras`: [N, ...] of the step after them. Nobody acts on the final
        observation of a truncated episode, so the extras of the step before stand in. Where an episode terminated the
        discount is 0, and the extras after it do not matter."""
        kept, at = self.waiting, self.waiting["environment"]

        def after(now: np.ndarray, before: np.ndarray) -> np.ndarray:
            cut = self.cut.reshape(-1, *(1,) * (now.ndim - 1))
            return np.where(cut, before, now)[at]

        told = {**kept["own"], "extras": kept["extras"], "next_extras": tree.map(after, extras, self.last)}
        return Items(kept["rows"], kept["own"], self.priority(told))

    def state(self) -> dict:
        values = {"begun": self.begun, "last": self.last, "cut": self.cut, "waiting": self.waiting}
        return {**super().state(), **tree.map(np.copy, values)}

    def restore(self, state: dict) -> None:
        super().restore(state)
        self.begun, self.last = tree.map(np.copy, state["begun"]), tree.map(np.copy, state["last"])
        self.cut, self.waiting = np.copy(state["cut"]), tree.map(np.copy, state["waiting"])
