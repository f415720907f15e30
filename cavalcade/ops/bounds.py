"""Actions within bounds: policies and critics know the unit box -1 .. 1 alone, and an affine map makes the
environment's actions of it, whatever its Box."""

import math
from functools import cache
from typing import Any

import numpy as np

from cavalcade.errors import UserError
from cavalcade.specs import EnvSpec, Leaf


class Bounds:
    """The map between the unit box [..., D] and the actions [..., *shape] of a Box with finite bounds."""

    def __init__(self, xp: Any, spec: EnvSpec):
        self.xp, self.shape, self.size = xp, spec.action.shape, math.prod(spec.action.shape)
        self.middle, self.half = _middle_and_half(spec.action)
        self.unscaled = self.half is None

    def action(self, unit: Any) -> Any:
        """From the unit box [..., D] to actions [..., *shape]."""
        xp = self.xp
        flat = unit if self.unscaled else unit * xp.asarray(self.half) + xp.asarray(self.middle)
        return xp.reshape(flat, (*flat.shape[:-1], *self.shape)) if len(self.shape) != 1 else flat

    def unit(self, action: Any) -> Any:
        """From actions [..., *shape] to the unit box [..., D], in single precision whatever the Box has."""
        xp = self.xp
        action = xp.astype(action, xp.float32)
        leading = action.shape[: action.ndim - len(self.shape)]
        flat = xp.reshape(action, (*leading, self.size)) if len(self.shape) != 1 else action
        return flat if self.unscaled else (flat - xp.asarray(self.middle)) / xp.asarray(self.half)


@cache
def _middle_and_half(leaf: Leaf) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Of each entry of a Box, [D] float32; None for the unit box. Kept, because actors ask at every step."""
    low, high = (ends.reshape(-1) for ends in leaf.bounds)
    if (low == -1.0).all() and (high == 1.0).all():
        return None, None
    return ((high + low) / 2).astype(np.float32), ((high - low) / 2).astype(np.float32)


def require_bounds(spec: EnvSpec, who: str) -> None:
    """Refuse actions that are no Box with finite bounds, low below high in every entry."""
    leaf, name = spec.action, spec.environment
    if leaf.kind != "box":
        instead = "dqn, ppo or sac" if leaf.kind == "discrete" else "ppo"
        raise UserError(f"{who} needs a Box of actions, but {name} has {leaf.kind} actions; use {instead}.")
    for low, high in zip(leaf.low, leaf.high):
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise UserError(
                f"{who} scales actions to their bounds, but an action of {name} reaches from {low:g} to {high:g}; "
                "declare finite ones with gymnasium.wrappers.TransformAction, or use ppo, which needs none."
            )
