"""What an environment worker tells a central actor: a row of bytes for each environment.

However many things a row says, rows are sent, cut and joined as one array, and what they say is looked at when it is
needed. Of many small arrays, the calls alone would cost the actor more than its forward pass.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from cavalcade import tree
from cavalcade.algorithms import Algorithm, Clock
from cavalcade.specs import EnvSpec
from cavalcade.step import Step
from cavalcade.tree import Tree

FLAGS = ("terminated", "truncated", "valid", "first")
# and beside the rows numbers: of the worker's life, whether it stepped, whether an episode ended, whether it leaves
RUN, STEPPED, ENDED, LEAVES = range(4)


class RequestLayout:
    """Of the rows: what came of the last step, what is to be acted on next, and the noise for it."""

    def __init__(self, algorithm: Algorithm, spec: EnvSpec):
        self.spec = spec
        noise = algorithm.noise(spec, np.random.default_rng(0), 1, Clock(0))
        told: Tree = {"observation": spec.zeros(1), "noise": noise, "reward": np.zeros(1, np.float32)}
        told |= {name: np.zeros(1, np.bool_) for name in FLAGS}
        fields = [(str(i), leaf.dtype, leaf.shape[1:]) for i, leaf in enumerate(tree.leaves(told))]
        self.row = np.dtype(fields, align=True)
        self.names = tree.rebuild(told, (name for name, *_ in fields))

    def blank(self, count: int) -> Tree:
        """A request. The true successors of a step have a place of their own, because they are seldom told: only where
        an episode ended are they not what is to be acted on next."""
        return {
            "rows": np.zeros((count, self.row.itemsize), np.uint8),
            "next_observation": self.spec.zeros(count),
            "about": np.zeros(4, np.int64),
        }

    def fields(self, rows: np.ndarray, *names: str) -> Tree:
        """What rows [N, bytes] say (or these of it), as arrays [N, ...] that look at them."""
        field = np.ndarray(len(rows), self.row, rows).__getitem__
        return {name: tree.map(field, self.names[name]) for name in names or self.names}


class Told:
    """A step, as a worker told of it: has all that a `Step` has."""

    episodes: list = []  # are counted where they are played

    def __init__(self, layout: RequestLayout, heard: "Heard", mine: slice, after: Tree | None):
        """`mine`: which rows of those that were heard. `after`: the successors, where an episode ended."""
        self.layout, self.heard, self.mine, self.after = layout, heard, mine, after

    @property
    def rows(self) -> np.ndarray:
        return self.heard.rows[self.mine]

    @property
    def resets_at_once(self) -> bool:
        return self.after is not None

    def __getattr__(self, name: str) -> Any:
        """Looked at for the first time."""
        if name not in Step._fields:
            raise AttributeError(name)
        told = self.layout.fields(self.rows)
        self.observation, self.reward = told["observation"], told["reward"]
        self.next_observation = told["observation"] if self.after is None else self.after
        for flag in FLAGS:
            setattr(self, flag, np.ascontiguousarray(told[flag]))
        return getattr(self, name)

    @staticmethod
    def joined(steps: Sequence[Any]) -> Any:
        """[N, ...] of each as one [T * N, ...]."""
        if not all(isinstance(step, Told) for step in steps):  # those of a checkpoint are not
            return Step.joined(steps)
        rows = np.concatenate([step.heard.rows[step.mine] for step in steps])
        after = None
        if any(step.after is not None for step in steps):
            after = tree.joined([step.next_observation for step in steps])
        return Told(steps[0].layout, Heard([], rows), slice(None), after)


class Heard:
    """Rows of requests that came together, a copy: a worker's next request overwrites its last."""

    def __init__(self, guests: list, rows: np.ndarray):
        self.guests, self.rows = guests, rows
