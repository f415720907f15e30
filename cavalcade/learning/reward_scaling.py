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
    """The unrolls [B, T, ...] with their rewards in the new units, and the statistics after these unrolls. Their steps
    come with `total`, the discounted sum of the rewards of the episode so far, which the actors have counted: within an
    unroll it cannot be known, and sums that begin at zero with every unroll would make the units depend on its length.
    """
    total, valid = (xp.reshape(items[name], (-1,)) for name in ("total", "valid"))
    moments = normaliser.merge(xp, statistics[REWARD], total, valid)
    items = {**items, "reward": normaliser.scaled(xp, moments, items["reward"], centre=False)}
    return items, {**statistics, REWARD: moments}
