"""Unrolls: consecutive steps of an environment as an item. The adder gathers steps and writes their rows together."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from cavalcade import tree
from cavalcade.experience.item import Adder, Item, Prioritise, done_in, sequence
from cavalcade.experience.stream import Stream
from cavalcade.specs import EnvSpec
from cavalcade.step import Step
from cavalcade.table import Items, RowSpec, Signature, Table
from cavalcade.tree import Tree

AT_ONCE = 32  # the most steps whose rows are written together
SMALL = 1024  # bytes of a row; larger rows are written at every step, because gathering them is another copy


@dataclass(frozen=True)
class Unroll(Item):
    """`length` steps of one environment and the observation after them, with the carry before the first. The final
    observations of truncated episodes take rows of their own, in the place of steps."""

    length: int  # rows without the last observation
    discount: float
    period: int = 0  # rows from the start of one unroll to the start of the next; 0 is `length`: no overlap
    totals: bool = False  # each step has `total`, the discounted sum of the rewards of its episode so far (`Totals`)

    reserves: ClassVar[bool] = True

    def signature(self, spec: EnvSpec, carry: Tree, extras: Tree) -> Signature:
        more = {"total": np.zeros((), np.float32)} if self.totals else {}
        return sequence(spec, carry, {**extras, **more}, self.length)

    def _adder(self, sink: Table, count: int, writer: int, priority: Prioritise | None) -> Adder:
        return UnrollAdder(self, sink, count, writer)

    @property
    def steps(self) -> int:
        return self.length

    @property
    def at_once(self) -> int:
        return 2 if self.period else 1  # two unrolls that overlap may end at the same step

    @property
    def horizon(self) -> int:
        return self.length + 1

    def written_together(self, rows: RowSpec) -> int:
        return 1 if rows.bytes > SMALL else min(self.period or self.length, AT_ONCE)

    def rows_each(self, stack: int) -> tuple[int, int]:
        return self.period or self.length, (self.length + 1) * stack

    def places(self, steps: int, time_limit: int) -> int:
        """A final observation of every episode counts where the time limit truncates episodes within an unroll."""
        return steps + steps // time_limit if 0 < time_limit < self.length else steps


class Window:
    """Unfinished unrolls of all N environments: the rows that the column of each environment has so far. The next step
    has room in every column as long as the fullest has used fewer than `length` rows."""

    def __init__(self, length: int, count: int, carry: Tree):
        self.length, self.carry = length, carry
        self.slots = np.zeros((length + 1, count), np.int32)  # [length + 1, N]
        self.cursor = np.zeros(count, np.int64)  # [N] rows in each column, of the steps that were written
        self.written, self.even = 0, True  # steps that were written; whether each has moved every column on by one row
        self.steps = 0  # steps that were written, and those that are gathered for writing
        self.cut = np.zeros(count, np.int64)  # [N] rows that final observations of truncated episodes took
        self.most_cut = 0  # the largest of them

    def count_step(self, cut_short: np.ndarray | None) -> None:
        """Count a step of all environments. `cut_short`: [N] where an episode was truncated and the next began in the
        same step, or None. Such a column gets one row more than there are steps. It does not where the environment
        spends the next step on the reset, because that step has no row."""
        self.steps += 1
        if cut_short is not None:
            self.cut += cut_short
            self.most_cut = int(self.cut.max())

    @property
    def used(self) -> int:
        """Rows that the fullest column has, without the successor of its last step."""
        return self.steps + self.most_cut

    @property
    def full(self) -> bool:
        """Whether a column has no row left for another step."""
        return self.used >= self.length

    def write(self, start: np.ndarray, end: np.ndarray, valid: np.ndarray, cut_short: np.ndarray | None) -> None:
        """Add T written steps: [T, N] slots of the rows that were acted on and of their successors, where there was a
        transition, and where an episode was truncated (None: nowhere)."""
        self.even = self.even and cut_short is None and np.count_nonzero(valid) == valid.size
        before, self.written = self.written, self.written + len(start)
        if self.even:
            self.slots[before : self.written] = start
            self.slots[self.written] = end[-1]
            self.cursor[:] = self.written
            return
        moves = valid.astype(np.int64)
        if cut_short is not None:
            moves += cut_short  # the final observation keeps its row, from which no transition starts
        after = np.cumsum(moves, 0)
        after += self.cursor
        which, at = np.nonzero(valid)[1], (after - moves)[valid]
        self.slots[at + 1, which] = end[valid]  # first, because `start` of the next step may be another episode's row
        self.slots[at, which] = start[valid]
        self.cursor[:] = after[-1]

    def state(self) -> dict:
        kept = {name: getattr(self, name).copy() for name in ("slots", "cursor", "cut")}
        return {**kept, "steps": self.steps, "written": self.written, "carry": self.carry}

    def restore(self, state: dict) -> None:
        """Restore everything but the carry, which the constructor was given."""
        self.slots[:], self.cursor[:], self.cut[:] = state["slots"], state["cursor"], state["cut"]
        self.steps, self.written, self.most_cut = state["steps"], state["written"], int(self.cut.max())
        self.even = bool((self.cursor == self.written).all())


class Totals:
    """Of each of N environments, the discounted sum of the rewards of its episode: total <- reward + discount total. It
    goes on from one unroll to the next, so that it is the same for unrolls of any length."""

    def __init__(self, discount: float, count: int):
        self.discount, self.count = discount, count
        self.before = np.zeros(count, np.float32)  # [N] the discounted total before the next step

    def of(self, step: Any) -> np.ndarray:
        """[T * N] the totals after each of T steps of all environments."""
        shape = (-1, self.count)
        valid, reward = step.valid.reshape(shape), step.reward.reshape(shape)
        ended = (step.terminated | step.truncated).reshape(shape)
        totals = np.empty(reward.shape, np.float32)
        for t, total in enumerate(totals):
            np.add(self.before, reward[t], out=total)
            np.copyto(self.before, total * np.float32(self.discount), where=valid[t])
            self.before[ended[t]] = 0.0
        return totals.reshape(-1)


class UnrollAdder:
    """Makes unrolls of all N environments, which begin and end at the same step in all of them.

    Row t+1 of a column holds the true successor of row t; the final observation of a truncated episode takes a row of
    its own. Unrolls end after `length` steps, or earlier: as soon as one environment has no row left for another step,
    because final observations took some. The next unrolls begin with the next step, so every step is in an unroll. Rows
    that other columns have left stay blank. With overlap, the next unrolls begin when the fullest column has used
    `period` rows. Steps are gathered, and their rows are written together.
    """

    def __init__(self, item: Unroll, sink: Table, count: int, writer: int = 0):
        self.item, self.count, self.steps = item, count, 0
        self.period = item.period or item.length
        self.stream = Stream(sink, count, writer, item.length + 1)
        self.at_once = item.written_together(sink.signature.rows)
        self.with_carry = "carry" in sink.signature.own
        self.totals = Totals(item.discount, count) if item.totals else None
        self.windows: list[Window] = []  # the oldest first; several only with overlap
        self.gathered: list[tuple[np.ndarray, Tree, Any]] = []  # action, extras and `Step` of steps without rows yet

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
        cut_short = _cut_short(step) if step.resets_at_once else None
        for window in self.windows:
            window.count_step(cut_short)
        self.steps = 0 if self.windows[-1].used >= self.period else self.steps + 1
        finished = [window for window in self.windows if window.full]  # with overlap there may be two
        # gathered steps all belong to the same windows, so they are written before a window ends or begins
        if finished or len(self.gathered) == self.at_once or self.steps == 0:
            self._write()
        if not finished:
            return None
        self.windows = self.windows[len(finished) :]
        rows = np.array([window.slots.T for window in finished]).reshape(-1, self.item.length + 1)
        return Items(rows, {"carry": tree.joined([window.carry for window in finished])} if self.with_carry else {})

    def _write(self) -> None:
        """Write the rows of the gathered steps, and add them to the windows."""
        count = len(self.gathered)
        action, extras, step = self.gathered[0] if count == 1 else _joined(self.gathered)  # one step needs no copy
        self.gathered, shape = [], (count, self.count)
        if self.totals:
            extras = {**extras, "total": self.totals.of(step)}
        done = done_in(self.item.discount, action, extras, step.reward, step.terminated)
        start, end = self.stream.advance_all(count, done, step)
        cut_short = None
        if np.count_nonzero(step.truncated):
            cut_short = (_cut_short(step) & step.valid).reshape(shape)
            if np.count_nonzero(cut_short):
                self.stream.blank(end[cut_short])
        for window in self.windows:
            window.write(start, end, step.valid.reshape(shape), cut_short)

    def state(self) -> dict:
        windows = {str(number): window.state() for number, window in enumerate(self.windows)}
        gathered = {
            str(number): {"action": action, "extras": extras, "step": _kept(step)}
            for number, (action, extras, step) in enumerate(self.gathered)
        }
        totals = {"totals": self.totals.before.copy()} if self.totals else {}
        kept = {"windows": windows, "gathered": gathered, "steps": self.steps, "stream": self.stream.state()}
        return {**kept, **totals}

    def restore(self, state: dict) -> None:
        self.stream.restore(state["stream"])
        self.steps = state["steps"]
        if self.totals:
            self.totals.before[:] = state["totals"]
        self.windows = []
        for kept in state["windows"].values():
            window = Window(self.item.length, self.count, tree.map(np.copy, kept["carry"]))
            window.restore(kept)
            self.windows.append(window)
        self.gathered = [(kept["action"], kept["extras"], Step(**kept["step"])) for kept in state["gathered"].values()]


def _cut_short(step: Any) -> np.ndarray:
    """[N] where an episode was truncated and did not terminate, so that its final observation has a value."""
    return step.truncated & ~step.terminated


def _joined(gathered: list[tuple[np.ndarray, Tree, Any]]) -> tuple[np.ndarray, Tree, Any]:
    """Actions, extras and steps [N, ...] of T gathered steps, as [T * N, ...] each."""
    actions, extras, steps = zip(*gathered)
    return tree.joined(actions), tree.joined(extras), steps[0].joined(steps)


def _kept(step: Any) -> dict:
    """The fields of a step for a checkpoint, without its episodes, which were reported already."""
    return {**{name: getattr(step, name) for name in Step._fields}, "episodes": []}
