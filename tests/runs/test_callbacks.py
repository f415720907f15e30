"""Callbacks hear what a run does, in the driver of any runtime, may end it, and are named when they fail."""

import json
import os
import signal
import threading
from pathlib import Path

import pytest

import cavalcade
from cavalcade.checkpoints import checkpoint
from cavalcade.errors import UserError
from cavalcade.records.folder import Run
from tests.helpers.leftovers import nothing_is_left  # noqa: F401

SMALL = {"backend": "numpy", "hidden": (8,), "envs": 4, "unroll": 8, "epochs": 1, "display": False}
BRIEF = {**SMALL, "steps": 640, "rows": 5, "evaluations": 4, "evaluation_episodes": 3}


def train(out: Path, *callbacks, **changes) -> Run:
    return cavalcade.train("ppo", "CartPole-v1", out=out, callbacks=list(callbacks), **{**BRIEF, **changes})


class Listener(cavalcade.Callback):
    """Writes down what it hears."""

    def __init__(self):
        self.heard = []

    def names(self):
        return [name for name, *_ in self.heard]

    def of(self, name):
        return [given for heard, *given in self.heard if heard == name]

    def on_start(self, run):
        self.heard.append(("start", run))

    def on_metrics(self, run, row):
        self.heard.append(("metrics", row))

    def on_evaluation(self, run, evaluation):
        policy = json.loads((run.policy / "policy.json").read_text())
        self.heard.append(("evaluation", evaluation, policy["evaluation"], os.getpid()))

    def on_checkpoint(self, run, step):
        self.heard.append(("checkpoint", step, checkpoint.load_latest(run.checkpoints)[1]))

    def on_end(self, run, report):
        self.heard.append(("end", report))


class Patient:
    """Waits at every row until no checkpoint is being written, so that on a slow disk the run does not end before it
    has heard of the first."""

    def on_metrics(self, run, row):
        for thread in threading.enumerate():
            if thread.name == "checkpoint":
                thread.join()


class Stopping(Listener):
    """Asks for the end at the first call of one of its hooks."""

    def __init__(self, hook):
        super().__init__()
        setattr(self, hook, self.stop)

    def stop(self, run, given):
        self.heard.append(("asked", given))
        return cavalcade.STOP


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    listener = Listener()
    return train(tmp_path_factory.mktemp("told") / "run", listener), listener


# --- what they hear -----------------------------------------------------------------------------------------------


def test_a_callback_hears_of_everything_in_order(told):
    run, listener = told
    names = listener.names()
    assert names[0] == "start" and names[-1] == "end" and names[-2] == "checkpoint"
    assert (names.count("metrics"), names.count("evaluation")) == (len(run.rows()), 4)
    assert [row for [row] in listener.of("metrics")] == run.rows()
    assert listener.of("checkpoint") == [[640, 640]]  # whole on disk by then


def test_an_evaluation_brings_its_episodes(told):
    run, listener = told
    heard = listener.of("evaluation")
    assert [e.step for e, *_ in heard] == [row["evaluation_step"] for row in run.rows() if "evaluation" in row]
    best = -float("inf")
    for evaluation, saved, pid in heard:
        assert len(evaluation.returns) == len(evaluation.lengths) == 3 and pid == os.getpid()
        assert evaluation.lengths == tuple(int(total) for total in evaluation.returns)  # a pole's return is its length
        assert evaluation.mean == pytest.approx(sum(evaluation.returns) / 3)
        assert evaluation.median == sorted(evaluation.returns)[1]
        best = max(best, evaluation.mean)
        assert saved == pytest.approx(best)  # the best policy is there already
    assert [e.mean for e, *_ in heard] == pytest.approx([r["evaluation"] for r in run.rows() if "evaluation" in r])


def test_the_end_brings_the_report(told):
    run, listener = told
    [[report]] = listener.of("end")
    written = json.loads(run.report_file.read_text())
    assert report["ended"] == "finished" and report["steps"] == written["steps"] == 640
    assert report["best_evaluation"] == written["best_evaluation"] == max(e.mean for e, *_ in listener.of("evaluation"))


