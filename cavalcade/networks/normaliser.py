"""Moments: running count, mean and variance as a small tree, merged exactly (Chan 1979), on any backend."""

from typing import Any

import numpy as np

from cavalcade.tree import Tree


def fresh(shape: tuple[int, ...]) -> Tree:
    """The moments of arrays of this shape before any was seen; the tiny count avoids a division by zero."""
    return {
        "count": np.full((), 1e-4, np.float32),
        "mean": np.zeros(shape, np.float32),
        "variance": np.ones(shape, np.float32),
    }


def merge(xp: Any, moments: Tree, x: Any, weight: Any = None) -> Tree:
    """The moments after the rows of x [N, ...], too; `weight` [N] is 0 for rows that do not count, else 1."""
    if weight is None:
        new, share = float(x.shape[0]), 1.0 / x.shape[0]
    else:
        new = xp.sum(weight)
        share = xp.reshape(weight, (-1, *(1,) * (x.ndim - 1))) / xp.clip(new, 1.0, None)
    mean = xp.sum(x * share, axis=0)
    variance = xp.sum(xp.square(x - mean) * share, axis=0)
    count = moments["count"]
    total, shift = count + new, mean - moments["mean"]
    spread = moments["variance"] * count + variance * new + xp.square(shift) * (count * new / total)
    return {"count": total, "mean": moments["mean"] + shift * (new / total), "variance": spread / total}


def scaled(xp: Any, moments: Tree, x: Any, centre: bool = True) -> Any:
    """x in units of its standard deviation, clipped to -10 .. 10; minus its mean if `centre`."""
    x = x - moments["mean"] if centre else x
    return xp.clip(x / xp.sqrt(moments["variance"] + 1e-8), -10.0, 10.0)
