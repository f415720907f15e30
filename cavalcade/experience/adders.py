"""Adders turn the stream of environment steps into what an algorithm learns from, for N environments at once.

Two rules hold by construction. An item never crosses an episode unmarked: what follows an end starts a new item, or a
row marked `first`. And the successor of a step is the true one: where an episode is truncated its final observation
takes a row (or a place) of its own, marked as no transition, so that the value after the cut can be asked for.
`discount` is zero at a true end only. Items are references to rows that the stream has written.
"""

from typing import Any, Protocol

import numpy as np

from cavalcade import tree
from cavalcade.experience.declared import SMALLEST_PRIORITY, Episode, NStep, Unroll
from cavalcade.experience.stream import Stream
from cavalcade.experience.unrolls import UnrollAdder, acted, steps_at_once
from cavalcade.specs import EnvSpec
from cavalcade.table import Items, RowSpec, Signature, Table
from cavalcade.tree import Tree

CHEAP = 1024  # bytes per step that may be set aside for the shortest episodes


class Adder(Protocol):
    stream: Stream
    steps: int  # environment steps since the last unroll was begun
    unwritten: int  # steps of which the rows are still to be taken

    def add(self, obs: Tree, action: np.ndarray, extras: Tree, carry: Tree, step: Any) -> Items | None:
        """Take one step of all environments (a `cavalcade.envs.Step`); give finished items, if any."""

    def state(self) -> dict: ...

    def restore(self, state: dict) -> None: ...


def signature(item: NStep | Unroll | Episode, spec: EnvSpec, carry: Tree, extras: Tree) -> Signature:
    """What the table has to hold. `carry` and `extras` are of one environment."""
    scalar = np.zeros((), np.float32)
    if isinstance(item, NStep):
        own = {"action": spec.action.zeros(), "reward": scalar, "discount": scalar}
        return Signature.transition(RowSpec(spec.zeros(), stack=spec.frames), own, adjacent=item.n == 1)
    done = {"action": spec.action.zeros(), "reward": scalar, "discount": scalar, "valid": scalar, **extras}
    return Signature.sequence(
        RowSpec(spec.zeros(), done, spec.frames), {"carry": carry} if carry else {}, item.length + 1
    )


def rows_of_items(item: NStep | Unroll | Episode, rows: RowSpec, size: int, drawn_once: bool) -> int:
    """How many rows `size` items of a table need.

    For the shortest episodes there can be, where that is cheap or losing an item would be wrong. Otherwise, with large
    observations, for one in 32 more than an endless episode needs: should episodes be so short that this does not
    suffice, the table holds a little less than its size.
    """
    if isinstance(item, NStep):
        usual, most = 1, 1 + rows.stack
    else:
        usual, most = getattr(item, "period", 0) or item.length, (item.length + 1) * rows.stack
    if drawn_once or most * rows.bytes <= CHEAP * usual:
        return size * most
    return size * usual * 33 // 32


def rows_under_way(item: NStep | Unroll | Episode, rows: RowSpec, environments: int, patience: int = 0) -> int:
    """How many rows these environments have under way at most, should all episodes end in every step: those to which
    unfinished items, or items that wait for `patience` steps to be sent, can refer."""
    horizon = item.n + 1 + item.judged if isinstance(item, NStep) else item.length + 1
    # of those that are written together, as many are being gathered, were just written, and wait to be released
    together = 3 * (steps_at_once(item, rows) - 1)
    return environments * (horizon + patience + rows.stack + 2 + together) * (1 + rows.stack)


def make(item: NStep | Unroll | Episode, sink: Table, count: int, writer: int = 0, patience: int = 0) -> Adder:
    """The adder for a table with the item's signature. `patience`: for how many steps a finished item may wait before
    it is inserted; so long its rows are held."""
    if isinstance(item, NStep):
        kind: Any = JudgingAdder if item.judged else NStepAdder
    else:
        kind = UnrollAdder if isinstance(item, Unroll) else EpisodeAdder
    adder = kind(item, sink, count, writer)
    adder.stream.horizon += patience
    return adder


class NStepAdder:
    """Every step starts an item; it is finished after n steps, or earlier where its episode ends."""

    def __init__(self, item: NStep, sink: Table, count: int, writer: int = 0):
        self.item, self.count, self.clock = item, count, 0
        self.stream = Stream(sink, count, writer, item.n + 1)
        self.steps, self.unwritten = 0, 0  # an item is finished at every step, and nothing is gathered
        action = sink.signature.own["action"]
        self.start = np.zeros((item.n, count), np.int32)
        self.action = np.zeros((item.n, count, *action.shape), action.dtype)
        self.reward = np.zeros((item.n, count), np.float32)
        self.discount = np.ones((item.n, count), np.float32)
        self.pending = np.zeros((item.n, count), np.bool_)

    def add(self, obs: Tree, action: np.ndarray, extras: Tree, carry: Tree, step: Any) -> Items | None:
        start, end = self.stream.advance(obs, {}, step)
        slot = self.clock % self.item.n
        self.clock += 1
        self.start[slot], self.action[slot] = start, action
        self.reward[slot], self.discount[slot], self.pending[slot] = 0.0, 1.0, step.valid
        reward = np.clip(step.reward, -1.0, 1.0) if self.item.clip_rewards else step.reward
        self.reward += self.discount * reward  # slots that are not pending hold rubbish and are never read
        self.discount *= np.float32(self.item.discount)
        self.discount[:, step.terminated] = 0.0
        ended = step.terminated | step.truncated
        oldest = self.clock % self.item.n
        if not np.count_nonzero(ended) and np.count_nonzero(self.pending[oldest]) == self.count:
            self.pending[oldest] = False  # the usual step: one finished item per environment
            return self._items(oldest, end)
        done = self.pending & ended
        done[oldest] |= self.pending[oldest]
        if not done.any():
            return None
        self.pending &= ~done
        which = np.nonzero(done)
        return self._items(which, end[which[1]])

    def _items(self, which: Any, end: np.ndarray) -> Items:
        rows = np.empty((len(end), 2), np.int32)
        rows[:, 0], rows[:, 1] = self.start[which], end
        kept = {"action": self.action, "reward": self.reward, "discount": self.discount}
        return Items(rows, {name: np.array(values[which]) for name, values in kept.items()})

    def state(self) -> dict:
        names = ("start", "action", "reward", "discount", "pending")
        kept = {name: getattr(self, name).copy() for name in names}
        return {"clock": self.clock, "stream": self.stream.state(), **kept}

    def restore(self, state: dict) -> None:
        self.clock = state["clock"]
        self.stream.restore(state["stream"])
        for name in ("start", "action", "reward", "discount", "pending"):
            getattr(self, name)[:] = state[name]


