"""Which copies an actor steps: single environments, or one vector environment that Gymnasium has in their place.

An id may have a vector form (Gymnasium calls it a vector entry point): the same environment, written for many copies at
once, which steps thousands of them in the time of a few. It is used where, as far as can be seen before a run, it means
the same as single copies; otherwise single copies are used, and the line at the start of a run says why.
"""

import dataclasses
import functools
import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec as Registered
from gymnasium.envs.registration import load_env_creator
from gymnasium.vector import VectorEnv

from cavalcade.envs.adapter import VectorAdapter
from cavalcade.envs.names import named
from cavalcade.specs import EnvSpec

MANY = 64  # copies of an actor from which on the vector form is used
WRONG = "gymnasium.envs.phys2d."  # there all copies stand still while one begins an episode (Gymnasium 1.4)

SINGLY, TOGETHER = ", stepped one by one", " in their vector form"
UNSAVED = ", which cannot be saved: a resumed run begins new episodes"


class Copies(NamedTuple):
    """What an actor steps."""

    environment: Any  # what `envs.make` makes the copies from
    told: str = ""  # how they are stepped, for the line at the start of a run; empty if there was no choice


def copies_of(environment: Any, spec: EnvSpec, count: int, wanted: str, options: Mapping[str, Any]) -> Copies:
    """Choose between `count` single copies and their vector form. `spec`: of a single copy. `wanted`: the value of
    --vector, 'auto' or 'never'. `options`: of the environment."""
    registered = _registered(environment) if wanted == "auto" and count >= MANY else None
    if registered is None or registered.vector_entry_point is None:
        return Copies(environment)
    maker, difference = functools.partial(make_vector, environment), _difference(registered, options)
    if difference:
        return Copies(environment, f"{SINGLY}: {difference}")
    try:
        tried = VectorAdapter(maker(MANY, **options), environment, seed=0)
        tried.close()
    except Exception as error:  # single copies were made before, so the run can use them
        return Copies(environment, f"{SINGLY}: their vector form fails ({type(error).__name__}: {error})")
    if dataclasses.replace(tried.spec, environment=spec.environment) != spec:
        return Copies(environment, f"{SINGLY}: their vector form has other spaces or another time limit")
    return Copies(maker, TOGETHER if tried.resume == "restored" else TOGETHER + UNSAVED)


def make_vector(name: str, num_envs: int, **options: Any) -> VectorEnv:
    """`num_envs` copies by the vector entry point of an id, with the time limit of the options or of the id."""
    registered = gym.spec(str(named(name)))
    limit = options.pop("max_episode_steps", registered.max_episode_steps)
    limited = dataclasses.replace(registered, max_episode_steps=limit)
    return gym.make_vec(limited, num_envs=num_envs, vectorization_mode="vector_entry_point", **options)


def _registered(environment: Any) -> Registered | None:
    """What Gymnasium knows of an id; None for Atari games, which are vector environments in any case (`atari.py`)."""
    known = named(environment) if isinstance(environment, str) else None
    return gym.registry.get(known) if isinstance(known, str) and not known.startswith("ALE/") else None


def _difference(registered: Registered, options: Mapping[str, Any]) -> str:
    """Why the vector form would not mean the same as single copies, as far as its declaration tells; else empty."""
    entry: Any = registered.vector_entry_point
    if isinstance(entry, str) and entry.startswith(WRONG):
        return "in their vector form all stand still while one of them begins an episode"
    if registered.additional_wrappers:
        return "their wrappers are made for single ones"
    parameters = inspect.signature(load_env_creator(entry) if isinstance(entry, str) else entry).parameters
    for option in {**registered.kwargs, **options}:
        if option not in parameters or option == "num_envs":
            return f"their vector form has no option '{option}'"
    limit = options.get("max_episode_steps", registered.max_episode_steps)
    own = parameters["max_episode_steps"].default if "max_episode_steps" in parameters else None
    if (limit is None and own) or (limit is not None and limit < 1):  # gym.make takes -1 for no limit
        return "their vector form has a time limit in any case"
    return ""
