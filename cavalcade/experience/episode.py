"""Whole episodes as items; an episode that is longer than an item goes on in the next item."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from cavalcade import tree
from cavalcade.experience.item import Adder, Item, Prioritise, done_in, sequence
from cavalcade.experience.stream import Stream
from cavalcade.specs import EnvSpec
from cavalcade.table import Items, Signature, Table
from cavalcade.tree import Tree


@dataclass(frozen=True)
class Episode(Item):
    """A whole episode of up to `length` steps and the observation after them; longer episodes come in pieces."""

    length: int
    discount: float

    def signature(self, spec: EnvSpec, carry: Tree, extras: Tree) -> Signature:
        return sequence(spec, carry, extras, self.length)

    def _adder(self, sink: Table, count: int, writer: int, priority: Prioritise | None) -> Adder:
        return EpisodeAdder(self, sink, count, writer)

    @property
    def horizon(self) -> int:
        return self.length + 1

    def rows_each(self, stack: int) -> tuple[int, int]:
        return self.length, (self.length + 1) * stack


class EpisodeAdder:
    """Gathers the rows of each environment until its episode ends or `length` steps are there."""

    def __init__(self, item: Episode, sink: Table, count: int, writer: int = 0):
        self.item, self.count, self.steps, self.unwritten = item, count, 0, 0
        self.stream = Stream(sink, count, writer, item.length + 1)
        self.with_carry = "carry" in sink.signature.own
        self.slots = np.zeros((count, item.length + 1), np.int32)  # [N, length + 1] rows of the unfinished items
        self.cursor = np.zeros(count, np.int64)  # [N] steps that each of them has
        self.carry: Tree = {}  # [N, ...] before the first step of each

    def add(self, obs: Tree, action: np.ndarray, extras: Tree, carry: Tree, step: Any) -> Items | None:
        if self.with_carry:
            self._remember(carry)
        done = done_in(self.item.discount, action, extras, step.reward, step.terminated)
        start, end = self.stream.advance(obs, done, step)
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
        """Keep the carry where an item begins."""
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
