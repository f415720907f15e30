"""How gradients become updates: a learner's own, with others by all-reduce, through a parameter server, or lock-free.

Each is a class with `update(items)`, a generator: it yields whether it moved as long as others have to move first, and
returns the mean of each metric. So a learner never blocks, on any runtime, and in one process the order is fixed.

An architecture gives a learner's worker a recipe, plain data that is called with the learner and its partners, the
nodes that it makes updates with: `Alone` here, `ByServers`, `ByAllReduce` and `Unlocked` beside their nodes.
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Protocol

from cavalcade.learning.learner import Learner

Work = Generator[bool, None, dict[str, float]]


class Updates(Protocol):
    learned_with: int | None  # version of the params of the last gradient, where others change them; None: our own

    def update(self, items: Any) -> Work: ...

    def counted(self) -> dict[str, float]:
        """What was dropped and why, since the last time; for the report."""


class Recipe(Protocol):
    def __call__(self, learner: Learner, partners: list) -> Updates: ...


class Own:
    """The learner alone: all updates of a draw in one call."""

    learned_with: int | None = None

    def __init__(self, learner: Learner):
        self.learner = learner

    def update(self, items: Any) -> Work:
        yield from ()  # nobody to wait for
        return self.learner.update(items)

    def counted(self) -> dict[str, float]:
        return {}


@dataclass(frozen=True)
class Alone:
    def __call__(self, learner: Learner, partners: list) -> Own:
        return Own(learner)


ALONE = Alone()


class Means:
    """The mean of each metric over updates, or over draws."""

    def __init__(self) -> None:
        self.sums: dict[str, float] = {}
        self.count = 0

    def add(self, metrics: dict[str, float]) -> None:
        self.count += 1
        for name, value in metrics.items():
            self.sums[name] = self.sums.get(name, 0.0) + value

    def given(self) -> dict[str, float]:
        return {name: total / self.count for name, total in self.sums.items()}
