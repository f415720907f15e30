"""What an algorithm learns from, one at a time: an item says what a table has to hold of it, who makes it out of the
stream of environment steps, and how many rows that takes.

Two rules hold for all of them. An item never crosses an episode unmarked: what follows an end starts a new item, or a
row marked `first`. And the successor of a step is the true one: where an episode is truncated its final observation
takes a row (or a place) of its own, marked as no transition, so that the value after the cut can be asked for.
`discount` is zero at a true end only. Items are references to rows that the stream has written.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from cavalcade.experience.stream import Stream
from cavalcade.specs import EnvSpec
from cavalcade.table import Items, RowSpec, Signature, Table
from cavalcade.tree import Tree

CHEAP = 1024  # bytes per step that may be set aside for the shortest episodes

Prioritise = Callable[[Tree], np.ndarray]  # `Algorithm.priority`: the priority [N] of items


class Adder(Protocol):
    """Turns the steps of N environments into items."""

    stream: Stream
    steps: int  # environment steps since the last item was begun that room is reserved for

    @property
    def unwritten(self) -> int:
        """Steps of which the rows are still to be taken."""

    def add(self, obs: Tree, action: np.ndarray, extras: Tree, carry: Tree, step: Any) -> Items | None:
        """Take one step of all environments (a `cavalcade.step.Step`); give finished items, if any."""

    def state(self) -> dict: ...

    def restore(self, state: dict) -> None: ...


@dataclass(frozen=True)
class Item:
    reserves: ClassVar[bool] = False  # the table must have room for an item before its first step is acted

    def signature(self, spec: EnvSpec, carry: Tree, extras: Tree) -> Signature:
        """What the table has to hold. `carry` and `extras` are of one environment."""
        raise NotImplementedError

    def adder(
        self, sink: Table, count: int, writer: int = 0, patience: int = 0, priority: Prioritise | None = None
    ) -> Adder:
        """For a table with this signature, and the `count` environments of the loop with the number `writer`.
        `patience`: for how many steps a finished item may wait before it is inserted; so long its rows are held."""
        adder = self._adder(sink, count, writer, priority)
        adder.stream.horizon += patience
        return adder

    def _adder(self, sink: Table, count: int, writer: int, priority: Prioritise | None) -> Adder:
        raise NotImplementedError

    @property
    def steps(self) -> int:
        """Environment steps that one item takes, at least."""
        return 1

    @property
    def at_once(self) -> int:
        """Items of one environment that one step may finish."""
        return 1

    @property
    def horizon(self) -> int:
        """Rows of an environment to which unfinished items can refer."""
        raise NotImplementedError

    def written_together(self, rows: RowSpec) -> int:
        """Steps that are gathered before their rows are written, at most."""
        return 1

    def rows_each(self, stack: int) -> tuple[int, int]:
        """Rows that one item needs in an endless episode, and in the shortest episodes that there can be."""
        raise NotImplementedError

    def places(self, steps: int, time_limit: int) -> int:
        """Places of items that this many steps fill, in episodes of at most `time_limit` steps (0: no limit)."""
        return steps

    def rows_needed(self, rows: RowSpec, size: int, drawn_once: bool) -> int:
        """How many rows `size` items of a table need.

        For the shortest episodes there can be, where that is cheap or losing an item would be wrong. Otherwise, with
        large observations, for one in 32 more than an endless episode needs: should episodes be so short that this
        does not suffice, the table holds a little less than its size.
        """
        usual, most = self.rows_each(rows.stack)
        if drawn_once or most * rows.bytes <= CHEAP * usual:
            return size * most
        return size * usual * 33 // 32

    def rows_under_way(self, rows: RowSpec, environments: int, patience: int = 0) -> int:
        """How many rows these environments have under way at most, should all episodes end in every step: those to
        which unfinished items, or items that wait for `patience` steps to be sent, can refer."""
        # of those that are written together, as many are being gathered, were just written, and wait to be released
        together = 3 * (self.written_together(rows) - 1)
        return environments * (self.horizon + patience + rows.stack + 2 + together) * (1 + rows.stack)


def sequence(spec: EnvSpec, carry: Tree, extras: Tree, length: int) -> Signature:
    """Of items of `length` steps and the observation after them, with the carry before them."""
    scalar = np.zeros((), np.float32)
    done = {"action": spec.action.zeros(), "reward": scalar, "discount": scalar, "valid": scalar, **extras}
    return Signature.sequence(RowSpec(spec.zeros(), done, spec.frames), {"carry": carry} if carry else {}, length + 1)


def done_in(discount: float, action: np.ndarray, extras: Tree, reward: np.ndarray, terminated: np.ndarray) -> dict:
    """The second part of the rows of a sequence: what was done on the observation, and what came of it."""
    after = np.full(len(reward), discount, np.float32)
    after[terminated] = 0.0
    valid = np.ones(len(reward), np.float32)
    return {"action": action, "reward": reward, "discount": after, "valid": valid, **extras}
