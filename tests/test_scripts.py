"""Scripts of users under the process runtime, as they come: without a guard, from standard input, from `-c`."""

import subprocess
import sys

import pytest

TRAIN = """
run = cavalcade.train(
    "impala", {environment}, steps=500, runtime="process", actors=1, evaluations={evaluations}, evaluation_episodes=1,
    backend="numpy", hidden=(8,), unroll=8, envs=2, out="run", display=False,
)
print("reached", run.rows()[-1]["step"])
"""

UNGUARDED = """
import gymnasium as gym
import cavalcade

print("the script runs")


class Mine(gym.Wrapper):
    def __init__(self):
        super().__init__(gym.make("CartPole-v1"))


gym.register("Mine-v0", entry_point="__main__:Mine")
""" + TRAIN.format(environment='"Mine-v0"', evaluations=1)

IN_A_GUARD = """
import gymnasium as gym
import cavalcade


class Mine(gym.Wrapper):
    def __init__(self):
        super().__init__(gym.make("CartPole-v1"))


def wrapped():
    return gym.wrappers.TimeLimit(gym.make("Mine-v0"), 50)


if __name__ == "__main__":
    print("the script runs")
    gym.register("Mine-v0", entry_point=Mine)
""" + TRAIN.format(environment="wrapped", evaluations=0).replace("\n", "\n    ")

FAILING = """
import gymnasium as gym, cavalcade

class Mine(gym.Wrapper):
    def step(self, action):
        raise ValueError("as asked")

""" + TRAIN.format(environment='lambda: Mine(gym.make("CartPole-v1"))', evaluations=0)


def run(folder, script, how):
    if how == "file":
        (folder / "script.py").write_text(script)
        arguments, given = ["script.py"], ""
    else:
        arguments, given = (["-"], script) if how == "stdin" else (["-c", script], "")
    return subprocess.run(
        [sys.executable, *arguments], input=given, cwd=folder, capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize(("script", "how"), [(UNGUARDED, "file"), (IN_A_GUARD, "stdin"), (UNGUARDED, "command")])
def test_a_script_is_run_once_and_what_it_registers_and_defines_is_known_in_every_process(tmp_path, script, how):
    done = run(tmp_path, script, how)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("the script runs") == 1 and "reached 50" in done.stdout
    assert "Traceback" not in done.stderr and not (tmp_path / "run" / "faults.jsonl").exists()


def test_a_line_of_a_script_that_fails_is_named(tmp_path):
    done = run(tmp_path, FAILING, "stdin")
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and "actor/0: The environment 'CartPole-v1' failed 3 times in a row in step 1" in last
    assert last.endswith("ValueError: as asked (<stdin>, line 6).")
    assert done.stderr.count("Traceback") == 1, "that of the script itself: processes print none"
