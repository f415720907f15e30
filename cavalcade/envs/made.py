"""Environments that the user has made already: how many an object holds, and how to make more like it.

Only one actor, in this process, can step such an object, and the user closes it. Evaluation needs environments of its
own, because episodes of training are under way in the object: they are made in the way the object was made.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper

from cavalcade.envs.encoding import random_actions
from cavalcade.envs.loop import EnvironmentLoop
from cavalcade.errors import UserError

REHEARSED = 16  # steps of `rehearse`


def held(environment: Any) -> int | None:
    """How many environments an object holds; None for ids and functions, which can make any number."""
    if isinstance(environment, VectorEnv):
        return environment.num_envs
    return 1 if isinstance(environment, gym.Env) else None


def require_place(environment: Any, envs: int, actors: int, runtime: str) -> None:
    """Refuse an environment object for several actors, for another number than it holds, or for other processes."""
    count = held(environment)
    if count is None:
        return
    if runtime != "inprocess":
        raise UserError(
            f"--runtime {runtime} sends environments to other processes, which an environment that is made already "
            "cannot be; give its id or a function that makes it."
        )
    if actors > 1:
        raise UserError(f"There is one environment object for {actors} actors; give a function that makes a new one.")
    if envs != count:
        raise UserError(
            f"The environment object holds {count} where envs={envs} are asked for; leave envs out, or give a function "
            "that makes a new one each time."
        )


def again(environment: Any) -> Any:
    """Something from which `envs.make` makes more environments like this one: for an object a function."""
    if held(environment) is None:
        return environment
    if isinstance(environment, (SyncVectorEnv, AsyncVectorEnv)):
        return functools.partial(_make_from, list(environment.env_fns), list(getattr(environment, "envs", ())))
    spec = None if isinstance(environment, VectorWrapper) else environment.spec
    if spec is None:
        raise UserError(
            "Evaluation needs environments of its own, and how this environment object was made is not known; give a "
            "function that makes it, or evaluations=0."
        )
    return functools.partial(_make_vector if isinstance(environment, VectorEnv) else _make_one, spec)


def _make_from(makers: list[Callable], made: list, num_envs: int) -> VectorEnv:
    """A new vector environment from the functions of the user's; refused if they return what was `made` before."""
    chosen = [makers[index % len(makers)] for index in range(num_envs)]
    fresh = SyncVectorEnv(chosen, autoreset_mode=AutoresetMode.SAME_STEP)
    if any(one is other for one in fresh.envs for other in made):
        fresh.closed = True  # otherwise it would close the user's environments when it is deleted
        raise UserError(
            "Evaluation needs environments of its own, but the functions of this vector environment give the same ones "
            "again; let them make new ones, or use evaluations=0."
        )
    return fresh


def _make_vector(spec: Any, num_envs: int) -> VectorEnv:
    return gym.make_vec(dataclasses.replace(spec, kwargs={**spec.kwargs, "num_envs": num_envs}))


def _make_one(spec: Any) -> gym.Env:
    try:
        return gym.make(spec, disable_env_checker=True)
    except Exception as error:
        raise UserError(
            f"Evaluation needs environments of its own, and '{spec.id}' cannot be made again as it was ({error}); give "
            "a function that makes it, or evaluations=0."
        ) from error


def rehearse(env: VectorEnv, name: str) -> None:
    """Make one of an AsyncVectorEnv's environments here and inspect its first steps: the AsyncVectorEnv casts
    observations in its own processes, so what they were before cannot be seen later."""
    if not isinstance(env.unwrapped, AsyncVectorEnv):
        return
    loop = EnvironmentLoop([env.unwrapped.env_fns[0]()], name, seed=0)
    try:
        observation, random = loop.reset(), np.random.default_rng(0)
        for _ in range(REHEARSED):
            observation = loop.step(random_actions(loop.spec, observation, 1, random)).observation
    finally:
        loop.close()
