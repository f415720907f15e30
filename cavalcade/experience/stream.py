"""The stream: the steps of an actor's environments as rows of a table. Each observation is written once.

Adders make items that refer to these rows. The stream holds a row until every item that can refer to it has been
inserted; from then on the row stays as long as such items are in a table. Writing many steps together costs hardly more
than writing one, so unrolls write many at once.
"""

from collections import deque
from typing import Any

import numpy as np

from cavalcade import tree
from cavalcade.errors import UserError
from cavalcade.table import ORIGIN, Table, observed
from cavalcade.tree import Tree

WATCHED = 32  # first steps, in which `verify` checks that observations are stacks of frames, as declared


class Stream:
    """Writes the steps of `count` environments (N below) into `table`, as the writer with this number."""

    def __init__(self, table: Table, count: int, writer: int, horizon: int):
        """`horizon`: how many steps back an item under way can refer."""
        self.table, self.rows, self.count, self.writer = table, table.rows, count, writer
        self.stack, self.horizon = self.rows.spec.stack, horizon + self.rows.spec.stack
        self.here: np.ndarray | None = None  # [N] slots of the observations to act on next
        self.held: deque[tuple[int, np.ndarray]] = deque()  # `steps` when rows were taken, and their slots
        self.origin = np.zeros((count, 3), np.int32)  # environment, episode and step of `here`
        self.origin[:, 0] = np.arange(writer * count, (writer + 1) * count)
        self.steps = 0  # of each environment so far

    def begin(self, obs: Tree) -> None:
        """Write the observations [N, ...] to act on, if the stream has none yet. Later ones are written as successors
        of the step before."""
        if self.here is None:
            self.origin[:, 1] += 1
            self.origin[:, 2] = 0
            self.here = self._write_first(obs, self.origin, self.steps + 1)

    def advance(self, obs: Tree, done: dict, step: Any) -> tuple[np.ndarray, np.ndarray]:
        """Take one step of all environments; `done`: [N, ...] what is stored of it. Returns the slots of the
        observations that were acted on and of their successors, [N] each; 0 where there was no transition."""
        self.begin(obs)
        self.verify(obs, step)
        start, end = self.advance_all(1, done, step)
        return start[0], end[0]

    def advance_all(self, steps: int, done: dict, step: Any) -> tuple[np.ndarray, np.ndarray]:
        """As `advance`, for T = `steps` steps: `done` and `step` are [T * N, ...]; returns slots [T, N] each."""
        assert self.here is not None
        while self.held and self.steps - self.held[0][0] >= self.horizon:
            self.rows.release(self.held.popleft()[1])
        shape = (steps, self.count)
        self.steps += steps
        valid, first, obs = step.valid.reshape(shape), step.first.reshape(shape), step.next_observation
        all_valid, some_first = np.count_nonzero(valid) == valid.size, np.count_nonzero(first) > 0
        origin, begun = self._origins(valid, first if some_first else None)
        if all_valid:
            after = self._write(obs, origin.reshape(-1, 3))
            end = after.reshape(shape)
        else:
            obs, done = (tree.take(leaves, step.valid) for leaves in (obs, done))
            after, end = self._write(obs, origin[valid]), np.zeros(shape, np.int32)
            end[valid] = after
        here = end
        if some_first:
            here = end.copy()
            here[first] = self._write_first(tree.take(step.observation, step.first), begun, self.steps)
        start = np.concatenate([self.here[None], here[:-1]]) if steps > 1 else self.here[None]
        self.here = here[-1]
        acted = start.reshape(-1) if all_valid else start[valid]
        if self.stack > 1:
            self.rows.previous[after] = acted
        if done:
            self.rows.done.write(acted, done)
        return start if all_valid else np.where(valid, start, np.int32(0)), end

    def _origins(self, valid: np.ndarray, first: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
        """Origins [T, N, 3] of the rows after each step, and [M, 3] of the rows with which episodes begin."""
        origin = np.empty((*valid.shape, 3), np.int32)
        origin[:] = self.origin
        steps = origin[..., 2]
        steps += valid if len(valid) == 1 else np.cumsum(valid, 0, np.int32)
        if first is None:
            self.origin[:, 2] = steps[-1]
            return origin, None
        episodes = np.cumsum(first, 0, np.int32)
        # [T, N] the count at the last end of an episode; `steps` counts on over ends until it is subtracted
        ended_at = np.maximum.accumulate(np.where(first, steps, 0))
        begun = origin[first]
        begun[:, 1] += episodes[first]
        begun[:, 2] = 0
        self.origin[:, 1] += episodes[-1]
        self.origin[:, 2] = steps[-1] - ended_at[-1]
        origin[1:, :, 1] += episodes[:-1]
        steps[1:] -= ended_at[:-1]
        return origin, begun

    def _write(self, obs: Tree, origin: np.ndarray) -> np.ndarray:
        """Write observations [M, ...] inside episodes, of a stack the newest frame; returns their slots [M]."""
        slots = self.table.take_rows(len(origin), self.writer)
        self.held.append((self.steps, slots))
        seen = observed(obs[:, -1] if self.stack > 1 else obs)
        seen["first"], seen[ORIGIN] = np.zeros(len(origin), np.bool_), origin
        self.rows.seen.write(slots, seen)
        return slots

    def _write_first(self, obs: Tree, origin: Any, steps: int) -> np.ndarray:
        """Write the first observations [M, ...] of episodes; returns their slots [M]. The older frames of a stack get
        rows of their own before them."""
        count = len(origin)
        slots = self.table.take_rows(count * self.stack, self.writer)
        self.held.append((steps, slots))
        frames = [obs[:, i] for i in range(self.stack)] if self.stack > 1 else [obs]
        before = np.zeros(count, np.int32)
        for i, frame in enumerate(frames):
            here = slots[i * count : (i + 1) * count]
            first = np.full(count, i == self.stack - 1)
            self.rows.seen.write(here, {**observed(frame), "first": first, ORIGIN: origin})
            self.rows.previous[here] = before
            before = here
        return before

    def blank(self, slots: np.ndarray) -> None:
        """Write zeros as what was done on these rows: nobody acts on the final observation of a truncated episode."""
        zeros = {name: np.zeros((len(slots), *leaf.shape), leaf.dtype) for name, leaf in self.rows.spec.done.items()}
        if zeros:
            self.rows.done.write(slots, zeros)

    def verify(self, obs: Tree, step: Any) -> None:
        """During the first `WATCHED` steps, raise a UserError if a step did not move a stack of frames on by one
        frame."""
        if self.stack == 1 or self.steps >= WATCHED:
            return
        if not np.array_equal(obs[step.valid, 1:], step.next_observation[step.valid, :-1]):
            raise UserError(
                f"The observations are declared to be stacks of {self.stack} frames, but a step did not push them on "
                "by one frame; use an environment without this declaration."
            )

    def state(self) -> dict:
        return {
            "here": np.zeros(0, np.int32) if self.here is None else self.here.copy(),
            "held": np.concatenate([np.zeros(0, np.int32), *(slots for _, slots in self.held)]),
            "held_at_once": np.array([(steps, len(slots)) for steps, slots in self.held], np.int64).reshape(-1, 2),
            "origin": self.origin.copy(),
            "steps": self.steps,
        }

    def restore(self, state: dict) -> None:
        self.here = np.copy(state["here"]) if len(state["here"]) else None
        steps, counts = state["held_at_once"].T
        parts = np.split(state["held"], np.cumsum(counts))[:-1]
        self.held = deque((number, np.copy(slots)) for number, slots in zip(steps.tolist(), parts))
        self.origin[:] = state["origin"]
        self.steps = state["steps"]

    def begin_again(self, state: dict) -> None:
        """Restore, and go on with new episodes. Rows that finished items can refer to stay held, as usual. The
        first rows of episodes of which no step was written are released at once: no item refers to them."""
        self.restore(state)
        self.here = None
        if self.held and self.held[-1][0] > self.steps:
            self.rows.release(self.held.pop()[1])
