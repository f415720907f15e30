"""Environments that raise: whose line is named, what is written down, and when it is not worth another try."""

import json

import gymnasium as gym
import numpy as np
import pytest

from cavalcade import __main__ as command_line
from cavalcade import envs
from cavalcade.errors import UserError
from cavalcade.failures import ANYWHERE, EnvironmentFailed, Failure, Mishap, Tries, own_line
from cavalcade.programs.program import ProgramFailed
from cavalcade.records.folder import Run
from tests.helpers.chaotic import Hopeless


class Cart(gym.Wrapper):
    def __init__(self):
        super().__init__(gym.make("CartPole-v1"))


class FailsInReset(Cart):
    def reset(self, **options):
        raise KeyError("level")


class ResetsOnce(Cart):
    """A common mistake: what reset() needs is used up."""

    def reset(self, **options):
        if hasattr(self, "begun"):
            raise OSError("the file is open already")
        self.begun = True
        return self.env.reset(**options)

    def step(self, action):
        observation, reward, _, _, info = self.env.step(action)
        return observation, reward, False, True, info


def fails_when_made():
    raise ZeroDivisionError("division by zero")


class FailsInLibrary(Cart):
    def step(self, action):
        return np.reshape(np.zeros(3), (2, 2))  # raises in NumPy's own files


def line_of(function, plus):
    return function.__code__.co_firstlineno + plus


@pytest.mark.parametrize(
    ("environment", "says", "line"),
    [
        (FailsInReset, "'CartPole-v1' failed in its first reset(): KeyError: 'level'", line_of(FailsInReset.reset, 1)),
        (fails_when_made, "'fails_when_made' failed when it was made: ZeroDivision", line_of(fails_when_made, 1)),
        (FailsInLibrary, "'CartPole-v1' failed in step 1 of an episode: Value", line_of(FailsInLibrary.step, 1)),
        (ResetsOnce, "'CartPole-v1' failed in reset() after an episode: OSErr", line_of(ResetsOnce.reset, 2)),
    ],
)
def test_the_sentence_has_the_moment_and_the_users_own_line(environment, says, line):
    with pytest.raises(EnvironmentFailed) as caught:
        made = envs.make(environment, 2, seed=0)
        made.step(np.zeros(2, np.int64))
    assert says in str(caught.value) and str(caught.value).endswith(f"tests/runtimes/test_failures.py, line {line}).")
    assert (caught.value.mishap.file, caught.value.mishap.line) == ("tests/runtimes/test_failures.py", line)
    assert not caught.value.mishap.passed, "the first that came to it failed"


def test_a_vector_environment_says_the_same():
    def two():
        return gym.vector.SyncVectorEnv([FailsInLibrary] * 2)

    with pytest.raises(EnvironmentFailed, match=r"in step 1 of an episode: ValueError.*test_failures.py, line"):
        envs.make(two, 2, seed=0).step(np.zeros(2, np.int64))


def test_a_module_that_cannot_be_read_is_named_with_its_line(tmp_path, monkeypatch):
    (tmp_path / "unfinished.py").write_text("import gymnasium\n\ndef f(:\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=r"'unfinished' was imported: SyntaxError: .*unfinished.py, line 3\)"):
        envs.make("unfinished:Id-v0", 1, seed=0)


def test_lines_of_installed_packages_count_if_there_are_no_others():
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads("{")
    assert own_line(caught.value)[0] == "tests/runtimes/test_failures.py"
    beyond = caught.value.with_traceback(caught.value.__traceback__.tb_next)
    assert own_line(beyond)[0].endswith("json/decoder.py")
    assert own_line(beyond.with_traceback(None)) == ("", 0)


def mishap(moment="in step 3 of an episode", line=12, finished=0, passed=False, cause="ValueError: 0.3"):
    return Mishap("Mine", moment, cause, "mine.py", line, finished, passed)


def tried(*mishaps, finished=False):
    """The sentence after all of them, if the last was one too many."""
    tries = Tries()
    tries.finished = finished
    for number, one in enumerate(mishaps, 1):
        tries.count("actor/0", one)
        try:
            tries.check("actor/0")
        except EnvironmentFailed as error:
            assert number == len(mishaps), "it was given up early"
            return str(error)
    return ""


def test_what_fails_alike_three_times_in_a_row_is_given_up():
    says = "actor/0: The environment 'Mine' failed 3 times in a row in step 3 of an episode: ValueError: 0.3 (mine.py, "
    says += "line 12)."
    assert tried(mishap(), mishap(cause="ValueError: 0.7"), mishap()) == says, "whatever the numbers in its message"
    assert tried(*[mishap("in reset() after an episode", finished=1)] * 3), "one episode, and never a second"


@pytest.mark.parametrize(
    "between",
    [
        mishap("in step 4 of an episode"),
        mishap(line=13),
        mishap(finished=2),
        mishap(passed=True),
        mishap(cause="KeyError"),
    ],
)
def test_what_fails_now_and_then_is_not(between):
    assert not tried(mishap(), mishap(), between, mishap(), mishap(), between, finished=True)


def test_where_no_episode_is_ever_finished_any_six_failures_are_enough():
    random = [mishap(f"in step {n} of an episode") for n in range(ANYWHERE)]
    assert "failed 6 times before any episode was finished, the last time in step 5" in tried(*random)
    assert not tried(*random, finished=True)
    assert not tried(*random[1:], mishap(finished=1))


def test_in_one_process_the_user_sees_one_sentence_and_the_traceback_is_written_down(tmp_path, capfd):
    run = Run(tmp_path / "run", {})
    small = ["--backend", "numpy", "--hidden", "8", "--evaluations", "0", "--out", str(run.path)]
    assert command_line.main(["train", "a2c", "tests.helpers.chaotic:Hopeless-v0", "--steps", "1000", *small]) == 2
    out, err = capfd.readouterr()
    (sentence,) = err.splitlines()
    assert sentence.startswith(
        "error: The environment 'tests.helpers.chaotic:Hopeless-v0' failed in step 3 of an episode: "
    )
    assert "Traceback" not in out + err and f"is in {run.faults_file}" in out
    (fault,) = [json.loads(line) for line in run.faults_file.read_text().splitlines()]
    assert fault["recovery"] == "given up" and fault["node"] == "actor/0"
    assert (fault["file"], fault["line"]) == ("tests/helpers/chaotic.py", Hopeless.LINE)
    assert fault["cause"] == f"RuntimeError: nothing can be done (tests/helpers/chaotic.py, line {Hopeless.LINE})"
    assert 'raise RuntimeError("nothing can be done")' in fault["traceback"]


def test_a_crash_of_our_own_is_told_once_with_exit_code_1(monkeypatch, capfd):
    def crash(arguments):
        try:
            raise RuntimeError("a bug")
        except RuntimeError as error:
            raise ProgramFailed("learner", "failed", Failure.of(error)) from None

    monkeypatch.setitem(command_line.COMMANDS, "train", crash)
    assert command_line.main(["train"]) == 1
    err = capfd.readouterr().err
    assert err.startswith("error: learner failed: RuntimeError: a bug (tests/runtimes/test_failures.py, line ")
    assert err.count("Traceback") == 1