def test_a_run_with_callbacks_is_the_run_without(told, tmp_path):
    run, _ = told
    other = train(tmp_path / "run")
    assert (run.policy / "policy.safetensors").read_bytes() == (other.policy / "policy.safetensors").read_bytes()
    assert [row["step"] for row in run.rows()] == [row["step"] for row in other.rows()]


def test_what_a_callback_does_to_its_row_stays_there(tmp_path):
    class Vandal:  # no subclass: what it has is called
        def on_metrics(self, run, row):
            row.clear()

    listener = Listener()
    run = train(tmp_path / "run", listener, Vandal(), steps=200, evaluations=0)
    assert run.rows() and all("updates" in row for row in run.rows())


# --- the end is asked for -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("hook", ["on_metrics", "on_evaluation", "on_checkpoint"])
def test_any_hook_may_end_the_run_and_it_can_be_resumed(hook, tmp_path, capsys):
    stopping, listener = Stopping(hook), Listener()
    often, patient = ({"checkpoint_seconds": 0}, [Patient()]) if hook == "on_checkpoint" else ({}, [])
    run = train(tmp_path / "run", stopping, listener, *patient, display=None, **often)
    step = checkpoint.load_latest(run.checkpoints)[1]
    assert 0 < step < 640
    assert f"Stopped by Stopping.{hook} at step {step}; a checkpoint is saved." in capsys.readouterr().out
    for one in (stopping, listener):
        assert [report["ended"] for [report] in one.of("end")] == ["stopped"]
    again = Listener()
    assert cavalcade.resume(run.path, display=False, callbacks=[again]).rows()[-1]["step"] == 640
    assert again.names()[0] == "start" and again.of("end")[0][0]["ended"] == "finished"


def test_the_start_may_end_the_run_too(tmp_path):
    class Never:
        def on_start(self, run):
            return cavalcade.STOP

    run = train(tmp_path / "run", Never())
    assert run.rows() == [] and checkpoint.load_latest(run.checkpoints)[1] == 0


def test_a_callback_ends_a_run_of_several_processes(tmp_path):
    stopping = Stopping("on_evaluation")
    settings = {"runtime": "process", "actors": 2, "envs": 2, "steps": 200_000, "evaluations": 400, "rows": 400}
    run = train(tmp_path / "run", stopping, **settings)
    [[evaluation]] = stopping.of("asked")[:1]
    assert len(evaluation.returns) == 3 and evaluation.lengths == tuple(int(r) for r in evaluation.returns)
    assert run.rows()[-1]["step"] < 200_000 and stopping.of("end")[0][0]["ended"] == "stopped"
    assert checkpoint.load_latest(run.checkpoints)[1] >= evaluation.step
    assert stopping.names()[0] == "start" and "metrics" in stopping.names()


def test_an_interrupted_run_tells_its_end(tmp_path):
    class Impatient(Listener):
        def on_metrics(self, run, row):
            os.kill(os.getpid(), signal.SIGINT)

    listener = Impatient()
    train(tmp_path / "run", listener)
    assert [report["ended"] for [report] in listener.of("end")] == ["interrupted"]


