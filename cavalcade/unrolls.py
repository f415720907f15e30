"""Unrolls from the stream of environment steps (`adders.py`): their steps are gathered and written together."""

from typing import Any

import numpy as np

from cavalcade import tree
from cavalcade.envs.vector import Step
from cavalcade.experience import Episode, NStep, Unroll
from cavalcade.stream import Stream
from cavalcade.table import Items, RowSpec, Table
from cavalcade.tree import Tree

AT_ONCE = 32  # steps of small rows that are written together, at most
SMALL = 1024  # bytes of a row; larger ones are written at every step, because to keep them is another copy


def steps_at_once(item: NStep | Unroll | Episode, rows: RowSpec) -> int:
    """How many steps may be gathered before their rows are written."""
    if not isinstance(item, Unroll) or rows.bytes > SMALL:
        return 1
    return min(item.period or item.length, AT_ONCE)


def acted(item: Unroll | Episode, action: np.ndarray, extras: Tree, reward: np.ndarray, terminated: np.ndarray) -> dict:
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

    def add(self, obs: Tree, action: np.ndarray, extras: Tree, carry: Tree, step: Any) -> Items | None:
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
        count = len(self.gathered)
        action, extras, step = self.gathered[0] if count == 1 else _joined(self.gathered)  # large rows come alone
        self.gathered, shape = [], (count, self.count)
        done = acted(self.item, action, extras, step.reward, step.terminated)
        start, end = self.stream.advance_all(count, done, step)
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
            str(number): {"action": action, "extras": extras, "step": _kept(step)}
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


def _joined(gathered: list[tuple[np.ndarray, Tree, Any]]) -> tuple[np.ndarray, Tree, Any]:
    """[N, ...] of each step as one [T * N, ...]."""
    actions, extras, steps = zip(*gathered)
    return tree.joined(actions), tree.joined(extras), steps[0].joined(steps)


def _kept(step: Any) -> dict:
    return {**{name: getattr(step, name) for name in Step._fields}, "episodes": []}
