"""Rewards in units of the standard deviation of their discounted sums, so that one learning rate suits any scale.

The moments are part of the learner's statistics, beside those of the observations.
"""

from typing import Any

from cavalcade.networks import normaliser
from cavalcade.tree import Tree

REWARD = "reward"  # key of the moments of the discounted sums in the statistics


def fresh() -> Tree:
    """The moments before any reward was seen."""
    return {REWARD: normaliser.fresh(())}


def scaled(xp: Any, statistics: Tree, items: Tree) -> tuple[Tree, Tree]:
    """The unrolls [B, T, ...] with their rewards in the new units, and the statistics after these unrolls. The sum of
    discounted rewards begins at zero with every unroll and every episode."""
    reward, discount, valid = (xp.swapaxes(items[name], 0, 1) for name in ("reward", "discount", "valid"))

    def accumulate(total: Any, r_t: Any, ongoing_t: Any) -> tuple[Any, Any]:
        return (total + r_t) * ongoing_t, total + r_t

    _, totals = xp.scan(accumulate, xp.zeros_like(reward[0]), (reward, discount * valid))
    moments = normaliser.merge(xp, statistics[REWARD], xp.reshape(totals, (-1,)), xp.reshape(valid, (-1,)))
    items = {**items, "reward": normaliser.scaled(xp, moments, items["reward"], centre=False)}
    return items, {**statistics, REWARD: moments}
