"""Adders turn the stream of environment steps into what an algorithm learns from, for N environments at once.

Two rules hold by construction. An item never crosses an episode unmarked: what follows an end starts a new item, or a
row marked `first`. And the successor of a step is the true one: where an episode is truncated its final observation
takes a row (or a place) of its own, marked as no transition, so that the value after the cut can be asked for.
`discount` is zero at a true end only. Items are references to rows that the stream has written.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from cavalcade import tree
from cavalcade.envs.vector import Step
from cavalcade.experience import SMALLEST_PRIORITY, Episode, NStep, Unroll
from cavalcade.specs import EnvSpec
from cavalcade.stream import Stream
from cavalcade.table import Items, RowSpec, Signature, Table
from cavalcade.tree import Tree

CHEAP = 1024  # bytes per step that may be set aside for the shortest episodes
AT_ONCE = 32  # steps of small rows that are written together, at most
SMALL = 1024  # bytes of a row; larger ones are written at every step, because to keep them is another copy


class Adder(Protocol):
    stream: Stream
    steps: int  # environment steps since the last unroll was begun
    left_out: int  # transitions that found no room
    unwritten: int  # steps of which the rows are still to be taken

    def add(
        self, obs: Tree, first: np.ndarray, action: np.ndarray, extras: Tree, carry: Tree, step: Any
    ) -> Items | None:
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


def rows_needed(
    item: NStep | Unroll | Episode, rows: RowSpec, size: int, drawn_once: bool, environments: int, patience: int = 0
) -> int:
    """How many rows a table of `size` items needs, with what all environments have under way.

    For the shortest episodes there can be, where that is cheap or losing an item would be wrong. Otherwise, with large
    observations, for one in 32 more than an endless episode needs: should episodes be so short that this does not
    suffice, the table holds a little less than its size.
    """
    if isinstance(item, NStep):
        horizon, usual, most = item.n + 1 + item.judged, 1, 1 + rows.stack
    else:
        horizon, most = item.length + 1, (item.length + 1) * rows.stack
        usual = getattr(item, "period", 0) or item.length
    # of those that are written together, as many are being gathered, were just written, and wait to be released
    together = 3 * (steps_at_once(item, rows) - 1)
    under_way = environments * (horizon + patience + rows.stack + 2 + together) * (1 + rows.stack)
    if drawn_once or most * rows.bytes <= CHEAP * usual:
        return size * most + under_way
    return size * usual * 33 // 32 + under_way


def steps_at_once(item: NStep | Unroll | Episode, rows: RowSpec) -> int:
    """How many steps may be gathered before their rows are written."""
    if not isinstance(item, Unroll) or rows.bytes > SMALL:
        return 1
    return min(item.period or item.length, AT_ONCE)


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
        # an item is finished at every step, and there is always room
        self.steps, self.left_out, self.unwritten = 0, 0, 0
        action = sink.signature.own["action"]
        self.start = np.zeros((item.n, count), np.int32)
        self.action = np.zeros((item.n, count, *action.shape), action.dtype)
        self.reward = np.zeros((item.n, count), np.float32)
        self.discount = np.ones((item.n, count), np.float32)
        self.pending = np.zeros((item.n, count), np.bool_)

    def add(
        self, obs: Tree, first: np.ndarray, action: np.ndarray, extras: Tree, carry: Tree, step: Any
    ) -> Items | None:
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

    def add(
        self, obs: Tree, first: np.ndarray, action: np.ndarray, extras: Tree, carry: Tree, step: Any
    ) -> Items | None:
        ready = self._judge(extras["q_best"]) if self.waiting else None
        self.taken[self.clock % self.item.n] = extras["q_taken"]
        self.waiting = {}
        super().add(obs, first, action, extras, carry, step)
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


def _done(item: Unroll | Episode, action: np.ndarray, extras: Tree, reward: np.ndarray, terminated: np.ndarray) -> dict:
    """The second part of the rows that were acted on."""
    discount = np.full(len(reward), item.discount, np.float32)
    discount[terminated] = 0.0
    valid = np.ones(len(reward), np.float32)
    return {"action": action, "reward": reward, "discount": discount, "valid": valid, **extras}


class Window:
    """An unroll in the making: which rows each environment's column has so far."""

    def __init__(self, length: int, count: int, carry: Tree):
        self.length, self.carry = length, carry
        self.slots = np.zeros((length + 1, count), np.int32)
        self.cursor = np.zeros(count, np.int64)
        self.steps, self.even = 0, True  # every step so far has moved every column on by one

    def add(self, start: np.ndarray, end: np.ndarray, valid: np.ndarray, cut_short: np.ndarray | None) -> int:
        """Steps [T, N]; gives how many transitions found no room."""
        self.even = self.even and cut_short is None and np.count_nonzero(valid) == valid.size
        before, self.steps = self.steps, self.steps + len(start)
        if self.even:
            self.slots[before : self.steps] = start
            self.slots[self.steps] = end[-1]
            self.cursor[:] = self.steps
            return 0
        moves = valid.astype(np.int64)
        if cut_short is not None:
            moves += cut_short  # the final observation keeps its row; no transition starts there
        after = np.cumsum(moves, 0)
        after += self.cursor
        at = after - moves
        written = valid & (at < self.length)
        which, at = np.nonzero(written)[1], at[written]
        self.slots[at + 1, which] = end[written]  # before the rows where steps start: they may begin another episode
        self.slots[at, which] = start[written]
        self.cursor[:] = after[-1]
        return int(np.count_nonzero(valid)) - len(which)


