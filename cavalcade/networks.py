"""Networks as pairs of pure functions over trees: `init(rng) -> params`, `apply(xp, params, x) -> y`.

The same text runs on every backend, so a policy trained on one acts on plain NumPy in a process that imports no
framework. Parameters are born in NumPy from a seed, identical everywhere. Initialisations are those of the papers:
uniform by fan-in for the DQN family (Mnih 2015, Torch's default), orthogonal for the actor-critics (PPO's code).
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from cavalcade.errors import UserError, require_one_of
from cavalcade.specs import MASK, Leaf
from cavalcade.tree import Tree, named

Rng = np.random.Generator


@dataclass(frozen=True)
class Network:
    """x [N, ...] -> y [N, features]; `small` networks act faster in NumPy than in any framework."""

    init: Callable[[Rng], Tree]
    apply: Callable[[Any, Tree, Any], Any]
    features: int
    small: bool = True
    backend: str | None = None  # a user's module runs on its own library only


# --- initialisation -------------------------------------------------------------------------------------------


def uniform_fan_in(rng: Rng, shape: tuple[int, ...], fan_in: int) -> np.ndarray:
    bound = 1.0 / np.sqrt(fan_in)
    return rng.uniform(-bound, bound, shape).astype(np.float32)


def orthogonal(gain: float) -> Callable[[Rng, tuple[int, ...], int], np.ndarray]:
    """Rows or columns orthonormal, times `gain` (Saxe 2014)."""

    def init(rng: Rng, shape: tuple[int, ...], fan_in: int) -> np.ndarray:
        rows, columns = fan_in, int(np.prod(shape)) // fan_in
        q, r = np.linalg.qr(rng.standard_normal((max(rows, columns), min(rows, columns))))
        q = q * np.sign(np.diag(r))
        matrix = q if rows >= columns else q.T  # [fan_in, outputs]
        if len(shape) == 4:  # a convolution is stored as [outputs, inputs, height, width]
            matrix = matrix.T
        return (gain * matrix).reshape(shape).astype(np.float32)

    return init


def _initialiser(name: str, gain: float) -> Callable[[Rng, tuple[int, ...], int], np.ndarray]:
    return orthogonal(gain) if name == "orthogonal" else uniform_fan_in


def _bias(name: str, rng: Rng, size: int, fan_in: int) -> np.ndarray:
    return np.zeros(size, np.float32) if name == "orthogonal" else uniform_fan_in(rng, (size,), fan_in)


# --- layers ---------------------------------------------------------------------------------------------------


def linear(inputs: int, outputs: int, initialiser: str = "uniform", gain: float = 1.0) -> Network:
    def init(rng: Rng) -> Tree:
        weight = _initialiser(initialiser, gain)(rng, (inputs, outputs), inputs)
        return {"weight": weight, "bias": _bias(initialiser, rng, outputs, inputs)}

    return Network(init, lambda xp, p, x: xp.linear(x, p["weight"], p["bias"]), outputs)


def mlp(inputs: int, hidden: tuple[int, ...], activation: str, initialiser: str) -> Network:
    sizes = pairwise((inputs, *hidden))
    layers = {str(i): linear(a, b, initialiser, np.sqrt(2.0)) for i, (a, b) in enumerate(sizes)}

    def init(rng: Rng) -> Tree:
        return {name: layer.init(rng) for name, layer in layers.items()}

    def apply(xp: Any, params: Tree, x: Any) -> Any:
        function = getattr(xp, activation)
        for name, layer in layers.items():
            x = function(layer.apply(xp, params[name], x))
        return x

    return Network(init, apply, hidden[-1] if hidden else inputs)


def _convolution(channels: int, outputs: int, size: int, initialiser: str) -> Callable[[Rng], Tree]:
    fan_in = channels * size * size

    def init(rng: Rng) -> Tree:
        weight = _initialiser(initialiser, np.sqrt(2.0))(rng, (outputs, channels, size, size), fan_in)
        return {"weight": weight, "bias": _bias(initialiser, rng, outputs, fan_in)}

    return init


def nature_cnn(shape: tuple[int, int, int], initialiser: str) -> Network:
    """Mnih 2015: 32 8x8/4, 64 4x4/2, 64 3x3/1, 512. Input [N, C, H, W] in [0, 1]."""
    channels, height, width = shape
    plan = [(channels, 32, 8, 4), (32, 64, 4, 2), (64, 64, 3, 1)]
    for _, _, size, stride in plan:
        height, width = (height - size) // stride + 1, (width - size) // stride + 1
    if min(height, width) < 1:
        raise UserError(f"An image of {shape} is too small for the Nature CNN; use --convolution impala.")
    dense = linear(64 * height * width, 512, initialiser, np.sqrt(2.0))

    def init(rng: Rng) -> Tree:
        params = {str(i): _convolution(c, o, s, initialiser)(rng) for i, (c, o, s, _) in enumerate(plan)}
        return {**params, "dense": dense.init(rng)}

    def apply(xp: Any, params: Tree, x: Any) -> Any:
        for i, (_, _, _, stride) in enumerate(plan):
            layer = params[str(i)]
            x = xp.rectified(xp.conv2d(x, layer["weight"], layer["bias"], stride))
        return xp.relu(dense.apply(xp, params["dense"], xp.reshape(x, (x.shape[0], -1))))

    return Network(init, apply, 512, small=False)


def impala_cnn(shape: tuple[int, int, int], initialiser: str) -> Network:
    """Espeholt 2018, the deep network: three sections of convolution, max-pool and two residual blocks; 256."""
    channels, height, width = shape
    widths = (16, 32, 32)
    for _ in widths:
        height, width = (height + 1) // 2, (width + 1) // 2
    dense = linear(widths[-1] * height * width, 256, initialiser, np.sqrt(2.0))
    blocks = [f"block{block}.{half}" for block in range(2) for half in range(2)]

    def init(rng: Rng) -> Tree:
        params: dict = {}
        inputs = channels
        for i, outputs in enumerate(widths):
            section = {name: _convolution(outputs, outputs, 3, initialiser)(rng) for name in blocks}
            params[str(i)] = {"entry": _convolution(inputs, outputs, 3, initialiser)(rng), **section}
            inputs = outputs
        return {**params, "dense": dense.init(rng)}

    def apply(xp: Any, params: Tree, x: Any) -> Any:
        def convolve(layer: Tree, y: Any) -> Any:
            return xp.conv2d(y, layer["weight"], layer["bias"], 1, 1)

        for i in range(len(widths)):
            section = params[str(i)]
            x = xp.max_pool(convolve(section["entry"], x), 3, 2, 1)
            for block in range(2):
                y = convolve(section[f"block{block}.0"], xp.relu(x))
                x = x + convolve(section[f"block{block}.1"], xp.relu(y))
        x = xp.reshape(xp.relu(x), (x.shape[0], -1))
        return xp.relu(dense.apply(xp, params["dense"], x))

    return Network(init, apply, 256, small=False)


# --- observations ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Torso:
    """How observations become features."""

    hidden: tuple[int, ...] = (64, 64)
    activation: str = "tanh"  # tanh, relu
    convolution: str = "nature"  # nature, impala
    initialiser: str = "orthogonal"  # orthogonal, uniform

    def __post_init__(self) -> None:
        require_one_of(self, activation=("tanh", "relu"), convolution=("nature", "impala"))
        if any(size < 1 for size in self.hidden):
            raise UserError(f"--hidden is {' '.join(map(str, self.hidden))}; every layer needs at least one unit.")


def torso(observation: Tree, settings: Torso) -> Network:
    """Images through a CNN each, everything else joined and through an MLP; the results joined."""
    leaves = [(path, leaf) for path, leaf in named(observation) if path != MASK]
    images = {path: leaf for path, leaf in leaves if is_image(leaf, settings.convolution)}
    vectors = [(path, leaf) for path, leaf in leaves if path not in images]
    build = {"nature": nature_cnn, "impala": impala_cnn}[settings.convolution]
    names = {path: "image:" + path.replace("/", ".") for path in images}
    parts = {names[path]: build(_channels_first(leaf), settings.initialiser) for path, leaf in images.items()}
    if vectors:
        width = sum(vector_size(leaf) for _, leaf in vectors)
        parts["vector"] = mlp(width, settings.hidden, settings.activation, settings.initialiser)

    def apply(xp: Any, params: Tree, obs: Tree) -> Any:
        if isinstance(observation, Leaf) and vectors:  # the usual case, kept short because acting is called often
            return parts["vector"].apply(xp, params.get("vector", {}), as_vector(xp, observation, obs))
        flat = dict(named(obs))
        features = []
        for path, leaf in images.items():
            x = as_image(xp, leaf, flat[path])
            features.append(parts[names[path]].apply(xp, params[names[path]], x))
        if vectors:
            columns = [as_vector(xp, leaf, flat[path]) for path, leaf in vectors]
            joined = columns[0] if len(columns) == 1 else xp.concat(columns, axis=1)
            features.append(parts["vector"].apply(xp, params.get("vector", {}), joined))
        return features[0] if len(features) == 1 else xp.concat(features, axis=1)

    def init(rng: Rng) -> Tree:
        return {name: part.init(rng) for name, part in parts.items()}

    return Network(init, apply, sum(part.features for part in parts.values()), small=not images)


def is_image(leaf: Leaf, convolution: str) -> bool:
    if leaf.kind != "box" or len(leaf.shape) != 3:
        return False
    _, height, width = _channels_first(leaf)
    return min(height, width) >= (36 if convolution == "nature" else 8)


def _is_channels_first(leaf: Leaf) -> bool:
    return leaf.shape[0] < leaf.shape[2]


def _channels_first(leaf: Leaf) -> tuple[int, int, int]:
    a, b, c = leaf.shape
    return (a, b, c) if _is_channels_first(leaf) else (c, a, b)


def as_image(xp: Any, leaf: Leaf, x: Any) -> Any:
    """[N, C, H, W] float32; bytes become fractions of one."""
    x = x if _is_channels_first(leaf) else xp.permute_dims(x, (0, 3, 1, 2))
    return xp.fractions(x) if leaf.dtype == "uint8" else xp.astype(x, xp.float32)


def vector_size(leaf: Leaf) -> int:
    one_hot = leaf.kind in ("discrete", "multi_discrete")
    return leaf.logits if one_hot else int(np.prod(leaf.shape))


def as_vector(xp: Any, leaf: Leaf, x: Any) -> Any:
    """[N, ...] of any kind -> [N, size] float32: one-hot for choices, flat for the rest."""
    if leaf.kind == "discrete":
        return xp.one_hot(x, leaf.counts[0])
    if leaf.kind == "multi_discrete":
        x = xp.reshape(x, (x.shape[0], -1))
        return xp.concat([xp.one_hot(x[:, i], count) for i, count in enumerate(leaf.counts)], axis=1)
    x = x if len(leaf.shape) == 1 else xp.reshape(x, (x.shape[0], -1))
    return x if leaf.dtype == "float32" else xp.astype(x, xp.float32)


# --- heads and memory -----------------------------------------------------------------------------------------


def dueling(inputs: int, actions: int, initialiser: str = "uniform") -> Network:
    """Wang 2016: Q = V + A - mean A, which is a fixed linear map of (V, A)."""
    both = linear(inputs, 1 + actions, initialiser)
    to_q = np.concatenate([np.ones((1, actions)), np.eye(actions) - 1.0 / actions]).astype(np.float32)  # [1 + A, A]

    def apply(xp: Any, params: Tree, x: Any) -> Any:
        return both.apply(xp, params, x) @ xp.asarray(to_q)

    return Network(both.init, apply, actions)


def gaussian(inputs: int, size: int) -> Network:
    """Mean from the features, log standard deviation a parameter of its own (PPO's continuous policy)."""
    mean = linear(inputs, size, "orthogonal", 0.01)

    def init(rng: Rng) -> Tree:
        return {"mean": mean.init(rng), "log_std": np.zeros(size, np.float32)}

    def apply(xp: Any, params: Tree, x: Any) -> Any:
        centre = mean.apply(xp, params["mean"], x)
        return xp.concat([centre, xp.broadcast_to(params["log_std"], centre.shape)], axis=1)

    return Network(init, apply, 2 * size)


@dataclass(frozen=True)
class Lstm:
    """An LSTM (Hochreiter 1997, forget bias 1) over [T, B, inputs] that starts afresh wherever `first` is set."""

    inputs: int
    size: int

    def init(self, rng: Rng) -> Tree:
        make = orthogonal(1.0)
        bias = np.zeros(4 * self.size, np.float32)
        bias[self.size : 2 * self.size] = 1.0
        return {
            "input": make(rng, (self.inputs, 4 * self.size), self.inputs),
            "recurrent": make(rng, (self.size, 4 * self.size), self.size),
            "bias": bias,
        }

    def carry(self, batch: int) -> Tree:
        return {
            "cell": np.zeros((batch, self.size), np.float32),
            "hidden": np.zeros((batch, self.size), np.float32),
        }

    def apply(self, xp: Any, params: Tree, x: Any, carry: Tree, first: Any) -> tuple[Any, Tree]:
        steps, batch = x.shape[:2]
        flat = xp.linear(xp.reshape(x, (steps * batch, -1)), params["input"], params["bias"])
        gates_from_input = xp.reshape(flat, (steps, batch, 4 * self.size))  # one product for all steps
        keep = 1.0 - xp.astype(first, xp.float32)[..., None]
        recurrent, n = params["recurrent"], self.size

        def step(state: tuple, gates: Any, keep_t: Any) -> tuple[tuple, Any]:
            hidden, cell = state[0] * keep_t, state[1] * keep_t
            gates = gates + hidden @ recurrent
            let_in, forget, let_out = (xp.sigmoid(gates[:, i * n : (i + 1) * n]) for i in (0, 1, 3))
            cell = forget * cell + let_in * xp.tanh(gates[:, 2 * n : 3 * n])
            hidden = let_out * xp.tanh(cell)
            return (hidden, cell), hidden

        (hidden, cell), y = xp.scan(step, (carry["hidden"], carry["cell"]), (gates_from_input, keep))
        return y, {"cell": cell, "hidden": hidden}
