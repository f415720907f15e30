"""Distributions of returns on a fixed support of evenly spaced atoms (Bellemare 2017)."""

from typing import Any

import numpy as np

OUTSIDE = "outside_support"  # the metric: share of the targets' probability that lies beyond the atoms
_NEAR = 1e-3  # share of the distance between atoms by which rounding may carry a target beyond the support


class Atoms:
    """The support: `count` atoms from `low` to `high`, both included."""

    def __init__(self, xp: Any, low: float, high: float, count: int):
        self.xp, self.low, self.high = xp, low, high
        self.spacing = (high - low) / (count - 1)
        self.support = xp.asarray(np.linspace(low, high, count, dtype=np.float32))  # [K]

    def probabilities(self, logits: Any) -> Any:
        return self.xp.exp(self.xp.log_softmax(logits))

    def mean(self, probabilities: Any) -> Any:
        """[..., K] -> [...]."""
        return self.xp.sum(probabilities * self.support, axis=-1)

    def moved(self, reward: Any, discount: Any) -> Any:
        """Where the atoms lie after a step: reward + discount * atom, [B, K] from [B]. They may lie outside."""
        return reward[..., None] + discount[..., None] * self.support

    def projected(self, probabilities: Any, places: Any) -> Any:
        """The probabilities [B, K] of atoms at `places` [B, K] as probabilities [B, K] of the support. A place between
        two atoms gives each the share by which it is nearer to it; a place outside counts as the nearest end."""
        xp = self.xp
        inside = xp.clip(places, self.low, self.high)
        distance = xp.abs(inside[..., None, :] - self.support[:, None]) * (1.0 / self.spacing)  # [B, K, K of places]
        return xp.sum(xp.clip(1.0 - distance, 0.0, 1.0) * probabilities[..., None, :], axis=-1)

    def outside(self, probabilities: Any, places: Any) -> Any:
        """The share (0 to 1) of probability that lies outside the support, a scalar: what a projection falsifies."""
        xp, near = self.xp, _NEAR * self.spacing
        beyond = xp.logical_or(places < self.low - near, places > self.high + near)
        return xp.mean(xp.sum(probabilities * xp.astype(beyond, xp.float32), axis=-1))
