"""A run is its seed and its settings: repeated, moved, killed or interrupted, it ends in the same bits."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import cavalcade
from cavalcade import tree
from cavalcade.checkpoints import checkpoint
from cavalcade.errors import UserError
from cavalcade.records.folder import Run
from cavalcade.records.metric_names import tag

ROOT = Path(__file__).parents[2]
TIMED = ("time", "steps_per_second", "frames_per_second", "updates_per_second")  # and time_<role>: all that may differ

CRITICS = {"hidden": (8,), "critic_hidden": (8,), "batch": 8, "replay_start": 64, "replay_size": 2_000}
# Much learning in few steps: torch's recorded updates set in after 40, so both ways to compute are in each run.
CASES = {
    "dqn": ("dqn", "CartPole-v1", {"steps": 2_000, "replay_start": 200}),
    "a2c": ("a2c", "CartPole-v1", {"steps": 3_000}),
    "ppo": ("ppo", "CartPole-v1", {"steps": 4_000, "unroll": 32}),
    "recurrent ppo": ("ppo", "cavalcade/CartPoleNoVelocity-v1", {"steps": 800, "unroll": 4, "epochs": 2, "memory": 16}),
}
CONTINUOUS = {  # killed only; all of them go on exactly in test_continuous_runs.py
    "sac": ("sac", "Pendulum-v1", {**CRITICS, "steps": 800}),
    "apex-dpg": ("apex-dpg", "Pendulum-v1", {**CRITICS, "steps": 1_000, "update_every": 8, "backend": "numpy"}),
    "seed-sac": ("seed-sac", "Pendulum-v1", {**CRITICS, "steps": 1_000, "update_every": 8, "backend": "numpy"}),
}
BRIEF = {"evaluations": 2, "evaluation_episodes": 2, "rows": 40}
SMALL = {"backend": "numpy", "envs": 4, "hidden": (8,)}  # no framework to import: quick to start
SMALL_PPO = {**SMALL, "unroll": 16, "epochs": 1}


def train(case: str, out: Path, **changes) -> Run:
    system, environment, settings = {**CASES, **CONTINUOUS}[case]
    return cavalcade.train(system, environment, out=out, display=False, **{**BRIEF, **settings, "seed": 1, **changes})


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The uninterrupted run of a case, made once."""
    runs: dict[str, Run] = {}

    def get(case: str) -> Run:
        if case not in runs:
            runs[case] = train(case, tmp_path_factory.mktemp("finished") / "run")
        return runs[case]

    return get


def untimed(run: Run) -> list[dict]:
    return [{k: v for k, v in row.items() if k not in TIMED and not k.startswith("time_")} for row in run.rows()]


def last_state(run: Run) -> dict:
    state, _, notes = checkpoint.load_latest(run.checkpoints)
    assert not notes
    return state


def params(run: Run) -> np.ndarray:
    return last_state(run)["nodes"]["learner"]["state"]["params"]


def assert_same_tree(left, right, path: str = "state") -> None:
    if isinstance(left, dict):
        assert left.keys() == right.keys(), path
        for key in left:
            assert_same_tree(left[key], right[key], f"{path}/{key}")
    elif isinstance(left, np.ndarray):
        assert left.dtype == right.dtype and left.tobytes() == right.tobytes(), path
    else:
        assert left == right, path


def assert_same_run(one: Run, other: Run) -> None:
    """Parameters, optimiser, replay, random states, environments and metrics: bit for bit."""
    ours, theirs = last_state(one), last_state(other)
    assert_same_tree(ours["nodes"], theirs["nodes"])
    assert (ours["best"], ours["finished"]) == (theirs["best"], theirs["finished"])
    for name in ("policy.safetensors", "policy.json"):
        assert (one.policy / name).read_bytes() == (other.policy / name).read_bytes(), name
    assert untimed(one) == untimed(other)


# --- the same seed ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_the_same_seed_gives_the_same_bits_however_often_it_is_saved(case, finished, tmp_path):
    first = finished(case)
    assert_same_run(first, train(case, tmp_path / "again", checkpoint_seconds=0.1, target=1e6))
    assert len(untimed(first)) == 40 and params(first).any()
    other = train(case, tmp_path / "other", seed=2, steps=300, evaluations=0)
    assert not np.array_equal(params(first), params(other))
    assert untimed(first)[0] != untimed(other)[0]


