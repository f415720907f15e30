"""The process runtime with real processes: the same programs, killed roles, misbehaving environments, nothing left."""

import atexit
import functools
import json
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import cavalcade
from cavalcade.checkpoints import checkpoint
from cavalcade.errors import UserError
from cavalcade.experiment.experiment import Experiment, Settings
from cavalcade.programs.program import Placement, Program, ProgramFailed
from cavalcade.records.folder import Run
from cavalcade.runs.session import Session
from cavalcade.runtimes import supervision
from cavalcade.runtimes.processes import Processes
from cavalcade.transport.broadcast import Broadcast
from cavalcade.transport.memory import Signpost, sweep_dead
from tests.helpers.chaotic import Chaotic, Hopeless, Unreliable
from tests.helpers.leftovers import end_a_driver, nothing_is_left  # noqa: F401

ROOT = Path(__file__).parents[2]
SMALL = {"backend": "numpy", "hidden": (8,), "envs": 2, "evaluations": 0, "runtime": "process", "actors": 2}
DQN = {"replay_start": 100, "batch": 16, "update_every": 8, "updates_per_draw": 1}


def settings_of(system):
    return {**SMALL, **(DQN if "dqn" in system else {"unroll": 8})}


@pytest.mark.parametrize("system", ["dqn", "ppo", "a2c", "apex-dqn", "impala"])
def test_a_system_runs_in_processes_to_its_budget(system, tmp_path):
    run = cavalcade.train(system, "CartPole-v1", steps=1500, out=tmp_path / "run", display=False, **settings_of(system))
    last = run.rows()[-1]
    assert 1500 <= last["step"] < 1500 + 2 * 2 and last["updates"] > 0
    assert (run.policy / "policy.safetensors").exists() and not (run.path / "faults.jsonl").exists()
    state, step, _ = checkpoint.load_latest(run.checkpoints / "learner")
    assert step >= 1500 and set(state) >= {"table", "learner"}


def test_on_policy_learning_in_processes_is_exactly_on_policy(tmp_path):
    """An actor begins an unroll only when room was promised, and that is after the parameters were published."""
    run = cavalcade.train(
        "ppo", "CartPole-v1", steps=2000, out=tmp_path / "run", display=False, rows=20, **settings_of("ppo")
    )
    lags = [row["policy_lag"] for row in run.rows() if "policy_lag" in row]
    assert lags and set(lags) == {0.0}


def test_a_run_in_processes_resumes_from_its_checkpoint(tmp_path):
    run = cavalcade.train("dqn", "CartPole-v1", steps=1000, out=tmp_path / "run", display=False, **settings_of("dqn"))
    state, step, _ = checkpoint.load_latest(run.checkpoints)
    kept, _, _ = checkpoint.load_latest(run.checkpoints / "learner")
    runtime = Experiment.from_config(run.config).launch((run.checkpoints, step, state))
    try:
        assert runtime.steps() >= step
        assert runtime.reports()["table"]["table_size"] >= kept["table"]["counters"][0] > 0
        assert runtime.call("learner", "latest", -1)[0] >= int(kept["learner"]["state"]["updates"])
    finally:
        runtime.close()


def killed(runtime, group):
    member = next(member for member in runtime.members if member.group == group)
    os.kill(member.process.pid, signal.SIGKILL)
    return member


def session(tmp_path, system, environment="CartPole-v1", **more):
    overrides = {**settings_of(system), "steps": 3000, "checkpoint_seconds": 0.2, **more}
    names = set(Settings.__dataclass_fields__)
    settings = Settings(**{k: v for k, v in overrides.items() if k in names})
    algorithm = {k: v for k, v in overrides.items() if k not in names}
    experiment = Experiment.create(system, environment, settings, algorithm)
    return Session(experiment, Run.create(tmp_path / "run", experiment.config()), False)


KILLED = [(system, role) for system in ("apex-dqn", "impala") for role in ("actor/0", "learner", "evaluator")]


