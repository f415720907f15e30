"""A new user's journey with the built wheel: the README, an environment and a network of one's own, and each misfit.

Every step is a command or a script, run in a folder that holds nothing but the user's own files. A mistake ends with
exit code 2 and one sentence that says what to change; a value that can be understood is understood.
"""

import json
import re
import subprocess

import pytest

from tests.test_docs import blocks, shortened

BRIEF = "--backend numpy --evaluations 1 --evaluation-episodes 2"


def succeeded(done: subprocess.CompletedProcess) -> str:
    assert done.returncode == 0, f"{done.args}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def refused(done: subprocess.CompletedProcess, said: str) -> None:
    """Exit code 2, and one line that says it."""
    assert done.returncode == 2, f"{done.args}\n{done.stdout}\n{done.stderr}"
    sentences = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(sentences) == 1 and "Traceback" not in done.stderr + done.stdout, done.stderr
    assert re.search(said, sentences[0]), sentences[0]


# --- the way -------------------------------------------------------------------------------------------------------


WHERE = """
import cavalcade
from cavalcade.table import _core

print(cavalcade.__file__, _core.__file__, sep="\\n")
"""


def test_the_wheel_is_what_runs_and_has_all_it_needs(installed, tmp_path):
    package, core = succeeded(installed.script(WHERE, tmp_path)).splitlines()
    assert package.startswith(str(installed.folder)) and core.startswith(str(installed.folder))
    [packages] = installed.folder.glob("lib/python*/site-packages")
    assert (packages / "cavalcade" / "py.typed").exists() and (packages / "cavalcade/table/_core.pyi").exists()
    assert (packages / "cavalcade/experiment/presets/classic.toml").exists()
    assert not (packages / "tests").exists() and not (packages / "benchmarks").exists()


def test_the_commands_of_the_readme(installed, tmp_path):
    ran = 0
    for language, text in blocks("README.md"):
        if language == "python":
            succeeded(installed.script(text.replace("20_000", "2_000"), tmp_path))
            ran += 1
        for line in text.splitlines() if not language else []:
            if line.startswith("cavalcade "):
                succeeded(installed.cavalcade(" ".join(shortened(line)[1:]), tmp_path))
                ran += 1
    assert ran >= 6


def test_the_version(installed, tmp_path):
    assert re.search(r"\b\d+\.\d+\.\d+\b", succeeded(installed.cavalcade("--version", tmp_path)))


LINES = ["systems", "trian", "train ppo my_envs:Min-v0", f"train ppo my_envs:NoSeed-v0 {BRIEF}"]


@pytest.mark.parametrize("line", LINES)
def test_python_dash_m_says_what_the_console_script_says(line, installed, here):
    module = installed.run(installed.programs / "python", "-m", "cavalcade", *line.split(), cwd=here)
    script = installed.cavalcade(line, here)
    assert (module.returncode, module.stdout, module.stderr) == (script.returncode, script.stdout, script.stderr)


def test_an_environment_of_ones_own(installed, here):
    """Its module lies in the working directory. Options are read as Python or JSON has them, numbers as people do."""
    line = f"train ppo my_envs:Mine-v0 --option image=False --steps 3e3 {BRIEF} --out runs/mine"
    succeeded(installed.cavalcade(line, here))
    config = json.loads((here / "runs/mine/config.json").read_text())
    assert config["options"] == {"image": False} and config["steps"] == 3_000
    policy = json.loads((here / "runs/mine/policy/policy.json").read_text())
    assert policy["spec"]["observation"]["leaf"]["shape"] == [3]
    judged = succeeded(installed.cavalcade("evaluate runs/mine --episodes 3 --json", here))
    assert 0 <= json.loads(judged)["mean"] <= 10


FUNCTION = """
import cavalcade
from my_envs import short_cartpole

run = cavalcade.train("ppo", short_cartpole, steps=3_000, backend="numpy", evaluations=1, out="runs/function")
"""


def test_an_environment_by_a_function(installed, here):
    """A run knows that its environment was no id: nobody is judged by another one unless it is asked for."""
    succeeded(installed.script(FUNCTION, here))
    refused(installed.cavalcade("evaluate runs/function --episodes 3", here), "--environment module:function")
    refused(installed.cavalcade("play runs/function", here), "--environment module:function")
    judged = "evaluate runs/function --episodes 3 --environment my_envs:short_cartpole --json"
    assert json.loads(succeeded(installed.cavalcade(judged, here)))["max"] <= 50
    trained = f"train ppo --environment my_envs:short_cartpole --steps 3000 {BRIEF} --out runs/named"
    succeeded(installed.cavalcade(trained, here))
    assert json.loads(succeeded(installed.cavalcade("evaluate runs/named --episodes 3 --json", here)))["max"] <= 50


