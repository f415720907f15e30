"""Backends, which compute on arrays: one class per library (torch, jax, numpy), imported only when it is used.

A backend offers two things.
`xp` is an array namespace: the part of the array API standard that losses need, and a few functions that the standard
lacks: `linear`, `conv2d`, `max_pool`, `fractions` (bytes as fractions of 255), `relu`, `rectified` (relu that may
overwrite its argument), `sigmoid`, `softplus`, `log_softmax`, `pick` (x[..., index]), `rows` (x[index]), `one_hot`,
`stop_gradient`, `no_gradient`, `scan`. Networks, ops and losses are written once against `xp`.
The methods of `Backend` are what a learner needs around a loss: gradients, an optimiser, compilation, and copying
arrays to the backend's device and back; no other room knows of devices.
Params are one flat float32 vector [n] everywhere; networks see the vector as a tree of views.
"""

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

from cavalcade.backends.devices import choose
from cavalcade.backends.threads import tell_xla, wait_briefly
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
    """What a learner needs around a loss. Arrays are the library's own, on the backend's device, unless said."""

    name: str
    xp: Any  # the array namespace

    def vector(self, array: np.ndarray) -> Any:
        """A copy of the array, float32 on the device, which the backend may change in place."""

    def views(self, vector: Any, layout: Layout) -> Tree:
        """The params [n] seen as the tree of arrays that networks read."""

    def differentiate(self, loss: Callable, layout: Layout) -> Callable:
        """`loss(tree of params, *args) -> scalar, aux` becomes `f(params [n], *args) -> gradient [n], aux`."""

    def optimiser(self, settings: Optimiser) -> Any:
        """An object with `init(vector) -> state` and `update(gradient, state, vector) -> vector, state`."""

    def assign(self, target: Any, source: Any, now: Any, mix: float = 1.0) -> Any:
        """If `now` is true, `target` moved by the share `mix` of the way to `source`, else `target`; in place if the
        backend works in place. Inside a recorded function `now` has to be the constant True, because torch reads it in
        Python."""

    def zero(self) -> Any:
        """A scalar 0.0, which counts; `increment` raises it by one, in place if the backend works in place."""

    def increment(self, count: Any) -> Any: ...

    def copied(self, array: Any) -> Any:
        """The array as it is now, even if it is changed in place later; the array itself where nothing is in place."""

    def select(self, now: Any, new: Any, old: Any) -> Any:
        """`new` if the scalar array `now` is true, else `old`; written over `new` if the backend works in place."""

    def joined(self, vector: Any, pieces: list) -> Any:
        """The vector [n] with its consecutive slices replaced by these changed `pieces`."""

    def scan_updates(
        self, step: Callable, advance: Callable, state: dict, samples: Tree, plan: Tree
    ) -> tuple[dict, Any]:
        """For each row of the plan, arrays [updates, ...] (`index`: which samples; `noise`: for the loss): `state, row
        = step(state, samples, row of the plan)`, then `state = advance(state)`.

        Returns the state and the stacked rows [updates, ...]. `step` is arithmetic on arrays only, so that a backend
        may compile or record it without `advance`.
        """

    def record(self, function: Callable) -> Callable:
        """The same `function(state, samples, plan) -> array`, compiled or recorded where that is faster. The function
        must be arithmetic on arrays only, and change nothing but the state's arrays in place."""

    def compile(self, function: Callable) -> Callable:
        """The same function, compiled where the library can; it takes no gradients outside of `differentiate`."""

    def load(self, current: Tree, arrays: Tree) -> Tree:
        """Copies of stored NumPy arrays, in the memory of the current ones if the backend works in place."""

    def from_numpy(self, arrays: Tree) -> Tree:
        """NumPy arrays on the backend's device; arrays that are there already stay as they are."""

    def send(self, arrays: Tree) -> Callable[[], Tree]:
        """Begin to copy NumPy arrays to the device, from any thread. Returns a function that the computing thread calls
        to get the arrays on the device."""

    def to_numpy(self, arrays: Tree) -> Tree: ...


def load(name: str, threads: int = 0, device: str = "cpu") -> Backend:
    """The backend of this name, computing on `device` (auto, cpu, cuda, mps, or one of several as cuda:1) with
    `threads` threads; 0 leaves the library's own choice."""
    with _installed(name):
        module = _module(name)
        if name == "jax":
            tell_xla(threads)
        return module.create(threads, *choose(device, module.devices(), name))


def module_of(name: str) -> str:
    """The name of the module that is imported to load this backend."""
    return f"cavalcade.backends.{name}_backend"


def require_device(name: str, device: str) -> None:
    """Raise a UserError if this machine does not have the device, or the backend cannot use it."""
    with _installed(name):
        choose(device, _module(name).devices(), name)


def _module(name: str) -> Any:
    if name not in NAMES:
        raise UserError(f"There is no backend '{name}'; choose one of {', '.join(NAMES)}.{nearest(name, NAMES)}")
    wait_briefly()
    return importlib.import_module(module_of(name))


@contextmanager
def _installed(name: str) -> Iterator[None]:
    """Say how to install a package that the backend needs if it is missing."""
    try:
        yield
    except ImportError as error:
        raise UserError(
            f"The backend '{name}' needs {error.name}; install it with pip install 'cavalcade[{name}]'."
        ) from error