class JudgingAdder(NStepAdder):
    """N-step items with the priority |R_n + discount * max_a q(s', a) - q(s, a)| of Ape-X (Horgan 2018), all of it from
    values that acting computed anyway. The last, max_a q(s', a), is known when s' is acted on: items wait for a step.
    """

    def __init__(self, item: NStep, sink: Table, count: int, writer: int = 0):
        super().__init__(item, sink, count, writer)
        self.stream.horizon += 1
        self.taken = np.zeros((item.n, count), np.float32)  # q(s, a) of the items under way
        self.best = np.zeros(count, np.float32)  # max_a q of the observation that was acted on last
        self.cut = np.zeros(count, np.bool_)  # its episode was cut short by the last step
        self.waiting: dict[str, np.ndarray] = {}  # rows, own leaves, environment and q(s, a) of finished items

    def add(self, obs: Tree, action: np.ndarray, extras: Tree, carry: Tree, step: Any) -> Items | None:
        ready = self._judge(extras["q_best"]) if self.waiting else None
        self.taken[self.clock % self.item.n] = extras["q_taken"]
        self.waiting = {}
        super().add(obs, action, extras, carry, step)
        self.best, self.cut = extras["q_best"], step.truncated
        return ready

    def _items(self, which: Any, end: np.ndarray) -> Items:
        items = super()._items(which, end)
        environment = which[1] if isinstance(which, tuple) else np.arange(self.count)
        self.waiting = {"rows": items.rows, "environment": environment, "taken": self.taken[which].copy(), **items.own}
        return items

    def _judge(self, best: np.ndarray) -> Items:
        """Nobody acts on the final observation of an episode that was cut short: the value of the one before it stands
        in. At a true end the discount is 0, and no value is needed."""
        kept = self.waiting
        value = np.where(self.cut, self.best, best)[kept["environment"]]
        error = kept["reward"] + kept["discount"] * value - kept["taken"]
        own = {name: kept[name] for name in ("action", "reward", "discount")}
        return Items(kept["rows"], own, np.abs(error) + SMALLEST_PRIORITY)

    def state(self) -> dict:
        values = {"taken": self.taken.copy(), "best": np.copy(self.best), "cut": np.copy(self.cut)}
        return {**super().state(), **values, "waiting": dict(self.waiting)}

    def restore(self, state: dict) -> None:
        super().restore(state)
        self.taken[:] = state["taken"]
        self.best, self.cut = np.copy(state["best"]), np.copy(state["cut"])
        self.waiting = {name: np.copy(values) for name, values in state["waiting"].items()}


class EpisodeAdder:
    """Whole episodes, each an item; one that is longer than an item can be goes on in the next."""

    def __init__(self, item: Episode, sink: Table, count: int, writer: int = 0):
        self.item, self.count, self.steps, self.unwritten = item, count, 0, 0
        self.stream = Stream(sink, count, writer, item.length + 1)
        self.with_carry = "carry" in sink.signature.own
        self.slots = np.zeros((count, item.length + 1), np.int32)
        self.cursor = np.zeros(count, np.int64)
        self.carry: Tree = {}

    def add(self, obs: Tree, action: np.ndarray, extras: Tree, carry: Tree, step: Any) -> Items | None:
        if self.with_carry:
            self._remember(carry)
        start, end = self.stream.advance(obs, acted(self.item, action, extras, step.reward, step.terminated), step)
        which = np.flatnonzero(step.valid)
        self.slots[which, self.cursor[which]] = start[which]
        self.cursor[which] += 1
        self.slots[which, self.cursor[which]] = end[which]
        finished = step.valid & (step.terminated | step.truncated | (self.cursor == self.item.length))
        if not np.count_nonzero(finished):
            return None
        rows = self.slots[finished]
        own = {"carry": tree.take(self.carry, finished)} if self.with_carry else {}
        self.slots[finished], self.cursor[finished] = 0, 0
        return Items(rows, own)

    def _remember(self, carry: Tree) -> None:
        """The carry before the first row of each item."""
        if not self.carry:
            self.carry = tree.map(np.copy, carry)
        beginning = self.cursor == 0
        tree.assign(self.carry, beginning, tree.take(carry, beginning))

    def state(self) -> dict:
        kept = {"slots": self.slots.copy(), "cursor": self.cursor.copy(), "stream": self.stream.state()}
        return {**kept, "carry": tree.map(np.copy, self.carry)}

    def restore(self, state: dict) -> None:
        self.stream.restore(state["stream"])
        self.slots[:], self.cursor[:] = state["slots"], state["cursor"]
        self.carry = tree.map(np.copy, state["carry"])