NETWORK = """
import cavalcade, gymnasium, torch


def network():
    return torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.LayerNorm(16), torch.nn.ReLU())


if __name__ == "__main__":
    run = cavalcade.train("a2c", "CartPole-v1", steps=1_000, network=network(), evaluations=0, out="runs/network")
    act, env = cavalcade.Greedy(cavalcade.load_policy(run.path, network=network())), gymnasium.make("CartPole-v1")
    observation, info = env.reset(seed=0)
    for _ in range(5):
        observation, reward, terminated, truncated, info = env.step(act(observation, info))
    print("five steps done")
"""


def test_a_network_of_ones_own(installed, here):
    assert "five steps done" in succeeded(installed.script(NETWORK, here))


# --- what does not fit ---------------------------------------------------------------------------------------------

ENVIRONMENTS = {  # what each says names the environment, what came and what was declared, or what to write
    "FloatImage-v0": r"FloatImage-v0.*float.*uint8",
    "WrongShape-v0": r"WrongShape-v0.*\(2,\).*step 1.*\(3,\)",
    "FourTuple-v0": r"FourTuple-v0.*step 1.*terminated, truncated",
    "NoSeed-v0": r"NoSeed-v0.*seed",
    "ShortMask-v0": r"ShortMask-v0.*3 entries for 4 choices",
    "OutOfRange-v0": r"OutOfRange-v0.*7.*step 1.*Discrete\(4\)",
    "Fails-v0": r"Fails-v0.*my_envs\.py.*no such piece|Fails-v0.*no such piece.*my_envs\.py",
}


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_an_environment_that_does_not_do_what_it_declares(name, installed, here):
    line = f"train ppo my_envs:{name} --steps 3000 {BRIEF} --out runs/misfit"
    refused(installed.cavalcade(line, here), ENVIRONMENTS[name])


COMMANDS = {
    "a run that can never learn": ("dqn CartPole-v1 --steps 1000 --replay-start 2000", r"--replay-start.*--steps"),
    "a value out of range": ("ppo CartPole-v1 --steps 1000 --discount 1.5", r"--discount.*1\.5.*1"),
    "a misspelt option": ("ppo CartPole-v1 --learning-rat 0.1", "Did you mean '--learning-rate'"),
    "a package without its prefix": ("ppo highway-fast-v0", "highway_env:highway-fast-v0"),
}


@pytest.mark.parametrize("misfit", COMMANDS)
def test_a_command_that_makes_no_sense(misfit, installed, tmp_path):
    line, said = COMMANDS[misfit]
    refused(installed.cavalcade(f"train {line} {BRIEF} --out runs/misfit", tmp_path), said)
    assert not (tmp_path / "runs").exists(), "a start that failed leaves nothing behind"


VALUES = """
import cavalcade

for wrong in ({"learning_rat": 0.1}, {"discount": 1.5}):
    try:
        cavalcade.train("a2c", "CartPole-v1", steps=1_000, backend="numpy", out="runs/wrong", **wrong)
    except cavalcade.UserError as error:
        print(error)
words = {"steps": "1e3", "envs": "8", "learning_rate": "1e-3", "hidden": 64}
cavalcade.train("a2c", "CartPole-v1", backend="numpy", evaluations=0, out="runs/values", display=False, **words)
"""


def test_values_from_python(installed, tmp_path):
    said = succeeded(installed.script(VALUES, tmp_path))
    assert said.count("\n") == 2, f"display=False prints nothing:\n{said}"
    misspelt, discount = said.splitlines()
    assert "'learning_rat'" in misspelt and "Did you mean 'learning_rate'" in misspelt
    assert "discount" in discount and "1.5" in discount
    assert not (tmp_path / "runs/wrong").exists()
    config = json.loads((tmp_path / "runs/values/config.json").read_text())
    assert (config["steps"], config["envs"]) == (1_000, 8)
    assert config["algorithm"]["hidden"] == [64] and config["algorithm"]["learning_rate"] == 1e-3


UNGUARDED = """
import cavalcade

cavalcade.train("impala", "CartPole-v1", steps=2_000, runtime="process", backend="numpy", out="runs/unguarded")
"""


def test_a_script_without_a_guard_needs_none(installed, tmp_path):
    done = installed.script(UNGUARDED, tmp_path)
    assert done.returncode == 0 and "freeze_support" not in done.stderr, done.stderr
