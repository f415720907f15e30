"""JAX: all updates of a draw, with its epochs and minibatches, are compiled as one call."""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from cavalcade import tree
from cavalcade.backends import STANDARD
from cavalcade.optimiser import Optimiser


def _conv2d(x: Any, weight: Any, bias: Any, stride: int, padding: int = 0) -> Any:
    edges = [(padding, padding)] * 2
    return jax.lax.conv_general_dilated(x, weight, (stride, stride), edges) + bias[:, None, None]


def _max_pool(x: Any, size: int, stride: int, padding: int) -> Any:
    edges = ((0, 0), (0, 0), (padding, padding), (padding, padding))
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, size, size), (1, 1, stride, stride), edges)


def _pick(x: Any, index: Any) -> Any:
    if x.shape[-1] > 64:
        return jnp.take_along_axis(x, index[..., None], -1)[..., 0]
    # with few choices, on a CPU, a product with one-hot is faster than a gather, and so is its gradient
    return jnp.sum(x * jax.nn.one_hot(index, x.shape[-1], dtype=x.dtype), -1)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _clip_gradient(x: Any, bound: float) -> Any:
    return x


_clip_gradient.defvjp(lambda x, bound: (x, None), lambda bound, _, gradient: (jnp.clip(gradient, -bound, bound),))


def _namespace() -> SimpleNamespace:
    xp = SimpleNamespace(**{name: getattr(jnp, name) for name in STANDARD.split()})
    xp.name = "jax"
    xp.swapaxes, xp.concat, xp.astype, xp.asarray = jnp.swapaxes, jnp.concat, jnp.astype, jnp.asarray
    xp.permute_dims, xp.bool = jnp.permute_dims, jnp.bool
    xp.relu, xp.sigmoid, xp.softplus = jax.nn.relu, jax.nn.sigmoid, jax.nn.softplus
    xp.rectified = xp.relu
    xp.linear = lambda x, weight, bias: x @ weight + bias
    xp.one_hot = lambda index, count: jax.nn.one_hot(index, count, dtype=jnp.float32)
    xp.stop_gradient = jax.lax.stop_gradient
    xp.rows = lambda x, index: jnp.take(x, index, axis=0, mode="clip")
    xp.no_gradient = lambda function, *args, **named: jax.lax.stop_gradient(function(*args, **named))
    xp.log_softmax, xp.clip_gradient = jax.nn.log_softmax, _clip_gradient
    xp.pick = _pick
    xp.scan = lambda step, carry, xs, reverse=False: jax.lax.scan(
        lambda c, row: step(c, *row), carry, xs, reverse=reverse
    )
    xp.conv2d, xp.max_pool = _conv2d, _max_pool
    xp.fractions = lambda x: x.astype(jnp.float32) * (1.0 / 255.0)
    return xp


class JaxBackend:
    """Nothing is changed in place."""

    name = "jax"

    def __init__(self, device: Any) -> None:
        """A compiled call runs on the device of its arrays: params are put on `device`, and all else follows."""
        self.xp, self.device = _namespace(), device

    def vector(self, array: np.ndarray) -> Any:
        return jax.device_put(np.array(array, np.float32), self.device)

    def views(self, vector: Any, layout: tree.Layout) -> tree.Tree:
        return layout.unflatten(vector)

    def differentiate(self, loss: Callable, layout: tree.Layout) -> Callable:
        with_aux = jax.grad(loss, has_aux=True)

        def gradient(vector: Any, *args: Any) -> tuple[Any, Any]:
            parts, aux = with_aux(layout.unflatten(vector), *args)
            return jnp.concatenate([part.reshape(-1) for _, part in tree.named(parts)]), aux

        return gradient

    def optimiser(self, settings: Optimiser) -> "JaxOptimiser":
        return JaxOptimiser(settings)

    def assign(self, target: Any, source: Any, now: Any, mix: float = 1.0) -> Any:
        return jnp.where(now, source if mix == 1.0 else target + mix * (source - target), target)

    def zero(self) -> Any:
        return self.vector(np.zeros((), np.float32))

    def increment(self, count: Any) -> Any:
        return count + 1.0

    def copied(self, array: Any) -> Any:
        return array

    def select(self, now: Any, new: Any, old: Any) -> Any:
        return jnp.where(now, new, old)

    def joined(self, vector: Any, pieces: list) -> Any:
        return jnp.concatenate(pieces)

    def scan_updates(
        self, step: Callable, advance: Callable, state: dict, samples: tree.Tree, plan: tree.Tree
    ) -> tuple[dict, Any]:
        def body(state: dict, one: tree.Tree) -> tuple[dict, Any]:
            state, row = step(state, samples, one)
            return advance(state), row

        count = len(plan["index"])
        few = count if count <= 4 else 1  # a few updates are compiled without a loop, which costs time
        return jax.lax.scan(body, state, plan, unroll=few)

    def record(self, function: Callable) -> Callable:
        return jax.jit(function)

    def compile(self, function: Callable) -> Callable:
        return jax.jit(function)

    def load(self, current: tree.Tree, arrays: tree.Tree) -> tree.Tree:
        # `jnp.array` takes a millisecond; `device_put` may go on using the memory that it is given, so it gets a copy
        return jax.device_put(tree.map(lambda _, array: np.array(array), current, arrays), self.device)

    def from_numpy(self, arrays: tree.Tree) -> tree.Tree:
        if self.device.platform == "cpu":
            return arrays  # a compiled call takes NumPy arrays as they are
        return jax.device_put(arrays, self.device)  # begins to copy, and does not wait for the end

    def send(self, arrays: tree.Tree) -> Callable[[], tree.Tree]:
        moved = self.from_numpy(arrays)
        return lambda: moved

    def to_numpy(self, arrays: tree.Tree) -> tree.Tree:
        return tree.map(np.asarray, arrays)