@pytest.mark.parametrize("system, role", [*KILLED, ("apex-dqn", "table/1")])
def test_a_killed_role_is_replaced_and_the_run_reaches_its_budget(tmp_path, system, role):
    steps = {"table/1": 3_000}.get(role, 8_000 if system == "apex-dqn" else 40_000)
    more = {"experience": "shards"} if role.startswith("table") else {}
    sitting = session(tmp_path, system, steps=steps, evaluations=2, evaluation_episodes=1, **more)
    original, rounds = sitting.runtime.round, [0]

    def round_and_kill():
        original()
        rounds[0] += 1
        if rounds[0] == 5:
            killed(sitting.runtime, role)

    sitting.runtime.round = round_and_kill
    sitting.drive()
    rows = sitting.run.rows()
    assert rows[-1]["step"] >= steps
    faults = [json.loads(line) for line in (sitting.run.path / "faults.jsonl").read_text().splitlines()]
    assert [fault["node"] for fault in faults] == [role] and "SIGKILL" in faults[0]["cause"]


@pytest.mark.parametrize(("what", "says"), [("raise", "broke"), ("segfault", "SIGSEGV"), ("sleep", "no sign of life")])
def test_an_environment_that_breaks_costs_an_actor_and_no_more(tmp_path, what, says):
    environment = functools.partial(Chaotic, what, str(tmp_path / "trace"))
    sitting = session(tmp_path, "impala", environment, steps=60_000)  # longer than it takes to see that an actor hangs
    sitting.runtime.hang_seconds = 3.0
    sitting.drive()
    faults = [json.loads(line) for line in (sitting.run.path / "faults.jsonl").read_text().splitlines()]
    assert len(faults) == 1 and faults[0]["node"].startswith("actor") and says in faults[0]["cause"]
    assert sitting.run.rows()[-1]["step"] >= 60_000


def test_resets_that_fail_now_and_then_do_not_stop_a_run(tmp_path):
    sitting = session(tmp_path, "impala", Unreliable, steps=4000)
    sitting.drive()
    assert sitting.run.rows()[-1]["step"] >= 4000


@pytest.mark.parametrize(("system", "node"), [("impala", "actor/0"), ("a3c", "worker/0")])  # alone, or the program
def test_an_environment_that_always_fails_is_given_up_after_three_tries(tmp_path, monkeypatch, system, node):
    monkeypatch.setattr(supervision, "BACK_OFF", 0.01)
    sitting = session(tmp_path, system, Hopeless, steps=10**6, actors=1)
    says = (
        rf"{node}: .*'CartPole-v1' failed 3 times in a row in step 3 of an episode: RuntimeError: nothing .* \(.*, line"
    )
    with pytest.raises(UserError, match=says):
        sitting.drive()
    faults = [json.loads(line) for line in (sitting.run.path / "faults.jsonl").read_text().splitlines()]
    assert [fault["node"] for fault in faults] == [node] * 3 and faults[-1]["recovery"] == "given up"
    for fault in faults:
        assert fault["file"].endswith("chaotic.py") and fault["line"] == Hopeless.LINE
        assert fault["traceback"].count("Traceback") == 1 and "nothing can be done" in fault["traceback"]


class Dies:
    """Takes its process with it at its first turn."""

    def __init__(self, incarnation=0):
        self.steps = 0

    def step(self):
        os.kill(os.getpid(), signal.SIGKILL)


def test_an_actor_that_dies_again_and_again_ends_the_run_and_is_not_tried_with_the_whole_program(monkeypatch):
    monkeypatch.setattr(supervision, "BACK_OFF", 0.01)
    monkeypatch.setattr(supervision, "PATIENCE", 1)
    program = Program("mortal")
    program.add("actor", Dies, placement=Placement(restart="alone"))
    runtime = Processes(program)
    try:
        with pytest.raises(ProgramFailed, match="actor/0 failed 2 times in a row: killed by SIGKILL") as caught:
            while True:
                runtime.round()
        assert caught.value.final
    finally:
        runtime.close()


