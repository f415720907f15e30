"""The elementwise pieces that losses are put together from.

They return one number per sample: algorithms weigh and average themselves, because only they know which
samples are padding and which are importance-weighted.
"""

from typing import Any

# exp overflows float32 at 88, and an infinite ratio turns the zero gradient of a clipped sample into 0 * inf.
# Past e^20 a ratio says no more than that the policies have nothing in common.
_LARGEST_LOG_RATIO = 20.0
_TINY = 1e-8


def huber(xp: Any, error: Any, delta: float = 1.0) -> Any:
    """error^2 / 2 up to `delta`, then linear: the gradient is the error clipped to +-delta (Mnih 2015)."""
    clipped = xp.clip(error, -delta, delta)
    return clipped * (error - 0.5 * clipped)


def weighted_mean(xp: Any, x: Any, weight: Any) -> Any:
    """A scalar; `x` and `weight` have one shape. Zero when every weight is zero."""
    return xp.sum(weight * x) / xp.clip(xp.sum(weight), _TINY, None)


def importance_weights(xp: Any, probability: Any, size: Any, beta: Any) -> Any:
    """[B], the largest 1: undoes the bias of prioritised sampling, wholly at beta = 1 (Schaul 2016).

    `probability` [B] is each item's chance of being drawn and must be positive, `size` the number of items.
    The largest weight is the batch's, so `size` cancels in exact arithmetic; it keeps the powers near one.
    """
    weight = (size * probability) ** -beta
    return weight / xp.max(weight)


def unbounded_surrogate(xp: Any, log_ratio: Any, advantage: Any) -> Any:
    """The surrogate of each sample without a bound, negated so that it is minimised; a penalty has to bound it."""
    return -xp.exp(xp.clip(log_ratio, None, _LARGEST_LOG_RATIO)) * advantage


def ppo_clip(xp: Any, log_ratio: Any, advantage: Any, clip: float) -> Any:
    """The clipped surrogate of each sample, negated so that it is minimised (Schulman 2017).

    `log_ratio` is log pi_new(a) - log pi_old(a).
    """
    ratio = xp.exp(xp.clip(log_ratio, None, _LARGEST_LOG_RATIO))
    clipped = xp.clip(ratio, 1.0 - clip, 1.0 + clip)
    return -xp.minimum(ratio * advantage, clipped * advantage)
