"""Policies that are tanh of normals: by hand, against double precision, and at the edges of the box."""

import math
from typing import Any

import numpy as np
import pytest

from cavalcade.ops.distributions import SquashedGaussian
from tests.helpers.on_backends import run


def squashed_log_prob(action: np.ndarray, mean: np.ndarray, log_std: np.ndarray) -> np.ndarray:
    """In double precision, by the change of variables as it is written down."""
    action, mean, log_std = (np.float64(each) for each in (action, mean, log_std))
    score = (np.arctanh(action) - mean) * np.exp(-log_std)
    density = -0.5 * score**2 - log_std - 0.5 * np.log(2 * np.pi)
    return np.sum(density - np.log(1.0 - action**2), axis=-1)


def test_squashed_normals_by_hand(on: Any) -> None:
    def numbers(xp: Any, parameters: Any, noise: Any) -> tuple:
        policy = SquashedGaussian(xp, parameters)
        action, log_prob = policy.sample(noise)
        return action, log_prob, policy.log_prob(action), policy.mode()

    parameters = np.float32([[0.5, -1.0, 0.0, math.log(0.5)]])  # means, then logs of the deviations 1 and 0.5
    action, drawn, given, mode = on(numbers, parameters, np.float32([[1.0, -1.0]]))
    # tanh(1.5) = .9051483 and tanh(-1.5); slopes 1 - tanh^2 = .1807066; densities .2419707 and .4839414
    np.testing.assert_allclose(action, [[0.9051483, -0.9051483]], atol=1e-6)
    expected = math.log(0.2419707 / 0.1807066) + math.log(0.4839414 / 0.1807066)
    np.testing.assert_allclose([drawn, given], [[expected]] * 2, atol=2e-5)
    np.testing.assert_allclose(mode, [[0.4621172, -0.7615942]], atol=1e-6)


def test_squashed_normals_agree_with_double_precision(on: Any) -> None:
    rng = np.random.default_rng(0)
    mean, log_std = rng.normal(size=(200, 3)), rng.uniform(-3.0, 2.0, (200, 3))
    action = rng.uniform(-0.999, 0.999, (200, 3)).astype(np.float32)
    parameters = np.concatenate([mean, log_std], -1).astype(np.float32)
    found = on(lambda xp, p, a: SquashedGaussian(xp, p).log_prob(a), parameters, action)
    np.testing.assert_allclose(
        found, squashed_log_prob(action, parameters[:, :3], parameters[:, 3:]), rtol=2e-5, atol=2e-5
    )
    grid = np.linspace(-1.0, 1.0, 20_001, dtype=np.float32)[1:-1, None]
    one = np.tile(np.float32([0.3, -0.5]), (len(grid), 1))
    density = np.exp(on(lambda xp, p, a: SquashedGaussian(xp, p).log_prob(a), one, grid))
    assert density.sum() * 1e-4 == pytest.approx(1.0, abs=1e-3), "the integral over the box"


EDGES = np.float32([[1.0], [-1.0], [1.0 - 1e-7], [-1.0 + 1e-6], [1.0 - 1e-6], [0.0]])


@pytest.mark.filterwarnings("error:(overflow|invalid|divide)")
@pytest.mark.parametrize("log_std", [-25.0, -5.0, 0.0, 2.0, 9.0])
def test_edges_of_the_box_have_finite_log_probabilities_and_gradients(log_std: float, gradient_of: Any) -> None:
    parameters = np.tile(np.float32([0.5, log_std]), (len(EDGES), 1))

    def by_parameters(xp: Any, p: Any, action: Any) -> Any:
        return SquashedGaussian(xp, p).log_prob(action)

    assert np.isfinite(gradient_of(by_parameters, parameters, EDGES)).all()
    assert np.isfinite(gradient_of(lambda xp, a, p: SquashedGaussian(xp, p).log_prob(a), EDGES, parameters)).all()
    values = [run(name, by_parameters, parameters, EDGES) for name in ("numpy", "torch")]
    assert np.isfinite(values).all()
    np.testing.assert_allclose(*values, rtol=1e-5)


@pytest.mark.filterwarnings("error:(overflow|invalid|divide)")
def test_samples_that_are_rounded_to_the_edge_keep_exact_log_probabilities(on: Any) -> None:
    """x = +-20 before tanh: log(1 - tanh(x)^2) = 2 (log 2 - |x|) to 1e-17, though tanh(x) is 1 in single precision."""
    parameters = np.float32([[20.0, 0.0], [-20.0, 0.0], [0.0, 0.0], [5.0, 0.0]])
    action, log_prob = on(lambda xp, p: SquashedGaussian(xp, p).sample(0.0 * p[..., :1] + 0.5), parameters[:, :2])
    before = np.array([20.5, -19.5, 0.5, 5.5])
    slope = 2.0 * (np.log(2.0) - np.abs(before) - np.log1p(np.exp(-2.0 * np.abs(before))))
    np.testing.assert_allclose(log_prob, -0.125 - 0.5 * np.log(2.0 * np.pi) - slope, rtol=1e-6)
    np.testing.assert_array_equal(action[:2], [[1.0], [-1.0]])


@pytest.mark.filterwarnings("error:(overflow|invalid|divide)")
def test_gradients_of_samples_are_finite_and_push_back_from_the_edge(gradient_of: Any) -> None:
    parameters = np.float32([[20.0, 0.0], [-20.0, 0.0], [0.0, -30.0], [0.0, 3.0]])
    gradient = gradient_of(lambda xp, p: SquashedGaussian(xp, p).sample(0.0 * p[..., :1])[1], parameters)
    # of log pi: 2 tanh(x) by the mean; -1 by the log deviation, 0 beyond its bounds -20 and 2
    np.testing.assert_allclose(gradient, [[2, -1], [-2, -1], [0, 0], [0, 0]], atol=1e-5)
