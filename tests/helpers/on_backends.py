"""Functions of arrays on every backend, NumPy in and out, and their gradients."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from cavalcade import backends
from cavalcade.tree import Layout

# jax is compiled; "jax-eager" is not, which is slow, and only compared with the others
BACKENDS = ("numpy", "torch", "jax")


def run(backend_name: str, function: Any, *arrays: np.ndarray, **settings: Any) -> Any:
    """function(xp, *arrays), an array or a tuple of them."""
    backend = backends.load(backend_name.removesuffix("-eager"))
    call = partial(function, backend.xp, **settings)
    if backend_name == "jax":
        call = backend.compile(call)
    result = call(*(backend.from_numpy(array) for array in arrays))
    return tuple(map(backend.to_numpy, result)) if isinstance(result, tuple) else backend.to_numpy(result)


@pytest.fixture(params=BACKENDS)
def on(request: pytest.FixtureRequest) -> Any:
    return partial(run, request.param)


@pytest.fixture(params=backends.NAMES)
def gradient_of(request: pytest.FixtureRequest) -> Any:
    """gradient_of(function, x, *rest): of sum(function(xp, x, *rest)) with respect to x, any shape."""
    backend = backends.load(request.param)

    def gradient(function: Any, x: np.ndarray, *rest: np.ndarray) -> np.ndarray:
        constants = [backend.from_numpy(array) for array in rest]

        def loss(params: dict) -> tuple[Any, dict]:
            return backend.xp.sum(function(backend.xp, params["x"], *constants)), {}

        differentiated = backend.compile(backend.differentiate(loss, Layout.of({"x": x})))
        flat, _ = differentiated(backend.vector(x.reshape(-1)))
        return backend.to_numpy(flat).reshape(x.shape)

    return gradient
