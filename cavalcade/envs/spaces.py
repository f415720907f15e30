"""Gymnasium's spaces as specs, and back."""

import math
from dataclasses import replace

import gymnasium as gym
import numpy as np

from cavalcade import tree
from cavalcade.errors import BadEnvironment
from cavalcade.specs import Leaf

UNBOUNDED = 1e10  # the largest number in MuJoCo: dm_control declares it where an action has no bound


def observation_spec(space: gym.Space, path: str = "observation") -> tree.Tree:
    """A space as a tree of leaves; `path` names it in messages."""
    if isinstance(space, gym.spaces.Dict):
        return {key: observation_spec(child, f"{path}.{key}") for key, child in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return {str(i): observation_spec(child, f"{path}.{i}") for i, child in enumerate(space.spaces)}
    return _leaf(space, path)


def action_spec(space: gym.Space) -> Leaf:
    """A space of actions as one leaf; Dict, Tuple and integer Box are refused. Bounds of `UNBOUNDED` or more are
    infinite in it."""
    if isinstance(space, (gym.spaces.Discrete, gym.spaces.MultiDiscrete, gym.spaces.Box)):
        leaf = _leaf(space, "action")
        if leaf.kind == "box" and not np.issubdtype(leaf.dtype, np.floating):
            raise BadEnvironment(f"The action space {space} has integers in a Box; use Discrete or MultiDiscrete.")
        low, high = (
            tuple(v if abs(v) < UNBOUNDED else math.copysign(math.inf, v) for v in b) for b in (leaf.low, leaf.high)
        )
        return replace(leaf, low=low, high=high)
    raise BadEnvironment(
        f"The action space {type(space).__name__} is not supported; use Discrete, MultiDiscrete or Box."
    )


def action_space(leaf: Leaf) -> gym.Space:
    """The Gymnasium space of a leaf: the inverse of `action_spec`."""
    if leaf.kind == "discrete":
        return gym.spaces.Discrete(leaf.counts[0], start=leaf.start[0])
    if leaf.kind == "multi_discrete":
        counts, start = (np.reshape(np.array(each, np.int64), leaf.shape) for each in (leaf.counts, leaf.start))
        return gym.spaces.MultiDiscrete(counts, start=start)
    dtype = np.dtype(leaf.dtype)
    low, high = (bound.astype(dtype) for bound in leaf.bounds)
    return gym.spaces.Box(low, high, leaf.shape, dtype.type)


def _leaf(space: gym.Space, path: str) -> Leaf:
    """A space that is one array as a leaf; others are refused."""
    if isinstance(space, gym.spaces.Box):
        low, high = (tuple(float(v) for v in np.ravel(bound)) for bound in (space.low, space.high))
        if len(low) > 64 and len(set(low)) == 1 and len(set(high)) == 1:
            low, high = low[:1], high[:1]  # many entries with the same bounds, such as pixels: kept once
        return Leaf("box", tuple(space.shape), str(space.dtype), low=low, high=high)
    if isinstance(space, gym.spaces.Discrete):
        return Leaf("discrete", (), "int64", (int(space.n),), (int(space.start),))
    if isinstance(space, gym.spaces.MultiDiscrete):
        counts = tuple(int(n) for n in np.ravel(space.nvec))
        return Leaf(
            "multi_discrete",
            tuple(space.shape),
            "int64",
            counts,
            tuple(int(s) for s in np.ravel(space.start)),
        )
    if isinstance(space, gym.spaces.MultiBinary):
        return Leaf("multi_binary", tuple(space.shape), "int8", (2,) * int(np.prod(space.shape)))
    raise BadEnvironment(
        f"The {path} space {type(space).__name__} is not supported; "
        "use Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple."
    )
