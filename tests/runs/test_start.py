"""What cannot lead anywhere is refused before anything is written, and what fails at its start leaves nothing."""

import multiprocessing
import re
import sys

import gymnasium as gym
import numpy as np
import pytest

import cavalcade
from cavalcade.errors import UserError

SMALL = {"backend": "numpy", "envs": 4, "hidden": (8,), "evaluations": 0, "rows": 5, "display": False}
UNROLL, PPO = {"unroll": 4}, {"unroll": 4, "epochs": 1, "minibatches_per_epoch": 1}
DQN = {"replay_start": 40, "batch": 8, "n_step": 1}

# the last number of steps in which nothing can be learned
FUTILE = {
    "ppo": ("ppo", PPO, 16),
    "acting centrally": ("paac", UNROLL, 16),
    "a batch of its own": ("impala", {**UNROLL, "batch": 6}, 32),
    "each learner by itself": ("a3c", {**UNROLL, "actors": 2}, 32),
    "all learners together": ("dppo", {**PPO, "actors": 2}, 32),
    "replay": ("dqn", DQN, 40),
    "replay of each learner": ("gorila-dqn", {**DQN, "actors": 2}, 80),
}


@pytest.mark.parametrize("case", FUTILE)
def test_a_run_that_ends_before_its_first_update_is_refused(case, tmp_path):
    system, settings, steps = FUTILE[case]
    given = {**SMALL, **settings, "out": tmp_path / "run"}
    with pytest.raises(UserError, match=rf"--steps {steps - 1} ends before the first update.*takes {steps} steps"):
        cavalcade.train(system, "CartPole-v1", steps=steps - 1, **given)
    assert not any(tmp_path.iterdir())
    more = 0 if "dqn" not in system else 80  # items of replay come a little after their steps
    assert cavalcade.train(system, "CartPole-v1", steps=steps + more, **given).rows()[-1]["updates"] > 0


class Picture(gym.Env):
    observation_space = gym.spaces.Box(0, 255, (36, 36, 1), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros((36, 36, 1), np.uint8), {}


@pytest.mark.parametrize(
    ("system", "settings", "said"),
    [
        ("dqn", {}, "--replay-start 20000 transitions have to be there, which takes 20000 steps.*lower --replay-start"),
        ("gorila-dqn", {"actors": 4}, "--replay-start 20000 .* for each of 4 learners, which takes 80000 steps"),
        ("impala", {"steps": 100}, r"--batch 32 unrolls of --unroll 20 .*lower --unroll or --batch"),
        ("ppo", {"steps": 511}, r"--envs 8 x --actors 1 unrolls of --unroll 128 .*lower --unroll, --envs or --actors"),
    ],
)
def test_presets_are_judged_like_the_users_own_settings(system, settings, said, tmp_path):
    with pytest.raises(UserError, match=said):
        cavalcade.train(system, Picture, out=tmp_path / "run", **{"steps": 5_000, "backend": "numpy", **settings})
    assert not any(tmp_path.iterdir())


# --- extras -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "package", "extra"),
    [
        ({"backend": "jax"}, "jax", "jax"),
        ({"backend": "torch"}, "torch", "torch"),
        ({"backend": "numpy"}, "autograd", "numpy"),
        ({"backend": "numpy", "runtime": "ray"}, "ray", "ray"),
        ({"backend": "numpy", "storage": "compressed"}, "lz4", "compression"),
    ],
)
def test_a_missing_extra_is_named_before_there_is_a_folder(settings, package, extra, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=rf"needs {package}; install it with pip install 'cavalcade\[{extra}\]'"):
        cavalcade.train("dqn", "CartPole-v1", out=tmp_path / "run", **settings)
    assert not any(tmp_path.iterdir())


def test_without_matplotlib_a_run_has_no_curve_and_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    settings = {**SMALL, **UNROLL, "display": None}
    run = cavalcade.train("a2c", "CartPole-v1", steps=40, out=tmp_path / "run", **settings)
    assert "matplotlib is not installed, so no curve is drawn" in capsys.readouterr().out
    assert not run.curve.exists() and (run.policy / "policy.json").exists()


# --- a start that fails -------------------------------------------------------------------------------------------


class Frail(gym.Wrapper):
    """CartPole of which the first copy works, which is asked for its spaces."""

    made = 0

    def __init__(self):
        Frail.made += 1
        if Frail.made > 1:
            raise ConnectionError("no licence is left")
        super().__init__(gym.make("CartPole-v1"))


def test_a_start_that_fails_leaves_no_folder(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    for out in ("deep/er/run", "mine"):
        Frail.made = 0
        with pytest.raises(Exception, match="no licence is left"):
            cavalcade.train("a2c", Frail, out=tmp_path / out, steps=400, **SMALL)
    assert [path.relative_to(tmp_path).as_posix() for path in sorted(tmp_path.rglob("*"))] == ["mine", "mine/notes.txt"]


def only_here():
    """In another process it cannot be made."""
    if multiprocessing.parent_process() is not None:
        raise ConnectionError("no licence is left")
    return gym.make("CartPole-v1")


def test_so_does_one_whose_processes_cannot_be_built(tmp_path):
    with pytest.raises(Exception, match="no licence is left"):
        cavalcade.train("a2c", only_here, out=tmp_path / "run", steps=400, runtime="process", **SMALL)
    assert not any(tmp_path.iterdir())


def test_what_was_recorded_stays(tmp_path):
    class Brief(gym.Wrapper):
        steps = 0

        def step(self, action):
            Brief.steps += 1
            if Brief.steps > 100:
                raise ConnectionError("no licence is left")
            return super().step(action)

    with pytest.raises(Exception, match="no licence is left"):
        cavalcade.train("a2c", lambda: Brief(gym.make("CartPole-v1")), out=tmp_path / "run", steps=400, **SMALL)
    assert cavalcade.Run.open(tmp_path / "run").rows()


# --- silence and what is said ---------------------------------------------------------------------------------------


def test_without_a_display_nothing_is_printed(tmp_path, capfd):
    run = cavalcade.train("a2c", "CartPole-v1", out=tmp_path / "run", steps=100, **{**SMALL, "evaluations": 2})
    cavalcade.resume(run.path, display=False)
    cavalcade.resume(run.path, steps=200, display=False)
    assert capfd.readouterr() == ("", "")
    about = (
        rf"Run\('{re.escape(str(run.path))}': a2c on CartPole-v1, seed 0, 200 of 200 steps, best evaluation [\d.]+\)"
    )
    assert re.fullmatch(about, repr(cavalcade.Run.open(run.path)))


def test_the_package_shows_its_names_and_its_version(capsys):
    from cavalcade.__main__ import main

    assert {"train", "resume", "evaluate", "play", "load_policy", "Run", "UserError"} <= set(dir(cavalcade))
    assert all(hasattr(cavalcade, name) for name in dir(cavalcade))
    assert main(["--version"]) == 0 and capsys.readouterr().out == f"cavalcade {cavalcade.__version__}\n"
