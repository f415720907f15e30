"""Quantile regression: numbers done by hand, gradients, and what minimises the loss."""

from typing import Any

import numpy as np
import pytest

from cavalcade.ops.quantiles import midpoints, quantile_huber


def test_fractions_are_the_middles_of_equal_parts() -> None:
    np.testing.assert_allclose(midpoints(4), [0.125, 0.375, 0.625, 0.875])


def test_the_loss_by_hand(on: Any) -> None:
    """Quantiles 0 and 1 of the fractions 0.25 and 0.75 against samples 0.5 and 3. Errors 0.5 and 3 of the first: huber
    0.125 and 2.5, times 0.25, in the mean 0.328125. Errors -0.5 and 2 of the second: 0.125 times |0.75 - 1| and 1.5
    times 0.75, in the mean 0.578125."""
    given = np.float32([[0.0, 1.0]]), midpoints(2), np.float32([[0.5, 3.0]])
    np.testing.assert_allclose(on(quantile_huber, *given), [0.328125 + 0.578125], rtol=1e-6)
    # kappa 0.5: huber 0.125, 1.375; 0.125, 0.875, divided by 0.5
    expected = 0.25 * (0.125 + 1.375) + 0.25 * 0.125 + 0.75 * 0.875
    np.testing.assert_allclose(on(quantile_huber, *given, kappa=0.5), [expected], rtol=1e-6)


def test_the_gradient_by_hand(gradient_of: Any) -> None:
    """Errors clipped to 1, weighted, the mean over samples: -(0.25 * 0.5 + 0.25 * 1) / 2, (0.25 * 0.5 - 0.75) / 2."""
    found = gradient_of(quantile_huber, np.float32([[0.0, 1.0]]), midpoints(2), np.float32([[0.5, 3.0]]))
    np.testing.assert_allclose(found, [[-0.1875, -0.3125]], rtol=1e-5)


@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.7])
def test_the_minimiser_is_the_quantile(on: Any, fraction: float) -> None:
    """Of all places on a fine grid, one for each of 401 rows, with a kappa that makes the squared part narrow."""
    samples = np.sort(np.random.default_rng(0).exponential(2.0, 101)).astype(np.float32)
    places = np.linspace(0.0, 10.0, 401, dtype=np.float32)[:, None]
    losses = on(quantile_huber, places, np.float32([fraction]), np.tile(samples, (401, 1)), kappa=1e-3)
    assert places[np.argmin(losses), 0] == pytest.approx(np.quantile(samples, fraction), abs=0.05)
