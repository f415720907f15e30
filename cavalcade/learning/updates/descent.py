"""Parameters and their optimiser in plain arrays, which may be a slice of the whole and may be shared."""

from itertools import pairwise
from typing import Any

import numpy as np

from cavalcade import tree
from cavalcade.backends import Backend
from cavalcade.learning.groups import Rule
from cavalcade.tree import Tree

LINE = 64  # parameters: slices begin at multiples, so that each is computed by the same vector instructions


class Descent:
    """`apply` is one step of the optimiser, the same that a learner alone would make."""

    def __init__(self, backend: Backend, rule: Rule, arrays: Tree):
        """`arrays`: {"params": [n], "optimiser": {...}}, as `fresh` makes them; they are changed in place."""
        self.backend, self.arrays, self.rule = backend, arrays, rule
        self.rule.init(backend.vector(arrays["params"]))  # where an optimiser learns what its state looks like
        self._update = backend.compile(self._update_text)

    def _update_text(self, arrays: Tree, gradient: Any) -> Tree:
        params, optimiser = self.rule.update(gradient, arrays["optimiser"], arrays["params"])
        return {"params": params, "optimiser": optimiser}

    def apply(self, gradient: np.ndarray) -> None:
        """The gradient was clipped by whoever knows all of it."""
        given = self.backend.from_numpy({"arrays": self.arrays, "gradient": gradient})
        changed = self.backend.to_numpy(self._update(given["arrays"], given["gradient"]))
        for place, leaf in zip(tree.leaves(self.arrays), tree.leaves(changed), strict=True):
            if not np.may_share_memory(place, leaf):  # a backend that changes arrays in place has done it already
                place[...] = leaf

    def finite(self) -> bool:
        """An optimiser whose statistics overflow moves nothing any more, so they count too."""
        return all(bool(np.isfinite(leaf).all()) for leaf in tree.leaves(self.arrays))


def fresh(backend: Backend, rule: Rule, params: np.ndarray) -> Tree:
    """Arrays for a descent that begins at these parameters."""
    made = backend.to_numpy(rule.init(backend.vector(params)))
    return {"params": np.array(params, np.float32), "optimiser": tree.map(np.array, made)}


def slices(size: int, count: int) -> list[slice]:
    """`count` slices of a vector, as equal as whole lines allow."""
    lines = -(-size // LINE)
    ends = [min(size, LINE * (lines * i // count)) for i in range(count + 1)]
    return [slice(start, end) for start, end in pairwise(ends)]
