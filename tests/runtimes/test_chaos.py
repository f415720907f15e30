"""Every role that came with the rows is killed once, in real processes; the run reaches its budget all the same."""

import functools
import json
import os
import signal
import time
from dataclasses import replace

import numpy as np
import pytest

import cavalcade
from cavalcade.__main__ import main
from cavalcade.architectures.queues import QueueBesideReplay
from cavalcade.checkpoints import checkpoint
from cavalcade.errors import Stopped
from cavalcade.experiment.experiment import Experiment
from cavalcade.programs.program import Placement, Program, ProgramFailed
from cavalcade.records.folder import Run
from cavalcade.runtimes.processes import Processes
from cavalcade.table.rows import ORIGIN
from tests.helpers.chaotic import Mortal
from tests.helpers.leftovers import nothing_is_left  # noqa: F401

STEPS = 3000
SMALL = ["--backend", "numpy", "--hidden", "8", "--envs", "2", "--evaluations", "0", "--runtime", "process"]
UNROLLS = ["--unroll", "8"]
REPLAY = ["--replay-start", "100", "--batch", "16", "--update-every", "16", "--updates-per-draw", "1"]
FROM_CHECKPOINT = "started again, with the program, from the last checkpoint"


def kill_once(monkeypatch, path, group):
    """Kill the process of `group` as soon as there is a checkpoint to go back to; whom, and how far the run was."""
    original, killed = Processes.round, []

    def round_and_kill(runtime):
        original(runtime)
        kept = sorted((path / "checkpoints").glob("step-*"))
        if not killed and kept and runtime.steps() > int(kept[-1].name.removeprefix("step-")):
            member = next(member for member in runtime.members if member.group == group)
            os.kill(member.process.pid, signal.SIGKILL)
            path.with_name("killed").touch()
            killed.append(runtime.steps())

    monkeypatch.setattr(Processes, "round", round_and_kill)
    return killed


@pytest.mark.parametrize(
    ("system", "role", "settings"),
    [
        ("gorila-dqn", "server/1", REPLAY),  # a shard of the parameter server
        ("ga3c", "predictor/0", UNROLLS),
        ("dppo", "worker/1", ["--unroll", "32", "--epochs", "1"]),  # an all-reduce peer
        ("a3c", "worker/0", UNROLLS),  # one that changes shared parameters
        ("paac", "learner", UNROLLS),  # where the central actor is
    ],
)
def test_a_killed_role_sends_the_program_back_to_its_checkpoint_and_to_its_budget(
    tmp_path, monkeypatch, system, role, settings
):
    path = tmp_path / "run"
    killed = kill_once(monkeypatch, path, role)
    budget = ["--steps", str(STEPS), "--actors", "2", "--checkpoint-seconds", "0.05", "--out", str(path)]
    environment = ["tests.helpers.chaotic:Patient-v0", "--option", f"trace={tmp_path / 'killed'}"]
    assert main(["train", system, *environment, *SMALL, *settings, *budget]) == 0
    run = Run.open(path)
    assert len(killed) == 1 and killed[0] < STEPS
    (fault,) = faults(run)
    assert (fault["node"], fault["cause"], fault["recovery"]) == (role, "killed by SIGKILL", FROM_CHECKPOINT)
    assert_counters_agree(run)
    tables = tables_of(run)
    assert len(tables) == (2 if "worker" in role or system == "gorila-dqn" else 1)
    for table in tables:
        assert_items_are_whole(table)


def test_a_killed_environment_worker_begins_anew_and_no_unroll_joins_its_two_lives(tmp_path):
    environment = functools.partial(Mortal, str(tmp_path / "trace"), 101)  # of unrolls of 8: in the midst of one
    settings = {"backend": "numpy", "hidden": (8,), "unroll": 8, "envs": 2, "actors": 2, "evaluations": 0}
    replayed = {"replay_share": 0.5, "replay_size": 2000}  # all unrolls of the run can be looked at
    run = cavalcade.train(
        "seed-impala",
        environment,
        steps=STEPS,
        runtime="process",
        out=tmp_path / "run",
        display=False,
        **settings,
        **replayed,
    )
    (fault,) = faults(run)
    assert fault["node"].startswith("actor/") and fault["cause"] == "killed by SIGKILL"
    assert fault["recovery"] == "started again"
    assert_counters_agree(run)
    (table,) = tables_of(run, environment)
    assert_items_are_whole(table, table.replay)
    lives = set()
    for slots in table.replay.slots[table.replay.key >= 0]:
        life, moment = table.rows.seen.read(slots[slots > 0])["obs"].T
        assert len(set(life)) == 1 and set(np.diff(moment)) == {1.0}
        lives.add(life[0])
    assert len(lives) == 3, "two workers, of which one has lived twice"
    assert 8 * len(table.replay) >= STEPS - 200, "nearly everything is there"


