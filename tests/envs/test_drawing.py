"""Films of MuJoCo without a display: the renderer that works is chosen, and where none does one sentence says so."""

import os
import re
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import cavalcade
from cavalcade import envs
from cavalcade.envs import drawing
from cavalcade.failures import EnvironmentFailed

ROOT = Path(cavalcade.__file__).parent.parent
SMALL = {"backend": "numpy", "hidden": (8,), "envs": 1, "unroll": 8, "epochs": 1, "evaluations": 0, "display": False}
SMALL |= {"options": {"max_episode_steps": 3}, "steps": 16}

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems draw in other ways")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return cavalcade.train("ppo", "InvertedPendulum-v5", out=tmp_path_factory.mktemp("film") / "run", **SMALL)


def play(run, **variables):
    """`cavalcade play` without a display, and with these environment variables."""
    unset = ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL", "PYOPENGL_PLATFORM")
    kept = {key: value for key, value in os.environ.items() if key not in unset}
    words = [sys.executable, "-m", "cavalcade", "play", str(run.path), "--out", str(run.path / "film.gif")]
    around = {**kept, "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run(words, env=around, capture_output=True, text=True)


def require(renderer):
    if not drawing._works(renderer):
        pytest.skip(f"{renderer} does not work here")


@pytest.mark.parametrize("renderer", drawing.RENDERERS)
def test_a_film_of_mujoco_by_the_renderer_that_works(run, renderer):
    require(renderer)
    done = play(run, PYOPENGL_PLATFORM=renderer)  # PyOpenGL refuses the other one
    assert done.returncode == 0 and done.stderr == "", done.stderr
    import imageio.v2 as imageio

    frames = imageio.mimread(run.path / "film.gif")
    assert len(frames) == 3 and frames[0].shape[:2] == (480, 480) and np.ptp(frames[0]) > 50


@pytest.mark.parametrize(
    ("variables", "said"),
    [({}, "and neither works here"), ({"MUJOCO_GL": "egl"}, "and MUJOCO_GL=egl does not work here")],
)
def test_without_a_renderer_a_film_is_refused_in_one_sentence(run, variables, said):
    done = play(run, PYOPENGL_PLATFORM="glx", **variables)  # both refuse to start beside GLX
    assert done.returncode == 2
    assert re.fullmatch(
        r"error: [^\n]+; install a driver for EGL or, on Debian, apt install libosmesa6\.\n", done.stderr
    )
    assert said in done.stderr


def test_a_film_of_the_control_suite_in_the_process_that_trained(tmp_path, monkeypatch):
    require("egl")
    for variable in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(variable, raising=False)
    run = cavalcade.train("ppo", "dm_control/pendulum-swingup-v0", out=tmp_path / "run", **SMALL)
    assert os.environ["MUJOCO_GL"] in drawing.RENDERERS
    film, _ = cavalcade.play(run.path, tmp_path / "film.gif")
    assert film.stat().st_size > 1_000


def test_what_the_user_has_set_stays(monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    drawing.choose_renderer()
    assert os.environ["MUJOCO_GL"] == "osmesa"
    monkeypatch.delenv("MUJOCO_GL")
    monkeypatch.setenv("DISPLAY", ":0")
    drawing.choose_renderer()
    assert "MUJOCO_GL" not in os.environ


def test_an_environment_that_fails_to_draw_itself_is_a_sentence():
    class Smudged(gym.Env):
        observation_space, action_space = gym.spaces.Box(0, 1, (1,)), gym.spaces.Discrete(2)
        render_mode = "rgb_array"

        def reset(self, *, seed=None, options=None):
            return np.zeros(1, np.float32), {}

        def render(self):
            raise RuntimeError("no ink")

    with pytest.raises(EnvironmentFailed, match="failed when it drew itself: RuntimeError: no ink"):
        envs.make(Smudged, 1, seed=0, render=True).render()
