"""A model: torso, optional memory and named heads over one observation, with the normaliser inside.

What acts, what learns, what is evaluated and what is exported is this one object, so observation statistics, masks
and memory can never be left behind. `apply` takes any leading axes: [B, ...] when acting, [T, B, ...] when learning.
Its params fall into parts by name: each head with the torso that is its own, `shared`, and `memory`. A part can be left
out of a gradient (`freeze`) and have a learning rate of its own (`optimiser.Group`).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Protocol

import numpy as np

from cavalcade import tree
from cavalcade.networks import normaliser
from cavalcade.networks.convolutions import is_image
from cavalcade.networks.layers import Network
from cavalcade.networks.torso import Lstm, Torso, torso
from cavalcade.specs import MASK, EnvSpec, Leaf
from cavalcade.tree import Tree

Head = Callable[[int], Network]  # number of features -> network


class Model(Protocol):
    """What learners and policies ask of a network: `Towers` here, or whatever else an algorithm brings."""

    @property
    def spec(self) -> EnvSpec: ...

    @property
    def small(self) -> bool:
        """Whether it acts faster in NumPy than in a framework."""

    @property
    def backend(self) -> str | None:
        """The only backend that can run it, if there is but one."""

    @property
    def recurrent(self) -> bool: ...

    def init(self, rng: np.random.Generator) -> Tree: ...

    def carry(self, batch: int) -> Tree:
        """What it remembers before an episode."""

    def part_of(self, path: str) -> str:
        """The part that the params at this path of their tree belong to."""

    def apply(
        self,
        xp: Any,
        params: Tree,
        statistics: Tree,
        obs: Tree,
        carry: Tree,
        first: Any,
        heads: tuple[str, ...] = (),
        inputs: dict[str, Any] | None = None,
        freeze: tuple[str, ...] = (),
    ) -> tuple[dict, Tree]: ...

    def statistics(self) -> Tree: ...

    def observe(self, xp: Any, statistics: Tree, obs: Tree, weight: Any = None) -> Tree: ...


def forward_of(model: Model, xp: Any, params: Tree, statistics: Tree) -> Callable[..., tuple[dict, Tree]]:
    """The model with its params inside, as algorithms call it (`algorithm.Forward`)."""

    def forward(
        obs: Tree,
        carry: Tree | None = None,
        first: Any = None,
        *,
        heads: tuple[str, ...] = (),
        inputs: dict[str, Any] | None = None,
        freeze: tuple[str, ...] = (),
    ) -> tuple[dict, Tree]:
        return model.apply(xp, params, statistics, obs, carry, first, heads, inputs, freeze)

    return forward


@dataclass(frozen=True)
class Towers:
    """Torsos, memory and heads."""

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

    @property
    def recurrent(self) -> bool:
        return self.memory is not None

    def part_of(self, path: str) -> str:
        kind, *rest = path.split("/")
        return kind if kind == "memory" else rest[0]

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
        self,
        xp: Any,
        params: Tree,
        statistics: Tree,
        obs: Tree,
        carry: Tree,
        first: Any,
        heads: tuple[str, ...] = (),
        inputs: dict[str, Any] | None = None,
        freeze: tuple[str, ...] = (),
    ) -> tuple[dict, Tree]:
        """Outputs of these heads (none are all), {name: [..., features]}, and the carry after the last step."""
        leading = self._leading(obs)
        params = self._frozen(xp, params, freeze) if freeze else params
        flat = self._prepare(xp, statistics, obs, leading)
        torsos = params.get("torso", {})  # a torso may have no parameters at all
        shared = None
        if "shared" in self.torsos:
            shared = self.torsos["shared"].apply(xp, torsos.get("shared", {}), flat)
        if self.memory:
            steps = (1, *leading) if len(leading) == 1 else leading  # acting: one step
            x = xp.reshape(shared, (*steps, -1))
            y, carry = self.memory.apply(xp, params["memory"], x, carry, xp.reshape(first, steps))
            shared = xp.reshape(y, (-1, self.memory.size))
        outputs = {}
        for name in heads or self.heads:
            features = self.torsos[name].apply(xp, torsos.get(name, {}), flat) if shared is None else shared
            own = params["head"].get(name, {})
            if self.heads[name].inputs:
                outputs[name] = _conditioned(xp, self.heads[name], own, features, inputs or {}, leading)
                continue
            y = self.heads[name].apply(xp, own, features)
            outputs[name] = y if len(leading) == 1 else xp.reshape(y, (*leading, -1))
        return outputs, carry

    def _frozen(self, xp: Any, params: Tree, freeze: tuple[str, ...]) -> Tree:
        """The same params, of which those of some parts have no gradient."""

        def stopped(name: str, child: Tree) -> Tree:
            return tree.map(xp.stop_gradient, child) if name in freeze else child

        nested = [kind for kind in params if kind != "memory"]
        frozen = {kind: {name: stopped(name, child) for name, child in params[kind].items()} for kind in nested}
        return {**frozen, "memory": stopped("memory", params["memory"])} if self.memory else frozen

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


def _conditioned(
    xp: Any, head: Network, params: Tree, features: Any, inputs: dict[str, Any], leading: tuple[int, ...]
) -> Any:
    """A head that asks for inputs [more ..., leading ..., width]: its features are repeated along the axes that the
    inputs have and the observations lack."""
    given = {name: inputs[name] for name in head.inputs}
    lead = tuple(next(iter(given.values())).shape[:-1])
    if len(lead) > len(leading):
        wide = xp.reshape(features, (*(1,) * (len(lead) - len(leading)), *leading, -1))
        features = xp.reshape(xp.broadcast_to(wide, (*lead, wide.shape[-1])), (prod(lead), -1))
    flat = {name: xp.reshape(x, (prod(lead), -1)) for name, x in given.items()}
    return xp.reshape(head.apply(xp, params, features, flat), (*lead, -1))


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
    raw: tuple[str, ...] = (),
) -> Towers:
    """A model for this environment; `network` replaces the torso (a user's own module). The heads in `raw` have a torso
    without hidden layers, because they have layers of their own and join inputs before them (a critic of actions)."""
    body = network or torso(spec.observation, settings)
    lstm = Lstm(body.features, memory) if memory else None
    together = shared or memory > 0 or not body.small
    bare = body if network or together or not raw else torso(spec.observation, replace(settings, hidden=()))
    torsos = {"shared": body} if together else {name: bare if name in raw else body for name in heads}
    features = {name: memory or torsos.get(name, body).features for name in heads}
    normalised = tuple(
        path
        for path, leaf in tree.named(spec.observation)
        if normalise and path != MASK and leaf.kind == "box" and not is_image(leaf, settings.convolution)
    )
    return Towers(spec, torsos, {name: head(features[name]) for name, head in heads.items()}, lstm, normalised)
