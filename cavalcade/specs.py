"""What an environment gives and takes, as plain data that can be stored beside a policy.

A `Leaf` describes one array of an observation or an action; an observation is a tree of leaves (Dict and
Tuple spaces become nested dicts). Values are kept as Gymnasium gives them, except that Discrete and
MultiDiscrete count from zero here; the environment adapter adds their `start` back.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from cavalcade import tree
from cavalcade.errors import BadEnvironment

MASK = "action_mask"  # key under which an observation tree carries the legal actions


@dataclass(frozen=True)
class Leaf:
    kind: str  # box, discrete, multi_discrete, multi_binary
    shape: tuple[int, ...]
    dtype: str
    counts: tuple[int, ...] = ()  # discrete: (n,); multi_discrete: the number of choices of each entry
    start: tuple[int, ...] = ()
    low: tuple[float, ...] = ()  # box, flat; infinite where unbounded
    high: tuple[float, ...] = ()

    @property
    def logits(self) -> int:
        """How many numbers choose an action of this kind: one per choice."""
        return sum(self.counts)

    def zeros(self, *leading: int) -> np.ndarray:
        return np.zeros((*leading, *self.shape), self.dtype)


@dataclass(frozen=True)
class EnvSpec:
    environment: str
    observation: tree.Tree  # of Leaf; holds MASK when the environment says which actions are legal
    action: Leaf
    frames: int = 1  # of which an observation is a stack, on its first axis, oldest first: each is stored once
    frame_skip: int = 1  # frames that an emulator plays in each of the agent's steps
    time_limit: int = 0  # steps after which episodes are cut short; 0: the environment does not say

    @property
    def masked(self) -> bool:
        return isinstance(self.observation, dict) and MASK in self.observation

    def zeros(self, *leading: int) -> tree.Tree:
        """An observation of zeros with these leading axes."""
        return tree.map(lambda leaf: leaf.zeros(*leading), self.observation)

    def features(self, *leading: int) -> tree.Tree:
        """An observation of zeros as networks are given it: without the mask."""
        zeros = self.zeros(*leading)
        return {key: part for key, part in zeros.items() if key != MASK} if self.masked else zeros

    def to_json(self) -> dict:
        def encode(node: Any) -> Any:
            if isinstance(node, Leaf):
                return {"leaf": {k: _json_floats(v) for k, v in asdict(node).items()}}
            return {"dict": {key: encode(child) for key, child in node.items()}}

        return {
            "environment": self.environment,
            "observation": encode(self.observation),
            "action": encode(self.action),
            "frames": self.frames,
            "frame_skip": self.frame_skip,
        }

    @classmethod
    def from_json(cls, data: dict) -> "EnvSpec":
        def decode(node: dict) -> Any:
            if "leaf" in node:
                fields: dict[str, Any] = {
                    k: _tuple_floats(v) if isinstance(v, list) else v for k, v in node["leaf"].items()
                }
                return Leaf(**fields)
            return {key: decode(child) for key, child in node["dict"].items()}

        counts = {name: data.get(name, 1) for name in ("frames", "frame_skip")}  # older files have none
        return cls(data["environment"], decode(data["observation"]), decode(data["action"]), **counts)


def _json_floats(value: Any) -> Any:
    """JSON has no infinity, so bounds are written as strings where they are infinite."""
    if isinstance(value, (list, tuple)):
        return [str(v) if isinstance(v, float) and math.isinf(v) else v for v in value]
    return value


def _tuple_floats(values: list) -> tuple:
    return tuple(float(v) if isinstance(v, str) else v for v in values)


def observation_spec(space: gym.Space, path: str = "observation") -> tree.Tree:
    if isinstance(space, gym.spaces.Dict):
        return {key: observation_spec(child, f"{path}.{key}") for key, child in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return {str(i): observation_spec(child, f"{path}.{i}") for i, child in enumerate(space.spaces)}
    return _leaf(space, path)


def action_spec(space: gym.Space) -> Leaf:
    if isinstance(space, (gym.spaces.Discrete, gym.spaces.MultiDiscrete, gym.spaces.Box)):
        leaf = _leaf(space, "action")
        if leaf.kind == "box" and not np.issubdtype(leaf.dtype, np.floating):
            raise BadEnvironment(f"The action space {space} has integers in a Box; use Discrete or MultiDiscrete.")
        return leaf
    raise BadEnvironment(
        f"The action space {type(space).__name__} is not supported; use Discrete, MultiDiscrete or Box."
    )


def action_space(leaf: Leaf) -> gym.Space:
    """The inverse of `action_spec`."""
    if leaf.kind == "discrete":
        return gym.spaces.Discrete(leaf.counts[0], start=leaf.start[0])
    if leaf.kind == "multi_discrete":
        counts, start = (np.reshape(np.array(each, np.int64), leaf.shape) for each in (leaf.counts, leaf.start))
        return gym.spaces.MultiDiscrete(counts, start=start)
    dtype = np.dtype(leaf.dtype)
    each_has_its_own = len(leaf.low) == math.prod(leaf.shape)
    bounds = [np.array(bound, dtype) for bound in (leaf.low, leaf.high)]
    low, high = (b.reshape(leaf.shape) if each_has_its_own else np.full(leaf.shape, b[0], dtype) for b in bounds)
    return gym.spaces.Box(low, high, leaf.shape, dtype.type)


def _leaf(space: gym.Space, path: str) -> Leaf:
    if isinstance(space, gym.spaces.Box):
        low, high = (tuple(float(v) for v in np.ravel(bound)) for bound in (space.low, space.high))
        if len(low) > 64 and len(set(low)) == 1 and len(set(high)) == 1:
            low, high = low[:1], high[:1]  # pixels: the same bounds everywhere
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
