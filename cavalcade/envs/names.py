"""Environments by name: a Gymnasium id, `module:Id-v0` or `module:function`; and for a name that leads nowhere, what to
write in its place."""

import dataclasses
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable
from typing import Any

import gymnasium as gym

from cavalcade.envs.drawing import choose_renderer
from cavalcade.errors import UserError, nearest
from cavalcade.failures import EnvironmentFailed

EXTRAS = (  # pattern of ids that need no `module:`, their extra, the modules that it installs, and who registers them
    (r"MiniGrid-|BabyAI-", "minigrid", ("minigrid",), "minigrid:register_minigrid_envs"),
    (r"MinAtar/", "minatar", ("minatar",), "cavalcade.envs.minatar_games:register"),
    (r"dm_control/", "dm-control", ("shimmy", "dm_control"), "shimmy:register_gymnasium_envs"),
)
PARTS = {"gymnasium.envs.box2d": "box2d", "gymnasium.envs.mujoco": "mujoco"}  # of Gymnasium itself, and their extras
FAMILIES = (  # pattern of ids, the module that registers them, its package if that has another name
    (r"MiniWorld-", "miniworld", ""),
    (r"bsuite/", "shimmy", "shimmy[bsuite]"),
    (r"(highway|merge|roundabout|parking|intersection|racetrack|exit|u-turn|two-way)(-\w+)*-v\d+$", "highway_env", ""),
    (r"Fetch|Hand(Reach|Manipulate)|Adroit|(Ant|Point)Maze_|FrankaKitchen-", "gymnasium_robotics", ""),
    (r"Panda(Reach|Push|Slide|PickAndPlace|Stack|Flip)", "panda_gym", ""),
    (r"Vizdoom", "vizdoom.gymnasium_wrapper", "vizdoom"),
    (r"NetHack", "nle", ""),
    (r"MiniHack-", "minihack", ""),
    (r"Meta-World/", "metaworld", ""),
    (r"PyFlyt/", "PyFlyt.gym_envs", "PyFlyt"),
    (r"FlappyBird-", "flappy_bird_gymnasium", ""),
    (r"miniwob/", "miniwob", ""),
)


def named(name: str) -> str | Callable[..., Any]:
    """What a name stands for: an id that Gymnasium knows, or the function of `module:function`.

    The module is imported, which registers its ids. Modules of the working directory are found too, after all others.
    Ids of packages that are extras are registered here.
    """
    module_name, _, rest = name.rpartition(":")
    if rest not in gym.registry:
        _register_extra(rest, name)
    if not module_name:
        return rest
    module = _imported(module_name, name)
    if rest not in gym.registry and callable(getattr(module, "register_envs", None)):
        module.register_envs()  # where importing is not enough (MinAtar)
    if rest in gym.registry:
        return rest
    found = getattr(module, rest, None)
    if callable(found):
        return found
    if re.search(r"-v\d+$", rest) or "/" in rest:  # looks like an id: `make_registered` says what is wrong with it
        return rest
    own = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
    raise UserError(
        f"The module '{module_name}' has no function '{rest}', and no environment of that id.{nearest(rest, own)}"
    )


def _register_extra(unknown_id: str, name: str) -> None:
    """Register the ids of the extra to which this one would belong, if there is one and it is installed. `name`: what
    the user wrote."""
    for pattern, _, modules, registers in EXTRAS:
        if re.match(pattern, unknown_id) and not _missing(modules) and not _any_known(pattern):
            module, _, function = registers.partition(":")
            if "dm_control" in modules:
                choose_renderer()
            register = getattr(_imported(module, name), function)
            if not _any_known(pattern):  # importing was not enough
                register()


def _missing(modules: tuple[str, ...]) -> str:
    """The first of these modules that is not installed; empty if all are."""
    return next((module for module in modules if importlib.util.find_spec(module) is None), "")


def _missing_extra(unknown_id: str) -> str:
    """A sentence that names the extra to which an id belongs, if it is not installed; else empty."""
    for pattern, extra, modules, _ in EXTRAS:
        if re.match(pattern, unknown_id) and (missing := _missing(modules)):
            return f" It needs the package {missing}; run: pip install 'cavalcade[{extra}]'."
    return ""


def _any_known(pattern: str) -> bool:
    return any(re.match(pattern, known) for known in gym.registry)


def _imported(module: str, name: str) -> Any:
    """Import a module, also from the working directory, which Python does not search for the command `cavalcade` as it
    does for `python -m`."""
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
    try:
        return importlib.import_module(module)
    except ImportError as error:
        extra = _missing_extra(name.rpartition(":")[2])
        advice = f".{extra}" if extra else "; install it or correct the name."
        raise UserError(f"The module '{module}' of '{name}' cannot be imported ({error}){advice}") from error
    except Exception as error:
        raise EnvironmentFailed.by(error, name, f"when the module '{module}' was imported") from error


def make_registered(known_id: str, render: bool, options: dict[str, Any]) -> gym.Env:
    """Make an environment by its id; every way in which Gymnasium can fail becomes a sentence."""
    try:
        # `EnvironmentLoop` never steps before a reset, so the wrapper that enforces this order would only cost time
        # (a fifth of a CartPole step).
        what: Any = dataclasses.replace(gym.spec(known_id), order_enforce=False)
    except gym.error.Error:
        what = known_id  # `gym.make` finds the newest version, or says what is wrong
    try:
        made = gym.make(what, disable_env_checker=True, **options)
        if render and "rgb_array" in made.metadata.get("render_modes", []):  # else it gives no pictures
            made.close()
            made = gym.make(what, disable_env_checker=True, render_mode="rgb_array", **options)
        return made
    except (gym.error.DependencyNotInstalled, ImportError) as error:
        entry = str(getattr(gym.registry.get(known_id), "entry_point", ""))
        extra = next((extra for part, extra in PARTS.items() if entry.startswith(part)), "")
        reason = f"; run: pip install 'cavalcade[{extra}]'." if extra else f": {error}"
        raise UserError(f"The environment '{known_id}' needs a package that is missing{reason}") from error
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
    """What to write instead: the module that would register the id, or the nearest id; for old Atari names
    ('PongNoFrameskip-v4') the id of ale-py, which is preprocessed here."""
    if family := _family(unknown_id):
        return family
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


def _family(unknown_id: str) -> str:
    """What to write if a package is known to register such ids, or is called like their namespace; else empty."""
    if extra := _missing_extra(unknown_id):
        return extra
    namespace = unknown_id.partition("/")[0] if re.match(r"\w+/", unknown_id) else ""
    for pattern, module, package in (*FAMILIES, (rf"{namespace}/", namespace, None)):
        if not module or not re.match(pattern, unknown_id):
            continue
        top = module.partition(".")[0]
        if _any_known(pattern):  # imported already: the id itself is wrong
            return ""
        if importlib.util.find_spec(top) is not None:
            return f" Did you mean '{module}:{unknown_id}'?"
        if package is not None:
            install = package or module.replace("_", "-")
            return (
                f" It is one of the package {install}, which is not installed: run pip install '{install}', then write "
                f"'{module}:{unknown_id}'."
            )
    return ""
