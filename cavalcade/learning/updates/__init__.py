"""How gradients become updates: by a learner alone, by all-reduce, by parameter servers, or by hogwild.

Each way is a class with `update(items)`, a generator. While it has to wait for other nodes it yields whether it moved;
in the end it returns the mean of each metric. So a learner never blocks, on any runtime, and in one process the order
of all nodes' steps is fixed.

An architecture gives a learner's worker a recipe: plain data that is called with the learner and its partners, the
nodes that it makes updates with. `Alone` is here; `ByServers`, `ByAllReduce` and `Unlocked` are beside their nodes.
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Protocol

from cavalcade.learning.learner import Learner

Work = Generator[bool, None, dict[str, float]]


class Updates(Protocol):
    """How one learner makes its updates."""

    # version of the params that the last draw's first gradient was made with; None: the version published last
    learned_with: int | None

    def update(self, items: Any) -> Work:
        """Make all updates of one draw of items [B, ...]."""

    def counted(self) -> dict[str, float]:
        """For the report: how many gradients were dropped since the last call, by reason."""


class Recipe(Protocol):
    """Makes the `Updates` of a learner, in the learner's process."""

    def __call__(self, learner: Learner, partners: list) -> Updates: ...


class Own:
    """The learner makes its updates alone, all updates of a draw in one call."""

    learned_with: int | None = None

    def __init__(self, learner: Learner):
        self.learner = learner

    def update(self, items: Any) -> Work:
        yield from ()  # a generator that waits for no other node
        return self.learner.update(items)

    def counted(self) -> dict[str, float]:
        return {}


@dataclass(frozen=True)
class Alone:
    """The recipe of `Own`."""

    def __call__(self, learner: Learner, partners: list) -> Own:
        return Own(learner)


ALONE = Alone()


class Means:
    """The mean of each metric over the updates of a draw, or over draws."""

    def __init__(self) -> None:
        self.sums: dict[str, float] = {}
        self.count = 0

    def add(self, metrics: dict[str, float]) -> None:
        self.count += 1
        for name, value in metrics.items():
            self.sums[name] = self.sums.get(name, 0.0) + value

    def given(self) -> dict[str, float]:
        return {name: total / self.count for name, total in self.sums.items()}
