"""A penalty on the divergence of policies, and the three published rules that change its coefficient.

coefficient * raised    where KL > above * target,
coefficient * lowered   where KL < below * target,        KL = mean of KL(pi_old || pi) at the end of a draw.
"""

from typing import Any, NamedTuple

# Bounds of the coefficient if a paper names none: one that has become 0 or inf in float32 could never change again.
_LEAST, _MOST = 1e-6, 1e6


class KLRule(NamedTuple):
    """The numbers of one rule; the equation is at the top of this file."""

    initial: float  # coefficient of the first draw
    above: float
    raised: float
    below: float
    lowered: float
    smallest: float = _LEAST  # coefficient
    largest: float = _MOST
    hinge: float = 0.0  # weight of a second penalty, max(0, KL - 2 target)^2
    end: float = 0.0  # after an epoch with KL > end * target the policy stays until the next draw; 0: never


KL_RULES = {
    "ppo": KLRule(1.0, 1.5, 2.0, 1.0 / 1.5, 0.5),  # Schulman 2017, section 4
    "rllib": KLRule(0.2, 2.0, 1.5, 0.5, 0.5),  # rllib/policy/torch_mixins.py, KLCoeffMixin
    # Heess 2017 gives the form; the constants are those of pat-coady's trpo/policy.py
    "heess": KLRule(1.0, 2.0, 1.5, 0.5, 1.0 / 1.5, 1.0 / 35.0, 35.0, hinge=50.0, end=4.0),
}


def adapted(xp: Any, rule: KLRule, coefficient: Any, kl: Any, target: float) -> Any:
    """The coefficient for the next draw, from the mean `kl` at the end of this draw."""
    low, high = coefficient * rule.lowered, coefficient * rule.raised
    moved = xp.where(kl > rule.above * target, high, xp.where(kl < rule.below * target, low, coefficient))
    return xp.clip(moved, rule.smallest, rule.largest)


def kl_penalty(xp: Any, rule: KLRule, coefficient: Any, kl: Any, target: float) -> Any:
    """The penalty that is added to the loss of a minibatch with this mean `kl`."""
    penalty = coefficient * kl
    return penalty + rule.hinge * xp.square(xp.clip(kl - 2.0 * target, 0.0, None)) if rule.hinge else penalty
