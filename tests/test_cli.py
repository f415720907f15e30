"""The command line as people and scripts meet it: real processes, one sentence for what is wrong, nothing lost."""

import dataclasses
import importlib.util
import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import cavalcade as package
from cavalcade.__main__ import COMMANDS, main
from cavalcade.algorithms.dqn import DQN
from cavalcade.algorithms.ppo import PPO
from cavalcade.checkpoints import checkpoint
from cavalcade.experiment.run_settings import GROUPS, Settings
from cavalcade.experiment.systems import SYSTEMS
from cavalcade.records.figures import score
from cavalcade.records.folder import Run

ROOT = Path(__file__).parents[1]
SMALL = ["--backend", "numpy", "--envs", "4", "--hidden", "8"]  # starts quickly
SMALL += ["--unroll", "8", "--epochs", "1", "--evaluation-episodes", "2"]

ENVIRONMENTS = '''
import gymnasium as gym
import numpy as np


class Spoiled(gym.Env):
    """Episodes of ten steps; one step of one episode holds what is not a number."""

    observation_space = gym.spaces.Box(-10.0, 10.0, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, what="nothing", episode=15, render_mode=None):
        self.what, self.bad, self.episode = what, (episode, 7), -1

    def reset(self, *, seed=None, options=None):
        self.episode, self.steps = self.episode + 1, 0
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.steps += 1
        observation, reward = np.full(3, self.steps / 10, np.float32), 1.0
        if (self.episode, self.steps) == self.bad:
            if self.what == "observation":
                observation[1] = np.nan
            if self.what == "reward":
                reward = float("nan")
        return observation, reward, self.steps == 10, False, {}


class Words(Spoiled):
    observation_space = gym.spaces.Text(5)


class Nested(Spoiled):
    action_space = gym.spaces.Dict({"left": gym.spaces.Discrete(2)})


for kind in (Spoiled, Words, Nested):
    if f"{kind.__name__}-v0" not in gym.registry:
        gym.register(f"{kind.__name__}-v0", entry_point=kind)
'''


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A working directory with a module of environments in it."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "oddities.py").write_text(ENVIRONMENTS)
    return folder


@pytest.fixture(scope="module")
def run(place) -> Run:
    """A finished run of two hundred steps, with its last two checkpoints."""
    line = "train ppo CartPole-v1 --steps 200 --rows 10 --evaluations 2 --checkpoint-seconds 0 --out run"
    done = cavalcade(*line.split(), *SMALL, place=place)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return Run.open(place / "run")


def surroundings(place: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("CI", "COLUMNS", "PYTHONUNBUFFERED")}
    ours = {"PYTHONPATH": f"{ROOT}{os.pathsep}{place}", "PYTHONIOENCODING": "utf-8", "OPENBLAS_NUM_THREADS": "1"}
    return {**kept, **ours}


def cavalcade(*arguments, place: Path) -> subprocess.CompletedProcess:
    given = [sys.executable, "-m", "cavalcade", *map(str, arguments)]
    return subprocess.run(given, cwd=place, env=surroundings(place), capture_output=True, text=True, timeout=120)


def assert_one_sentence(done: subprocess.CompletedProcess, said: str) -> None:
    assert done.returncode == 2, (done.returncode, done.stderr)
    assert re.fullmatch(r"error: [^\n]+\n", done.stderr), done.stderr
    assert re.search(said, done.stderr), done.stderr


# --- help -------------------------------------------------------------------------------------------------------


def test_the_usage_names_every_command_and_every_command_has_help(place):
    for arguments in ([], ["--help"], ["help"], ["-h"]):
        done = cavalcade(*arguments, place=place)
        assert done.returncode == 0 and done.stderr == ""
        for name in COMMANDS:
            assert f"cavalcade {name} " in done.stdout
    for name in COMMANDS:
        done = cavalcade(name, "--help", place=place)
        assert done.returncode == 0 and done.stderr == "" and f"cavalcade {name}" in done.stdout, (name, done.stdout)


def test_train_help_shows_every_setting_with_its_value(place):
    for system, algorithm in (("ppo", PPO), ("dqn", DQN)):
        done = cavalcade("train", system, "CartPole-v1", "--help", place=place)
        assert done.returncode == 0 and done.stderr == ""
        words = set(re.findall(r"--[\w-]+", done.stdout))
        fields = [field.name for kind in (Settings, algorithm) for field in dataclasses.fields(kind)]
        assert len(fields) > 30
        assert {"--" + name.replace("_", "-") for name in (*fields, "out")} <= words
    assert re.search(r"--steps 100000 +environment steps of the whole run.*\[default\]", done.stdout)
    positions = [done.stdout.index(f"\n{group}: ") for group in GROUPS]
    assert positions == sorted(positions), "what people change first comes first"


