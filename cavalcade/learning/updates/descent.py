"""Params and their optimiser's state in NumPy arrays, which may be a slice of all params and in shared memory."""

from itertools import pairwise
from typing import Any

import numpy as np

from cavalcade import tree
from cavalcade.backends import Backend
from cavalcade.learning.groups import Rule
from cavalcade.tree import Tree

LINE = 64  # params: slices begin at multiples, so that each is computed by the same vector instructions


class Descent:
    """Applies gradients to params [n] in NumPy arrays, with the arithmetic of a learner alone."""

    def __init__(self, backend: Backend, rule: Rule, arrays: Tree):
        """`arrays`: {"params": [n], "optimiser": {...}}, as `fresh` makes them; `apply` changes them in place."""
        self.backend, self.arrays, self.rule = backend, arrays, rule
        self.rule.init(backend.vector(arrays["params"]))  # jax's optimiser learns the structure of its state here
        self._update = backend.compile(self._update_text)

    def _update_text(self, arrays: Tree, gradient: Any) -> Tree:
        params, optimiser = self.rule.update(gradient, arrays["optimiser"], arrays["params"])
        return {"params": params, "optimiser": optimiser}

    def apply(self, gradient: np.ndarray) -> None:
        """One step of the optimiser with this gradient [n]. The learner has clipped it, because the norm needs the
        gradient of all params."""
        given = self.backend.from_numpy({"arrays": self.arrays, "gradient": gradient})
        changed = self.backend.to_numpy(self._update(given["arrays"], given["gradient"]))
        for place, leaf in zip(tree.leaves(self.arrays), tree.leaves(changed), strict=True):
            if not np.may_share_memory(place, leaf):  # a backend that changes arrays in place has done it already
                place[...] = leaf

    def finite(self) -> bool:
        """Whether all params are finite, and the optimiser's state too: with an infinite mean square nothing moves any
        more."""
        return all(bool(np.isfinite(leaf).all()) for leaf in tree.leaves(self.arrays))


def fresh(backend: Backend, rule: Rule, params: np.ndarray) -> Tree:
    """The arrays of a `Descent` that begins at these params [n]."""
    made = backend.to_numpy(rule.init(backend.vector(params)))
    return {"params": np.array(params, np.float32), "optimiser": tree.map(np.array, made)}


def slices(size: int, count: int) -> list[slice]:
    """`count` consecutive slices of a vector of `size` params, as equal as multiples of `LINE` allow."""
    lines = -(-size // LINE)
    ends = [min(size, LINE * (lines * i // count)) for i in range(count + 1)]
    return [slice(start, end) for start, end in pairwise(ends)]
