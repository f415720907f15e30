"""Networks as pairs of pure functions over trees: `init(rng) -> params`, `apply(xp, params, x) -> y`.

The same text runs on every backend, so a policy trained on any backend acts with plain NumPy in a process that imports
no framework. The first params are drawn in NumPy from a seed, so they are the same on every backend. Initialisations
are those of the papers: uniform by fan-in for the DQN family (Mnih 2015, Torch's default), orthogonal for the
actor-critics (PPO's code).
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from cavalcade.networks.activations import ACTIVATIONS
from cavalcade.tree import Tree

Rng = np.random.Generator


@dataclass(frozen=True)
class Network:
    """A function from x [N, ...] to y [N, features]. `small`: it acts faster in NumPy than in any framework."""

    init: Callable[[Rng], Tree]
    apply: Callable[..., Any]  # apply(xp, params, x), or apply(xp, params, x, {name: [N, width]}) if it has inputs
    features: int
    small: bool = True
    backend: str | None = None  # the only one that can run it, for a user's module; None: all
    inputs: tuple[str, ...] = ()  # names of arrays that a head needs beside its features
    sees: str = ""  # of a torso: in words, how it takes images; empty without images


def uniform_fan_in(rng: Rng, shape: tuple[int, ...], fan_in: int) -> np.ndarray:
    """Uniform in +-1 / sqrt(fan_in), where fan_in is the number of inputs of one unit."""
    bound = 1.0 / np.sqrt(fan_in)
    return rng.uniform(-bound, bound, shape).astype(np.float32)


def orthogonal(gain: float) -> Callable[[Rng, tuple[int, ...], int], np.ndarray]:
    """An initialiser whose weights, as a matrix, have orthonormal rows or columns, times `gain` (Saxe 2014)."""

    def init(rng: Rng, shape: tuple[int, ...], fan_in: int) -> np.ndarray:
        rows, columns = fan_in, int(np.prod(shape)) // fan_in
        q, r = np.linalg.qr(rng.standard_normal((max(rows, columns), min(rows, columns))))
        q = q * np.sign(np.diag(r))
        matrix = q if rows >= columns else q.T  # [fan_in, outputs]
        if len(shape) == 4:  # a convolution is stored as [outputs, inputs, height, width]
            matrix = matrix.T
        return (gain * matrix).reshape(shape).astype(np.float32)

    return init


def initialiser_of(name: str, gain: float) -> Callable[[Rng, tuple[int, ...], int], np.ndarray]:
    """The initialiser `orthogonal` or `uniform` of weights; only `orthogonal` uses the gain."""
    return orthogonal(gain) if name == "orthogonal" else uniform_fan_in


def initial_bias(name: str, rng: Rng, size: int, fan_in: int) -> np.ndarray:
    """The first biases [size]: zeros beside orthogonal weights, else uniform by fan-in."""
    return np.zeros(size, np.float32) if name == "orthogonal" else uniform_fan_in(rng, (size,), fan_in)


def linear(inputs: int, outputs: int, initialiser: str = "uniform", gain: float = 1.0) -> Network:
    """x [N, inputs] -> [N, outputs]."""

    def init(rng: Rng) -> Tree:
        weight = initialiser_of(initialiser, gain)(rng, (inputs, outputs), inputs)
        return {"weight": weight, "bias": initial_bias(initialiser, rng, outputs, inputs)}

    return Network(init, lambda xp, p, x: xp.linear(x, p["weight"], p["bias"]), outputs)


def layer_norm(size: int) -> Network:
    """x [N, size] -> [N, size]: every row with mean 0 and variance 1, then scaled and shifted (Ba 2016)."""

    def init(rng: Rng) -> Tree:
        return {"scale": np.ones(size, np.float32), "shift": np.zeros(size, np.float32)}

    def apply(xp: Any, params: Tree, x: Any) -> Any:
        centred = x - xp.mean(x, axis=-1, keepdims=True)
        variance = xp.mean(xp.square(centred), axis=-1, keepdims=True)
        return centred / xp.sqrt(variance + 1e-5) * params["scale"] + params["shift"]

    return Network(init, apply, size)


def mlp(inputs: int, hidden: tuple[int, ...], activation: str, initialiser: str, normalised: bool = False) -> Network:
    """x [N, inputs] -> [N, hidden[-1]]: linear layers of these sizes, each followed by the activation. `normalised`:
    the first one is followed by a layer norm and tanh instead, as in the agents of Acme (Hoffman 2020)."""
    sizes = pairwise((inputs, *hidden))
    layers = {str(i): linear(a, b, initialiser, np.sqrt(2.0)) for i, (a, b) in enumerate(sizes)}
    norm = layer_norm(hidden[0]) if normalised and hidden else None

    def init(rng: Rng) -> Tree:
        params = {name: layer.init(rng) for name, layer in layers.items()}
        return {**params, "norm": norm.init(rng)} if norm else params

    def apply(xp: Any, params: Tree, x: Any) -> Any:
        function = xp.rectified if activation == "relu" else ACTIVATIONS[activation](xp)  # in place where it can be
        for name, layer in layers.items():
            x = layer.apply(xp, params[name], x)
            x = xp.tanh(norm.apply(xp, params["norm"], x)) if norm and name == "0" else function(x)
        return x

    return Network(init, apply, hidden[-1] if hidden else inputs)
