"""The stream of an actor's environments as rows of a table: each observation is written once, when it is first seen.

Adders refer to these rows. A row is held for a while after it was written, until every item that can begin or end there
has been inserted; from then on it lives as long as the items do.
"""

from collections import deque
from typing import Any

import numpy as np

from cavalcade import tree
from cavalcade.errors import UserError
from cavalcade.table import Table
from cavalcade.table.rows import ORIGIN, observed
from cavalcade.tree import Tree

WATCHED = 32  # steps in which the claim that observations are stacks of frames is verified


class Stream:
    def __init__(self, table: Table, count: int, writer: int, horizon: int):
        """`horizon`: for how many steps an item can refer back."""
        self.table, self.rows, self.count, self.writer = table, table.rows, count, writer
        self.stack, self.horizon = self.rows.spec.stack, horizon + self.rows.spec.stack
        self.here: np.ndarray | None = None  # [N] row of the observation to act on
        self.held: deque[np.ndarray] = deque()  # rows taken at each of the last steps
        self.origin = np.zeros((count, 3), np.int32)  # environment, episode, step
        self.origin[:, 0] = np.arange(writer * count, (writer + 1) * count)
        self.everyone, self.never = np.arange(count), np.zeros(count, np.bool_)
        self.steps = 0

    def advance(self, obs: Tree, done: dict, step: Any) -> tuple[np.ndarray, np.ndarray]:
        """Take one step of all environments: rows of the observations that were acted on and of their successors,
        [N] each; 0 where there was no transition."""
        if len(self.held) > self.horizon:
            self.rows.release(self.held.popleft())
        if self.here is None:
            self.here = self._begin(obs, self.everyone)
        start = self.here
        all_valid = np.count_nonzero(step.valid) == self.count
        which = self.everyone if all_valid else self.everyone[step.valid]
        acted = start if all_valid else start[which]
        if done:
            self.rows.done.write(acted, done if all_valid else {k: np.asarray(v)[which] for k, v in done.items()})
        self.origin[which, 2] += 1
        after = self._write(step.next_observation if all_valid else tree.take(step.next_observation, which), which)
        if self.stack > 1:
            self.rows.previous[after] = acted
            if self.steps < WATCHED:
                self._verify(obs, step.next_observation, which)
        end = after
        if not all_valid:
            end = np.zeros(self.count, np.int32)
            end[which] = after
            start = np.where(step.valid, start, 0).astype(np.int32)
        self.here = end
        if np.count_nonzero(step.first):
            new = self.everyone[step.first]
            self.here = end.copy()
            self.here[new] = self._begin(tree.take(step.observation, new), new)
        self.steps += 1
        return start, end

    def _write(self, obs: Tree, which: np.ndarray) -> np.ndarray:
        """Rows of observations inside an episode; of a stack, the newest frame."""
        slots = self.table.take_rows(len(which), self.writer)
        self.held.append(slots)
        if self.stack > 1:
            obs = obs[:, -1]
        first = self.never[: len(which)]
        self.rows.seen.write(slots, {**observed(obs), "first": first, ORIGIN: self.origin[which]})
        return slots

    def _begin(self, obs: Tree, which: np.ndarray) -> np.ndarray:
        """Rows of the first observations of episodes; a stack's older frames get rows of their own before them."""
        self.origin[which, 1] += 1
        self.origin[which, 2] = 0
        count = len(which)
        slots = self.table.take_rows(count * self.stack, self.writer)
        if self.held:  # they belong to the step that is being taken
            self.held[-1] = np.concatenate([self.held[-1], slots])
        else:
            self.held.append(slots)
        frames = [obs[:, i] for i in range(self.stack)] if self.stack > 1 else [obs]
        before = np.zeros(count, np.int32)
        for i, frame in enumerate(frames):
            here = slots[i * count : (i + 1) * count]
            first = np.full(count, i == self.stack - 1)
            self.rows.seen.write(here, {**observed(frame), "first": first, ORIGIN: self.origin[which]})
            self.rows.previous[here] = before
            before = here
        return before

    def blank(self, slots: np.ndarray) -> None:
        """No action was or will be taken from these rows."""
        zeros = {name: np.zeros((len(slots), *leaf.shape), leaf.dtype) for name, leaf in self.rows.spec.done.items()}
        if zeros:
            self.rows.done.write(slots, zeros)

    def _verify(self, obs: Tree, after: Tree, which: np.ndarray) -> None:
        if not np.array_equal(obs[which, 1:], after[which, :-1]):
            raise UserError(
                f"The observations are declared to be stacks of {self.stack} frames, but a step did not push them on "
                "by one frame; use an environment without this declaration."
            )

    def state(self) -> dict:
        return {
            "here": np.zeros(0, np.int32) if self.here is None else self.here.copy(),
            "held": np.concatenate([np.zeros(0, np.int32), *self.held]),
            "held_at_each": np.array([len(slots) for slots in self.held], np.int64),
            "origin": self.origin.copy(),
            "steps": self.steps,
        }

    def restore(self, state: dict) -> None:
        self.here = np.copy(state["here"]) if len(state["here"]) else None
        ends = np.cumsum(state["held_at_each"])
        self.held = deque(np.copy(slots) for slots in np.split(state["held"], ends)[:-1])
        self.origin[:] = state["origin"]
        self.steps = state["steps"]

    def begin_again(self, state: dict) -> None:
        """Go on with new episodes: rows that finished items still wait to refer to are held a little longer."""
        self.restore(state)
        self.here = None
