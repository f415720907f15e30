"""Rewards in units of the deviation of their discounted sums, so that one learning rate suits tasks of any scale.

The statistics are learner state and lie beside those of the observations.
"""

from typing import Any

from cavalcade.networks import normaliser
from cavalcade.tree import Tree

REWARD = "reward"  # key of the reward's statistics beside the observations'


def fresh() -> Tree:
    """Statistics before any reward was seen."""
    return {REWARD: normaliser.fresh(())}


def scaled(xp: Any, statistics: Tree, items: Tree) -> tuple[Tree, Tree]:
    """Unrolls [B, T, ...] with their rewards in the new units, and the statistics with these unrolls in them."""
    reward, discount, valid = (xp.swapaxes(items[name], 0, 1) for name in ("reward", "discount", "valid"))

    def accumulate(total: Any, r_t: Any, ongoing_t: Any) -> tuple[Any, Any]:
        return (total + r_t) * ongoing_t, total + r_t

    _, totals = xp.scan(accumulate, xp.zeros_like(reward[0]), (reward, discount * valid))
    moments = normaliser.merge(xp, statistics[REWARD], xp.reshape(totals, (-1,)), xp.reshape(valid, (-1,)))
    items = {**items, "reward": normaliser.scaled(xp, moments, items["reward"], centre=False)}
    return items, {**statistics, REWARD: moments}
