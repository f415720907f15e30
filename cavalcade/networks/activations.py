"""The functions after each layer of an MLP: one text for every backend, so that a policy acts alike on all of them.

`ACTIVATIONS[name](xp)` is the function in that namespace. All gradients are finite: a formula that overflows for some x
gets only the part of x for which it is meant, such as `x - relu(x)`, which is x below zero and 0 above.
"""

from collections.abc import Callable
from functools import partial
from math import pi, sqrt
from typing import Any


def _elu(xp: Any, x: Any) -> Any:
    """Clevert 2016: x, and exp(x) - 1 below zero."""
    above = xp.relu(x)
    return above + xp.expm1(x - above)


def _selu(xp: Any, x: Any) -> Any:
    """Klambauer 2017: an ELU whose two constants keep mean 0 and variance 1 from layer to layer."""
    scale, alpha = 1.0507009873554805, 1.6732632423543772
    above = xp.relu(x)
    return scale * (above + alpha * xp.expm1(x - above))


def _gelu(xp: Any, x: Any) -> Any:
    """Hendrycks 2016, the form with tanh (NumPy has no error function): within 5e-4 of the one with erf."""
    near = xp.clip(x, -10.0, 10.0)  # beyond, tanh is -1 or 1, and the cube of a large number would overflow
    return 0.5 * x * (1.0 + xp.tanh(sqrt(2.0 / pi) * (near + 0.044715 * near * near * near)))


def _silu(xp: Any, x: Any) -> Any:
    """Elfwing 2018, also called swish: x sigmoid(x)."""
    return x * xp.sigmoid(x)


def _leaky_relu(xp: Any, x: Any) -> Any:
    """Maas 2013: x, and x / 100 below zero."""
    return xp.where(x > 0.0, x, 0.01 * x)


ACTIVATIONS: dict[str, Callable[[Any], Callable[[Any], Any]]] = {
    "tanh": lambda xp: xp.tanh,
    "relu": lambda xp: xp.relu,
    "elu": lambda xp: partial(_elu, xp),
    "gelu": lambda xp: partial(_gelu, xp),
    "silu": lambda xp: partial(_silu, xp),
    "leaky_relu": lambda xp: partial(_leaky_relu, xp),
    "selu": lambda xp: partial(_selu, xp),
    "softplus": lambda xp: xp.softplus,
    "sigmoid": lambda xp: xp.sigmoid,
}
