"""The pieces that losses are made of.

Most return one number for each sample; algorithms weight and average these, because only they know which samples
are padding and which have importance weights.
"""

from typing import Any

# exp overflows float32 at 88, and an infinite ratio turns the zero gradient of a clipped sample into 0 * inf.
# A ratio above e^20 only says that the policies have nothing in common.
_LARGEST_LOG_RATIO = 20.0
_TINY = 1e-8


def huber(xp: Any, error: Any, delta: float = 1.0) -> Any:
    """error^2 / 2 up to `delta`, then linear: the gradient is the error clipped to +-delta (Mnih 2015)."""
    clipped = xp.stop_gradient(xp.clip(error, -delta, delta))  # the same gradient without it, and cheaper
    return clipped * (error - 0.5 * clipped)


def weighted_mean(xp: Any, x: Any, weight: Any) -> Any:
    """The mean of x, a scalar; `x` and `weight` have the same shape. Zero if all weights are zero."""
    return xp.sum(weight * x) / xp.clip(xp.sum(weight), _TINY, None)


def explained_variance(xp: Any, goal: Any, error: Any, weight: Any) -> Any:
    """The share of the variance of goals that their predictions explain: 1 - Var(error) / Var(goal), a scalar.

    `error` is goal - prediction. 1 means perfect predictions, 0 predictions as good as a constant. Numbers below -1
    become -1, so that one batch with nearly equal goals does not spoil a mean over many.
    """
    share = weight / xp.clip(xp.sum(weight), _TINY, None)

    def variance(x: Any) -> Any:
        return xp.sum(share * xp.square(x - xp.sum(share * x)))

    return xp.clip(1.0 - variance(error) / xp.clip(variance(goal), _TINY, None), -1.0, None)


def importance_weights(xp: Any, probability: Any, size: Any, beta: Any) -> Any:
    """Weights [B] of which the largest is 1, against the bias of prioritised draws; beta = 1 removes all of the bias
    (Schaul 2016).

    `probability` [B] is the probability with which each item is drawn, above 0; `size` is the number of items in the
    table. The weights are divided by the largest of the batch, so `size` cancels; it only keeps the powers near one.
    """
    weight = (size * probability) ** -beta
    return weight / xp.max(weight)


def policy_ratio(xp: Any, log_ratio: Any) -> Any:
    """pi_new(a) / pi_old(a) of each sample, from log pi_new(a) - log pi_old(a); at most e^20, so it is finite."""
    return xp.exp(xp.clip(log_ratio, None, _LARGEST_LOG_RATIO))


def unbounded_surrogate(xp: Any, ratio: Any, advantage: Any) -> Any:
    """The surrogate of each sample without a bound, negated so that it is minimised; a penalty has to bound it."""
    return -ratio * advantage


def ppo_clip(xp: Any, ratio: Any, advantage: Any, clip: float) -> Any:
    """The clipped surrogate of each sample, negated so that it is minimised (Schulman 2017)."""
    surrogate = ratio * advantage
    bound = xp.clip(xp.stop_gradient(ratio), 1.0 - clip, 1.0 + clip) * advantage
    return -xp.where(surrogate <= bound, surrogate, bound)  # `minimum` would halve the gradient where both are equal
