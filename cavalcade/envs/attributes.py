"""The state of a vector environment, where all of it lies in plain attributes of the object.

Gymnasium has no call that saves an environment. An environment written in NumPy, like its vectorised CartPole, keeps
its state in attributes that are arrays, numbers and random generators: these are copied here and restored, without
pickle. Any other attribute (a window, a simulator, a list of environments) may hold more state, so an environment that
has one is not saved. A plain number may still be a handle of a library, so `repeats` tries whether the attributes are
the whole state.
"""

from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv

from cavalcade import tree

PLAIN = (bool, int, float, str, type(None))  # immutable: copied by assignment


def read(env: VectorEnv) -> dict[str, dict] | None:
    """Copies of all attributes that may change, as a checkpoint can hold them; None if one of them is not plain."""
    kept: dict[str, dict] = {kind: {} for kind in ("values", "arrays", "scalars", "tuples", "streams")}
    for name, value in vars(env).items():
        if type(value) in PLAIN:
            kept["values"][name] = value
        elif type(value) is np.ndarray and not value.dtype.hasobject:
            kept["arrays"][name] = value.copy()
        elif isinstance(value, np.generic) and not value.dtype.hasobject:
            kept["scalars"][name] = np.array(value)
        elif type(value) is tuple and all(type(entry) in PLAIN for entry in value):
            kept["tuples"][name] = list(value)
        elif isinstance(value, (np.random.Generator, gym.Space)):
            kept["streams"][name] = [stream.bit_generator.state for stream in _streams(value)]
        elif not isinstance(value, (EnvSpec, Enum)):  # these never change
            return None
    return kept


def write(env: VectorEnv, kept: dict[str, dict]) -> bool:
    """Restore what `read` gave. False, and nothing is changed, if the environment has other attributes: then it is
    another environment, or comes from another version of its package."""
    here = read(env)
    if here is None or _outline(here) != _outline(kept):
        return False
    for name, value in kept["values"].items():
        setattr(env, name, value)
    for name, value in kept["arrays"].items():
        setattr(env, name, np.array(value))
    for name, value in kept["scalars"].items():
        setattr(env, name, np.asarray(value)[()])
    for name, value in kept["tuples"].items():
        setattr(env, name, tuple(value))
    for name, states in kept["streams"].items():
        for stream, state in zip(_streams(getattr(env, name)), states, strict=True):
            stream.bit_generator.state = state
    return True


def seed_spaces(env: VectorEnv, seed: int) -> None:
    """Seed the random generators of spaces: they are part of the saved state, and by themselves begin anywhere."""
    for value in vars(env).values():
        if isinstance(value, gym.Space):
            value.seed(seed)


def repeats(env: VectorEnv, actions: list[np.ndarray], encode: Callable[[Any, dict], tree.Tree]) -> bool:
    """Whether the same actions give the same steps again after the attributes were restored. `encode`: makes a tree of
    new arrays from observations and infos."""
    before = read(env)
    try:
        courses = [_course(env, actions, encode) for _ in range(2) if before is not None and write(env, before)]
    except Exception:  # the run will meet the same error and explain it better
        return False
    return len(courses) == 2 and all(map(np.array_equal, *courses))


def _course(env: VectorEnv, actions: list[np.ndarray], encode: Callable[[Any, dict], tree.Tree]) -> list[np.ndarray]:
    """Observations, rewards and flags of the steps that these actions lead to."""
    arrays = []
    for action in actions:
        observation, reward, terminated, truncated, info = env.step(action)
        arrays += [*tree.leaves(encode(observation, info)), *map(np.array, (reward, terminated, truncated))]
    return arrays


def _streams(value: Any) -> Iterator[np.random.Generator]:
    """The random generators of a space and of the spaces inside it; of a generator, itself."""
    if isinstance(value, np.random.Generator):
        yield value
        return
    yield value.np_random
    inside = getattr(value, "spaces", ())
    for space in inside.values() if isinstance(inside, dict) else inside:
        yield from _streams(space)


def _outline(kept: dict[str, dict]) -> tuple[set[str], dict[str, list[str]]]:
    """The names of all attributes, and the kinds of their random generators: what two environments must share."""
    kinds = {name: [state["bit_generator"] for state in states] for name, states in kept["streams"].items()}
    return {name for entries in kept.values() for name in entries}, kinds