def test_help_shows_one_group_and_says_where_values_come_from(place):
    done = cavalcade("train", "apex-dqn", "CartPole-v1", "--help", "experience", place=place)
    assert done.returncode == 0 and "learning:" not in done.stdout and "--steps" not in done.stdout
    assert re.search(r"--priority-exponent 0.6 .*\[of apex-dqn\]", done.stdout)
    assert re.search(r"--replay-size 50000 .*\[preset of CartPole-v1, ours\]", done.stdout)
    assert re.search(r"--importance-exponent 0.4 .*\[default\]", done.stdout)
    pong = cavalcade("train", "dqn", "ALE/Pong-v5", "--help", "experience", "--preset", "none", place=place)
    assert re.search(r"--replay-size 200000 .*\[of dqn on images\]", pong.stdout)
    assert_one_sentence(cavalcade("train", "dqn", "--help", "experiance", place=place), "Did you mean 'experience'")


def test_systems_lists_each_with_its_paper(place):
    done = cavalcade("systems", place=place)
    assert done.returncode == 0 and done.stderr == ""
    for name, system in SYSTEMS.items():
        assert re.search(rf"^{name} .*{re.escape(system.about)}\n +{re.escape(system.paper)}$", done.stdout, re.M)


def test_the_console_script_is_the_same_program(place):
    script = Path(sys.executable).parent / "cavalcade"
    done = subprocess.run([script, "systems"], env=surroundings(place), capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout == cavalcade("systems", place=place).stdout


# --- bad input --------------------------------------------------------------------------------------------------

MISTAKES = {
    "trian ppo CartPole-v1": "no command 'trian'.* Did you mean 'train'",
    "train pppo CartPole-v1": "no system 'pppo'.* Did you mean 'ppo'",
    "train ppo CartPol-v1": "no environment 'CartPol-v1'. Did you mean 'CartPole-v1'",
    "train ppo CartPole-v1 --learning-rat 0.1": "no option '--learning-rat'. Did you mean '--learning-rate'",
    "train ppo CartPole-v1 --steps abc": "--steps.*'abc'",
    "train ppo CartPole-v1 --steps 0": "--steps is 0; it has to be a whole number of at least 1",
    "train dqn Pendulum-v1": "dqn needs Discrete actions, but Pendulum-v1 has box actions; use ppo or sac",
    "train ppo oddities:Words-v0": "observation space Text is not supported; use Box, Discrete",
    "train ppo": "Say which system and which environment",
    "resume absent": "no run folder absent",
}
MORE_MISTAKES = {
    "train ppo nowhere:Id-v0": "module 'nowhere' .* cannot be imported",
    "train ppo oddities:Spoild-v0": "no environment 'Spoild-v0'. Did you mean 'Spoiled-v0'",
    "train ppo oddities:Nested-v0": "action space Dict is not supported; use Discrete, MultiDiscrete or Box",
    "train ppo CartPole-v1 --learning-rat=0.1": "no option '--learning-rat'. Did you mean '--learning-rate'",
    "train ppo CartPole-v1 surplus": "'surplus' is one word too many",
    "train ppo CartPole-v1 --backend torhc": "torch, jax, numpy. Did you mean 'torch'",
    "train ppo CartPole-v1 --steps": "--steps",
    "train ppo CartPole-v1 --option speed=3": "does not take these options.*'speed'",
    "train ppo CartPole-v1 --option speed": "--option takes name=value",
    "train": "Say which system and which environment",
    "train absent.json": "no file absent.json",
    "resume": "cavalcade resume RUN",
    "resume run --step 5": "no option '--step'",
    "evaluate": "cavalcade evaluate RUN",
    "evaluate absent": "no policy in absent",
    "evaluate run --episodes 0": "--episodes is 0",
    "evaluate run --episodes some": "--episodes.*'some'",
    "evaluate run --episods 3": "Did you mean '--episodes'",
    "evaluate run --seed -1": "seed",
    "play": "cavalcade play RUN",
    "play run --out film.xyz": r"film\.xyz.*\.mp4 or \.gif",
    "play run --out film.webm": r"film\.webm.*\.mp4 or \.gif",
    "plot": "nothing to draw",
    "plot absent": "no run folder absent",
    "plot run --by hour": "'step' or by 'time'",
    "systems dqn": "'dqn' is one word too many",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_one_line_that_names_what_is_right(line, place):
    done = cavalcade(*line.split(), place=place)
    assert_one_sentence(done, MISTAKES[line])
    assert done.stdout == "" and not (place / "runs").exists()


@pytest.mark.parametrize("line", MORE_MISTAKES)
def test_so_is_any_other_mistake(line, run, place, monkeypatch, capfd):
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(place)
    code, out, err = said_by(line.split(), capfd)
    assert_one_sentence(subprocess.CompletedProcess(line, code, out, err), MORE_MISTAKES[line])
    assert out == "" and not (place / "runs").exists() and not (place / "curves.png").exists()


def said_by(arguments: list[str], capfd) -> tuple[int, str, str]:
    """The same in this process, which saves its start."""
    try:
        code = main(arguments)
    except SystemExit as end:
        code = end.code
    return code, *capfd.readouterr()


IMPOSSIBLE = [
    *("ppo --seed -1", "ppo --evaluations -1", "ppo --threads -2", "ppo --target nan", "ppo --activation swoosh"),
    *("ppo --convolution swoosh", "ppo --optimiser-name swoosh", "ppo --unroll 0", "ppo --epochs 0", "ppo --memory -3"),
    *(
        "ppo --minibatches-per-epoch 0",
        "ppo --minibatches-per-epoch 500 --surrogate penalty",
        "ppo --hidden 0",
        "ppo --envs 0",
    ),
    *("dqn --n-step 0", "dqn --batch 0", "dqn --update-every 0", "dqn --updates-per-draw 0", "dqn --target-period 0"),
    *("dqn --replay-start 0", "dqn --replay-size 10"),
]


@pytest.mark.parametrize("line", IMPOSSIBLE)
def test_an_impossible_value_is_refused_before_anything_is_written(line, tmp_path, capfd):
    system, *options = line.split()
    small = [] if "--envs" in options else ["--envs", "4"]
    given = ["train", system, "CartPole-v1", *small, "--backend", "numpy", "--steps", "128", "--evaluations", "1"]
    code, _, err = said_by([*given, *options, "--out", str(tmp_path / "run")], capfd)
    assert code == 2 and re.fullmatch(r"error: [^\n]+\n", err), err
    assert not (tmp_path / "run").exists()  # or the next attempt would be told that there is a run already


def test_no_hidden_layer_is_a_linear_policy_or_one_sentence(tmp_path, capfd):
    given = ["train", "ppo", "CartPole-v1", "--backend", "numpy", "--steps", "64", "--evaluations", "0"]
    code, _, err = said_by([*given, "--out", str(tmp_path / "run"), "--hidden"], capfd)
    assert (code == 0 and err == "") or (code == 2 and re.fullmatch(r"error: [^\n]+\n", err)), err


BAD_CONFIGS = {
    "no JSON": ("{", "is not JSON"),
    "a list": ("[]", "is not the config.json of a run"),
    "another file": ('{"a": 1}', "is not the config.json of a run"),
    "a word for a number": ({"steps": "abc"}, "steps"),
    "an unknown setting": ({"speed": 3}, "speed"),
    "an unknown setting of the algorithm": ({"algorithm": {"clop": 0.2}}, "has no setting 'clop'. Did you mean 'clip'"),
}


@pytest.mark.parametrize("name", BAD_CONFIGS)
def test_a_config_that_is_none_is_one_sentence(name, run, tmp_path, capfd):
    content, said = BAD_CONFIGS[name]
    if isinstance(content, dict):
        content = json.dumps({**run.config, **content})
    (tmp_path / "config.json").write_text(content)
    again = ["train", str(tmp_path / "config.json"), "--out", str(tmp_path / "out")]
    for arguments, words in ((again, said), (["resume", str(tmp_path)], f"config.json|{said}")):
        code, _, err = said_by(arguments, capfd)
        assert code == 2 and re.fullmatch(r"error: [^\n]+\n", err), err
        assert re.search(words, err), err
    assert not (tmp_path / "out").exists()


def test_a_run_folder_is_never_written_over(run, place):
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    done = cavalcade("train", "ppo", "CartPole-v1", "--out", "run", *SMALL, place=place)
    assert_one_sentence(done, "run already holds a run: continue it with `cavalcade resume run`")
    assert before == {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("what", "said"), [("observation", "nan in the observation"), ("reward", "the reward nan")])
def test_what_is_not_a_number_is_named_and_nothing_is_lost(what, said, place):
    line = f"train ppo oddities:Spoiled-v0 --option what={what} --steps 1600 --checkpoint-seconds 0.02 --out {what}"
    done = cavalcade(*line.split(), "--evaluations", 8, *SMALL, place=place)
    assert_one_sentence(done, f"'oddities:Spoiled-v0' gave {said} in environment 0, episode 15, step 7; make it give")
    left = Run.open(place / what)
    steps = [row["step"] for row in left.rows()]
    assert steps == list(range(8, 625, 8))  # each of 4 environments did 15 episodes of 10 steps, and 6 steps
    _, step, notes = checkpoint.load_latest(left.checkpoints)
    assert 0 < step <= 624 and not notes
    assert package.evaluate(place / what, episodes=2, environment=lambda what: oddity(place))["mean"] == 10.0


def oddity(place: Path):
    spec = importlib.util.spec_from_file_location("oddities", place / "oddities.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Spoiled()


# --- damaged checkpoints and full disks -------------------------------------------------------------------------


def spoil(folder: Path) -> None:
    data = bytearray((folder / "arrays.safetensors").read_bytes())
    data[len(data) // 2] ^= 1
    (folder / "arrays.safetensors").write_bytes(data)


def test_a_damaged_checkpoint_gives_way_to_the_one_before(run, place, tmp_path):
    copy = Run.open(shutil.copytree(run.path, tmp_path / "copy"))
    older, newer = sorted(copy.checkpoints.iterdir())
    assert newer.name == "step-000000200"  # how many were written before it depends on the disk
    spoil(newer)
    done = cavalcade("resume", copy.path, place=place)
    assert done.returncode == 0 and done.stderr == ""
    assert re.search(r"Checkpoint step-000000200 was refused: arrays.safetensors is not what was written", done.stdout)
    assert f"step {int(older.name[5:])}: actor/0: environments replayed" in done.stdout
    assert (copy.policy / "policy.safetensors").read_bytes() == (run.policy / "policy.safetensors").read_bytes()
    (ours, *_), (theirs, *_) = (checkpoint.load_latest(one.checkpoints) for one in (copy, run))
    one, other = (state["nodes"]["learner"]["state"]["params"] for state in (ours, theirs))
    np.testing.assert_array_equal(one, other)
    assert [row["step"] for row in copy.rows()] == [row["step"] for row in run.rows()]


def test_without_an_intact_checkpoint_the_run_says_so_and_stays(run, place, tmp_path):
    copy = Run.open(shutil.copytree(run.path, tmp_path / "copy"))
    for folder in copy.checkpoints.iterdir():
        spoil(folder)
    before = copy.metrics_file.read_bytes()
    done = cavalcade("resume", copy.path, place=place)
    assert_one_sentence(done, r"No usable checkpoint in .*step-000000200 was refused.*step-000000\d+ was refused")
    assert copy.metrics_file.read_bytes() == before and (copy.policy / "policy.json").exists()


@pytest.fixture
def disk(tmp_path):
    """A disk of two megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.mark.skipif(not shutil.which("mount") or os.geteuid() != 0, reason="mounting a small disk needs root")
@pytest.mark.parametrize("rows", [200, 4])
def test_a_full_disk_is_one_sentence_and_the_run_can_go_on_when_there_is_room(rows, disk, place):
    """With many lines of metrics it is they that do not fit, with few it is the checkpoint."""
    run = Run(disk / "run", {})
    given = f"train ppo CartPole-v1 --steps 1600 --rows {rows} --evaluations 2 --checkpoint-seconds 0.05".split()
    arguments = [sys.executable, "-m", "cavalcade", *given, "--out", str(run.path), *SMALL]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    child = subprocess.Popen(arguments, cwd=place, env=surroundings(place), **pipes)
    try:
        while child.poll() is None and not list(run.checkpoints.glob("step-*")):
            time.sleep(0.002)
        fill(disk / "ballast")
        out, err = child.communicate(timeout=60)
    finally:
        child.kill()
        child.wait()
    assert_one_sentence(subprocess.CompletedProcess(arguments, child.returncode, out, err), "The disk is full, so ")
    _, step, notes = checkpoint.load_latest(run.checkpoints)
    assert 0 < step < 1600 and not notes
    assert not list(run.path.rglob(".*"))  # nothing half written
    (disk / "ballast").unlink()
    done = cavalcade("resume", run.path, place=place)
    assert done.returncode == 0 and "goes on exactly" in done.stdout, done.stderr
    assert run.rows()[-1]["step"] == 1600 and (run.policy / "policy.json").exists()


def fill(path: Path) -> None:
    with open(path, "wb", buffering=0) as ballast:
        while True:
            try:
                ballast.write(bytes(4096))
            except OSError:
                return


@pytest.mark.parametrize(
    ("kilobytes", "command"),
    [
        (16, "train ppo CartPole-v1 --steps 600 --rows 2 --evaluations 1 --backend numpy --out toobig"),
        (4, "play run --out film.gif"),
    ],
)
def test_no_room_for_the_policy_or_the_film_is_one_sentence_too(kilobytes, command, run, place):
    """A limit on the size of files stands for the full disk, which none of the smaller files notice."""
    limited = f"ulimit -f {kilobytes}; exec {sys.executable} -m cavalcade {command}"
    environment = {**surroundings(place), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(["bash", "-c", limited], cwd=place, env=environment, capture_output=True, text=True)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert last.startswith("error: The disk is full, so "), last


# --- evaluate, play, plot ---------------------------------------------------------------------------------------


def test_evaluate_prints_one_json_object_that_can_be_repeated(run, place):
    given = ("evaluate", "run", "--episodes", 5, "--seed", 3, "--json")
    one, two = (cavalcade(*given, place=place) for _ in range(2))
    assert one.returncode == 0 and one.stderr == "" and one.stdout == two.stdout and one.stdout.count("\n") == 1
    result = json.loads(one.stdout, parse_constant=pytest.fail)
    assert {"mean", "median", "std", "min", "max", "episodes"} <= result.keys() and result["episodes"] == 5
    assert result["min"] <= result["median"] <= result["max"] and result["min"] <= result["mean"] <= result["max"]
    assert result["ci_low"] <= result["mean"] <= result["ci_high"]
    other = json.loads(cavalcade("evaluate", "run", "--episodes", 5, "--seed", 4, "--json", place=place).stdout)
    assert {k: v for k, v in other.items() if k != "episodes"} != {k: v for k, v in result.items() if k != "episodes"}
    sentence = cavalcade("evaluate", "run/policy", "--episodes", 5, "--seed", 3, place=place)
    assert sentence.stdout.startswith(f"mean {score(result['mean'])} (95 % interval ") and sentence.returncode == 0


@pytest.mark.parametrize("name", ["episode.mp4", "films/one.gif"])
def test_play_films_an_episode(name, run, place):
    import imageio.v2 as imageio

    longest = max(range(5), key=lambda seed: _return(place, seed))
    done = cavalcade("play", "run", "--out", name, "--seed", longest, place=place)
    assert done.returncode == 0, done.stderr
    total = float(re.fullmatch(rf"return ([\d.]+), film in {name}\n", done.stdout)[1])
    frames = [np.asarray(frame) for frame in imageio.mimread(place / name, memtest=False)]
    assert len(frames) > 10 or total <= 10
    assert abs(len(frames) - total) <= 1  # CartPole pays one for each step
    assert frames[0].shape[0] == 400 and (frames[0] != frames[-1]).any()


def _return(place: Path, seed: int) -> float:
    return package.evaluate(place / "run", episodes=1, seed=seed)["mean"]


def test_an_environment_without_pictures_is_one_sentence(place):
    line = "train ppo cavalcade/MaskedBandit-v0 --steps 64 --evaluations 0 --out bandit"
    assert cavalcade(*line.split(), *SMALL, place=place).returncode == 0
    assert_one_sentence(cavalcade("play", "bandit", place=place), "gives no pictures")


def test_plot_draws_several_runs(run, place, tmp_path):
    shutil.copytree(run.path, place / "second", dirs_exist_ok=True)
    for by in ("step", "time"):
        done = cavalcade("plot", "run", "second", "--by", by, "--out", tmp_path / f"{by}.png", place=place)
        assert done.returncode == 0 and done.stderr == "" and done.stdout == f"drawn in {tmp_path / by}.png\n"
        assert (tmp_path / f"{by}.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


@pytest.mark.parametrize("given", [["--label", "one", "two"], ["--label", "one", "--label=two"]])
def test_plot_takes_labels_and_a_metric(given, run, place, tmp_path, capsys):
    shutil.copytree(run.path, place / "second", dirs_exist_ok=True)
    line = ["plot", str(place / "run"), str(place / "second"), "--metric", "loss", *given, "--by", "time"]
    assert main([*line, "--out", str(tmp_path / "loss.svg")]) == 0, capsys.readouterr().err
    assert {"<!-- one -->", "<!-- two -->"} <= set(re.findall("<!-- .* -->", (tmp_path / "loss.svg").read_text()))
    assert main([*line, "--label", "three", "--out", str(tmp_path / "no.svg")]) == 2
    assert "3 labels fit neither the 2 run folders nor the 1 lines" in capsys.readouterr().err


# --- terminals and pipes ----------------------------------------------------------------------------------------

WATCHED = ["train", "ppo", "CartPole-v1", "--evaluations", "2", "--target", "1000", *SMALL]


def test_without_a_terminal_there_are_plain_lines(place):
    done = cavalcade(*WATCHED, "--steps", 800, "--out", "plain", place=place)
    assert done.returncode == 0 and done.stderr == ""
    assert "\x1b" not in done.stdout and done.stdout.isascii()
    title, preset, about, *lines, end, folder = done.stdout.splitlines()
    assert title == "ppo on CartPole-v1: 800 steps, target 1,000"
    assert preset.startswith("preset of CartPole-v1, ours")
    assert re.search(r"numpy.* 4 environments", about)
    steps = [line for line in lines if line.startswith("step ")]
    assert steps and all(
        re.match(r"step \d+/800 \(\d+ %\)  return .* steps/s  [\d,.]+ updates/s", line) for line in steps
    )
    assert steps[-1].startswith("step 800/800 (100 %)")
    assert any(line.startswith("bottleneck: process, mostly ") for line in lines)
    assert re.fullmatch(r"Done: 800 steps in [\d.]+ s, best evaluation [\d.]+", end)
    assert folder == "run folder: plain"


def test_in_a_terminal_there_is_a_live_display(place):
    watcher, side = pty.openpty()
    environment = {**surroundings(place), "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "40"}
    arguments = [sys.executable, "-m", "cavalcade", *WATCHED, "--steps", "3000", "--out", "watched"]
    child = subprocess.Popen(arguments, cwd=place, env=environment, stdin=side, stdout=side, stderr=side)
    os.close(side)
    written = b""
    try:
        while select.select([watcher], [], [], 60)[0]:
            try:
                chunk = os.read(watcher, 65536)
            except OSError:  # the other side was closed
                break
            if not chunk:
                break
            written += chunk
    finally:
        os.close(watcher)
        child.kill()
        child.wait()
    shown = written.decode()
    assert child.returncode == 0, shown[-2000:]
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    assert plain.count("╭─ ppo on CartPole-v1 ─") >= 3  # drawn again and again
    progress = [int(step.replace(",", "")) for step in re.findall(r"([\d,]+) of 3,000", plain)]
    assert progress == sorted(progress) and len(set(progress)) >= 3 and progress[-1] == 3_000
    for label in ("elapsed", "quartiles", " steps/s", "updates/s", "policy lag", "table", "target 1,000", "mostly "):
        assert label in plain, label
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")  # the cursor is back
    assert plain.rstrip().endswith("run folder: watched")


def test_head_may_leave_and_the_run_goes_on(place):
    command = (
        f"{sys.executable} -m cavalcade {' '.join(WATCHED)} --steps 800 --out headed | head -1; echo ${{PIPESTATUS[0]}}"
    )
    done = subprocess.run(["bash", "-c", command], cwd=place, env=surroundings(place), capture_output=True, text=True)
    assert done.stdout == "ppo on CartPole-v1: 800 steps, target 1,000\n0\n" and done.stderr == ""
    assert Run.open(place / "headed").rows()[-1]["step"] == 800
    assert (place / "headed" / "policy" / "policy.json").exists()


@pytest.mark.parametrize("line", ["systems", "--help", "evaluate run --episodes 2 --json", "plot run --out unread.png"])
def test_nobody_reads_and_nobody_complains(line, run, place):
    reader, writer = os.pipe()
    os.close(reader)
    given = [sys.executable, "-m", "cavalcade", *line.split()]
    pipes = {"stdout": writer, "stderr": subprocess.PIPE, "text": True}
    done = subprocess.run(given, cwd=place, env=surroundings(place), **pipes)
    os.close(writer)
    assert done.stderr == "" and done.returncode in (0, 128 + signal.SIGPIPE)
