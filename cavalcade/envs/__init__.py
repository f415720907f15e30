"""Environments from whatever the user has: an id, a function or its name, or an environment that is made already.

Single environments run in `EnvironmentLoop`, which can replay its episodes; vector environments, Atari among them, go
through `VectorAdapter`. Everything a user can get wrong here is refused with one sentence, because this is the first
thing a new user touches.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import gymnasium as gym
from gymnasium.vector import SyncVectorEnv, VectorEnv

from cavalcade.envs import carried, toy
from cavalcade.envs.actor_options import options_of, require_equal_spaces, require_values, variants
from cavalcade.envs.adapter import VectorAdapter
from cavalcade.envs.copies import Copies, copies_of
from cavalcade.envs.drawing import choose_renderer, require_renderer
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
    "id_of",
    "make",
    "named",
    "options_of",
    "random_actions",
    "require_equal_spaces",
    "require_place",
    "require_values",
    "stream_seed",
    "variants",
]

toy.register()


def make(environment: Any, count: int, seed: int, actor: int = 0, render: bool = False, **options: Any) -> Environments:
    """`count` copies of `environment`, whose random streams depend on `seed`, `actor` and nothing else.

    `environment` is a Gymnasium id ('CartPole-v1', 'ALE/Pong-v5', 'package.module:Id-v0'), a function that makes an
    environment or a vector environment, the name of such a function ('package.module:function'), or an environment that
    is made already, which stays the caller's to close. `options` are arguments for the id or the function. `render`:
    make environments that can draw themselves.
    """
    if count < 1 or seed < 0 or actor < 0:
        raise UserError("Environments need a count of at least 1, and a seed and an actor that are not negative.")
    if isinstance(environment, (gym.Env, VectorEnv)):
        if options:
            raise UserError(f"The options {sorted(options)} come too late for an environment that is made already.")
        return _wrap([environment], _name_of(environment), count, seed, actor, borrowed=True)
    if render:
        choose_renderer()
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
        if render and isinstance(made[0], gym.Env):
            require_renderer(made[0])
        if not isinstance(made[0], VectorEnv):
            made += [maker() for _ in range(count - 1)]
    except UserError:
        raise
    except Exception as error:
        raise EnvironmentFailed.by(error, _called(environment), "when it was made", passed=bool(made)) from error
    return _wrap(made, environment if isinstance(environment, str) else _name_of(made[0]), count, seed, actor)


def id_of(environment: Any) -> str:
    """The id of what `make` takes, without the module before it; of an object that of its spec. A function has none:
    empty."""
    if isinstance(environment, str):
        return environment.rpartition(":")[2]
    return _name_of(environment) if held(environment) is not None else ""


def _wrap(made: list, name: str, count: int, seed: int, actor: int, borrowed: bool = False) -> Environments:
    """One vector environment, or single environments, as `Environments`. `borrowed`: the caller closes them."""
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
    """The id that an environment was made by, or its class; of a SyncVectorEnv, the name of its first environment."""
    spec, inside = getattr(env, "spec", None), getattr(env, "unwrapped", env)
    if spec is None and isinstance(inside, SyncVectorEnv):
        return _name_of(inside.envs[0])
    return spec.id if spec is not None else type(inside).__name__


def _first(maker: Callable[[], Any]) -> Any:
    """Make an environment; if its id is unknown here, with the ids of the process that started this one."""
    try:
        return maker()
    except gym.error.UnregisteredEnv:
        if not carried.register_missing():
            raise
        return maker()


def _called(environment: Any) -> str:
    """The name of an environment that could not be made: its id, or that of the function, inside a partial or not."""
    function = getattr(environment, "func", environment)
    return environment if isinstance(environment, str) else getattr(function, "__name__", type(function).__name__)


def _call_options(function: Callable, count: int, render: bool, options: dict[str, Any]) -> dict[str, Any]:
    """Arguments for the user's function: the options, and `num_envs` and `render_mode` if it has these parameters."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a builtin without a signature
        return options
    offered = {"num_envs": count} | ({"render_mode": "rgb_array"} if render else {})
    return {name: value for name, value in offered.items() if name in parameters} | options
