"""Torsos, from observations of any kind to features; heads, from features to outputs; and the memory in between."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from cavalcade.errors import UserError, require_one_of
from cavalcade.networks.activations import ACTIVATIONS
from cavalcade.networks.convolutions import impala_cnn, nature_cnn, shallow_cnn, small_cnn
from cavalcade.networks.images import image_of
from cavalcade.networks.layers import Network, Rng, linear, mlp, orthogonal
from cavalcade.specs import MASK, Leaf
from cavalcade.tree import Tree, named

CONVOLUTIONS = ("auto", "nature", "shallow", "impala", "small")
BUILDERS = {"nature": nature_cnn, "shallow": shallow_cnn, "impala": impala_cnn, "small": small_cnn}


@dataclass(frozen=True)
class Torso:
    """The settings of a torso."""

    hidden: tuple[int, ...] = (64, 64)  # units of each layer of the MLP
    activation: str = "tanh"  # of the MLP, one of ACTIVATIONS; CNNs have the relu of their papers
    convolution: str = "auto"  # one of CONVOLUTIONS; auto: nature for images that it can take, small for smaller ones
    initialiser: str = "orthogonal"  # orthogonal, uniform
    layer_norm: bool = False  # of the first layer of the MLP, as `mlp` says

    def __post_init__(self) -> None:
        require_one_of(self, activation=ACTIVATIONS, convolution=CONVOLUTIONS)
        if any(size < 1 for size in self.hidden):
            raise UserError(f"--hidden is {' '.join(map(str, self.hidden))}; every layer needs at least one unit.")


def torso(observation: Tree, settings: Torso, frames: int = 1) -> Network:
    """A network from observations [N, ...] to [N, features]: a CNN for each image, one MLP for all other observations
    side by side; their features are joined. `frames`: of `EnvSpec`."""
    leaves = [(path, leaf) for path, leaf in named(observation) if path != MASK]
    images = {path: image for path, leaf in leaves if (image := image_of(leaf, frames))}
    vectors = [(path, leaf) for path, leaf in leaves if path not in images]
    names = {path: "image:" + path.replace("/", ".") for path in images}
    parts = {
        names[path]: BUILDERS[image.cnn(settings.convolution)](image.shape, settings.initialiser)
        for path, image in images.items()
    }
    if vectors:
        width = sum(vector_size(leaf) for _, leaf in vectors)
        parts["vector"] = mlp(width, settings.hidden, settings.activation, settings.initialiser, settings.layer_norm)

    def apply(xp: Any, params: Tree, obs: Tree) -> Any:
        if isinstance(observation, Leaf) and vectors:  # a shorter way for the usual case, because actors call it often
            return parts["vector"].apply(xp, params.get("vector", {}), as_vector(xp, observation, obs))
        flat = dict(named(obs))
        features = []
        for path, image in images.items():
            x = image.arranged(xp, flat[path])
            features.append(parts[names[path]].apply(xp, params[names[path]], x))
        if vectors:
            columns = [as_vector(xp, leaf, flat[path]) for path, leaf in vectors]
            joined = columns[0] if len(columns) == 1 else xp.concat(columns, axis=1)
            features.append(parts["vector"].apply(xp, params.get("vector", {}), joined))
        return features[0] if len(features) == 1 else xp.concat(features, axis=1)

    def init(rng: Rng) -> Tree:
        return {name: part.init(rng) for name, part in parts.items()}

    sees = "; ".join(image.told(path, settings.convolution) for path, image in images.items())
    small = all(part.small for part in parts.values())
    return Network(init, apply, sum(part.features for part in parts.values()), small, sees=sees)


def vector_size(leaf: Leaf) -> int:
    """The width of `as_vector`."""
    one_hot = leaf.kind in ("discrete", "multi_discrete")
    return leaf.logits if one_hot else int(np.prod(leaf.shape))


def as_vector(xp: Any, leaf: Leaf, x: Any) -> Any:
    """Observations [N, ...] of one leaf as [N, size] float32: choices become one-hot, all others are flattened."""
    if leaf.kind == "discrete":
        return xp.one_hot(x, leaf.counts[0])
    if leaf.kind == "multi_discrete":
        x = xp.reshape(x, (x.shape[0], -1))
        return xp.concat([xp.one_hot(x[:, i], count) for i, count in enumerate(leaf.counts)], axis=1)
    x = x if len(leaf.shape) == 1 else xp.reshape(x, (x.shape[0], -1))
    return x if leaf.dtype == "float32" else xp.astype(x, xp.float32)


# --- heads and memory -----------------------------------------------------------------------------------------


def dueling(inputs: int, actions: int, initialiser: str = "uniform", size: int = 1) -> Network:
    """Features [N, inputs] -> values [N, actions]. Wang 2016: Q = V + A - mean A, a fixed linear map of (V, A). With a
    `size` above 1 each value is so many numbers, [N, size * actions], of which each is joined by itself."""
    both = linear(inputs, size * (1 + actions), initialiser)
    to_q = np.concatenate([np.ones((1, actions)), np.eye(actions) - 1.0 / actions]).astype(np.float32)  # [1 + A, A]

    def apply(xp: Any, params: Tree, x: Any) -> Any:
        y = both.apply(xp, params, x)
        if size == 1:
            return y @ xp.asarray(to_q)
        joined = xp.reshape(y, (x.shape[0] * size, 1 + actions)) @ xp.asarray(to_q)
        return xp.reshape(joined, (x.shape[0], size * actions))

    return Network(both.init, apply, size * actions)


def conditioned(features: int, inputs: dict[str, int], make: Callable[[int], Network]) -> Network:
    """A head over the features and its inputs {name: width} side by side; `make(width of all)` builds its network."""
    names = tuple(inputs)
    network = make(features + sum(inputs.values()))

    def apply(xp: Any, params: Tree, x: Any, given: dict[str, Any]) -> Any:
        return network.apply(xp, params, xp.concat([x, *(given[name] for name in names)], axis=-1))

    return Network(network.init, apply, network.features, inputs=names)


def gaussian(inputs: int, size: int, deviation: float = 1.0) -> Network:
    """Features [N, inputs] -> [N, 2 size]: the mean, then the log standard deviation, which is learned, begins at that
    of `deviation` and is the same for all observations (PPO's continuous policy)."""
    mean = linear(inputs, size, "orthogonal", 0.01)

    def init(rng: Rng) -> Tree:
        return {"mean": mean.init(rng), "log_std": np.full(size, np.log(deviation), np.float32)}

    def apply(xp: Any, params: Tree, x: Any) -> Any:
        centre = mean.apply(xp, params["mean"], x)
        return xp.concat([centre, xp.broadcast_to(params["log_std"], centre.shape)], axis=1)

    return Network(init, apply, 2 * size)


def constants(values: tuple[float, ...]) -> Network:
    """Numbers that are learned and depend on nothing, such as a temperature: [N, len(values)], in each row the same.
    `values`: those at first."""

    def apply(xp: Any, params: Tree, x: Any) -> Any:
        return xp.broadcast_to(params["values"], (x.shape[0], len(values)))

    return Network(lambda rng: {"values": np.array(values, np.float32)}, apply, len(values))


@dataclass(frozen=True)
class Lstm:
    """An LSTM (Hochreiter 1997, forget bias 1) over [T, B, inputs]; the carry is zero where `first` [T, B] is set."""

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
        """Outputs [T, B, size], and the carry [B, size] after the last step."""
        steps, batch = x.shape[:2]
        flat = xp.linear(xp.reshape(x, (steps * batch, -1)), params["input"], params["bias"])
        gates_from_input = xp.reshape(flat, (steps, batch, 4 * self.size))  # one matrix product for all steps
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
