"""The pieces of MPO's losses (Abdolmaleki 2018): weights of sampled actions, and bounds on how far a policy moves.

Each bound is kept by a dual variable, a price that is learned: gradients reach the price through its own loss and
nothing else. Prices are softplus of what is learned, so they stay above zero.
"""

import math
from typing import Any

_LOWEST = -18.0  # softplus of it is 1.5e-8, about as small as the gradients that Adam still follows
_TINY = 1e-8


def price(xp: Any, learned: Any) -> Any:
    """softplus. What is learned counts as `_LOWEST` below that, with the gradient that it has there: with none, a price
    that has fallen so low could never rise again."""
    lifted = xp.stop_gradient(xp.maximum(learned, xp.full_like(learned, _LOWEST)) - learned)
    return xp.softplus(learned + lifted) + _TINY


def weighted_actions(xp: Any, values: Any, temperature: Any, epsilon: float) -> tuple[Any, Any]:
    """The E-step: weights [N, B] of N sampled actions, softmax of values [N, B] / temperature over the samples, and the
    loss of the temperature, a scalar. It is least where the weights differ from equal ones by a KL of `epsilon`. Values
    count relative to their mean at a state, which changes neither weights nor gradients, but spares them rounding."""
    values = xp.stop_gradient(values)
    tempered = xp.moveaxis(values - xp.mean(values, axis=0), 0, -1) / temperature  # [B, N]
    logs = xp.log_softmax(tempered)
    # log sum exp, which is what log_softmax takes away from each entry
    log_sum = tempered[..., 0] - logs[..., 0]
    loss = temperature * (epsilon + xp.mean(log_sum) - math.log(values.shape[0]))
    return xp.moveaxis(xp.stop_gradient(xp.exp(logs)), -1, 0), loss


def bounded(xp: Any, divergence: Any, learned: Any, epsilon: float) -> tuple[Any, Any]:
    """A penalty that keeps each entry of a mean divergence [D] near `epsilon`, and the loss of its prices [D]."""
    prices = price(xp, learned)
    penalty = xp.sum(xp.stop_gradient(prices) * divergence)
    return penalty, xp.sum(prices * (epsilon - xp.stop_gradient(divergence)))


def kl_of_means(xp: Any, mean: Any, old_mean: Any, old_std: Any) -> Any:
    """KL [...] of normals with the same deviation and other means: (mean - old)^2 / (2 std^2)."""
    return 0.5 * xp.square((mean - old_mean) / old_std)


def kl_of_deviations(xp: Any, std: Any, old_std: Any) -> Any:
    """KL(old || new) [...] of normals with the same mean and other deviations."""
    return xp.log(std / old_std) + 0.5 * xp.square(old_std / std) - 0.5


def log_prob(xp: Any, action: Any, mean: Any, std: Any) -> Any:
    """[..., D] -> [...]: of independent normals."""
    score = (action - mean) / std
    return -xp.sum(0.5 * score * score + xp.log(std) + 0.5 * math.log(2.0 * math.pi), axis=-1)
