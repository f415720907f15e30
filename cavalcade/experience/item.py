"""Items: what an algorithm learns from, one at a time. A kind of item says what a table has to hold of it, which adder
makes it out of the stream of environment steps, and how many rows that takes.

Two rules hold for all kinds. An item never crosses the end of an episode unmarked: the next episode begins a new item,
or a row marked `first`. And the successor of a step is the true one: where an episode is truncated, its final
observation has a row of its own, marked as no transition (`valid` is 0), so that its value can be estimated. `discount`
is zero only where an episode terminated. Items refer to rows that the stream has written.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from cavalcade.experience.stream import Stream
from cavalcade.specs import EnvSpec
from cavalcade.table import Items, RowSpec, Signature, Table
from cavalcade.tree import Tree

CHEAP = 1024  # bytes of rows per step up to which a table has rows for the shortest episodes there can be

Prioritise = Callable[[Tree], np.ndarray]  # `Algorithm.priority`: the priority [N] of items


class Adder(Protocol):
    """Turns the steps of N environments into items."""

    stream: Stream
    steps: int  # steps of each environment since the last item began; 0: the next step begins one and needs its room

    @property
    def unwritten(self) -> int:
        """Steps that were gathered and whose rows were not taken yet."""

    def add(self, obs: Tree, action: np.ndarray, extras: Tree, carry: Tree, step: Any) -> Items | None:
        """Take one step of all N environments (a `cavalcade.step.Step`, arrays [N, ...]); return finished items, if
        any."""

    def state(self) -> dict: ...

    def restore(self, state: dict) -> None: ...


@dataclass(frozen=True)
class Item:
    """A kind of item."""

    reserves: ClassVar[bool] = False  # a queue must have room for an item before its first step is acted

    def signature(self, spec: EnvSpec, carry: Tree, extras: Tree) -> Signature:
        """What a table holds of each item. `carry` and `extras`: zeros, of one environment."""
        raise NotImplementedError

    def adder(
        self, sink: Table, count: int, writer: int = 0, patience: int = 0, priority: Prioritise | None = None
    ) -> Adder:
        """The adder of the `count` environments of one loop, which writes into `sink` (a table with this signature) as
        the writer with this number. `patience`: steps that a finished item may wait before it is inserted; its rows are
        held that long."""
        adder = self._adder(sink, count, writer, priority)
        adder.stream.horizon += patience
        return adder

    def _adder(self, sink: Table, count: int, writer: int, priority: Prioritise | None) -> Adder:
        raise NotImplementedError

    @property
    def steps(self) -> int:
        """The least number of environment steps that one item takes."""
        return 1

    @property
    def at_once(self) -> int:
        """The most items of one environment that one step can finish."""
        return 1

    @property
    def horizon(self) -> int:
        """How many rows of one environment unfinished items can refer to, at most."""
        raise NotImplementedError

    def written_together(self, rows: RowSpec) -> int:
        """The most steps that an adder gathers before it writes their rows."""
        return 1

    def rows_each(self, stack: int) -> tuple[int, int]:
        """Rows that one item needs in an endless episode, and in the shortest episodes there can be."""
        raise NotImplementedError

    def places(self, steps: int, time_limit: int) -> int:
        """How many rows of items `steps` environment steps fill, in episodes of at most `time_limit` steps (0: no
        limit). It is more than `steps` where final observations of truncated episodes have rows of their own."""
        return steps

    def rows_needed(self, rows: RowSpec, size: int, drawn_once: bool) -> int:
        """How many rows `size` items of a table need.

        They suffice for the shortest episodes there can be if that is cheap, or if items are drawn once and none may be
        lost. Otherwise, with large observations, there is one row in 32 more than an endless episode needs: if episodes
        are so short that this does not suffice, the table holds fewer items than its size.
        """
        usual, most = self.rows_each(rows.stack)
        if drawn_once or most * rows.bytes <= CHEAP * usual:
            return size * most
        return size * usual * 33 // 32

    def rows_under_way(self, rows: RowSpec, environments: int, patience: int = 0) -> int:
        """The most rows that an adder of `environments` environments holds, even if all episodes end at every step:
        those to which unfinished items, or items that wait `patience` steps to be sent, can refer."""
        # of steps that are written together, one lot is being gathered, one was just written, one waits to be released
        together = 3 * (self.written_together(rows) - 1)
        return environments * (self.horizon + patience + rows.stack + 2 + together) * (1 + rows.stack)


def sequence(spec: EnvSpec, carry: Tree, extras: Tree, length: int) -> Signature:
    """The signature of items of `length` steps and the observation after them, with the carry before the first.
    `extras`: what is stored with each step beside its action, its reward and what follows from it."""
    scalar = np.zeros((), np.float32)
    done = {"action": spec.action.zeros(), "reward": scalar, "discount": scalar, "valid": scalar, **extras}
    return Signature.sequence(RowSpec(spec.zeros(), done, spec.frames), {"carry": carry} if carry else {}, length + 1)


def done_in(discount: float, action: np.ndarray, extras: Tree, reward: np.ndarray, terminated: np.ndarray) -> dict:
    """What is stored of N rows of a sequence when they were acted on: the action and what came of it, [N, ...] each.
    `discount` becomes 0 where an episode terminated."""
    after = np.full(len(reward), discount, np.float32)
    after[terminated] = 0.0
    valid = np.ones(len(reward), np.float32)
    return {"action": action, "reward": reward, "discount": after, "valid": valid, **extras}
