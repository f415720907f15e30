"""The pieces of MPO against closed forms: weights, the dual of the temperature, KLs, and where gradients go."""

import math
from typing import Any

import numpy as np
import pytest

from cavalcade import backends
from cavalcade.ops import mpo
from cavalcade.ops.distributions import Gaussian
from cavalcade.tree import Layout

TWO = np.float32([[0.0], [1.0]])  # two actions at one state, worth 0 and 1
EPSILON = 0.1
LEARNED = np.float32([-1000, -30, -18, 0, 10, 1000])  # prices before the softplus; the floor is -18


def temperature_of(epsilon: float, worth: float = 1.0) -> float:
    """Where KL(weights || equal) is epsilon, for two actions that differ by `worth`: log 2 - entropy of the sigmoid,
    which falls with the temperature. By bisection."""

    def divergence(temperature: float) -> float:
        p = 1.0 / (1.0 + math.exp(-worth / temperature))
        return math.log(2.0) + p * math.log(p) + (1.0 - p) * math.log(1.0 - p)

    low, high = 0.05 * worth, 100.0 * worth
    for _ in range(100):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if divergence(middle) > epsilon else (low, middle)
    return low


def dual(xp: Any, temperature: Any, values: Any) -> Any:
    return mpo.weighted_actions(xp, values, temperature[0], EPSILON)[1]


def test_weights_are_a_softmax_over_the_samples_of_each_state(on: Any) -> None:
    values = np.float32([[0, 5], [math.log(2), 5], [math.log(5), 5]])  # [N = 3, B = 2]
    weights, loss = on(lambda xp, v: mpo.weighted_actions(xp, v, xp.asarray(np.float32(1.0)), EPSILON), values)
    np.testing.assert_allclose(weights, [[1 / 8, 1 / 3], [2 / 8, 1 / 3], [5 / 8, 1 / 3]], rtol=1e-6)
    # epsilon + log mean exp: log(8 / 3) and 5, the mean of both, less the means of the values, log(10) / 3 and 5
    assert loss == pytest.approx(0.1 + (math.log(8 / 3) - math.log(10) / 3) / 2, abs=1e-6)
    hot, _ = on(lambda xp, v: mpo.weighted_actions(xp, v, xp.asarray(np.float32(0.5)), EPSILON), values)
    np.testing.assert_allclose(hot[:, 0], [1 / 30, 4 / 30, 25 / 30], rtol=1e-5)  # the squares


def test_the_dual_is_least_where_the_weights_have_the_kl_that_is_allowed(gradient_of: Any) -> None:
    best = temperature_of(EPSILON)
    assert best == pytest.approx(1.0599473, abs=1e-6)
    at = [float(gradient_of(dual, np.float32([best * factor]), TWO)[0]) for factor in (0.8, 1.0, 1.25)]
    assert at[0] < -1e-2 and at[1] == pytest.approx(0.0, abs=1e-6) and at[2] > 1e-2
    # the slope is epsilon - KL: at a temperature of 1 p = .7310586, KL = .1109441
    assert gradient_of(dual, np.float32([1.0]), TWO)[0] == pytest.approx(0.1 - 0.1109441, abs=1e-6)


def test_descending_the_dual_finds_that_temperature() -> None:
    learned = 3.0
    backend = backends.load("torch")

    def loss(params: dict, values: Any) -> tuple[Any, dict]:
        return dual(backend.xp, mpo.price(backend.xp, params["x"]), values), {}

    slope = backend.differentiate(loss, Layout.of({"x": np.float32([learned])}))
    for _ in range(300):
        found, _ = slope(backend.vector(np.float32([learned])), backend.from_numpy(np.float32(5.0) * TWO))
        learned -= 20.0 * float(found)
    assert math.log1p(math.exp(learned)) == pytest.approx(temperature_of(EPSILON, 5.0), rel=1e-3)


def test_values_far_from_zero_have_the_same_gradient(gradient_of: Any) -> None:
    """Values of -1024 and a temperature of 0.0078: in single precision their quotients are known to 0.01, as far as
    epsilon is from the KL."""
    values, temperature = np.float32([[0.0], [1 / 128]]), np.float32([1 / 128])
    near, far = (gradient_of(dual, temperature, values - np.float32(shift)) for shift in (0.0, 1024.0))
    np.testing.assert_allclose(far, near, atol=1e-5)
    np.testing.assert_allclose(near, [0.1 - 0.1109441], atol=1e-5)


