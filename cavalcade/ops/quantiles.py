"""Distributions of returns as quantiles, learned by quantile regression (Dabney 2018)."""

from typing import Any

import numpy as np

from cavalcade.ops.losses import huber


def midpoints(count: int) -> np.ndarray:
    """[count] float32: the middles of `count` equal parts of 0 .. 1, the fractions whose quantiles stand for all."""
    return ((np.arange(count) + 0.5) / count).astype(np.float32)


def quantile_huber(xp: Any, predicted: Any, fractions: Any, goal: Any, kappa: float = 1.0) -> Any:
    """The loss [B] of quantiles `predicted` [B, N] of these `fractions` [N] or [B, N] (0 to 1) against samples `goal`
    [B, M] of a return, a constant: |fraction - (error < 0)| * huber(error) / kappa, the mean over the M samples, summed
    over the N quantiles. Up to `kappa` errors count by their square, so that the gradient is smooth at zero."""
    error = goal[:, None, :] - predicted[:, :, None]  # [B, N, M]
    above = xp.astype(xp.stop_gradient(error) < 0.0, xp.float32)  # the prediction lies above the sample
    weight = xp.abs(fractions[..., None] - above)
    return xp.sum(xp.mean(weight * huber(xp, error, kappa), axis=-1), axis=-1) * (1.0 / kappa)
