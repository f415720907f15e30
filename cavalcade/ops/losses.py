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
    clipped = xp.stop_gradient(xp.clip(error, -delta, delta))  # the gradient is right without its share, and cheaper
    return clipped * (error - 0.5 * clipped)


def weighted_mean(xp: Any, x: Any, weight: Any) -> Any:
    """A scalar; `x` and `weight` have one shape. Zero when every weight is zero."""
    return xp.sum(weight * x) / xp.clip(xp.sum(weight), _TINY, None)


def explained_variance(xp: Any, goal: Any, error: Any, weight: Any) -> Any:
    """How much of what differs between goals their predictions explain: 1 - Var(error) / Var(goal), a scalar.

    `error` is goal - prediction. 1 is all of it, 0 no more than a constant would. What is worse than -1 is given as -1,
    so that one batch whose goals hardly differ does not spoil a mean over many.
    """
    share = weight / xp.clip(xp.sum(weight), _TINY, None)

    def variance(x: Any) -> Any:
        return xp.sum(share * xp.square(x - xp.sum(share * x)))

    return xp.clip(1.0 - variance(error) / xp.clip(variance(goal), _TINY, None), -1.0, None)


def importance_weights(xp: Any, probability: Any, size: Any, beta: Any) -> Any:
    """[B], the largest 1: undoes the bias of prioritised sampling, wholly at beta = 1 (Schaul 2016).

    `probability` [B] is each item's chance of being drawn and must be positive, `size` the number of items.
    The largest weight is the batch's, so `size` cancels in exact arithmetic; it keeps the powers near one.
    """
    weight = (size * probability) ** -beta
    return weight / xp.max(weight)


def policy_ratio(xp: Any, log_ratio: Any) -> Any:
    """pi_new(a) / pi_old(a) of each sample, from log pi_new(a) - log pi_old(a); finite however far they are apart."""
    return xp.exp(xp.clip(log_ratio, None, _LARGEST_LOG_RATIO))


def unbounded_surrogate(xp: Any, ratio: Any, advantage: Any) -> Any:
    """The surrogate of each sample without a bound, negated so that it is minimised; a penalty has to bound it."""
    return -ratio * advantage


def ppo_clip(xp: Any, ratio: Any, advantage: Any, clip: float) -> Any:
    """The clipped surrogate of each sample, negated so that it is minimised (Schulman 2017)."""
    surrogate = ratio * advantage
    bound = xp.clip(xp.stop_gradient(ratio), 1.0 - clip, 1.0 + clip) * advantage
    return -xp.where(surrogate <= bound, surrogate, bound)  # `minimum` would halve the gradient where both are the same
