"""How MuJoCo draws where there is no display: by EGL or by OSMesa, whichever works.

MuJoCo reads the name of its renderer from the environment variable MUJOCO_GL, and dm_control does so when it is
imported; unset, both take one that needs a display. So the choice is made here before. Whether a renderer works is seen
by starting it, in a process of its own, because PyOpenGL is bound to the first one that a process tries.
"""

import functools
import importlib.util
import os
import subprocess
import sys

import gymnasium as gym

from cavalcade.errors import UserError

VARIABLE = "MUJOCO_GL"
RENDERERS = ("egl", "osmesa")  # those that need no display, the faster one first
NONE = "disabled"  # MuJoCo's word for no renderer, with which all else works
ADVICE = "install a driver for EGL or, on Debian, apt install libosmesa6"


def choose_renderer() -> None:
    """Set MUJOCO_GL to a renderer that works without a display, or to `NONE` if there is none. What the user has set
    stays; where there is a display or no MuJoCo, nothing is set."""
    if VARIABLE not in os.environ and not _has_display() and importlib.util.find_spec("mujoco") is not None:
        os.environ[VARIABLE] = next((name for name in RENDERERS if _works(name)), NONE)


def require_renderer(env: gym.Env) -> None:
    """Refuse to draw an environment of MuJoCo where it could not be done."""
    inside = env.unwrapped
    of_mujoco = hasattr(inside, "mujoco_renderer") or type(inside).__module__.startswith("shimmy.dm_control")
    name = os.environ.get(VARIABLE, NONE)
    if not of_mujoco or _has_display() or (name in RENDERERS and _works(name)):
        return
    fault = "neither works here" if name == NONE else f"{VARIABLE}={name} does not work here"
    raise UserError(f"MuJoCo draws by EGL or OSMesa where there is no display, and {fault}; {ADVICE}.")


def _has_display() -> bool:
    """Whether a window could be opened; other systems than Linux always have a display."""
    return sys.platform != "linux" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


@functools.cache
def _works(name: str) -> bool:
    """Whether MuJoCo can make a context with this renderer."""
    code = f"from mujoco.{name} import GLContext; GLContext(8, 8).make_current()"
    tried = subprocess.run([sys.executable, "-c", code], env={**os.environ, VARIABLE: name}, capture_output=True)
    return tried.returncode == 0
