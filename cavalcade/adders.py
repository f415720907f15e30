"""Adders turn the stream of environment steps into what an algorithm learns from, for N environments at once.

Two rules hold by construction. An item never crosses an episode: what follows an end starts a new item or row. And the
successor of a step is the true one: where an episode is truncated its final observation takes a row (or a place) of its
own, marked as no transition, so that the value after the cut can be asked for. `discount` is zero at a true end only.
"""

from typing import Any, Protocol

import numpy as np

from cavalcade import tree
from cavalcade.experience import NStep, Unroll, item_spec
from cavalcade.specs import EnvSpec
from cavalcade.tree import Tree


class Adder(Protocol):
    steps: int  # environment steps since the last unroll was finished
    left_out: int  # transitions that found no room

    def add(
        self, obs: Tree, first: np.ndarray, action: np.ndarray, extras: Tree, carry: Tree, step: Any
    ) -> Tree | None:
        """Take one step of all environments (a `cavalcade.envs.Step`); give finished items [M, ...], if any."""

    def state(self) -> dict: ...

    def restore(self, state: dict) -> None: ...


def make(item: NStep | Unroll, spec: EnvSpec, carry: Tree, extras: Tree, count: int) -> Adder:
    blank = item_spec(item, spec, carry, extras)
    return NStepAdder(item, blank, count) if isinstance(item, NStep) else UnrollAdder(item, blank, count)


class NStepAdder:
    """Every step starts an item; it is finished after n steps, or earlier where its episode ends."""

    def __init__(self, item: NStep, blank: Tree, count: int):
        self.item, self.count, self.clock = item, count, 0
        self.steps, self.left_out = 0, 0  # an item is finished at every step, and there is always room
        n = item.n
        self.start = tree.map(
            lambda leaf: np.zeros((n, count, *leaf.shape), leaf.dtype),
            {"obs": blank["obs"], "action": blank["action"]},
        )
        self.reward = np.zeros((n, count), np.float32)
        self.discount = np.ones((n, count), np.float32)
        self.pending = np.zeros((n, count), np.bool_)

    def add(
        self, obs: Tree, first: np.ndarray, action: np.ndarray, extras: Tree, carry: Tree, step: Any
    ) -> Tree | None:
        slot = self.clock % self.item.n
        self.clock += 1
        tree.assign(self.start, slot, {"obs": obs, "action": action})
        self.reward[slot], self.discount[slot], self.pending[slot] = 0.0, 1.0, step.valid
        self.reward += self.discount * step.reward  # slots that are not pending hold rubbish and are never read
        self.discount *= np.float32(self.item.discount)
        self.discount[:, step.terminated] = 0.0
        ended = step.terminated | step.truncated
        oldest = self.clock % self.item.n
        if (
            not np.count_nonzero(ended) and np.count_nonzero(self.pending[oldest]) == self.count
        ):  # the usual step: one finished item per environment
            self.pending[oldest] = False
            start = tree.map(lambda kept: kept[oldest].copy(), self.start)
            reward, discount = self.reward[oldest].copy(), self.discount[oldest].copy()
            return {**start, "reward": reward, "discount": discount, "next_obs": step.next_observation}
        done = self.pending & ended
        done[oldest] |= self.pending[oldest]
        if not done.any():
            return None
        self.pending &= ~done
        which = np.nonzero(done)
        return {
            **tree.map(lambda kept: kept[which], self.start),
            "reward": self.reward[which],
            "discount": self.discount[which],
            "next_obs": tree.map(lambda leaf: leaf[which[1]], step.next_observation),
        }

    def state(self) -> dict:
        kept = {
            "reward": self.reward,
            "discount": self.discount,
            "pending": self.pending,
            "start": self.start,
        }
        return {"clock": self.clock, **tree.map(np.copy, kept)}

    def restore(self, state: dict) -> None:
        self.clock, self.start = state["clock"], tree.map(np.copy, state["start"])
        self.reward, self.discount = np.copy(state["reward"]), np.copy(state["discount"])
        self.pending = np.copy(state["pending"])


