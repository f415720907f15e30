"""Outcomes of whole episodes: the return, and the extras with which it was reached. For algorithms that need no single
steps, such as evolution strategies."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from cavalcade import tree
from cavalcade.experience.item import Adder, Item, Prioritise
from cavalcade.experience.stream import Stream
from cavalcade.specs import EnvSpec
from cavalcade.table import Items, RowSpec, Signature, Table
from cavalcade.tree import Tree


@dataclass(frozen=True)
class Outcome(Item):
    """`return` and `length` of an episode, its extras (which say how params were perturbed), and its last observation.
    An episode during which the extras changed makes no item, because its return belongs to none of them."""

    reserves: ClassVar[bool] = True

    def signature(self, spec: EnvSpec, carry: Tree, extras: Tree) -> Signature:
        scalar = np.zeros((), np.float32)
        own = {"return": scalar, "length": scalar, **extras}
        return Signature.sequence(RowSpec(spec.zeros(), {}, spec.frames), own, 1)

    def _adder(self, sink: Table, count: int, writer: int, priority: Prioritise | None) -> Adder:
        return OutcomeAdder(sink, count, writer)

    @property
    def horizon(self) -> int:
        return 2

    def rows_each(self, stack: int) -> tuple[int, int]:
        return 1, 1 + stack


class OutcomeAdder:
    """Sums the rewards of each environment until its episode ends."""

    def __init__(self, sink: Table, count: int, writer: int):
        self.steps, self.unwritten = 0, 0  # an episode may end at every step, and no steps are gathered
        self.stream = Stream(sink, count, writer, 2)
        self.total, self.length = np.zeros(count, np.float32), np.zeros(count, np.float32)
        own = {name: leaf for name, leaf in sink.signature.own.items() if name not in ("return", "length")}
        self.begun = tree.map(lambda leaf: np.zeros((count, *leaf.shape), leaf.dtype), own)
        self.whole = np.ones(count, np.bool_)  # [N] whether the extras are still those of the episode's first step

    def add(self, obs: Tree, action: np.ndarray, extras: Tree, carry: Tree, step: Any) -> Items | None:
        _, end = self.stream.advance(obs, {}, step)
        beginning = self.length == 0
        tree.assign(self.begun, beginning, tree.take(extras, beginning))
        for begun, now in zip(tree.leaves(self.begun), tree.leaves(extras), strict=True):
            self.whole &= (begun == now).reshape(len(now), -1).all(axis=1)
        self.total += np.where(step.valid, step.reward, 0.0)
        self.length += step.valid
        ended = step.valid & (step.terminated | step.truncated)
        done = np.flatnonzero(ended & self.whole)
        items = None
        if len(done):
            own = {"return": self.total, "length": self.length, **self.begun}
            items = Items(end[done][:, None], tree.map(lambda leaf: leaf[done], own))
        self.total[ended], self.length[ended], self.whole[ended] = 0.0, 0.0, True
        return items

    def state(self) -> dict:
        kept = {"total": self.total, "length": self.length, "begun": self.begun, "whole": self.whole}
        return {"stream": self.stream.state(), **tree.map(np.copy, kept)}

    def restore(self, state: dict) -> None:
        self.stream.restore(state["stream"])
        for name, into in (("total", self.total), ("length", self.length), ("whole", self.whole)):
            into[:] = state[name]
        tree.assign(self.begun, ..., state["begun"])
