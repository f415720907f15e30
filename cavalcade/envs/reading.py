"""What policies read of an environment's observations, where that differs from the space it declares.

Text is left out: networks see numbers. The images of MiniGrid are codes (kind, colour and state of each cell), but
their space declares bytes up to 255; they get their true bounds, by which they are divided (`networks/images.py`).
"""

import sys
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np


def readable(env: gym.Env) -> gym.Space:
    """The observation space of an environment as policies read it; the declared one where nothing differs."""
    highs = _code_bounds(env)

    def read(space: gym.Space) -> gym.Space:
        if isinstance(space, gym.spaces.Dict):
            kept = {key: child for key, child in space.spaces.items() if not _is_text(child)}
            parts = {key: read(child) for key, child in kept.items()}
            same = all(parts.get(key) is child for key, child in space.spaces.items())
            return space if same or not parts else gym.spaces.Dict(parts)
        if isinstance(space, gym.spaces.Box) and space.dtype == np.uint8 and len(space.shape) > 2:
            high = highs.get(space.shape[-1])
            if high is not None and (space.high == 255).all():
                return gym.spaces.Box(0, np.broadcast_to(high, space.shape), dtype=np.uint8)
        return space

    return read(env.observation_space)


def unread(space: gym.Space, path: str = "") -> Iterator[tuple[str, str]]:
    """Of each text that can differ between episodes: its path in the space, and a sentence that it is left out."""
    for key, child in space.spaces.items() if isinstance(space, gym.spaces.Dict) else ():
        inner = f"{path}/{key}" if path else key
        if isinstance(child, gym.spaces.Dict):
            yield from unread(child, inner)
        # the missions of MiniGrid have placeholders; None means that the text is always the same
        elif _is_text(child) and getattr(child, "ordered_placeholders", True):
            yield inner, f"The text '{inner}' of the observation is left out: policies see only numbers."


def _is_text(space: gym.Space) -> bool:
    return getattr(space.dtype, "kind", "") == "U"


def _code_bounds(env: gym.Env) -> dict[int, Any]:
    """The highest code in each channel of an image, by the number of its channels; empty if `env` is not of MiniGrid or
    draws real pictures."""
    if "minigrid" not in sys.modules:  # who has made one of its environments has imported it
        return {}
    from minigrid.core import constants
    from minigrid.minigrid_env import MiniGridEnv
    from minigrid.wrappers import RGBImgObsWrapper, RGBImgPartialObsWrapper

    if not isinstance(env.unwrapped, MiniGridEnv):
        return {}
    layer: Any = env
    while layer is not env.unwrapped:
        if isinstance(layer, (RGBImgObsWrapper, RGBImgPartialObsWrapper)):
            return {}
        layer = layer.env
    kinds, colours, states = constants.OBJECT_TO_IDX, constants.COLOR_TO_IDX, constants.STATE_TO_IDX
    highest = [max(kinds.values()), max(colours.values()), 3]  # beside states of doors, directions of the agent, 0 .. 3
    one_hot = len(kinds) + len(colours) + len(states)  # channels of OneHotPartialObsWrapper
    return {3: np.array(highest, np.uint8), one_hot: np.array(1, np.uint8)}
