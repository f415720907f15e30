"""A model: torso, optional memory and named heads over one observation, with the normaliser inside.

Acting, learning, judging and exporting use this one object, so none of them can forget statistics, masks or memory.
`apply` takes the leading axes [B, ...] when acting and [T, B, ...] when learning. The params of a model fall into parts
by name: each head with the torso that is its own, `shared`, and `memory`. A part can be left out of a gradient
(`freeze`) and have a learning rate of its own (`optimiser.Group`).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Protocol

import numpy as np

from cavalcade import tree
from cavalcade.networks import normaliser
from cavalcade.networks.images import image_of
from cavalcade.networks.layers import Network
from cavalcade.networks.torso import Lstm, Torso, torso
from cavalcade.specs import MASK, EnvSpec, Leaf
from cavalcade.tree import Tree

Head = Callable[[int], Network]  # number of features -> network


class Model(Protocol):
    """What learners and policies need of a model: `Towers` here, or a class that an algorithm brings."""

    @property
    def spec(self) -> EnvSpec: ...

    @property
    def small(self) -> bool:
        """Whether the model acts faster in NumPy than in a framework."""

    @property
    def sees(self) -> str:
        """In words, how it takes images, for the line at the start of a run; empty without images."""

    @property
    def backend(self) -> str | None:
        """The only backend that can run the model; None if all can."""

    @property
    def recurrent(self) -> bool:
        """Whether the model has a carry."""

    def init(self, rng: np.random.Generator) -> Tree:
        """The first params."""

    def carry(self, batch: int) -> Tree:
        """The carry of `batch` environments before the first step of an episode."""

    def part_of(self, path: str) -> str:
        """The name of the part to which the params at this path of their tree belong."""

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
        """{head: [..., features]} and the carry after the last step; the arguments are those of `Forward`."""

    def statistics(self) -> Tree:
        """The moments of normalised observations before any was seen."""

    def observe(self, xp: Any, statistics: Tree, obs: Tree, weight: Any = None) -> Tree:
        """The statistics after these observations, too; those with a weight of 0 do not count."""


def forward_of(model: Model, xp: Any, params: Tree, statistics: Tree) -> Callable[..., tuple[dict, Tree]]:
    """The model with its params and statistics inside, as algorithms call it (`algorithms.Forward`)."""

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
    """A model of torsos, an optional LSTM and heads."""

    spec: EnvSpec
    torsos: dict[str, Network]  # "shared", or one per head
    heads: dict[str, Network]
    memory: Lstm | None
    normalised: tuple[str, ...]  # paths of the observations that are normalised

    @property
    def small(self) -> bool:
        return all(network.small for network in self.torsos.values())

    @property
    def sees(self) -> str:
        return next(iter(self.torsos.values())).sees

    @property
    def backend(self) -> str | None:
        """The backend of a user's module, if one is part of the model; else None."""
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
        """Zeros [batch, ...] if the model has memory, else nothing."""
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
        """Outputs {name: [..., features]} of these heads (an empty tuple: all), and the carry after the last step."""
        leading = self._leading(obs)
        params = self._frozen(xp, params, freeze) if freeze else params
        flat = self._prepare(xp, statistics, obs, leading)
        torsos = params.get("torso", {})  # missing if no torso has params
        shared = None
        if "shared" in self.torsos:
            shared = self.torsos["shared"].apply(xp, torsos.get("shared", {}), flat)
        if self.memory:
            steps = (1, *leading) if len(leading) == 1 else leading  # [B] when acting: one step
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
        """The same params; no gradient reaches those of the parts in `freeze`."""

        def stopped(name: str, child: Tree) -> Tree:
            return tree.map(xp.stop_gradient, child) if name in freeze else child

        nested = [kind for kind in params if kind != "memory"]
        frozen = {kind: {name: stopped(name, child) for name, child in params[kind].items()} for kind in nested}
        return {**frozen, "memory": stopped("memory", params["memory"])} if self.memory else frozen

    def _leading(self, obs: Tree) -> tuple[int, ...]:
        """The leading axes of these observations: (B,) or (T, B)."""
        spec = self.spec.observation
        leaf, array = (spec, obs) if isinstance(spec, Leaf) else (tree.leaves(spec)[0], tree.leaves(obs)[0])
        return tuple(array.shape[: array.ndim - len(leaf.shape)])

    def _prepare(self, xp: Any, statistics: Tree, obs: Tree, leading: tuple[int, ...]) -> Tree:
        """Observations [..., shape] as [N, shape], normalised, without the mask."""
        if len(leading) == 1 and not self.normalised and isinstance(self.spec.observation, Leaf):
            return obs  # the usual case of acting: nothing to do
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
        """The moments of the normalised observations before any was seen, by path."""
        leaves = dict(tree.named(self.spec.observation))
        return {_key(path): normaliser.fresh(leaves[path].shape) for path in self.normalised}

    def observe(self, xp: Any, statistics: Tree, obs: Tree, weight: Any = None) -> Tree:
        """The statistics after these observations [..., shape], too; those with `weight` [...] 0 do not count."""
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
    """The output [more ..., leading ..., features] of a head with inputs [more ..., leading ..., width]. The features
    [N, ...] are repeated along the axes that the inputs have and the observations lack."""
    given = {name: inputs[name] for name in head.inputs}
    lead = tuple(next(iter(given.values())).shape[:-1])
    if len(lead) > len(leading):
        wide = xp.reshape(features, (*(1,) * (len(lead) - len(leading)), *leading, -1))
        features = xp.reshape(xp.broadcast_to(wide, (*lead, wide.shape[-1])), (prod(lead), -1))
    flat = {name: xp.reshape(x, (prod(lead), -1)) for name, x in given.items()}
    return xp.reshape(head.apply(xp, params, features, flat), (*lead, -1))


def _key(path: str) -> str:
    """A path as one key of a tree; a slash in a key would mean a nest."""
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
    """A model for this environment. `heads` share one torso if `shared`, and always with memory, images or a user's
    module. `memory`: size of the LSTM; 0 is none. `normalise`: observations that are neither images nor choices.
    `network`: a user's module that replaces the torso. The heads in `raw` have a torso without hidden layers, because
    they have layers of their own after they join their inputs (a critic of actions)."""
    body = network or torso(spec.observation, settings, spec.frames)
    lstm = Lstm(body.features, memory) if memory else None
    together = shared or memory > 0 or bool(body.sees) or not body.small
    bare = body if network or together or not raw else torso(spec.observation, replace(settings, hidden=()))
    torsos = {"shared": body} if together else {name: bare if name in raw else body for name in heads}
    features = {name: memory or torsos.get(name, body).features for name in heads}
    normalised = tuple(
        path
        for path, leaf in tree.named(spec.observation)
        if normalise and path != MASK and leaf.kind == "box" and not image_of(leaf, spec.frames)
    )
    return Towers(spec, torsos, {name: head(features[name]) for name, head in heads.items()}, lstm, normalised)
