"""What an environment gives (observations) and takes (actions), as plain data that is stored beside a policy.

A `Leaf` describes one array of an observation or an action; an observation is a tree of leaves (Dict and Tuple spaces
become nested dicts). Values are those of Gymnasium, except that Discrete and MultiDiscrete count from zero here; the
environment adapter adds their `start` again.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from cavalcade import tree

MASK = "action_mask"  # key under which an observation tree carries the legal actions


@dataclass(frozen=True)
class Leaf:
    """One array of an observation, or an action."""

    kind: str  # box, discrete, multi_discrete, multi_binary
    shape: tuple[int, ...]
    dtype: str
    counts: tuple[int, ...] = ()  # discrete: (n,); multi_discrete: the number of choices of each entry
    start: tuple[int, ...] = ()  # Gymnasium's number of the first choice, of each entry
    low: tuple[float, ...] = ()  # of a box: the bound of each entry, flat, or one for all; infinite where unbounded
    high: tuple[float, ...] = ()

    @property
    def logits(self) -> int:
        """How many logits a policy needs for this action: one for each choice of each entry."""
        return sum(self.counts)

    @property
    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Of a box: the lowest and the highest value of each entry, [*shape] float64; infinite where unbounded."""
        low, high = (np.array(bound, np.float64) for bound in (self.low, self.high))
        each_has_its_own = len(low) == math.prod(self.shape)
        full = [b.reshape(self.shape) if each_has_its_own else np.full(self.shape, b[0]) for b in (low, high)]
        return full[0], full[1]

    def zeros(self, *leading: int) -> np.ndarray:
        """[*leading, *shape] zeros."""
        return np.zeros((*leading, *self.shape), self.dtype)


@dataclass(frozen=True)
class EnvSpec:
    """The spec of an environment."""

    environment: str  # its name
    observation: tree.Tree  # of Leaf; has the key MASK if the environment says which actions are legal
    action: Leaf
    frames: int = 1  # frames of an observation that is a stack, on its first axis, oldest first; 1: it is none
    frame_skip: int = 1  # frames that an emulator plays in each environment step
    time_limit: int = 0  # steps after which episodes are truncated; 0: unknown

    @property
    def masked(self) -> bool:
        """Whether observations say which actions are legal."""
        return isinstance(self.observation, dict) and MASK in self.observation

    def zeros(self, *leading: int) -> tree.Tree:
        """An observation of zeros with these leading axes."""
        return tree.map(lambda leaf: leaf.zeros(*leading), self.observation)

    def features(self, *leading: int) -> tree.Tree:
        """An observation of zeros with these leading axes as networks see it, without the mask."""
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
            "time_limit": self.time_limit,
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

        missing = {"frames": 1, "frame_skip": 1, "time_limit": 0}  # what older files lack
        counts = {name: data.get(name, count) for name, count in missing.items()}
        return cls(data["environment"], decode(data["observation"]), decode(data["action"]), **counts)


def _json_floats(value: Any) -> Any:
    """Infinite bounds as strings, because JSON has no infinity."""
    if isinstance(value, (list, tuple)):
        return [str(v) if isinstance(v, float) and math.isinf(v) else v for v in value]
    return value


def _tuple_floats(values: list) -> tuple:
    return tuple(float(v) if isinstance(v, str) else v for v in values)
