"""Reading what a vector environment gives for all of its environments at once: its autoreset mode, final observations,
and single rows."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from cavalcade import tree
from cavalcade.errors import BadEnvironment
from cavalcade.specs import MASK

FINAL_KEYS = ("final_obs", "final_observation")  # the name since Gymnasium 1.1, and the name before


def autoreset_mode(env: VectorEnv, name: str) -> AutoresetMode:
    """How the vector environment begins its next episodes, as it declares."""
    mode = getattr(env.unwrapped, "autoreset_mode", None)
    # All classes without metadata of their own share the dict `VectorEnv.metadata`, and some environments write their
    # mode into it: so what that dict says may be the mode of another environment.
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
    """SAME_STEP: the final observations of the episodes that ended in this step, out of its infos."""
    for key in FINAL_KEYS:
        if key in info:
            return info[key]
    raise BadEnvironment(
        f"The vector environment '{name}' resets in the step that ends an episode (SAME_STEP) but gives no "
        "info['final_obs']; make it give the final observations there."
    )


def replaced(observation: tree.Tree, rows: list[int], values: tree.Tree) -> tree.Tree:
    """A copy of [N, ...] with `values` [M, ...] in these M rows."""

    def replace(array: np.ndarray, new: np.ndarray) -> np.ndarray:
        copy = array.copy()
        copy[rows] = new
        return copy

    return tree.map(replace, observation, values)


def take(batch: Any, rows: Sequence[int]) -> Any:
    """These rows of the observations [N, ...] of a vector environment, in its own nesting of dicts and tuples."""
    if isinstance(batch, dict):
        return {key: take(part, rows) for key, part in batch.items()}
    if isinstance(batch, tuple):
        return tuple(take(part, rows) for part in batch)
    return np.asarray(batch)[list(rows)]


def as_info(info: Any) -> dict:
    return info if isinstance(info, dict) else {}


def mask_of_row(info: Any, row: int) -> dict:
    """The mask of one environment out of the final infos: nothing else is read from them here."""
    if isinstance(info, dict):
        return {MASK: info[MASK][row]} if MASK in info else {}
    return as_info(info[row]) if info is not None else {}  # an array of dicts, before Gymnasium 1.0
