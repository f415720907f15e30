"""NumPy: the namespace that small policies act in, and, with `autograd`, a backend that imports no framework.

`_namespace` makes both namespaces: `acting` is plain NumPy; `NumpyBackend.xp` is autograd's NumPy, which records what
gradients need.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from cavalcade import tree
from cavalcade.backends import STANDARD
from cavalcade.optimiser import STATISTICS, Optimiser


def _namespace(np_like: Any) -> SimpleNamespace:
    """The array namespace over `numpy` or `autograd.numpy`."""
    n = np_like
    xp = SimpleNamespace(**{name: getattr(n, name) for name in STANDARD.split()})
    xp.name = "numpy"
    xp.bool, xp.swapaxes = np.bool_, n.swapaxes
    xp.asarray = np.asarray
    xp.concat = lambda arrays, axis=0: n.concatenate(arrays, axis)
    xp.permute_dims = n.transpose
    xp.astype = lambda x, dtype: x.astype(dtype)
    xp.relu = xp.rectified = lambda x: n.maximum(x, 0)
    xp.sigmoid = lambda x: 0.5 * (n.tanh(0.5 * x) + 1.0)
    xp.softplus = lambda x: n.logaddexp(x, 0.0)
    xp.linear = lambda x, weight, bias: n.dot(x, weight) + bias
    xp.rows = lambda x, index: x[index]
    xp.one_hot = lambda index, count: np.eye(count, dtype=np.float32)[np.asarray(index)]
    xp.stop_gradient = lambda x: getattr(x, "_value", x)

    xp.clip_gradient = lambda x, bound: x

    def log_softmax(x: Any) -> Any:
        shifted = x - xp.stop_gradient(n.max(x, axis=-1, keepdims=True))
        return shifted - n.log(n.sum(n.exp(shifted), axis=-1, keepdims=True))

    def pick(x: Any, index: Any) -> Any:
        """x [..., A] and index [...] -> [...]: at each position the number that the index names."""
        flat = n.reshape(x, (-1, x.shape[-1]))
        chosen = flat[np.arange(flat.shape[0]), np.reshape(index, -1)]
        return n.reshape(chosen, np.shape(index))

    def scan(step: Callable, carry: Any, xs: tuple, reverse: bool = False) -> tuple[Any, Any]:
        outputs = []
        for t in range(len(xs[0]))[:: -1 if reverse else 1]:
            carry, output = step(carry, *(x[t] for x in xs))
            outputs.append(output)
        return carry, n.stack(outputs[::-1] if reverse else outputs)

    def conv2d(x: Any, weight: Any, bias: Any, stride: int, padding: int = 0) -> Any:
        """x [N, C, H, W], weight [O, C, K, K] -> [N, O, H', W'], as one matrix product over patches."""
        size = weight.shape[-1]
        columns, (height, width) = xp.patches(x, size, stride, padding)  # [N, H', W', C*K*K]
        rows = n.reshape(columns, (-1, columns.shape[-1]))  # two axes, because `dot` is slow with more
        flat = n.dot(rows, n.transpose(n.reshape(weight, (weight.shape[0], -1)))) + bias
        return n.transpose(n.reshape(flat, (x.shape[0], height, width, -1)), (0, 3, 1, 2))

    def max_pool(x: Any, size: int, stride: int, padding: int) -> Any:
        """x [N, C, H, W] -> [N, C, H', W']; padding counts as minus infinity."""
        batch, channels, *_ = x.shape
        low = -1e30
        columns, (height, width) = xp.patches(x, size, stride, padding, low)
        columns = n.reshape(columns, (batch, height, width, channels, size * size))
        return n.transpose(n.max(columns, axis=-1), (0, 3, 1, 2))

    def no_gradient(function: Callable, *args: Any, **named: Any) -> Any:
        result = function(*args, **named)
        if isinstance(result, tuple):
            return tuple(tree.map(xp.stop_gradient, part) for part in result)
        return tree.map(xp.stop_gradient, result)

    xp.no_gradient = no_gradient
    xp.log_softmax, xp.pick, xp.scan, xp.conv2d, xp.max_pool = log_softmax, pick, scan, conv2d, max_pool
    xp.patches = _patches
    xp.fractions = lambda x: x.astype(np.float32) * np.float32(1.0 / 255.0)
    return xp


def _patches(x: Any, size: int, stride: int, padding: int, fill: float = 0.0) -> tuple[Any, tuple[int, int]]:
    """The patches under a moving window: [N, C, H, W] -> ([N, H', W', C*size*size], (H', W'))."""
    if padding:
        edges = ((0, 0), (0, 0), (padding, padding), (padding, padding))
        x = np.pad(x, edges, constant_values=fill)
    windows = np.lib.stride_tricks.sliding_window_view(x, (size, size), axis=(2, 3))[:, :, ::stride, ::stride]
    batch, _, height, width = windows.shape[:4]
    return windows.transpose(0, 2, 3, 1, 4, 5).reshape(batch, height, width, -1), (height, width)


def _patches_gradient(gradient: np.ndarray, shape: tuple, size: int, stride: int, padding: int) -> np.ndarray:
    """The gradient [N, C, H, W] of the images, of this `shape`, from that of their patches [N, H', W', C*size*size]."""
    batch, channels, rows, columns = shape
    padded = np.zeros((batch, channels, rows + 2 * padding, columns + 2 * padding), gradient.dtype)
    _, height, width, _ = gradient.shape
    cells = gradient.reshape(batch, height, width, channels, size, size).transpose(0, 3, 1, 2, 4, 5)
    for i in range(size):
        for j in range(size):
            rows_ij = slice(i, i + stride * height, stride)
            columns_ij = slice(j, j + stride * width, stride)
            padded[:, :, rows_ij, columns_ij] += cells[..., i, j]
    return padded[:, :, padding : padding + rows, padding : padding + columns]


def _linear(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    y = np.dot(x, weight)
    y += bias  # in place, because no gradient is recorded when acting
    return y


acting = _namespace(np)
acting.linear = _linear


class NumpyBackend:
    """Nothing is compiled, and nothing is changed in place."""

    name = "numpy"

    def __init__(self) -> None:
        import autograd
        import autograd.numpy as recorded
        from autograd.extend import defvjp, primitive

        columns_of = primitive(lambda x, *sizes: _patches(x, *sizes)[0])
        defvjp(
            columns_of,
            lambda _, x, *sizes: lambda gradient: _patches_gradient(gradient, np.shape(x), *sizes[:3]),
            argnums=(0,),
        )

        def patches(x: Any, size: int, stride: int, padding: int, fill: float = 0.0) -> tuple:
            columns = columns_of(x, size, stride, padding, fill)
            return columns, columns.shape[1:3]

        # autograd's own gradient of tanh divides by cosh squared, which overflows for large arguments
        defvjp(recorded.tanh, lambda answer, x: lambda gradient: gradient * (1.0 - answer * answer))
        self.xp = _namespace(recorded)
        self.xp.patches = patches
        # autograd halves the gradient of a maximum at a tie; the relu of torch and jax has gradient 0 at 0
        self.xp.relu = self.xp.rectified = lambda x: recorded.where(self.xp.stop_gradient(x) > 0, x, np.float32(0.0))
        clipped_backwards = primitive(lambda x, bound: x)
        defvjp(clipped_backwards, lambda _, x, bound: lambda gradient: np.clip(gradient, -bound, bound), argnums=(0,))
        self.xp.clip_gradient = clipped_backwards
        # autograd's broadcast_to refuses new leading axes
        self.xp.broadcast_to = lambda x, shape: x + np.zeros(shape, np.float32)
        self._autograd = autograd

    def vector(self, array: np.ndarray) -> np.ndarray:
        return np.array(array, np.float32)

    def views(self, vector: np.ndarray, layout: tree.Layout) -> tree.Tree:
        return layout.unflatten(vector)

    def differentiate(self, loss: Callable, layout: tree.Layout) -> Callable:
        make_vjp = self._autograd.make_vjp

        def gradient(vector: np.ndarray, *args: Any) -> tuple[np.ndarray, Any]:
            aux = {}

            def scalar(leaves: list) -> Any:
                nest = tree.from_named(dict(zip(layout.paths, leaves)))
                value, aux["value"] = loss(nest, *args)
                return value

            leaves = [leaf for _, leaf in tree.named(layout.unflatten(vector))]
            backward, _ = make_vjp(scalar)(leaves)
            flat = [np.asarray(leaf, np.float32).reshape(-1) for leaf in backward(np.float32(1.0))]
            return np.concatenate(flat), tree.map(self.xp.stop_gradient, aux["value"])

        return gradient

    def optimiser(self, settings: Optimiser) -> "NumpyOptimiser":
        return NumpyOptimiser(settings)

    def assign(self, target: np.ndarray, source: np.ndarray, now: Any, mix: float = 1.0) -> np.ndarray:
        if not now:
            return target
        return source.copy() if mix == 1.0 else target + np.float32(mix) * (source - target)

    def zero(self) -> np.ndarray:
        return np.zeros((), np.float32)

    def increment(self, count: np.ndarray) -> np.ndarray:
        return np.float32(count + 1)  # type: ignore[return-value]

    def copied(self, array: np.ndarray) -> np.ndarray:
        return array

    def select(self, now: Any, new: np.ndarray, old: np.ndarray) -> np.ndarray:
        return new if now else old

    def joined(self, vector: np.ndarray, pieces: list) -> np.ndarray:
        return np.concatenate(pieces)

    def scan_updates(
        self, step: Callable, advance: Callable, state: dict, samples: tree.Tree, plan: tree.Tree
    ) -> tuple[dict, np.ndarray]:
        rows = []
        for number in range(len(plan["index"])):
            state, row = step(state, samples, tree.take(plan, number))
            state = advance(state)
            rows.append(row)
        return state, np.stack(rows)

    def record(self, function: Callable) -> Callable:
        return function

    def compile(self, function: Callable) -> Callable:
        return function

    def load(self, current: tree.Tree, arrays: tree.Tree) -> tree.Tree:
        return tree.map(lambda _, array: np.copy(array), current, arrays)

    def from_numpy(self, arrays: tree.Tree) -> tree.Tree:
        return arrays

    def send(self, arrays: tree.Tree) -> Callable[[], tree.Tree]:
        return lambda: arrays

    def to_numpy(self, arrays: tree.Tree) -> tree.Tree:
        return tree.map(np.asarray, arrays)


class NumpyOptimiser:
    """Adam (Kingma 2015), RMSProp, AdaGrad and SGD with the arithmetic of torch.optim, on one vector."""

    def __init__(self, settings: Optimiser):
        self.settings = settings

    def init(self, vector: np.ndarray) -> dict:
        kept = STATISTICS[self.settings.name]
        return {"count": np.zeros((), np.int64), **{name: np.zeros_like(vector) for name in kept}}

    def update(self, gradient: np.ndarray, state: dict, vector: np.ndarray) -> tuple[np.ndarray, dict]:
        s, count = self.settings, state["count"] + 1
        rate = s.rate(int(count) - 1)
        if s.name == "adam":
            mean = 0.9 * state["mean"] + 0.1 * gradient
            square = 0.999 * state["square"] + 0.001 * gradient * gradient
            root = np.sqrt(square / (1.0 - 0.999 ** float(count))) + s.epsilon
            move = mean / (1.0 - 0.9 ** float(count)) / root
            kept = {"mean": mean, "square": square}
        elif s.name == "rmsprop":
            square = s.decay * state["square"] + (1.0 - s.decay) * gradient * gradient
            move = gradient / (np.sqrt(square) + s.epsilon)
            kept = {"square": square}
        elif s.name == "centred-rmsprop":
            mean = s.decay * state["mean"] + (1.0 - s.decay) * gradient
            square = s.decay * state["square"] + (1.0 - s.decay) * gradient * gradient
            variance = np.maximum(square - mean * mean, 0.0)  # rounding may make it negative
            move = gradient / np.sqrt(variance + s.epsilon)
            kept = {"mean": mean, "square": square}
        elif s.name == "adagrad":
            square = state["square"] + gradient * gradient
            move = gradient / (np.sqrt(square) + s.epsilon)
            kept = {"square": square}
        else:
            move, kept = gradient, {}
        return (vector - rate * move).astype(np.float32), {"count": count, **kept}


def devices() -> dict[str, int]:
    """How many devices of each kind NumPy can use."""
    return {"cpu": 1}


def create(threads: int, kind: str, number: int) -> NumpyBackend:
    return NumpyBackend()  # OMP_NUM_THREADS sets NumPy's threads, before NumPy is imported
