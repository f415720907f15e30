"""What vector environments give for all of their environments at once: which convention of Gymnasium it follows, and
parts of it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from cavalcade import tree
from cavalcade.errors import BadEnvironment
from cavalcade.specs import MASK

FINAL_KEYS = ("final_obs", "final_observation")  # since Gymnasium 1.1; before


def autoreset_mode(env: VectorEnv, name: str) -> AutoresetMode:
    mode = getattr(env.unwrapped, "autoreset_mode", None)
    # `VectorEnv.metadata` is one dict for all classes without their own, and some environments write their
    # mode into it: what it says may be another environment's.
    if mode is None and env.metadata is not VectorEnv.metadata:
        mode = env.metadata.get("autoreset_mode")
    try:
        return mode if isinstance(mode, AutoresetMode) else AutoresetMode(mode)
    except ValueError:
        known = ", ".join(f"AutoresetMode.{known.name}" for known in AutoresetMode)
        raise BadEnvironment(
            f"The vector environment '{name}' has the autoreset mode {mode!r} in its metadata; "
            f"set metadata['autoreset_mode'] to one of {known}."
        ) from None


def final_observations(info: dict, name: str) -> Any:
    """Those of episodes that ended in the step in which the next ones began (SAME_STEP)."""
    for key in FINAL_KEYS:
        if key in info:
            return info[key]
    raise BadEnvironment(
        f"The vector environment '{name}' resets in the step that ends an episode (SAME_STEP) but gives no "
        "info['final_obs']; make it give the final observations there."
    )


def replaced(observation: tree.Tree, rows: list[int], values: tree.Tree) -> tree.Tree:
    """A copy of [N, ...] with other values in some rows."""

    def replace(array: np.ndarray, new: np.ndarray) -> np.ndarray:
        copy = array.copy()
        copy[rows] = new
        return copy

    return tree.map(replace, observation, values)


def take(batch: Any, rows: Sequence[int]) -> Any:
    """Some rows of what a vector environment gave for an observation."""
    if isinstance(batch, dict):
        return {key: take(part, rows) for key, part in batch.items()}
    if isinstance(batch, tuple):
        return tuple(take(part, rows) for part in batch)
    return np.asarray(batch)[list(rows)]


def as_info(info: Any) -> dict:
    return info if isinstance(info, dict) else {}


def mask_of_row(info: Any, row: int) -> dict:
    """Only the mask of one environment is ever read from its final info."""
    if isinstance(info, dict):
        return {MASK: info[MASK][row]} if MASK in info else {}
    return as_info(info[row]) if info is not None else {}  # an array of dicts, before Gymnasium 1.0
