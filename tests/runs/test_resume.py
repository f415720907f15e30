"""Going on with a run: it can be extended, it says when there is nothing to do, and it stays the run that it was."""

import json
import re
import shutil
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import cavalcade
from cavalcade.__main__ import main
from cavalcade.checkpoints import checkpoint
from cavalcade.errors import UserError
from cavalcade.experiment.experiment import Experiment
from cavalcade.records.folder import Run
from cavalcade.runs.resuming import FREE

SMALL = {"backend": "numpy", "envs": 4, "hidden": (8,), "unroll": 8, "epochs": 1, "rows": 10, "display": False}
PPO = {**SMALL, "evaluations": 2, "evaluation_episodes": 2, "seed": 1, "anneal": False}


def train(out: Path, **changes) -> Run:
    return cavalcade.train("ppo", "CartPole-v1", out=out, **{**PPO, "steps": 200, **changes})


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Run:
    """A run of two hundred steps, all done."""
    return train(tmp_path_factory.mktemp("finished") / "run")


@pytest.fixture
def copy(finished, tmp_path) -> Run:
    return Run.open(shutil.copytree(finished.path, tmp_path / "copy"))


def edit(run: Run, **changes) -> None:
    """By hand, as a user would."""
    config = json.loads(run.config_file.read_text())
    config |= {name: value for name, value in changes.items() if name in config}
    config["algorithm"] |= {name: value for name, value in changes.items() if name in config["algorithm"]}
    run.config_file.write_text(json.dumps(config))


def files(run: Run) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}


def learner(run: Run) -> dict:
    return checkpoint.load_latest(run.checkpoints)[0]["nodes"]["learner"]["state"]


# --- nothing to do ------------------------------------------------------------------------------------------------


def test_a_finished_run_says_so_and_how_to_extend_it(copy, capsys):
    before = files(copy)
    assert main(["resume", str(copy.path)]) == 0
    said = "The run is finished: it has done 200 steps of 200. Extend it with: cavalcade resume"
    assert capsys.readouterr().out == f"{said} {copy.path} --steps N\n"
    assert cavalcade.resume(copy.path, steps=200).rows() == copy.rows()
    assert files(copy) == before


def test_fewer_steps_than_are_done_are_refused(copy, capsys):
    before = files(copy)
    assert main(["resume", str(copy.path), "--steps", "150"]) == 2
    assert capsys.readouterr().err == "error: --steps 150 are fewer than the 200 that the run has done; give more.\n"
    assert files(copy) == before


def test_a_run_that_reached_its_target_goes_on_for_another(tmp_path, capsys):
    run = train(tmp_path / "run", target=1.0)
    assert run.rows()[-1]["step"] < 200
    cavalcade.resume(run.path)
    assert "it reached its target of 1 at step 100 of 200" in capsys.readouterr().out
    edit(run, target=1e6)
    assert cavalcade.resume(run.path, display=False).rows()[-1]["step"] == 200


# --- more to do ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["resume", "by hand"])
def test_an_extended_run_is_the_longer_run(how, copy, tmp_path):
    """To the bit, where no schedule spans the run."""
    if how == "by hand":
        edit(copy, steps=400)
        cavalcade.resume(copy.path, display=False)
    else:
        assert main(["resume", str(copy.path), "--steps", "400"]) == 0
    longer = train(tmp_path / "longer", steps=400)
    assert Run.open(copy.path).config == longer.config
    ours, theirs = learner(copy), learner(longer)
    assert ours["updates"] == theirs["updates"] > learner(train(tmp_path / "shorter"))["updates"]
    np.testing.assert_array_equal(ours["params"], theirs["params"])
    judged = [[row["evaluation_step"] for row in run.rows() if "evaluation" in row] for run in (copy, longer)]
    assert judged == [[100, 200, 400], [200, 400]]  # spread over the new total from now on
    assert copy.rows()[-1]["step"] == 400 and cavalcade.resume(copy.path, display=False).rows() == copy.rows()


