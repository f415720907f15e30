"""Layer norm, numbers that depend on nothing, and gradients that are bounded on their way: literal numbers."""

from typing import Any

import numpy as np

from cavalcade.networks import constants, mlp
from cavalcade.networks.layers import layer_norm

ROWS = np.float32([[1, 2, 3, 6], [-4, 0, 0, 4]])  # means 3 and 0, variances 3.5 and 8


def apply(network: Any) -> Any:
    return lambda xp, x, *params: network.apply(xp, dict(zip(("scale", "shift"), params)), x)


def test_layer_norm_by_hand(on: Any) -> None:
    network = layer_norm(4)
    first = network.init(np.random.default_rng(0))
    expected = np.array([[-2, -1, 0, 3] / np.sqrt(3.5), [-4, 0, 0, 4] / np.sqrt(8.0)])
    np.testing.assert_allclose(on(apply(network), ROWS, *first.values()), expected, atol=1e-5)
    scale, shift = np.float32([1, 2, 3, 4]), np.float32([0, 0, 1, -1])
    np.testing.assert_allclose(on(apply(network), ROWS, scale, shift), expected * scale + shift, atol=2e-5)


def test_layer_norm_of_equal_numbers_is_finite(gradient_of: Any) -> None:
    params = np.ones(4, np.float32), np.zeros(4, np.float32)
    found = gradient_of(
        lambda xp, x, *p: xp.square(apply(layer_norm(4))(xp, x, *p)), np.full((2, 4), 5.0, "f4"), *params
    )
    np.testing.assert_array_equal(found, np.zeros((2, 4)))


def test_the_first_layer_of_an_mlp_is_normalised_and_squashed(on: Any) -> None:
    network = mlp(2, (3, 2), "relu", "uniform", normalised=True)
    params = network.init(np.random.default_rng(0))
    assert set(params) == {"0", "1", "norm"} and params["norm"]["scale"].shape == (3,)
    arrays = [leaf for name in ("0", "1") for leaf in (params[name]["weight"], params[name]["bias"])]

    def call(xp: Any, x: Any, *p: Any) -> Any:
        layers = {str(i): {"weight": p[2 * i], "bias": p[2 * i + 1]} for i in range(2)}
        norm = {name: xp.asarray(leaf) for name, leaf in params["norm"].items()}
        return network.apply(xp, {**layers, "norm": norm}, x)

    x = np.float32([[1, -2], [0.5, 3]])
    hidden = x @ arrays[0] + arrays[1]
    hidden = (hidden - hidden.mean(-1, keepdims=True)) / np.sqrt(hidden.var(-1, keepdims=True) + 1e-5)
    expected = np.maximum(np.tanh(hidden) @ arrays[2] + arrays[3], 0.0)
    np.testing.assert_allclose(on(call, x, *arrays), expected, atol=1e-5)
    assert "norm" not in mlp(2, (3, 2), "relu", "uniform").init(np.random.default_rng(0))


def test_constants_are_the_same_in_each_row(on: Any) -> None:
    network = constants((10.0, -2.5))
    params = network.init(np.random.default_rng(0))
    assert network.features == 2 and params["values"].dtype == np.float32
    found = on(lambda xp, x, values: network.apply(xp, {"values": values}, x), ROWS, params["values"])
    np.testing.assert_array_equal(found, [[10.0, -2.5]] * 2)


def test_constants_learn_from_every_row(gradient_of: Any) -> None:
    def loss(xp: Any, values: Any, x: Any) -> Any:
        return constants((0.0, 0.0)).apply(xp, {"values": values}, x)[..., :1] * x

    np.testing.assert_array_equal(gradient_of(loss, np.zeros(2, np.float32), ROWS), [12.0, 0.0])


def test_a_gradient_is_bounded_entry_by_entry_on_its_way(gradient_of: Any) -> None:
    """d/dx of sum(w * y) where y is 3 x, and the gradient that reaches y is bounded: 3 clip(w, -2, 2)."""
    w = np.float32([[-5, -2, -0.5], [0, 1.5, 70]])

    def loss(xp: Any, x: Any, w: Any) -> Any:
        return w * xp.clip_gradient(3.0 * x, 2.0)

    np.testing.assert_allclose(gradient_of(loss, np.ones((2, 3), np.float32), w), 3.0 * np.clip(w, -2.0, 2.0))


def test_a_bounded_gradient_leaves_values_as_they_are(on: Any) -> None:
    np.testing.assert_array_equal(on(lambda xp, x: xp.clip_gradient(x, 0.1), ROWS), ROWS)
