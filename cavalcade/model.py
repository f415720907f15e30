"""A model: torso, optional memory and named heads over one observation, with the normaliser inside.

What acts, what learns, what is evaluated and what is exported is this one object, so observation statistics, masks
and memory can never be left behind. `apply` takes any leading axes: [B, ...] when acting, [T, B, ...] when learning.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from cavalcade import normaliser, tree
from cavalcade.convolutions import is_image
from cavalcade.layers import Network
from cavalcade.networks import Lstm, Torso, torso
from cavalcade.specs import MASK, EnvSpec, Leaf
from cavalcade.tree import Tree

Head = Callable[[int], Network]  # number of features -> network


@dataclass(frozen=True)
class Model:
    spec: EnvSpec
    torsos: dict[str, Network]  # "shared", or one per head
    heads: dict[str, Network]
    memory: Lstm | None
    normalised: tuple[str, ...]  # observation paths with running statistics

    @property
    def small(self) -> bool:
        return all(network.small for network in self.torsos.values())

    @property
    def backend(self) -> str | None:
        """The only backend that can run this model, if a user's module is part of it."""
        return next((n.backend for n in self.torsos.values() if n.backend), None)

    def init(self, rng: np.random.Generator) -> Tree:
        params = {
            "torso": {name: network.init(rng) for name, network in self.torsos.items()},
            "head": {name: network.init(rng) for name, network in self.heads.items()},
        }
        return {**params, "memory": self.memory.init(rng)} if self.memory else params

    def carry(self, batch: int) -> Tree:
        """What the model remembers before an episode: nothing, or zeros."""
        return self.memory.carry(batch) if self.memory else {}

    def apply(
        self, xp: Any, params: Tree, statistics: Tree, obs: Tree, carry: Tree, first: Any, only: str = ""
    ) -> tuple[dict, Tree]:
        """Outputs of every head (or of one), {name: [..., features]}, and the carry after the last step."""
        leading = self._leading(obs)
        flat = self._prepare(xp, statistics, obs, leading)
        torsos, heads = params.get("torso", {}), params["head"]  # a torso may have no parameters at all
        shared = None
        if "shared" in self.torsos:
            shared = self.torsos["shared"].apply(xp, torsos.get("shared", {}), flat)
        if self.memory:
            steps = (1, *leading) if len(leading) == 1 else leading  # acting: one step
            x = xp.reshape(shared, (*steps, -1))
            y, carry = self.memory.apply(xp, params["memory"], x, carry, xp.reshape(first, steps))
            shared = xp.reshape(y, (-1, self.memory.size))
        outputs = {}
        for name in (only,) if only else self.heads:
            features = self.torsos[name].apply(xp, torsos.get(name, {}), flat) if shared is None else shared
            y = self.heads[name].apply(xp, heads[name], features)
            outputs[name] = y if len(leading) == 1 else xp.reshape(y, (*leading, -1))
        return outputs, carry

    def _leading(self, obs: Tree) -> tuple[int, ...]:
        spec = self.spec.observation
        leaf, array = (spec, obs) if isinstance(spec, Leaf) else (tree.leaves(spec)[0], tree.leaves(obs)[0])
        return tuple(array.shape[: array.ndim - len(leaf.shape)])

    def _prepare(self, xp: Any, statistics: Tree, obs: Tree, leading: tuple[int, ...]) -> Tree:
        """[..., shape] -> [N, shape], normalised, without the mask."""
        if len(leading) == 1 and not self.normalised and isinstance(self.spec.observation, Leaf):
            return obs  # acting on one array: nothing to do
        size = prod(leading)

        def prepared(spec: Tree, x: Any, path: str) -> Tree:
            if isinstance(spec, dict):  # by key and not by path, because a key may hold a slash
                inner = [(key, f"{path}/{key}" if path else key) for key in spec]
                return {key: prepared(spec[key], x[key], longer) for key, longer in inner if longer != MASK}
            x = x if len(leading) == 1 else xp.reshape(x, (size, *spec.shape))
            if path in self.normalised:
                x = normaliser.scaled(xp, statistics[_key(path)], xp.astype(x, xp.float32))
            return x

        return prepared(self.spec.observation, obs, "")

    def statistics(self) -> Tree:
        """Running mean and variance of the normalised observations, before any was seen."""
        leaves = dict(tree.named(self.spec.observation))
        return {_key(path): normaliser.fresh(leaves[path].shape) for path in self.normalised}

    def observe(self, xp: Any, statistics: Tree, obs: Tree, weight: Any = None) -> Tree:
        """The statistics after these observations [..., shape] too; where `weight` [...] is 0 they do not count."""
        found = dict(tree.named(obs))
        leaves = dict(tree.named(self.spec.observation))
        merged = {}
        for path in self.normalised:
            x = xp.reshape(xp.astype(found[path], xp.float32), (-1, *leaves[path].shape))
            rows = None if weight is None else xp.reshape(weight, (-1,))
            merged[_key(path)] = normaliser.merge(xp, statistics[_key(path)], x, rows)
        return merged


def _key(path: str) -> str:
    """A path as one key of a tree, where a slash would mean a nest."""
    return path.replace("/", ".") or "observation"


def build(
    spec: EnvSpec,
    settings: Torso,
    heads: dict[str, Head],
    shared: bool = True,
    memory: int = 0,
    normalise: bool = False,
    network: Network | None = None,
) -> Model:
    """A model for this environment; `network` replaces the torso (a user's own module)."""
    body = network or torso(spec.observation, settings)
    lstm = Lstm(body.features, memory) if memory else None
    together = shared or memory > 0 or not body.small
    torsos = {"shared": body} if together else dict.fromkeys(heads, body)
    features = memory or body.features
    normalised = tuple(
        path
        for path, leaf in tree.named(spec.observation)
        if normalise and path != MASK and leaf.kind == "box" and not is_image(leaf, settings.convolution)
    )
    return Model(spec, torsos, {name: head(features) for name, head in heads.items()}, lstm, normalised)