def test_a_schedule_is_laid_out_anew_over_the_new_total(tmp_path):
    """At the end of a run nothing is left of an annealed rate; extended to twice the length, half of it is back."""
    run = train(tmp_path / "run", anneal=True, evaluations=0)
    horizon = Experiment.from_config(run.config).parts.learner().rule.settings.horizon
    before = learner(run)
    extended = cavalcade.resume(run.path, steps=400, display=False)
    parts = Experiment.from_config(Run.open(run.path).config).parts
    assert parts.learner().rule.settings.horizon == 2 * horizon
    assert np.abs(learner(extended)["params"] - before["params"]).max() > 1e-4


def test_the_config_is_changed_only_when_the_extension_begins(copy, monkeypatch):
    before = copy.config_file.read_bytes()

    def fail(*_):
        raise ConnectionError("no machine is left")

    monkeypatch.setattr(Experiment, "launch", fail)
    with pytest.raises(ConnectionError):
        cavalcade.resume(copy.path, steps=400, display=False)
    assert copy.config_file.read_bytes() == before


def test_an_extension_that_was_killed_at_once_goes_on(copy):
    """Its config.json says how far, though no checkpoint does yet."""
    copy.change(steps=240)
    assert cavalcade.resume(copy.path, display=False).rows()[-1]["step"] == 240


# --- other settings -----------------------------------------------------------------------------------------------

CHANGES = {
    "envs": 8,
    "seed": 2,
    "backend": "torch",
    "runtime": "process",
    "evaluation_episodes": 5,
    "evaluation_sampled": True,
    "options": {"max_episode_steps": 9},
    "hidden": [16],
    "unroll": 4,
    "learning_rate": 0.1,
    "system": "dppo",
    "environment": "CartPole-v0",
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_setting_is_refused_by_name(name, copy, capsys):
    edit(copy, **{name: CHANGES[name]})
    before = files(copy)
    assert main(["resume", str(copy.path), "--steps", "400"]) == 2
    said = capsys.readouterr().err
    assert re.match(rf"error: The run was made with {name} .* and cannot go on with .*; change it back, or begin", said)
    assert files(copy) == before


def test_what_only_says_how_to_go_on_may_change(copy):
    changed = {"target": 1e6, "rows": 20, "checkpoint_seconds": 1.0, "device": "cpu", "threads": 2, "steps": 240}
    assert {*changed, "address", "versions"} == set(FREE)
    edit(copy, **changed, versions={"python": "3.99"})
    assert cavalcade.resume(copy.path, display=False).rows()[-1]["step"] == 240


def test_another_environment_has_to_have_the_same_spaces(tmp_path):
    def cart():
        return gym.make("CartPole-v1")

    run = cavalcade.train("ppo", cart, out=tmp_path / "run", **{**PPO, "steps": 200, "evaluations": 0})
    with pytest.raises(UserError, match=r"trained on CartPole-v1, whose observation is .* Acrobot-v1 has"):
        cavalcade.resume(run.path, steps=400, environment=lambda: gym.make("Acrobot-v1"))
    assert cavalcade.resume(run.path, steps=240, environment=cart, display=False).rows()[-1]["step"] == 240


def test_a_run_with_a_name_goes_on_with_what_it_names(finished):
    with pytest.raises(UserError, match="The run was made with environment CartPole-v1 and cannot go on with <Cart"):
        cavalcade.resume(finished.path, steps=400, environment=lambda: gym.make("CartPole-v1"))


def test_a_network_of_another_shape_is_refused(tmp_path):
    torch = pytest.importorskip("torch")

    def torso(width: int):
        return torch.nn.Linear(4, width)

    given = {**PPO, "backend": "torch", "evaluations": 0, "steps": 64, "network": torso(8)}
    run = cavalcade.train("ppo", "CartPole-v1", out=tmp_path / "run", **given)
    with pytest.raises(UserError, match=r"The network is not the one .* had the shape \[.*8.*\] and has \[.*6.*\] now"):
        cavalcade.resume(run.path, steps=128, network=torso(6))
    assert cavalcade.resume(run.path, steps=128, network=torso(8), display=False).rows()[-1]["step"] == 128
