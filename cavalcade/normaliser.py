"""Running mean and variance as a small tree, merged exactly (Chan 1979), on any backend."""

from typing import Any

import numpy as np

from cavalcade.tree import Tree


def fresh(shape: tuple[int, ...]) -> Tree:
    """Moments before anything was seen; the tiny count avoids a division by zero."""
    return {
        "count": np.full((), 1e-4, np.float32),
        "mean": np.zeros(shape, np.float32),
        "variance": np.ones(shape, np.float32),
    }


def merge(xp: Any, moments: Tree, x: Any) -> Tree:
    """The moments after the rows of x [N, ...] too."""
    mean = xp.mean(x, axis=0)
    variance = xp.mean(xp.square(x - mean), axis=0)
    count, new = moments["count"], float(x.shape[0])
    total, shift = count + new, mean - moments["mean"]
    spread = moments["variance"] * count + variance * new + xp.square(shift) * (count * new / total)
    return {"count": total, "mean": moments["mean"] + shift * (new / total), "variance": spread / total}


def scaled(xp: Any, moments: Tree, x: Any, centre: bool = True) -> Any:
    """x in units of its standard deviation, within ten of them."""
    x = x - moments["mean"] if centre else x
    return xp.clip(x / xp.sqrt(moments["variance"] + 1e-8), -10.0, 10.0)