@pytest.mark.parametrize(("system", "settings"), [("dqn", {**SMALL, "replay_start": 100}), ("ppo", SMALL_PPO)])
def test_several_actors_take_turns_in_a_fixed_order(system, settings, tmp_path):
    given = {**settings, "steps": 800, "actors": 2, "evaluations": 1, "evaluation_episodes": 2, "display": False}
    one, two = (cavalcade.train(system, "CartPole-v1", out=tmp_path / name, **given) for name in ("one", "two"))
    assert_same_run(one, two)
    nodes = last_state(one)["nodes"]
    assert nodes["actor/0"]["steps"] + nodes["actor/1"]["steps"] == one.rows()[-1]["step"] >= 800
    assert one.rows()[-1]["updates"] > 0
    assert not np.array_equal(nodes["actor/0"]["obs"], nodes["actor/1"]["obs"])  # each has its own streams


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_acting_on_the_backend_is_acting_in_numpy(backend, tmp_path):
    settings = {"backend": backend, "steps": 1_024, "epochs": 1, "minibatches_per_epoch": 1, "evaluations": 0}
    runs = [train("ppo", tmp_path / which, acts_in=which, **settings) for which in ("numpy", "backend")]
    assert runs[0].rows()[-1]["updates"] == runs[1].rows()[-1]["updates"] >= 3
    np.testing.assert_allclose(params(runs[0]), params(runs[1]), rtol=0, atol=1e-4)
    assert [row["episodes"] for row in runs[0].rows()] == [row["episodes"] for row in runs[1].rows()]


# --- what a run leaves behind -----------------------------------------------------------------------------------


