"""What computes on arrays: one class per deep-learning library, loaded only when asked for.

A backend offers two things.
`xp` is an array namespace (the array API standard as far as the losses need it) with the few functions the
standard lacks: `linear`, `conv2d`, `max_pool`, `fractions` (of bytes), `relu`, `rectified` (relu of what nobody else
looks at), `sigmoid`, `log_softmax`, `pick`, `rows`, `one_hot`, `stop_gradient`, `no_gradient`, `scan`. Networks, ops
and losses are written once against it.
The methods of `Backend` are what a learner needs around a loss: gradients, an optimiser, compilation, and getting
arrays to the device it computes on and back; nobody else knows of devices.
Parameters are one flat float32 vector everywhere; networks see it as a tree of views.
"""

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

from cavalcade.backends.devices import choose
from cavalcade.backends.threads import wait_briefly
from cavalcade.errors import UserError, nearest
from cavalcade.optimiser import Optimiser
from cavalcade.tree import Layout, Tree

PACKAGES = {"torch": ("torch", "array_api_compat"), "jax": ("jax", "optax"), "numpy": ("autograd",)}  # needed to learn
NAMES = tuple(PACKAGES)
__all__ = ["NAMES", "PACKAGES", "Backend", "load", "module_of", "require_device"]

# The part of the array API standard that networks, ops and losses use, under the same names everywhere.
STANDARD = """
    abs all any arange argmax broadcast_to clip cumsum exp expand_dims expm1 flip floor full_like isfinite log log1p
    logical_and logical_not logical_or max maximum mean minimum moveaxis ones ones_like prod reshape sign sqrt square
    squeeze stack sum tanh where zeros zeros_like float32 int64
"""


class Backend(Protocol):
    name: str
    xp: Any

    def vector(self, array: np.ndarray) -> Any:
        """A parameter vector this backend owns and may change in place."""

    def views(self, vector: Any, layout: Layout) -> Tree:
        """The vector seen as the tree of arrays that networks read."""

    def differentiate(self, loss: Callable, layout: Layout) -> Callable:
        """`loss(tree, *args) -> scalar, aux` becomes `f(vector, *args) -> gradient vector, aux`."""

    def optimiser(self, settings: Optimiser) -> Any:
        """An object with `init(vector) -> state` and `update(gradient, state, vector) -> vector, state`."""

    def assign(self, target: Any, source: Any, now: Any, mix: float = 1.0) -> Any:
        """If `now` is true, `target` moved by the share `mix` of the way to `source`, else `target`; in place where the
        backend works in place. Outside of what is compiled or recorded alone."""

    def zero(self) -> Any:
        """A count that `increment` raises by one, in place where the backend works in place."""

    def increment(self, count: Any) -> Any: ...

    def copied(self, array: Any) -> Any:
        """The array as it is now, whatever is done to it in place later."""

    def select(self, now: Any, new: Any, old: Any) -> Any:
        """`new` if the scalar array `now` is true, else `old`; written over `new` where the backend works in place."""

    def joined(self, vector: Any, pieces: list) -> Any:
        """The vector whose consecutive pieces, changed, these are."""

    def scan_updates(
        self, step: Callable, advance: Callable, state: dict, samples: Tree, plan: Tree
    ) -> tuple[dict, Any]:
        """For each row of the arrays in `plan` (`index`: which samples; `noise`: for the loss): `state, row =
        step(state, samples, row of the plan)`, then `state = advance(state)`.

        Gives the state and the stacked rows. `step` is arithmetic on arrays and may be compiled or recorded alone.
        """

    def record(self, function: Callable) -> Callable:
        """The same `function(state, samples, plan) -> array`, which is arithmetic on arrays and changes nothing but
        the state's arrays in place; it may be compiled or recorded."""

    def compile(self, function: Callable) -> Callable: ...

    def load(self, current: Tree, arrays: Tree) -> Tree:
        """Stored arrays in the place of the current ones."""

    def from_numpy(self, arrays: Tree) -> Tree:
        """Arrays on the backend's device; those that are there already stay."""

    def send(self, arrays: Tree) -> Callable[[], Tree]:
        """Begin to copy arrays to the device, from any thread; what is given gives them to whoever computes."""

    def to_numpy(self, arrays: Tree) -> Tree: ...


def load(name: str, threads: int = 0, device: str = "cpu") -> Backend:
    """The backend of this name, computing on `device` (auto, cpu, cuda, mps, or one of several as cuda:1) with
    `threads` threads; 0 leaves the library's own choice."""
    with _installed(name):
        module = _module(name)
        return module.create(threads, *choose(device, module.devices(), name))


def module_of(name: str) -> str:
    """What is imported to load it."""
    return f"cavalcade.backends.{name}_backend"


def require_device(name: str, device: str) -> None:
    """Refuse a device that this machine does not have."""
    with _installed(name):
        choose(device, _module(name).devices(), name)


def _module(name: str) -> Any:
    if name not in NAMES:
        raise UserError(f"There is no backend '{name}'; choose one of {', '.join(NAMES)}.{nearest(name, NAMES)}")
    wait_briefly()
    return importlib.import_module(module_of(name))


@contextmanager
def _installed(name: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise UserError(
            f"The backend '{name}' needs {error.name}; install it with pip install 'cavalcade[{name}]'."
        ) from error
