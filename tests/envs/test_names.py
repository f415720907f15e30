"""Names of environments: modules of the working directory, functions, and what is answered to a name that is wrong."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import cavalcade
from cavalcade import envs
from cavalcade.errors import UserError

MODULE = """
import gymnasium as gym

gym.register("Mine-v0", entry_point=__name__ + ":Mine")

class Mine(gym.Env):
    observation_space, action_space = gym.spaces.Box(0, 1, (1,)), gym.spaces.Discrete(2)

    def __init__(self, size=1):
        self.size = size

    def reset(self, *, seed=None, options=None):
        return [0.5], {}

    def step(self, action):
        return [0.5], float(self.size), True, False, {}

def make_mine(size=2):
    return Mine(size)

number = 3
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with the user's own module, as the command `cavalcade` meets it."""
    (tmp_path / "mine_of_tests.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    yield tmp_path
    sys.modules.pop("mine_of_tests", None)
    gym.registry.pop("Mine-v0", None)


def reward(environments):
    return environments.step(np.zeros(environments.count, int)).reward[0]


def test_modules_of_the_working_directory(folder):
    assert envs.make("mine_of_tests:Mine-v0", 1, seed=0).spec.environment == "mine_of_tests:Mine-v0"
    assert sys.path[-1] == str(folder)  # last: what is installed comes first


def test_functions_by_name(folder):
    assert envs.named("mine_of_tests:make_mine") is sys.modules["mine_of_tests"].make_mine
    assert envs.named("mine_of_tests:Mine-v0") == "Mine-v0" and envs.named("CartPole-v1") == "CartPole-v1"
    made = envs.make("mine_of_tests:make_mine", 2, seed=0)
    assert made.spec.environment == "mine_of_tests:make_mine" and reward(made) == 2
    assert reward(envs.make("mine_of_tests:make_mine", 1, seed=0, size=5)) == 5
    assert reward(envs.make("mine_of_tests:Mine", 1, seed=0)) == 1  # a class makes environments too


def test_names_that_lead_nowhere(folder):
    with pytest.raises(UserError, match=r"has no function 'make_min', .* Did you mean 'make_mine'"):
        envs.make("mine_of_tests:make_min", 1, seed=0)
    with pytest.raises(UserError, match="has no function 'number'"):
        envs.make("mine_of_tests:number", 1, seed=0)
    with pytest.raises(UserError, match=r"There is no environment 'Mime-v0'. Did you mean 'Mine-v0'"):
        envs.make("mine_of_tests:Mime-v0", 1, seed=0)


def test_the_command_and_its_processes_find_the_module(folder):
    """As an installed command runs: the working directory is on nobody's path."""
    root = Path(cavalcade.__file__).parent.parent
    code = f"import sys; sys.path[0] = {str(root)!r}; from cavalcade.__main__ import main; sys.exit(main())"
    given = (
        "train ppo mine_of_tests:make_mine --steps 64 --envs 1 --unroll 8 --backend numpy --runtime process --out run"
    )
    words = [*given.split(), "--hidden", "8", "--evaluations", "0"]
    done = subprocess.run([sys.executable, "-c", code, *words], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("name", "module", "package"),
    [
        ("FlappyBird-v0", "flappy_bird_gymnasium", "flappy-bird-gymnasium"),
        ("highway-fast-v0", "highway_env", "highway-env"),
        ("FetchReach-v4", "gymnasium_robotics", "gymnasium-robotics"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_ids_of_known_packages(folder, monkeypatch, name, module, package):
    top = module.split(".")[0]
    with pytest.raises(UserError) as caught:
        envs.make(name, 1, seed=0)
    said = f"There is no environment '{name}'. It is one of the package {package}, which is not installed: "
    assert str(caught.value) == f"{said}run pip install '{package}', then write '{module}:{name}'."
    (folder / top).mkdir()
    (folder / top / "__init__.py").touch()
    monkeypatch.syspath_prepend(folder)
    with pytest.raises(UserError) as caught:
        envs.make(name, 1, seed=0)
    assert str(caught.value) == f"There is no environment '{name}'. Did you mean '{module}:{name}'?"
    assert top not in sys.modules


@pytest.mark.parametrize(
    ("name", "extra", "part"),
    [
        ("MiniGrid-Empty-5x5-v0", "minigrid", "minigrid"),
        ("BabyAI-GoToRedBall-v0", "minigrid", "minigrid"),
        ("MinAtar/Breakout-v1", "minatar", "minatar"),
        ("LunarLander-v3", "box2d", "gymnasium.envs.box2d.lunar_lander"),
        ("HalfCheetah-v5", "mujoco", "gymnasium.envs.mujoco.half_cheetah_v5"),
        ("dm_control/cartpole-balance-v0", "dm-control", "dm_control"),
        ("dm_control/cartpole-balance-v0", "dm-control", "shimmy"),
        ("shimmy:dm_control/cartpole-balance-v0", "dm-control", "shimmy"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_ids_of_extras_whose_package_is_missing(monkeypatch, name, extra, part):
    optional = ("MiniGrid", "BabyAI", "MinA", "dm_control")
    without = {key: value for key, value in gym.registry.items() if not key.startswith(optional)}
    monkeypatch.setattr(gym.envs.registration, "registry", without)
    monkeypatch.setattr(gym, "registry", without)
    monkeypatch.setitem(sys.modules, part, None)  # importing it raises, as if it were not installed
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda module: None if module == part else find(module))
    with pytest.raises(UserError, match=rf"{name}.*run: pip install 'cavalcade\[{extra}\]'\.$"):
        envs.make(name, 1, seed=0)


@pytest.mark.filterwarnings("ignore")
def test_an_id_whose_namespace_is_a_package(folder, monkeypatch):
    monkeypatch.syspath_prepend(folder)
    with pytest.raises(UserError, match=r"Did you mean 'mine_of_tests:mine_of_tests/X-v0'"):
        envs.make("mine_of_tests/X-v0", 1, seed=0)


def test_a_module_that_registers_when_it_is_asked_to(folder):
    (folder / "asked_of_tests.py").write_text(
        MODULE.replace("gym.register(", "def register_envs():\n    gym.register(")
    )
    try:
        assert envs.named("asked_of_tests:Mine-v0") == "Mine-v0"
    finally:
        sys.modules.pop("asked_of_tests")