def test_a_run_folder_holds_what_the_user_was_promised(finished):
    run = finished("ppo")
    files = {path.name.split(".")[0] for path in run.path.iterdir()}
    assert files == {"config", "metrics", "events", "curve", "report", "checkpoints", "policy"}
    config = json.loads((run.path / "config.json").read_text())
    assert (config["system"], config["environment"], config["seed"]) == ("ppo", "CartPole-v1", 1)
    assert config["algorithm"]["unroll"] == 32 and config["versions"]["cavalcade"] == cavalcade.__version__
    assert (run.path / "curve.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert sorted(path.name for path in run.policy.iterdir()) == ["policy.json", "policy.safetensors"]
    [folder] = run.checkpoints.iterdir()
    assert folder.name == "step-000004000"
    assert sorted(path.name for path in folder.iterdir()) == ["arrays.safetensors", "state.json"]


def test_every_line_of_the_metrics_has_what_others_script_against(finished):
    for case in CASES:
        run = finished(case)
        rows = [json.loads(line, parse_constant=pytest.fail) for line in run.metrics_file.read_text().splitlines()]
        for row in rows:
            assert {"step", "time", "steps_per_second", "frames_per_second", "updates"} <= row.keys()
            assert {type(row["step"]), type(row["updates"])} == {int} and row["steps_per_second"] > 0
            assert row["frames_per_second"] == row["steps_per_second"], "no emulator plays several frames here"
        assert any("return" in row for row in rows)
        steps, times = [row["step"] for row in rows], [row["time"] for row in rows]
        assert steps == sorted(set(steps)) and times == sorted(set(times)) and times[0] > 0
        assert steps[-1] >= CASES[case][2]["steps"] and rows[-1]["updates"] > 0
        assert [row["evaluation_step"] for row in rows if "evaluation" in row] == [steps[19], steps[39]]


def test_a_return_is_there_exactly_when_an_episode_ended(finished):
    episodes = 0
    for row in finished("dqn").rows():
        assert ("return" in row) == (row["episodes"] > episodes)
        episodes = row["episodes"]


def test_tensorboard_reads_the_same_numbers(finished):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = finished("ppo")
    events = EventAccumulator(str(run.path))
    events.Reload()
    for name in ("return", "loss", "steps_per_second"):
        expected = [(row["step"], np.float32(row[name])) for row in run.rows() if name in row]
        assert [(event.step, event.value) for event in events.Scalars(tag(name))] == expected, name


def test_config_json_is_the_run_once_more(tmp_path):
    settings = {**BRIEF, **SMALL_PPO, "steps": 1_000, "seed": 7, "normalise_rewards": True}
    run = cavalcade.train("ppo", "CartPole-v1", out=tmp_path / "run", display=False, **settings)
    command("train", run.path / "config.json", "--out", tmp_path / "again")
    again = Run.open(tmp_path / "again")
    assert again.config == run.config
    assert_same_run(run, again)


@pytest.mark.parametrize(("rows", "evaluations"), [(20, 5), (5, 20), (7, 3)])
def test_the_saved_policy_is_the_one_that_was_judged(rows, evaluations, tmp_path):
    """Also where the lines of metrics and the evaluations do not fall on the same steps."""
    settings = {**SMALL_PPO, "steps": 800, "seed": 3, "evaluation_episodes": 3, "learning_rate": 0.01}
    settings |= {"rows": rows, "evaluations": evaluations}
    run = cavalcade.train("ppo", "CartPole-v1", out=tmp_path / "run", display=False, **settings)
    about = json.loads((run.policy / "policy.json").read_text())
    judged = {row["evaluation_step"]: row["evaluation"] for row in run.rows() if "evaluation" in row}
    assert len(judged) >= min(rows, evaluations) and about["evaluation"] == max(judged.values())
    assert judged[about["evaluation_step"]] == about["evaluation"]
    assert cavalcade.evaluate(run.path, episodes=3, seed=3)["mean"] == about["evaluation"]


# --- the end of a run -------------------------------------------------------------------------------------------


def test_reaching_the_target_ends_the_run(tmp_path):
    run = train("dqn", tmp_path / "run", steps=2_000, target=5.0, evaluations=4)
    rows = run.rows()
    assert rows[-1]["step"] == 504 and rows[-1]["evaluation"] >= 5.0  # the first evaluation: any pole stands that long
    assert last_state(run)["finished"]
    about = json.loads((run.policy / "policy.json").read_text())
    assert about["evaluation"] == rows[-1]["evaluation"]
    before = untimed(run)
    assert cavalcade.resume(run.path, display=False).rows()[-1]["step"] == 504  # there is nothing left to do
    assert untimed(run) == before


def test_without_evaluations_the_last_policy_is_saved(tmp_path):
    run = train("dqn", tmp_path / "run", steps=1_000, evaluations=0)
    assert not any("evaluation" in row for row in run.rows())
    policy = cavalcade.load_policy(run.path)
    np.testing.assert_array_equal(policy.vector, params(run))
    assert policy.version == last_state(run)["nodes"]["learner"]["state"]["updates"] == run.rows()[-1]["updates"] > 0


# --- kill -9 ----------------------------------------------------------------------------------------------------


def command(*arguments, path: Path | None = None) -> str:
    """Run `cavalcade ...` to its good end; its output."""
    done = subprocess.run(spelled(*arguments), env=surroundings(path), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return done.stdout


def spelled(*arguments) -> list[str]:
    return [sys.executable, "-m", "cavalcade", *map(str, arguments)]


def surroundings(path: Path | None = None) -> dict[str, str]:
    found = os.pathsep.join(str(p) for p in (ROOT, path) if p)
    return {**os.environ, "PYTHONPATH": found, "OPENBLAS_NUM_THREADS": "1"}  # two threads are slower on small matrices


def options(settings: dict) -> list[str]:
    found: list[str] = []
    for name, value in settings.items():
        values = value if isinstance(value, tuple) else (value,)
        found += ["--" + name.replace("_", "-"), *map(str, values)]
    return found


def kill_in_the_middle(run: Path, *arguments, after: int = 0, path: Path | None = None) -> int:
    """Start a command and kill it once it has a checkpoint beyond step `after` and has gone on from there."""
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    child = subprocess.Popen(spelled(*arguments), env=surroundings(path), **pipes)
    try:
        deadline = time.monotonic() + 60
        while child.poll() is None and time.monotonic() < deadline and not _gone_on(run, after):
            time.sleep(0.002)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == -signal.SIGKILL, "it ended before it could be killed"
    return newest(run)


def _gone_on(run: Path, after: int) -> bool:
    lines = Run(run, {}).rows()
    return after < newest(run) < (lines[-1]["step"] if lines else 0)


def newest(run: Path) -> int:
    return max((int(path.name[5:]) for path in run.glob("checkpoints/step-*")), default=0)


@pytest.mark.parametrize("case", ["dqn", "ppo", "recurrent ppo", *CONTINUOUS])
def test_a_killed_run_ends_in_the_bits_of_one_that_was_not(case, finished, tmp_path, capsys):
    system, environment, settings = {**CASES, **CONTINUOUS}[case]
    given = options({**BRIEF, **settings, "seed": 1, "checkpoint_seconds": 0.1})
    kept = kill_in_the_middle(tmp_path / "run", "train", system, environment, "--out", tmp_path / "run", *given)
    assert 0 < kept < settings["steps"]
    reference = finished(case)
    capsys.readouterr()
    resumed = cavalcade.resume(tmp_path / "run")
    said = capsys.readouterr().out
    assert f"step {kept:,}: actor/0: environments replayed, the run goes on exactly" in said and "restarted" not in said
    assert_same_run(reference, resumed)
    times = [row["time"] for row in resumed.rows()]
    assert times == sorted(set(times))  # the clock goes on too


def test_two_kills_in_a_row_and_masks_from_infos(tmp_path):
    settings = {**BRIEF, **SMALL, "unroll": 16, "steps": 5_000, "seed": 1}
    bandit = ("a2c", "cavalcade/MaskedBandit-v0")
    reference = cavalcade.train(
        *bandit, out=tmp_path / "whole", display=False, options={"where": "info"}, checkpoint_seconds=0.05, **settings
    )
    run = tmp_path / "killed"
    given = [*options({**settings, "checkpoint_seconds": 0.05}), "--option", "where=info", "--out", run]
    first = kill_in_the_middle(run, "train", *bandit, *given)
    second = kill_in_the_middle(run, "resume", run, after=first)
    assert 0 < first < second < 5_000
    command("resume", run)
    assert_same_run(reference, Run.open(run))


def test_a_kill_before_the_first_checkpoint_starts_the_run_again(tmp_path):
    settings = {**BRIEF, **SMALL_PPO, "steps": 800, "seed": 1}
    reference = cavalcade.train("ppo", "CartPole-v1", out=tmp_path / "whole", display=False, **settings)
    run = Run.create(tmp_path / "run", reference.config)
    run.metrics_file.write_text('{"step": 20, "time": 0.5, "updates": 0}\n{"step": 40, "ti')
    said = command("resume", run.path)
    assert "No checkpoint was written yet; the run starts again from its beginning." in said
    assert_same_run(reference, run)


UNREPEATABLE = """
import os
import gymnasium as gym
import numpy as np

class Weather(gym.Env):
    observation_space = gym.spaces.Box(0.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return self.look(), {}

    def step(self, action):
        self.steps += 1
        return self.look(), float(action), self.steps == 50, False, {}

    def look(self):
        return np.array([self.steps / 50, os.urandom(1)[0] / 255], np.float32)

gym.register("Weather-v0", entry_point=Weather)
"""


@pytest.mark.parametrize("system", ["dqn", "ppo"])
def test_environments_that_cannot_be_replayed_are_restarted_and_the_run_says_so(system, tmp_path):
    (tmp_path / "outdoors.py").write_text(UNREPEATABLE)
    settings = {"replay_start": 100, **SMALL} if system == "dqn" else SMALL_PPO
    settings = {**BRIEF, **settings, "steps": 1_600, "checkpoint_seconds": 0.05}
    run = Run(tmp_path / "run", {})
    given = ["train", system, "outdoors:Weather-v0", "--out", run.path, *options(settings)]
    kept = kill_in_the_middle(run.path, *given, path=tmp_path)
    said = command("resume", run.path, path=tmp_path)
    assert f"step {kept:,}: actor/0: environments cannot be saved and were restarted at an episode boundary" in said
    assert "goes on exactly" not in said
    steps = [row["step"] for row in run.rows()]
    assert steps == sorted(set(steps)) and steps[-1] == 1_600 and len(steps) == 40
    assert {row["episode_length"] for row in run.rows() if "episode_length" in row} == {50.0}  # no episode was joined


class Fused(gym.Wrapper):
    """CartPole that breaks down after so many steps of all training environments: a crash at a chosen point."""

    made, left = 0, -1

    def __init__(self, env):
        super().__init__(env)
        self.number = Fused.made  # 0 is asked for its spaces, 1 to 4 train, later ones evaluate
        Fused.made += 1

    def step(self, action):
        Fused.left -= self.number in range(1, 5)
        if Fused.left == 0:
            raise ConnectionError("the simulator has gone")
        return super().step(action)


@pytest.mark.parametrize("rows", [20, 3])
def test_a_crash_at_any_point_loses_nothing_that_was_saved(rows, tmp_path):
    """With 3 lines and 2 evaluations, the first evaluation may have to wait for its line: it must survive as well."""

    def make():
        return Fused(gym.make("CartPole-v1"))

    settings = {**SMALL_PPO, "unroll": 8, "steps": 200, "rows": rows, "evaluations": 2, "seed": 5}
    settings |= {"evaluation_episodes": 2}
    Fused.made, Fused.left = 0, -1
    whole = cavalcade.train("ppo", make, out=tmp_path / "whole", display=False, **settings)
    for crash in (30, 121):  # the second comes after an evaluation and, with 3 lines, before its line
        Fused.made, Fused.left, path = 0, crash, tmp_path / str(crash)
        with pytest.raises(UserError, match="ConnectionError: the simulator has gone"):
            cavalcade.train("ppo", make, out=path, display=False, checkpoint_seconds=0.0, **settings)
        assert newest(path) == (crash - 1) // 4 * 4
        Fused.left = -1
        assert_same_run(whole, cavalcade.resume(path, environment=make, display=False))


# --- Ctrl-C -----------------------------------------------------------------------------------------------------


def test_ctrl_c_saves_a_checkpoint_and_prints_how_to_go_on(tmp_path):
    settings = {**BRIEF, **SMALL_PPO, "steps": 3_000, "seed": 1}
    reference = cavalcade.train("ppo", "CartPole-v1", out=tmp_path / "whole", display=False, **settings)
    run = Run(tmp_path / "run", {})
    arguments = spelled("train", "ppo", "CartPole-v1", "--out", run.path, *options(settings))
    child = subprocess.Popen(arguments, env=surroundings(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 60
        while child.poll() is None and len(run.rows()) < 3 and time.monotonic() < deadline:
            time.sleep(0.002)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == 0 and err == "", err
    *_, interrupted, advice = out.splitlines()
    assert interrupted.startswith("Interrupted at step ") and interrupted.endswith("; a checkpoint is saved.")
    assert advice == f"cavalcade resume {run.path}"
    assert 0 < newest(run.path) < 3_000
    said = command(*shlex.split(advice)[1:])
    assert "goes on exactly" in said and "Done: 3,000 steps" in said
    assert_same_run(reference, run)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_printed_command_can_be_pasted_even_with_a_space_in_the_path(number, tmp_path, capsys):
    class Impatient(gym.Wrapper):
        def step(self, action):
            signal.raise_signal(number)
            return super().step(action)

    def make():
        return Impatient(gym.make("CartPole-v1"))

    before = signal.getsignal(number)
    where = tmp_path / "my runs" / "one"
    cavalcade.train("ppo", make, out=where, **{**SMALL_PPO, "envs": 1, "steps": 100})
    assert newest(where) == 1
    assert shlex.split(capsys.readouterr().out.splitlines()[-1]) == ["cavalcade", "resume", str(where)]
    assert signal.getsignal(number) is before


# --- from Python ------------------------------------------------------------------------------------------------


def test_train_from_python_takes_a_function_and_returns_the_run(tmp_path):
    def make():
        return gym.wrappers.TimeLimit(gym.make("CartPole-v1").unwrapped, 30)

    run = cavalcade.train("ppo", make, out=tmp_path / "run", display=False, **{**SMALL_PPO, **BRIEF, "steps": 800})
    assert isinstance(run, cavalcade.Run) and run.path == tmp_path / "run"
    assert max(row["return"] for row in run.rows() if "return" in row) <= 30
    assert run.config["environment"].startswith("<")
    assert cavalcade.evaluate(run.path, episodes=4, environment=make)["max"] <= 30
    with pytest.raises(UserError, match=r"use Python and give environment="):
        cavalcade.resume(run.path)
    assert cavalcade.resume(run.path, environment=make, display=False).rows() == run.rows()


def test_train_from_python_names_the_nearest_setting(tmp_path):
    with pytest.raises(UserError, match=r"ppo has no setting 'learning_rat'. Did you mean 'learning_rate'\?"):
        cavalcade.train("ppo", "CartPole-v1", out=tmp_path / "run", learning_rat=0.1)
    assert not (tmp_path / "run").exists()


def test_without_a_folder_the_run_gets_one_under_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    paths = [
        cavalcade.train("a2c", "CartPole-v1", display=False, **{**SMALL, "steps": 64, "evaluations": 0}).path
        for _ in range(2)
    ]
    assert paths == [Path("runs/a2c-CartPole-v1-s0"), Path("runs/a2c-CartPole-v1-s0-2")]
    assert all((path / "policy" / "policy.json").exists() for path in paths)


def test_a_policy_carries_the_options_of_its_environment(tmp_path):
    settings = {**SMALL_PPO, "steps": 400, "evaluations": 1, "evaluation_episodes": 2}
    run = cavalcade.train(
        "ppo", "cavalcade/Corridor-v0", out=tmp_path / "run", display=False, options={"length": 7}, **settings
    )
    assert cavalcade.evaluate(run.path, episodes=3)["mean"] == 7.0
    assert {leaf.dtype for leaf in tree.leaves(cavalcade.load_policy(run.path).params)} == {np.dtype(np.float32)}