class UnrollAdder:
    """Unrolls of one length for all environments, begun every `period` steps and cut at the same environment step.

    Row t+1 of a column holds the true successor of row t. A column can be shorter than the unroll (an environment
    spent a step on its reset) or would be longer (truncations took rows): the rest is blank, or left out and counted.
    Steps are gathered, and their rows written together.
    """

    def __init__(self, item: Unroll, sink: Table, count: int, writer: int = 0):
        self.item, self.count, self.left_out, self.steps = item, count, 0, 0
        self.period = item.period or item.length
        self.stream = Stream(sink, count, writer, item.length + 1)
        self.at_once = steps_at_once(item, sink.signature.rows)
        self.with_carry = "carry" in sink.signature.own
        self.windows: list[Window] = []
        self.gathered: list[tuple[np.ndarray, Tree, Any]] = []  # actions, extras, and what came of them

    @property
    def unwritten(self) -> int:
        return len(self.gathered)

    def add(
        self, obs: Tree, first: np.ndarray, action: np.ndarray, extras: Tree, carry: Tree, step: Any
    ) -> Items | None:
        if self.steps == 0:
            before = tree.map(np.copy, carry) if self.with_carry else {}
            self.windows.append(Window(self.item.length, self.count, before))
        self.stream.begin(obs)
        self.stream.verify(obs, step)
        self.gathered.append((action, extras, step))
        self.steps = (self.steps + 1) % self.period
        count = len(self.gathered)
        finished = self.windows[0].steps + count == self.item.length
        if finished or count == self.at_once or self.steps == 0:  # all in the same windows
            self._write()
        if not finished:
            return None
        window = self.windows.pop(0)
        rows = np.ascontiguousarray(window.slots.T)  # [N, T + 1]
        return Items(rows, {"carry": window.carry} if self.with_carry else {})

    def _write(self) -> None:
        actions, extras, steps = zip(*self.gathered)
        self.gathered, shape = [], (len(steps), self.count)
        step = _joined_steps(steps)
        done = _done(self.item, _joined(actions), _joined(extras), step.reward, step.terminated)
        start, end = self.stream.advance_all(len(steps), done, step)
        cut_short = None
        if np.count_nonzero(step.truncated):
            cut_short = (step.truncated & ~step.terminated & step.valid).reshape(shape)
            if np.count_nonzero(cut_short):
                self.stream.blank(end[cut_short])
        for window in self.windows:
            self.left_out += window.add(start, end, step.valid.reshape(shape), cut_short)

    def state(self) -> dict:
        windows = {
            str(number): {"slots": w.slots.copy(), "cursor": w.cursor.copy(), "steps": w.steps, "carry": w.carry}
            for number, w in enumerate(self.windows)
        }
        gathered = {
            str(number): {"action": action, "extras": extras, "step": {**step._asdict(), "episodes": []}}
            for number, (action, extras, step) in enumerate(self.gathered)
        }
        kept = {"windows": windows, "gathered": gathered, "steps": self.steps, "left_out": self.left_out}
        return {**kept, "stream": self.stream.state()}

    def restore(self, state: dict) -> None:
        self.stream.restore(state["stream"])
        self.steps, self.left_out = state["steps"], state["left_out"]
        self.windows = []
        for kept in state["windows"].values():
            window = Window(self.item.length, self.count, tree.map(np.copy, kept["carry"]))
            window.slots[:], window.cursor[:], window.steps = kept["slots"], kept["cursor"], kept["steps"]
            window.even = bool((window.cursor == window.steps).all())
            self.windows.append(window)
        self.gathered = [(kept["action"], kept["extras"], Step(**kept["step"])) for kept in state["gathered"].values()]


class EpisodeAdder:
    """Whole episodes, each an item; one that is longer than an item can be goes on in the next."""

    def __init__(self, item: Episode, sink: Table, count: int, writer: int = 0):
        self.item, self.count, self.steps, self.left_out, self.unwritten = item, count, 0, 0, 0
        self.stream = Stream(sink, count, writer, item.length + 1)
        self.with_carry = "carry" in sink.signature.own
        self.slots = np.zeros((count, item.length + 1), np.int32)
        self.cursor = np.zeros(count, np.int64)
        self.carry: Tree = {}

    def add(
        self, obs: Tree, first: np.ndarray, action: np.ndarray, extras: Tree, carry: Tree, step: Any
    ) -> Items | None:
        if self.with_carry:
            self._remember(carry)
        start, end = self.stream.advance(obs, _done(self.item, action, extras, step.reward, step.terminated), step)
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


def _joined(parts: Sequence[Tree]) -> Tree:
    """[N, ...] of each step as one [T * N, ...]."""
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], dict):
        return {key: _joined([part[key] for part in parts]) for key in parts[0]}
    return np.concatenate(parts)


def _joined_steps(steps: Sequence[Any]) -> Any:
    if len(steps) == 1:
        return steps[0]
    after, *small, observation, firsts, _ = zip(*steps)
    reward, terminated, truncated, valid = (np.concatenate(parts) for parts in small)
    next_obs, first = _joined(after), np.concatenate(firsts)
    obs = _joined(observation) if np.count_nonzero(first) else next_obs  # where none begins they are the same
    return Step(next_obs, reward, terminated, truncated, valid, obs, first, [])