class UnrollAdder:
    """Unrolls of one length for all environments, cut at the same environment step, overlapping by one observation.

    Row t+1 of a column holds the true successor of row t. A column can be shorter than the unroll (an environment
    spent a step on its reset) or would be longer (truncations took rows): the rest is marked invalid, or left out and
    counted.
    """

    def __init__(self, item: Unroll, blank: Tree, count: int):
        self.item, self.count = item, count
        self.columns = np.arange(count)
        per_row = {name: leaf for name, leaf in blank.items() if name != "carry"}
        self.blank = tree.map(lambda leaf: np.zeros((leaf.shape[0], count, *leaf.shape[1:]), leaf.dtype), per_row)
        self.with_carry = "carry" in blank
        self.left_out = 0
        self._begin()

    def _begin(self) -> None:
        self.rows = tree.map(np.copy, self.blank)
        self.steps, self.cursor = 0, np.zeros(self.count, np.int64)
        self.aligned = True  # all cursors equal: rows can be written as slices
        self.carry: Tree = {}

    def add(
        self, obs: Tree, first: np.ndarray, action: np.ndarray, extras: Tree, carry: Tree, step: Any
    ) -> Tree | None:
        if self.steps == 0 and self.with_carry:
            self.carry = tree.map(np.copy, carry)
        self.steps += 1
        discount = np.full(self.count, self.item.discount, np.float32)
        discount[step.terminated] = 0.0
        valid = np.ones(self.count, np.float32)
        row = {
            "obs": obs,
            "action": action,
            "reward": step.reward,
            "discount": discount,
            "first": first,
            "valid": valid,
        }
        row.update(extras)
        cut_short = step.truncated & ~step.terminated
        if self.aligned and np.count_nonzero(step.valid) == self.count:
            self._write_slice(
                row, step.next_observation, bool(np.count_nonzero(cut_short)) or self.steps == self.item.length
            )
        else:
            cut_short &= self._write_columns(row, step.next_observation, step.valid)
        if np.count_nonzero(
            cut_short
        ):  # the final observation keeps the row it was just written to; no transition starts there
            self.cursor += cut_short
            self.aligned = False
        return self._finish() if self.steps == self.item.length else None

    def _write_slice(self, row: Tree, successor: Tree, successor_matters: bool) -> None:
        at = self.steps - 1
        tree.assign(self.rows, at, row)
        if successor_matters:  # else the next step writes the same observation there
            tree.assign(self.rows["obs"], at + 1, successor)
        self.cursor += 1

    def _write_columns(self, row: Tree, successor: Tree, valid: np.ndarray) -> np.ndarray:
        """Write where there is a transition and room for it; says which columns were written."""
        written = valid & (self.cursor < self.item.length)
        self.left_out += int(np.sum(valid & ~written))
        which = self.columns[written]
        at = self.cursor[which]
        tree.assign(self.rows, (at, which), tree.take(row, which))
        tree.assign(self.rows["obs"], (at + 1, which), tree.take(successor, which))
        self.cursor += written
        self.aligned = False
        return written

    def _finish(self) -> Tree:
        items = tree.map(lambda rows: rows.swapaxes(0, 1), self.rows)  # [N, T + 1, ...]
        if self.with_carry:
            items["carry"] = self.carry
        self._begin()
        return items

    def state(self) -> dict:
        return {
            "rows": tree.map(np.copy, self.rows),
            "cursor": self.cursor.copy(),
            "carry": tree.map(np.copy, self.carry) if self.carry else {},
            "steps": self.steps,
            "aligned": self.aligned,
            "left_out": self.left_out,
        }

    def restore(self, state: dict) -> None:
        self.rows, self.cursor = tree.map(np.copy, state["rows"]), np.copy(state["cursor"])
        self.carry = tree.map(np.copy, state["carry"]) if state["carry"] else {}
        self.steps, self.aligned, self.left_out = state["steps"], state["aligned"], state["left_out"]