class JaxOptimiser:
    """A rule of optax on one vector; its state is a plain tree, so that a checkpoint can hold it."""

    def __init__(self, settings: Optimiser):
        s = settings
        rate: Any = optax.linear_schedule(s.learning_rate, 0.0, s.horizon) if s.horizon else s.learning_rate
        self.library = {
            "adam": lambda: optax.adam(rate, eps=s.epsilon),
            "rmsprop": lambda: optax.rmsprop(rate, decay=s.decay, eps=s.epsilon, eps_in_sqrt=False),
            "centred-rmsprop": lambda: optax.chain(_centred(s.decay, s.epsilon), optax.scale_by_learning_rate(rate)),
            "adagrad": lambda: optax.chain(_adagrad(s.epsilon), optax.scale_by_learning_rate(rate)),
            "sgd": lambda: optax.sgd(rate),
        }[s.name]()
        self.structure: Any = None  # of optax's state, known after `init`

    def init(self, vector: Any) -> dict:
        # All leaves are tied to the vector's device, as those that a compiled call returns; otherwise the second call
        # would compile once more.
        leaves, self.structure = jax.tree.flatten(jax.device_put(self.library.init(vector), vector.sharding))
        return {str(i): leaf for i, leaf in enumerate(leaves)}

    def update(self, gradient: Any, state: dict, vector: Any) -> tuple[Any, dict]:
        library_state = jax.tree.unflatten(self.structure, [state[str(i)] for i in range(len(state))])
        moves, library_state = self.library.update(gradient, library_state, vector)
        leaves = jax.tree.leaves(library_state)
        return optax.apply_updates(vector, moves), {str(i): leaf for i, leaf in enumerate(leaves)}


def _adagrad(epsilon: float) -> optax.GradientTransformation:
    """AdaGrad as in torch.optim; optax's own has epsilon inside the root, and its sums of squares begin at 0.1."""

    def update(gradient: Any, square: Any, params: Any = None) -> tuple[Any, Any]:
        square = square + gradient * gradient
        return gradient / (jnp.sqrt(square) + epsilon), square

    return optax.GradientTransformation(jnp.zeros_like, update)


def _centred(decay: float, epsilon: float) -> optax.GradientTransformation:
    """Centred RMSProp; optax's own takes the root of a variance that rounding may have made negative."""

    def init(vector: Any) -> dict:
        return {"mean": jnp.zeros_like(vector), "square": jnp.zeros_like(vector)}

    def update(gradient: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        mean = decay * state["mean"] + (1.0 - decay) * gradient
        square = decay * state["square"] + (1.0 - decay) * gradient * gradient
        variance = jnp.maximum(square - mean * mean, 0.0)
        return gradient / jnp.sqrt(variance + epsilon), {"mean": mean, "square": square}

    return optax.GradientTransformation(init, update)


PLATFORMS = {"cuda": "gpu", "cpu": "cpu"}  # our kinds of devices, and their names in jax


def devices() -> dict[str, int]:
    """How many devices of each kind jax can use, the fastest kind first."""
    return {kind: _count(platform) for kind, platform in PLATFORMS.items()}


def _count(platform: str) -> int:
    try:
        return len(jax.devices(platform))
    except RuntimeError:  # jax raises it if there is none
        return 0


def create(threads: int, kind: str, number: int) -> JaxBackend:
    """`threads` has been told to XLA before (`threads.tell_xla`)."""
    return JaxBackend(jax.devices(PLATFORMS[kind])[number])
