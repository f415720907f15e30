"""Environments from whatever the user has: an id, a function or its name, or an environment that is made already.

Ids and functions that make single environments run in `EnvironmentLoop`, which can replay its episodes;
vector environments, Atari among them, go through `VectorAdapter`. Everything a user can get wrong here is
said in one sentence, because this is the first thing a new user touches.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import gymnasium as gym
from gymnasium.vector import SyncVectorEnv, VectorEnv

from cavalcade.envs import carried, toy
from cavalcade.envs.adapter import VectorAdapter
from cavalcade.envs.copies import Copies, copies_of
from cavalcade.envs.encoding import ActionDecoder, random_actions
from cavalcade.envs.loop import EnvironmentLoop
from cavalcade.envs.made import again, held, rehearse, require_place
from cavalcade.envs.names import make_registered, named
from cavalcade.envs.spaces import action_space
from cavalcade.envs.vector import Environments, stream_seed
from cavalcade.errors import UserError
from cavalcade.failures import EnvironmentFailed
from cavalcade.step import FinishedEpisode, Step

__all__ = [
    "ActionDecoder",
    "Copies",
    "Environments",
    "FinishedEpisode",
    "Step",
    "action_space",
    "again",
    "carried",
    "copies_of",
    "held",
    "make",
    "named",
    "random_actions",
    "require_place",
    "stream_seed",
]

toy.register()


def make(environment: Any, count: int, seed: int, actor: int = 0, render: bool = False, **options: Any) -> Environments:
    """`count` copies of `environment`, whose random streams depend on `seed`, `actor` and nothing else.

    `environment` is a Gymnasium id ('CartPole-v1', 'ALE/Pong-v5', 'package.module:Id-v0'), a function that makes an
    environment or a vector environment, the name of one ('package.module:function'), or an environment that is made
    already, which stays the caller's to close. `options` go to the id or to the function.
    """
    if count < 1 or seed < 0 or actor < 0:
        raise UserError("Environments need a count of at least 1, and a seed and an actor that are not negative.")
    if isinstance(environment, (gym.Env, VectorEnv)):
        if options:
            raise UserError(f"The options {sorted(options)} come too late for an environment that is made already.")
        return _wrap([environment], _name_of(environment), count, seed, actor, borrowed=True)
    found = named(environment) if isinstance(environment, str) else environment
    if isinstance(found, str) and not found.startswith("ALE/") and found not in gym.registry:
        carried.register_missing()
    if isinstance(found, str):
        if found.startswith("ALE/"):
            from cavalcade.envs.atari import AtariEnvironments  # ale-py is optional

            return AtariEnvironments(found, count, seed, actor, **options)
        maker: Callable[[], Any] = functools.partial(make_registered, found, render, options)
    elif callable(found):
        maker = functools.partial(found, **_call_options(found, count, render, options))
    else:
        raise UserError(
            f"An environment cannot be made from {environment!r}; give a Gymnasium id, a function that makes "
            "an environment, or a vector environment."
        )
    made: list[Any] = []
    try:
        made.append(_first(maker))
        if not isinstance(made[0], VectorEnv):
            made += [maker() for _ in range(count - 1)]
    except UserError:
        raise
    except Exception as error:
        raise EnvironmentFailed.by(error, _called(environment), "when it was made", passed=bool(made)) from error
    return _wrap(made, environment if isinstance(environment, str) else _name_of(made[0]), count, seed, actor)


def _wrap(made: list, name: str, count: int, seed: int, actor: int, borrowed: bool = False) -> Environments:
    if isinstance(made[0], VectorEnv):
        if made[0].num_envs != count:
            raise UserError(
                f"The vector environment '{name}' holds {made[0].num_envs} environments where {count} are "
                "asked for; make the two numbers equal."
            )
        rehearse(made[0], name)
        return VectorAdapter(made[0], name, seed, actor, borrowed=borrowed)
    for env in made:
        if not isinstance(env, gym.Env):
            raise UserError(
                f"The function for the environment returned {type(env).__name__}; "
                "return a gymnasium.Env or a gymnasium VectorEnv."
            )
    if len({id(env) for env in made}) < count:
        raise UserError(f"There is one '{name}' for {count} copies; give a function that makes a new one each time.")
    return EnvironmentLoop(made, name, seed, actor, borrowed)


def _name_of(env: Any) -> str:
    """The id it was made by, or its class; of a plain vector of environments, theirs."""
    spec, inside = getattr(env, "spec", None), getattr(env, "unwrapped", env)
    if spec is None and isinstance(inside, SyncVectorEnv):
        return _name_of(inside.envs[0])
    return spec.id if spec is not None else type(inside).__name__


def _first(maker: Callable[[], Any]) -> Any:
    """Made with what is known here, or else with the ids that whoever started this process knows."""
    try:
        return maker()
    except gym.error.UnregisteredEnv:
        if not carried.register_missing():
            raise
        return maker()


def _called(environment: Any) -> str:
    """Before there is one: the id, or the name of the function, be it a part of `functools.partial`."""
    function = getattr(environment, "func", environment)
    return environment if isinstance(environment, str) else getattr(function, "__name__", type(function).__name__)


def _call_options(function: Callable, count: int, render: bool, options: dict[str, Any]) -> dict[str, Any]:
    """A function is told how many copies to make, and to render, if it has parameters for that."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a builtin without a signature
        return options
    offered = {"num_envs": count} | ({"render_mode": "rgb_array"} if render else {})
    return {name: value for name, value in offered.items() if name in parameters} | options