@pytest.mark.parametrize("to_all", [False, True], ids=["driver", "all"])  # a shell or `timeout` signals all of them
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_process_outlives_its_driver(tmp_path, number, to_all):
    assert len(end_a_driver(tmp_path, number, "--runtime", "process", "--actors", "2", to_all=to_all)) >= 3
    if number == signal.SIGKILL and to_all:
        sweep_dead()  # nobody was left to do it; the next run does


class Boom:
    def __init__(self, message):
        raise ValueError(message)


class Still:
    def step(self):
        return False


def test_a_node_that_cannot_be_built_shows_its_traceback_with_its_name():
    program = Program("boom")
    program.add("fuse", Boom, "it is wet")
    says = r"fuse could not be built: ValueError: it is wet \(.*test_processes.py, line \d+\)\n\nTraceback"
    with pytest.raises(ProgramFailed, match=says):
        Processes(program)


class Built:
    """Is built only while another is being built too; knows who was there by then and what was imported."""

    def __init__(self, folder, mine, other, *before):
        self.found, self.imported = sorted(path.name for path in folder.iterdir()), "this" in sys.modules
        (folder / mine).touch()
        end = time.monotonic() + 60
        while other and not (folder / other).exists():
            assert time.monotonic() < end, f"{other} is not being built"
            time.sleep(0.01)
        atexit.register((folder / f"{mine} has left").touch)

    def seen(self):
        return self.found, self.imported


def test_processes_are_built_together_but_after_those_they_refer_to_and_leave_in_order(tmp_path):
    program = Program("together")
    placement = Placement(imports=("this", "no_such_module"))
    one = program.add("one", Built, tmp_path, "one", "two", placement=placement)
    two = program.add("two", Built, tmp_path, "two", "one")
    program.add("three", Built, tmp_path, "three", "", one, two)
    running = Processes(program)
    try:
        assert running.call("three", "seen") == (["one", "two"], False)
        assert [running.call(name, "seen")[1] for name in ("one", "two")] == [True, False]
    finally:
        running.close()
    left = {path.name for path in tmp_path.iterdir() if path.name.endswith("has left")}
    assert left == {"one has left", "two has left", "three has left"}, "what is to be done at the end is done"


class Spring:
    def share(self, consumer):
        return Signpost(Bucket(consumer))


class Bucket:
    def __init__(self, consumer):
        self.consumer = consumer

    def connect(self):
        return self


class Drinker:
    def __init__(self, *springs):
        self.buckets = [getattr(spring, "consumer", "") for spring in springs]

    def drank_from(self):
        return self.buckets


def a_spring():
    return Spring()


def test_what_a_node_offers_is_seen_in_the_node_whatever_made_it():
    """A function that does not say what it returns, and what is no function."""
    program = Program("springs")
    springs = [program.add("spring", make) for make in (Spring, a_spring, functools.partial(Spring))]
    program.add("drinker", Drinker, *springs, program.add("still", Still))
    running = Processes(program)
    try:
        assert running.call("drinker", "drank_from") == ["drinker"] * 3 + [""]
    finally:
        running.close()


def test_what_cannot_be_sent_is_refused_before_anything_starts():
    program = Program("held")
    program.add("node", Still, placement=Placement())
    program.nodes["node"].kwargs["lock"] = multiprocessing.get_context("spawn").Lock()
    with pytest.raises(UserError, match="node"):
        Processes(program)


def test_the_latest_value_is_never_torn():
    broadcast = Broadcast({"a": np.zeros(200_000, np.int64), "b": np.zeros((), np.int64)})
    context = multiprocessing.get_context("spawn")
    done = context.Event()
    reader = context.Process(target=read_for_ever, args=(broadcast.address, done))
    reader.start()
    version = 0
    while not done.is_set():
        version += 1
        broadcast.publish(version, {"a": np.full(200_000, version), "b": np.array(version)})
    reader.join()
    assert reader.exitcode == 0 and version > 100
    broadcast.close()


def read_for_ever(address, done):
    reader, seen, known = address.connect(), 0, 0
    try:
        while seen < 300:
            found = reader.latest(known)
            if found is None:
                continue
            version, value = found
            assert version > known and (value["a"] == version).all() and value["b"] == version
            known, seen = version, seen + 1
    finally:
        done.set()