def test_a_run_that_fails_tells_its_end(tmp_path, monkeypatch):
    listener = Listener()
    monkeypatch.setattr(cavalcade.runs.session.Session, "_just_judged", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train(tmp_path / "run", listener)
    assert [report["ended"] for [report] in listener.of("end")] == ["failed"]


# --- one that fails -----------------------------------------------------------------------------------------------


class Failing(Listener):
    def on_metrics(self, run, row):
        super().on_metrics(run, row)
        self.deeper({})

    def deeper(self, empty):
        json.loads("[")  # it fails in a library, but this line is whose fault it is


def line_of(words: str) -> int:
    return next(n for n, line in enumerate(Path(__file__).read_text().splitlines(), 1) if words in line)


def test_a_callback_that_raises_ends_the_run_cleanly_and_is_named(tmp_path):
    failing, listener = Failing(), Listener()
    with pytest.raises(UserError) as caught:
        train(tmp_path / "run", failing, listener)
    sentence, line = str(caught.value), line_of("it fails in a library")
    assert sentence.startswith("Failing.on_metrics failed: JSONDecodeError: Expecting value")
    assert sentence.endswith(f"{Path(__file__).name}, line {line}).") and isinstance(caught.value.__cause__, ValueError)
    run = Run.open(tmp_path / "run")
    assert len(run.rows()) == 1 and checkpoint.load_latest(run.checkpoints)[1] == run.rows()[0]["step"]
    for one in (failing, listener):
        assert [report["ended"] for [report] in one.of("end")] == ["failed"]
    assert cavalcade.resume(run.path, display=False).rows()[-1]["step"] == 640


def test_a_callback_that_raises_may_let_the_run_go_on(tmp_path, capsys):
    failing = Failing()
    failing.on_error = "continue"
    run = train(tmp_path / "run", failing, display=None)
    out, line = capsys.readouterr().out, line_of("it fails in a library")
    assert run.rows()[-1]["step"] == 640 and failing.of("end")[0][0]["ended"] == "finished"
    assert len(failing.of("metrics")) == len(run.rows())  # it is called again
    assert out.count(f"line {line}). The run goes on.") == 1
    faults = [json.loads(text) for text in (run.path / "faults.jsonl").read_text().splitlines()]
    assert len(faults) == len(run.rows()) and {fault["node"] for fault in faults} == {"Failing.on_metrics"}
    assert {fault["recovery"] for fault in faults} == {"the run goes on"}


def test_a_start_that_fails_is_the_end_whatever_it_asks(tmp_path):
    class Unconnected(Listener):
        on_error = "continue"

        def on_start(self, run):
            raise ConnectionError("no server")

    first, second, third = Listener(), Unconnected(), Listener()
    with pytest.raises(UserError, match=r"^Unconnected\.on_start failed: ConnectionError: no server \(.*line \d+\)\.$"):
        train(tmp_path / "run", first, second, third)
    assert first.names() == ["start", "end"] and second.names() == third.names() == []


def test_an_end_that_fails_comes_after_everything_was_saved(tmp_path):
    class Clumsy:
        def on_end(self, run, report):
            raise UserError("The shelf is full.")

    with pytest.raises(UserError, match=r"^Clumsy\.on_end failed: The shelf is full\.$"):
        train(tmp_path / "run", Clumsy())
    run = Run.open(tmp_path / "run")
    assert checkpoint.load_latest(run.checkpoints)[1] == 640 and run.curve.exists() and run.policy.exists()


@pytest.mark.parametrize("answer", [True, False, 0, "halt"])
def test_an_answer_without_a_meaning_is_an_error(answer, tmp_path):
    class Habit:
        def on_metrics(self, run, row):
            return answer  # in other libraries True goes on, or stops

    with pytest.raises(UserError, match=rf"^Habit\.on_metrics returned {answer!r}; return cavalcade\.STOP to end"):
        train(tmp_path / "run", Habit())


# --- what is no callback ------------------------------------------------------------------------------------------


class Misspelt(cavalcade.Callback):
    def on_evalution(self, run, evaluation): ...


class Careless(cavalcade.Callback):
    on_error = "ignore"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ([print], "builtin_function_or_method has none of the methods on_start, on_metrics, on_evaluation"),
        ([None], "NoneType has none of the methods"),
        ([Listener], r"Listener is a class; give an object: Listener\(\)"),
        (Listener(), "callbacks is a Listener; give a list"),
        ([Misspelt()], "method on_evalution that nobody calls.*Did you mean 'on_evaluation'"),
        ([Careless()], "on_error is 'ignore'; it has to be 'stop' or 'continue'"),
    ],
)
def test_what_would_never_be_called_is_refused_before_anything_is_written(given, sentence, tmp_path, told):
    with pytest.raises(UserError, match=sentence):
        cavalcade.train("ppo", "CartPole-v1", out=tmp_path / "run", callbacks=given, **BRIEF)
    assert not (tmp_path / "run").exists()
    with pytest.raises(UserError, match=sentence):
        cavalcade.resume(told[0].path, callbacks=given)
