"""What an environment worker tells a central actor: a record of bytes for each environment.

A record has many fields, but the records of a request (its `rows`) are sent, cut and joined as one array [N, bytes],
and a field is read when it is needed. With an array for each field, the calls alone would cost the central actor more
than its forward pass.
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
# `about`, four numbers beside the records: the worker's run (another number means that other episodes have begun), and
# whether the request tells of a step, whether an episode ended in that step, whether the worker leaves
RUN, STEPPED, ENDED, LEAVES = range(4)


class RequestLayout:
    """The fields of a record: what came of the last step, the observation to act on next, and the noise for it."""

    def __init__(self, algorithm: Algorithm, spec: EnvSpec):
        self.spec = spec
        noise = algorithm.noise(spec, np.random.default_rng(0), 1, Clock(0))
        told: Tree = {"observation": spec.zeros(1), "noise": noise, "reward": np.zeros(1, np.float32)}
        told |= {name: np.zeros(1, np.bool_) for name in FLAGS}
        fields = [(str(i), leaf.dtype, leaf.shape[1:]) for i, leaf in enumerate(tree.leaves(told))]
        self.row = np.dtype(fields, align=True)
        self.names = tree.rebuild(told, (name for name, *_ in fields))

    def blank(self, count: int) -> Tree:
        """An empty request of `count` environments. The true successors of a step have an array of their own, because
        they are seldom sent: only where an episode ended do they differ from the observations to act on next."""
        return {
            "rows": np.zeros((count, self.row.itemsize), np.uint8),
            "next_observation": self.spec.zeros(count),
            "about": np.zeros(4, np.int64),
        }

    def fields(self, rows: np.ndarray, *names: str) -> Tree:
        """Fields of records [N, bytes], all or the named ones, as views [N, ...] of the same memory."""
        field = np.ndarray(len(rows), self.row, rows).__getitem__
        return {name: tree.map(field, self.names[name]) for name in names or self.names}


class Told:
    """A step as a worker told of it. Has the fields of a `Step`, which are read from the records when one is needed."""

    episodes: list = []  # the worker counts them itself

    def __init__(self, layout: RequestLayout, heard: "Heard", mine: slice, after: Tree | None):
        """`mine`: this worker's part of the records in `heard`. `after`: successors [N, ...] if an episode ended."""
        self.layout, self.heard, self.mine, self.after = layout, heard, mine, after

    @property
    def rows(self) -> np.ndarray:
        return self.heard.rows[self.mine]

    @property
    def resets_at_once(self) -> bool:
        return self.after is not None

    def __getattr__(self, name: str) -> Any:
        """Called for a field that was not read yet: reads all fields."""
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
        """Steps with arrays [N, ...] as one with arrays [T * N, ...]."""
        if not all(isinstance(step, Told) for step in steps):  # those from a checkpoint are plain `Step`s
            return Step.joined(steps)
        rows = np.concatenate([step.heard.rows[step.mine] for step in steps])
        after = None
        if any(step.after is not None for step in steps):
            after = tree.joined([step.next_observation for step in steps])
        return Told(steps[0].layout, Heard([], rows), slice(None), after)


class Heard:
    """Records of requests that were read together. They are a copy: a worker's next request overwrites its last."""

    def __init__(self, guests: list, rows: np.ndarray):
        self.guests, self.rows = guests, rows