def test_divergences_of_each_entry_in_closed_form(on: Any) -> None:
    mean, old_mean = np.float32([[1.0, -2.0]]), np.float32([[0.5, -2.0]])
    std, old_std = np.float32([[0.2, 3.0]]), np.float32([[0.1, 1.5]])

    def numbers(xp: Any, mean: Any, std: Any, old_mean: Any, old_std: Any) -> tuple:
        return mpo.kl_of_means(xp, mean, old_mean, old_std), mpo.kl_of_deviations(xp, std, old_std)

    means, deviations = on(numbers, mean, std, old_mean, old_std)
    np.testing.assert_allclose(means, [[0.25 / 0.02, 0.0]], rtol=1e-6)
    np.testing.assert_allclose(deviations, [[math.log(2) + 1 / 8 - 1 / 2] * 2], rtol=1e-6)

    def whole(xp: Any, mean: Any, std: Any, old_mean: Any, old_std: Any) -> tuple:
        """The same by the KL of normals, of which mean or deviation is the old one: KL(old || new)."""
        old = Gaussian(xp, xp.concat([old_mean, xp.log(old_std)], axis=-1))
        moved = Gaussian(xp, xp.concat([mean, xp.log(old_std)], axis=-1))
        wider = Gaussian(xp, xp.concat([old_mean, xp.log(std)], axis=-1))
        return old.kl(moved), old.kl(wider)

    of_mean, of_deviation = on(whole, mean, std, old_mean, old_std)
    np.testing.assert_allclose(means.sum(-1), of_mean, rtol=1e-5)
    np.testing.assert_allclose(deviations.sum(-1), of_deviation, rtol=1e-5)


def test_log_prob_is_that_of_normals(on: Any) -> None:
    arrays = np.float32([[1.0, 0.0]]), np.float32([[0.0, 0.5]]), np.float32([[1.0, 0.5]])
    # -1/2 - log sqrt(2 pi), and -1/2 - log .5 - log sqrt(2 pi)
    expected = -1.0 + math.log(2.0) - math.log(2.0 * math.pi)
    np.testing.assert_allclose(on(mpo.log_prob, *arrays), [expected], rtol=1e-6)


@pytest.mark.filterwarnings("error:(overflow|invalid|divide)")
def test_prices_stay_finite_and_above_zero(on: Any) -> None:
    floor = math.log1p(math.exp(-18.0)) + 1e-8
    np.testing.assert_allclose(on(mpo.price, LEARNED), [floor] * 3 + [math.log(2.0), 10.0000454, 1000.0], rtol=1e-5)


def test_a_price_can_rise_again_from_its_floor(gradient_of: Any) -> None:
    slope = gradient_of(mpo.price, LEARNED)
    lowest = 1.0 / (1.0 + math.exp(18.0))
    np.testing.assert_allclose(slope, [lowest] * 3 + [0.5, 1.0 / (1.0 + math.exp(-10.0)), 1.0], rtol=1e-5)


def test_a_bound_gives_each_side_its_own_gradient(gradient_of: Any) -> None:
    """[divergence, price before the softplus]: the penalty reaches the divergence alone, the dual the price alone."""

    def whole(xp: Any, x: Any) -> Any:
        penalty, loss = mpo.bounded(xp, x[:2], x[2:], 0.25)
        return penalty + loss

    x = np.float32([0.5, 0.125, 0.0, 10.0])
    soft, slope = [math.log(2.0), 10.0000454], [0.5, 1.0 / (1.0 + math.exp(-10.0))]
    expected = [*soft, slope[0] * (0.25 - 0.5), slope[1] * (0.25 - 0.125)]  # a divergence above the bound: dearer
    np.testing.assert_allclose(gradient_of(whole, x), expected, rtol=1e-5)


def test_weights_are_constants_to_the_values_and_to_the_temperature(gradient_of: Any) -> None:
    def of_values(xp: Any, values: Any) -> Any:
        weights, loss = mpo.weighted_actions(xp, values, xp.asarray(np.float32(1.0)), EPSILON)
        return xp.sum(weights * weights) + loss + 0.0 * xp.sum(values)

    def of_temperature(xp: Any, temperature: Any, values: Any) -> Any:
        weights, _ = mpo.weighted_actions(xp, values, temperature[0], EPSILON)
        return xp.sum(weights * weights) + 0.0 * xp.sum(temperature)

    assert (gradient_of(of_values, TWO) == 0.0).all()
    assert (gradient_of(of_temperature, np.float32([1.0]), TWO) == 0.0).all()
