"""Environments from whatever the user has: an id, a function, or a vector environment.

Ids and functions that make single environments run in `EnvironmentLoop`, which can replay its episodes;
vector environments, Atari among them, go through `VectorAdapter`. Everything a user can get wrong here is
said in one sentence, because this is the first thing a new user touches.
"""

import dataclasses
import functools
import importlib
import inspect
import re
import sys
from collections.abc import Callable
from typing import Any

import gymnasium as gym
from gymnasium.vector import VectorEnv

from cavalcade.envs import carried, toy
from cavalcade.envs.adapter import VectorAdapter
from cavalcade.envs.loop import EnvironmentLoop
from cavalcade.envs.vector import Environments, Episode, Step
from cavalcade.errors import UserError, nearest
from cavalcade.failures import EnvironmentFailed

__all__ = ["Environments", "Episode", "Step", "make"]

toy.register()


def make(environment: Any, count: int, seed: int, actor: int = 0, render: bool = False, **options: Any) -> Environments:
    """`count` copies of `environment`, whose random streams depend on `seed`, `actor` and nothing else.

    `environment` is a Gymnasium id ('CartPole-v1', 'ALE/Pong-v5', 'package.module:Id-v0'), a function that
    makes an environment or a vector environment, or a vector environment. `options` go to the id or to the
    function.
    """
    if count < 1 or seed < 0 or actor < 0:
        raise UserError("Environments need a count of at least 1, and a seed and an actor that are not negative.")
    if isinstance(environment, (gym.Env, VectorEnv)):
        if options:
            raise UserError(f"The options {sorted(options)} come too late for an environment that is made already.")
        return _wrap([environment], environment, count, seed, actor)
    if isinstance(environment, str):
        known_id = _import_module_of(environment)
        module = sys.modules.get(environment.rpartition(":")[0])
        if callable(function := getattr(module, known_id, None)):
            maker: Callable[[], Any] = functools.partial(function, **_call_options(function, count, render, options))
        elif known_id.startswith("ALE/"):
            from cavalcade.envs.atari import AtariEnvironments  # ale-py is optional

            return AtariEnvironments(known_id, count, seed, actor, **options)
        else:
            if known_id not in gym.registry:
                carried.register_missing()
            maker = functools.partial(_make_registered, known_id, render, options)
    elif callable(environment):
        maker = functools.partial(environment, **_call_options(environment, count, render, options))
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
    return _wrap(made, environment, count, seed, actor)


def _wrap(made: list, environment: Any, count: int, seed: int, actor: int) -> Environments:
    name = environment if isinstance(environment, str) else _name_of(made[0])
    if isinstance(made[0], VectorEnv):
        if made[0].num_envs != count:
            raise UserError(
                f"The vector environment '{name}' holds {made[0].num_envs} environments where {count} are "
                "asked for; make the two numbers equal."
            )
        return VectorAdapter(made[0], name, seed, actor)
    for env in made:
        if not isinstance(env, gym.Env):
            raise UserError(
                f"The function for the environment returned {type(env).__name__}; "
                "return a gymnasium.Env or a gymnasium VectorEnv."
            )
    if len({id(env) for env in made}) < count:
        raise UserError(f"There is one '{name}' for {count} copies; give a function that makes a new one each time.")
    return EnvironmentLoop(made, name, seed, actor)


def _name_of(env: Any) -> str:
    spec = getattr(env, "spec", None)
    return spec.id if spec is not None else type(getattr(env, "unwrapped", env)).__name__


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


def _import_module_of(environment: str) -> str:
    """'package.module:Id-v0' imports the module, which registers the id, as Gymnasium does."""
    module, _, known_id = environment.rpartition(":")
    if module:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise UserError(
                f"The module '{module}' of '{environment}' cannot be imported ({error}); "
                "install it or correct the name."
            ) from error
        except Exception as error:
            raise EnvironmentFailed.by(error, environment, f"when the module '{module}' was imported") from error
    return known_id


def _make_registered(known_id: str, render: bool, options: dict[str, Any]) -> gym.Env:
    try:
        # The loop never steps before a reset, so the wrapper that enforces this would only cost time (a
        # fifth of a CartPole step).
        what: Any = dataclasses.replace(gym.spec(known_id), order_enforce=False)
    except gym.error.Error:
        what = known_id  # `gym.make` finds the newest version, or says what is wrong
    try:
        made = gym.make(what, disable_env_checker=True, **options)
        if render and "rgb_array" in made.metadata.get("render_modes", []):  # else there is no picture to be had
            made.close()
            made = gym.make(what, disable_env_checker=True, render_mode="rgb_array", **options)
        return made
    except (gym.error.DependencyNotInstalled, ImportError) as error:
        raise UserError(f"The environment '{known_id}' needs a package that is missing: {error}") from error
    except (gym.error.UnregisteredEnv, gym.error.DeprecatedEnv) as error:
        raise UserError(f"There is no environment '{known_id}'.{_suggestion(known_id)}") from error
    except gym.error.Error as error:
        raise UserError(
            f"The environment '{known_id}' cannot be made: {error}{nearest(known_id, gym.registry)}"
        ) from error
    except TypeError as error:
        if "unexpected keyword argument" not in str(error):
            raise
        raise UserError(f"The environment '{known_id}' does not take these options: {error}.") from error


def _suggestion(unknown_id: str) -> str:
    """The nearest id, where the old Atari names ('PongNoFrameskip-v4') lead to the one that is
    preprocessed."""
    known = list(gym.registry)
    try:
        import ale_py
    except ImportError:
        return nearest(unknown_id, known)
    gym.register_envs(ale_py)
    game = re.sub(r"(NoFrameskip|Deterministic|-ram)*-v\d+$", "", unknown_id)
    if f"ALE/{game}-v5" in gym.registry:
        return f" Did you mean 'ALE/{game}-v5'?"
    return nearest(unknown_id, [*known, *(name for name in gym.registry if name.startswith("ALE/"))])
