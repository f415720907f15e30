"""The noise of acting as a stream: each step's may depend on that of the step before."""

import numpy as np

from cavalcade import tree
from cavalcade.algorithms import Algorithm, Clock
from cavalcade.specs import EnvSpec
from cavalcade.tree import Tree


class NoiseStream:
    """Draws the noise for the steps of `count` environments, one step after the other."""

    def __init__(self, algorithm: Algorithm, spec: EnvSpec, rng: np.random.Generator, count: int):
        """`rng`: stays the caller's, who saves its state."""
        self.algorithm, self.spec, self.rng, self.count = algorithm, spec, rng, count
        self.last: Tree = {}  # [count, ...] the noise of the step before; empty before the first step

    def draw(self, clock: Clock, first: np.ndarray) -> Tree:
        """The noise [count, ...] for acting on the next observations, of which `first` [count] begin an episode."""
        drawn = self.algorithm.noise(self.spec, self.rng, self.count, clock)
        self.last = self.algorithm.correlated(drawn, self.last or drawn, first)
        return self.last

    def state(self) -> Tree:
        return tree.map(np.copy, self.last) if self.last else {}

    def restore(self, state: Tree) -> None:
        self.last = tree.map(np.copy, state) if state else {}
