"""Value rescaling and its inverse: by hand, and to a relative 1e-6 in float32 over twelve powers of ten."""

from typing import Any

import numpy as np
import pytest

from cavalcade.ops.rescaling import rescaled, unscaled

SIZES = np.geomspace(1e-6, 1e6, 2_001)
NUMBERS = np.concatenate([-SIZES[::-1], SIZES]).astype(np.float32)


def exact(x: np.ndarray, epsilon: float) -> np.ndarray:
    """h in extended precision, as it is published; there it is right to a relative 1e-12 at 1e-6."""
    x = x.astype(np.longdouble)
    return np.sign(x) * (np.sqrt(np.abs(x) + 1) - 1) + np.longdouble(epsilon) * x


def test_by_hand(on: Any) -> None:
    x = np.float32([0, 3, -3, 8, -99])
    # sqrt(|x| + 1) - 1 is 0, 1, 2, 9; and a tenth of x more
    y = np.float32([0, 1.3, -1.3, 2.8, -18.9])
    np.testing.assert_allclose(on(rescaled, x, epsilon=0.1), y, rtol=1e-6)
    np.testing.assert_allclose(on(unscaled, y, epsilon=0.1), x, rtol=1e-6)


@pytest.mark.parametrize("epsilon", [0.0, 1e-3, 1e-2])
def test_both_are_right_to_a_relative_millionth(on: Any, epsilon: float) -> None:
    np.testing.assert_allclose(on(rescaled, NUMBERS, epsilon=epsilon), exact(NUMBERS, epsilon), rtol=1e-6)
    y = exact(NUMBERS, epsilon).astype(np.float32)
    # the y given is rounded to float32, so the x that belongs to it is found by a step of Newton's method
    x = NUMBERS.astype(np.longdouble)
    slope = 0.5 / np.sqrt(np.abs(x) + 1) + epsilon
    x = x - (exact(x, epsilon) - y.astype(np.longdouble)) / slope
    np.testing.assert_allclose(on(unscaled, y, epsilon=epsilon), x.astype(np.float64), rtol=1e-6)


def test_the_published_inverse_cancels_in_float32() -> None:
    """Why it is not used: at 1e-6 it is wrong many times over."""
    epsilon, y = np.float32(1e-3), np.float32(exact(np.array(1e-6), 1e-3))
    root = np.sqrt(1 + 4 * epsilon * (np.abs(y) + 1 + epsilon), dtype=np.float32)
    published = ((root - 1) / (2 * epsilon)) ** 2 - 1
    assert published.dtype == np.float32 and abs(published) > 5e-6


def test_gradient_at_zero_is_finite(gradient_of: Any) -> None:
    # h'(0) = 1/2 + eps, and that of the inverse 1 / (1/2 + eps)
    zero = np.zeros(1, np.float32)
    np.testing.assert_allclose(gradient_of(lambda xp, x: rescaled(xp, x, 0.5), zero), [1.0], rtol=1e-6)
    np.testing.assert_allclose(gradient_of(lambda xp, y: unscaled(xp, y, 0.5), zero), [1.0], rtol=1e-6)