class Falls:
    """Its process is killed at its first turn."""

    def step(self):
        os.kill(os.getpid(), signal.SIGKILL)


class Follows:
    """Ends in order, as whoever finds that what it needs has gone."""

    def step(self):
        raise Stopped("Another has gone.")


def test_who_was_killed_is_named_and_not_who_ended_because_of_it():
    program = Program("pair")
    program.add("follows", Follows)
    program.add("falls", Falls)
    runtime = Processes(program)
    try:
        for member in runtime.members:
            member.process.join()
        with pytest.raises(ProgramFailed, match="falls failed: killed by SIGKILL"):
            runtime.round()
        assert [fault["node"] for fault in runtime.faults] == ["falls"]
    finally:
        runtime.close()


class Slow:
    """Takes longer to be built again than it may be silent once it is ready."""

    def __init__(self, incarnation=0):
        time.sleep(0.5 * incarnation)

    def step(self):
        return True


def test_to_start_slowly_is_not_to_hang():
    program = Program("slow")
    program.add("node", Slow, placement=Placement(restart="alone"))
    runtime = Processes(program, hang_seconds=0.2)
    try:
        (member,) = runtime.members
        os.kill(member.process.pid, signal.SIGKILL)
        while not (member.ready and member.incarnation == 1):
            runtime.round()
        assert [fault["cause"] for fault in runtime.faults] == ["killed by SIGKILL"]
    finally:
        runtime.close()


def faults(run):
    found = [json.loads(line) for line in (run.path / "faults.jsonl").read_text().splitlines()]
    assert json.loads(run.report_file.read_text())["faults"] == found
    return found


def assert_counters_agree(run):
    steps = [row["step"] for row in run.rows()]
    # the end may be recorded twice: when the last step was made, and when all had been learned from
    assert steps == sorted(steps) and len({*steps[:-1]}) == len(steps) - 1, "each step is counted once"
    assert STEPS <= steps[-1] < STEPS + 4, "to one step of the environments of two actors"
    assert run.rows()[-1]["updates"] > 0
    state, step, _ = checkpoint.load_latest(run.checkpoints)
    counted = sum(member["steps"] for member in state["members"].values())
    assert state["finished"] and state["metrics"]["step"] == steps[-1] <= step <= counted


def tables_of(run, environment=None):
    """Those of the last checkpoint, wherever they were kept."""
    _, step, _ = checkpoint.load_latest(run.checkpoints)
    parts = replace(Experiment.from_config(run.config, environment).parts, writers="away")  # unshared
    parts = parts.of_one_learner if parts.wiring.experience == "bundled" else parts
    found = []
    for part in run.checkpoints.glob(f"**/step-{step:09d}/state.json"):
        for name, state in checkpoint.load(part.parent)[0].items():
            if name.split("/")[0] == "table":
                found.append(QueueBesideReplay(parts) if "replay" in state else parts.table())
                found[-1].restore(state)
    return found


def assert_items_are_whole(table, *beside):
    """Every item is one environment's steps, one after the other. `beside`: tables over the same rows."""
    table.check()
    for slots in np.concatenate([one.slots[one.key >= 0] for one in (table, *beside)]):
        environment, episode, step = table.rows.seen.read(slots[slots > 0])[ORIGIN].T.astype(np.int64)
        assert len(set(environment)) == 1
        begun = np.diff(episode)
        assert set(begun) <= {0, 1}
        assert (np.diff(step)[begun == 0] >= 1).all() and (step[1:][begun == 1] == 0).all()
