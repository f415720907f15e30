"""The pieces of losses against numbers done by hand, values and gradients, on every backend."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from cavalcade.ops import losses
from tests.helpers.on_backends import BACKENDS, run

ERRORS = np.float32([-3, -1, -0.5, 0, 0.5, 1, 4])


def test_huber_is_quadratic_then_linear(on: Any) -> None:
    # .5*.5^2 = .125, .5*1 = .5 on the border, |e| - .5 beyond
    np.testing.assert_allclose(on(losses.huber, ERRORS), [2.5, 0.5, 0.125, 0, 0.125, 0.5, 3.5], rtol=1e-6)
    # delta 2: .5*e^2 up to 2, then 2|e| - 2, so 4 and 6 at the ends
    expected = [4, 0.5, 0.125, 0, 0.125, 0.5, 6]
    np.testing.assert_allclose(on(losses.huber, ERRORS, delta=2.0), expected, rtol=1e-6)


def test_huber_gradient_is_the_clipped_error(gradient_of: Any) -> None:
    np.testing.assert_allclose(gradient_of(losses.huber, ERRORS), [-1, -1, -0.5, 0, 0.5, 1, 1], rtol=1e-6)


def test_weighted_mean(on: Any) -> None:
    x = np.float32([[1, 2], [3, 100]])
    # (1*1 + .5*2 + .5*3) / 2 = 1.75; the last entry does not count
    assert on(losses.weighted_mean, x, np.float32([[1, 0.5], [0.5, 0]])) == pytest.approx(1.75)
    assert on(losses.weighted_mean, x, np.zeros((2, 2), np.float32)) == 0.0


def test_explained_variance(on: Any) -> None:
    goal, weight = np.float32([[1, 3], [5, 99]]), np.float32([[1, 1], [2, 0]])  # mean 3.5, variance 11/4
    found = partial(on, losses.explained_variance)
    # errors 1, -1, 0: mean 0, variance 2/4; the last entry does not count
    assert found(goal, np.float32([[1, -1], [0, 50]]), weight) == pytest.approx(1 - 2 / 11)
    assert found(goal, np.full((2, 2), 7.0, np.float32), weight) == pytest.approx(1.0)  # all off by the same
    assert found(goal, goal, weight) == pytest.approx(0.0, abs=1e-6)  # predictions of 0
    assert found(goal, np.float32(100.0) * goal, weight) == -1.0  # -9999 would outweigh every other batch
    assert found(np.ones((2, 2), np.float32), goal, weight) == -1.0  # nothing to explain, and yet wrong
    assert np.isfinite(found(goal, goal, np.zeros((2, 2), np.float32)))


def test_importance_weights(on: Any) -> None:
    probability = np.float32([0.5, 0.25, 0.125])
    weights = partial(on, losses.importance_weights, probability)
    # 4 items: N P = 2, 1, .5; its inverse .5, 1, 2 over the largest
    np.testing.assert_allclose(weights(size=4, beta=1.0), [0.25, 0.5, 1], rtol=1e-6)
    # the same to the power 1/2: 1/sqrt(4), 1/sqrt(2), 1
    np.testing.assert_allclose(weights(size=4, beta=0.5), [0.5, 0.70710678, 1], rtol=1e-6)
    np.testing.assert_array_equal(weights(size=4, beta=0.0), [1, 1, 1])


def test_importance_weights_of_a_large_table_stay_finite(on: Any) -> None:
    probability = np.float32([1e-12, 1e-6, 0.9])
    weights = on(losses.importance_weights, probability, size=2_000_000, beta=1.0)
    np.testing.assert_allclose(weights, [1, 1e-6, 1e-12 / 0.9], rtol=1e-4)


RATIO = np.float32([2, 2, 0.5, 0.5, 1.1, 1.1])
ADVANTAGE = np.float32([1, -1, 1, -1, 3, -3])


def clipped_surrogate(xp: Any, log_ratio: Any, advantage: Any, clip: float) -> Any:
    return losses.ppo_clip(xp, losses.policy_ratio(xp, log_ratio), advantage, clip)


def test_ppo_clip(on: Any) -> None:
    # min(2, 1.2) = 1.2; min(-2, -1.2) = -2; min(.5, .8) = .5; min(-.5, -.8) = -.8; inside the range 1.1 * A
    expected = [-1.2, 2, -0.5, 0.8, -3.3, 3.3]
    np.testing.assert_allclose(on(clipped_surrogate, np.log(RATIO), ADVANTAGE, clip=0.2), expected, rtol=1e-6)


def test_ppo_clip_gradient_stops_where_the_policy_moved_enough(gradient_of: Any) -> None:
    gradient = gradient_of(partial(clipped_surrogate, clip=0.2), np.log(RATIO), ADVANTAGE)
    # d(-ratio A)/d(log ratio) = -ratio A; nothing where the clipped branch is the smaller one
    np.testing.assert_allclose(gradient, [0, 2, -0.5, 0, -3.3, 3.3], rtol=1e-6)


FAR_APART = (np.float32([200, 200, 200, -200]), np.float32([1, -1, 0, 1]))  # log ratio, advantage


@pytest.mark.filterwarnings("error:(overflow|invalid)")
def test_ppo_clip_survives_policies_far_apart(on: Any) -> None:
    loss = on(clipped_surrogate, *FAR_APART, clip=0.2)
    np.testing.assert_allclose(loss[[0, 2, 3]], [-1.2, 0, 0], atol=1e-6)
    assert np.isfinite(loss[1]) and loss[1] > 1e8


def test_ppo_clip_gradient_survives_policies_far_apart(gradient_of: Any) -> None:
    assert np.isfinite(gradient_of(partial(clipped_surrogate, clip=0.2), *FAR_APART)).all()


def test_backends_agree() -> None:
    def numbers(xp: Any, x: Any, y: Any) -> Any:
        positive = xp.abs(x) + 1e-3
        parts = [
            losses.huber(xp, 3.0 * x, 1.5),
            losses.importance_weights(xp, positive, 257, 0.6),
            clipped_surrogate(xp, x, y, 0.1),
            losses.weighted_mean(xp, x, positive) * y,
            losses.explained_variance(xp, x, 0.3 * x + 0.1 * y, positive) * y,
        ]
        return xp.stack(parts)

    inputs = np.random.default_rng(0).normal(size=(2, 257)).astype(np.float32)
    results = [run(name, numbers, *inputs) for name in (*BACKENDS, "jax-eager")]
    assert all(result.dtype == np.float32 for result in results)
    for other in results[1:]:
        np.testing.assert_allclose(other, results[0], rtol=1e-5, atol=1e-5)
