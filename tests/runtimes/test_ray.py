"""Programs on Ray: killed processes, a lost machine, misbehaving environments, nothing left when the driver ends."""

import dataclasses
import functools
import json
import os
import signal
import subprocess
import sys
import time

import gymnasium as gym
import numpy as np
import pytest
import ray

from cavalcade.checkpoints import checkpoint
from cavalcade.errors import UserError
from cavalcade.experiment.experiment import Experiment, Settings
from cavalcade.programs.program import Placement, Program, ProgramFailed
from cavalcade.records.folder import Run
from cavalcade.runs.inspection import SavedTables
from cavalcade.runs.session import Session
from cavalcade.runs.trained import load_policy
from cavalcade.runs.training import resume
from cavalcade.runtimes import supervision
from cavalcade.runtimes.ray import RayRuntime
from tests.helpers.chaotic import Chaotic, Hopeless, OneIsSlow, Unreliable
from tests.helpers.leftovers import end_a_driver, nothing_is_left  # noqa: F401

pytestmark = pytest.mark.xdist_group("ray")
SMALL = {"backend": "numpy", "hidden": (8,), "unroll": 8, "envs": 2, "evaluations": 0, "runtime": "ray", "actors": 2}
LOCAL = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR", "_node_ip_address": "127.0.0.1"}


@pytest.fixture(scope="module")
def here():
    """One Ray for many tests: the runtime uses what its caller has started, and leaves it."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init("local", num_cpus=6, **LOCAL)
    yield
    ray.shutdown()


def session(tmp_path, environment="CartPole-v1", **more):
    overrides = {**SMALL, "steps": 3000, "checkpoint_seconds": 0.2, **more}
    names = set(Settings.__dataclass_fields__)
    settings = Settings(**{k: v for k, v in overrides.items() if k in names})
    algorithm = {k: v for k, v in overrides.items() if k not in names}
    experiment = Experiment.create("impala", environment, settings, algorithm)
    return Session(experiment, Run.create(tmp_path / "run", experiment.config()), False)


def after(sitting, steps, do):
    """Once the run has come so far, `do` it."""
    original = sitting.runtime.round
    done = []

    def round_and_do():
        original()
        if not done and sitting.runtime.steps() >= steps:
            done.append(True)
            do(sitting.runtime)

    sitting.runtime.round = round_and_do


def faults(sitting):
    path = sitting.run.path / "faults.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def member(running, group):
    return next(member for member in running.members if member.group == group)


@pytest.mark.parametrize(
    ("role", "more"),
    [
        ("actor/0", {}),
        ("learner", {}),
        ("evaluator", {}),
        ("predictor/1", {"acting": "central", "predictors": 2}),
    ],
)
def test_a_killed_role_is_replaced_and_the_run_reaches_its_budget(here, tmp_path, role, more):
    sitting = session(tmp_path, steps=6000, evaluations=2, evaluation_episodes=1, **more)
    after(sitting, 1000, lambda running: os.kill(member(running, role).pid, signal.SIGKILL))
    sitting.drive()
    assert sitting.run.rows()[-1]["step"] >= 6000
    assert [fault["node"] for fault in faults(sitting)] == [role] and "died" in faults(sitting)[0]["cause"]
    tables = SavedTables(sitting.run.path)
    with tables.open(0) as (table, version):
        table.check()
        assert tables.step >= 6000 and version > 0
        assert table.limiter.inserts - table.limiter.deletes == len(table)


@pytest.mark.parametrize(("what", "says"), [("raise", "broke"), ("segfault", "died"), ("sleep", "no sign of life")])
def test_an_environment_that_breaks_costs_an_actor_and_no_more(here, tmp_path, what, says):
    sitting = session(tmp_path, functools.partial(Chaotic, what, str(tmp_path / "trace")))
    sitting.runtime.hang_seconds = 5.0
    sitting.drive()
    (fault,) = faults(sitting)
    assert fault["node"].startswith("actor") and says in fault["cause"]
    assert sitting.run.rows()[-1]["step"] >= 3000


def test_resets_that_fail_now_and_then_do_not_stop_a_run(here, tmp_path):
    sitting = session(tmp_path, Unreliable, steps=3000)
    sitting.drive()
    assert sitting.run.rows()[-1]["step"] >= 3000


def test_an_environment_that_always_fails_is_given_up_after_three_tries(here, tmp_path, monkeypatch):
    monkeypatch.setattr(supervision, "BACK_OFF", 0.01)
    sitting = session(tmp_path, Hopeless, steps=10**6, actors=1)
    with pytest.raises(UserError, match=r"actor/0: .* failed 3 times in a row in step 3 .* \(.*chaotic.py, line"):
        sitting.drive()
    assert [(fault["node"], fault["line"]) for fault in faults(sitting)] == [("actor/0", Hopeless.LINE)] * 3


def test_a_run_goes_on_from_its_checkpoint(here, tmp_path):
    sitting = session(tmp_path, steps=1000)
    sitting.drive()
    state, step, _ = checkpoint.load_latest(sitting.run.checkpoints)
    kept, _, _ = checkpoint.load_latest(sitting.run.checkpoints / "learner")
    running = sitting.experiment.launch((sitting.run.checkpoints, step, state))
    try:
        assert running.steps() >= step >= 1000
        version, vector, _ = running.call("learner", "latest", -1)
        assert version >= int(kept["learner"]["state"]["updates"]) > 0
        assert vector.shape == kept["learner"]["state"]["params"].shape
    finally:
        running.close()
    sitting.run.change(runtime="process")
    more = resume(sitting.run.path, steps=step + 300, display=False).rows()[-1]["step"]
    assert more >= step + 300, "another runtime goes on with it"


def test_a_run_begins_from_another_policy(here, tmp_path):
    before = session(tmp_path / "before", steps=500)
    before.drive()
    policy = load_policy(before.run.path)
    experiment = dataclasses.replace(before.experiment, origin=str(before.run.path))
    running = experiment.launch()
    try:
        np.testing.assert_array_equal(running.call("learner", "latest", -1)[1], policy.vector)
    finally:
        running.close()


def test_the_budget_is_exact_and_one_slow_actor_does_not_decide_the_end(here, tmp_path):
    """With an id that is registered nowhere else, too."""
    gym.register("OneIsSlow-v0", functools.partial(OneIsSlow, str(tmp_path / "trace"), os.getpid()))
    sitting = session(tmp_path, "OneIsSlow-v0", actors=3)
    sitting.drive()
    assert 3000 <= sitting.run.rows()[-1]["step"] < 3000 + 3 * 2
    slow, *others = sorted(member.steps for member in sitting.runtime.counting)
    assert slow < min(others) / 2, "others make the steps that it does not"


def test_a_lost_machine_costs_what_was_on_it_and_no_more(here, tmp_path):
    """In a process of its own: this one is connected to another cluster."""
    script = "import sys, tests.runtimes.test_ray as t, pathlib; t.lose_a_machine(pathlib.Path(sys.argv[1]))"
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], timeout=120, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


def lose_a_machine(tmp_path):
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 3, "include_dashboard": False})
    second = cluster.add_node(num_cpus=3)
    try:
        sitting = session(tmp_path, steps=6000, address=cluster.address)
        assert sitting.runtime.cores == 6, "what bounds the run is judged by the cluster's cores"
        there = [member.group for member in sitting.runtime.members if member.node == second.node_id]
        assert len(there) == 1 and there[0].startswith("actor"), there
        after(sitting, 1000, lambda _: cluster.remove_node(second, allow_graceful=False))
        sitting.drive()
        assert sitting.run.rows()[-1]["step"] >= 6000
        assert {fault["node"] for fault in faults(sitting)} == set(there)
        assert faults(sitting)[0]["cause"] in ("its machine was lost", "it cannot be reached any more")
    finally:
        cluster.shutdown()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_process_outlives_its_driver(tmp_path, number):
    commands = end_a_driver(tmp_path, number, "--runtime", "ray")
    assert sum("ray::" in command for command in commands) >= 2


class Boom:
    def __init__(self, message):
        raise ValueError(message)


class Still:
    def step(self):
        return False


class Grown:
    """Counts, and is asked from elsewhere for nothing but that."""

    def __init__(self, incarnation=0):
        self.steps = 0

    def step(self):
        self.steps += 1
        time.sleep(0.001)
        return True


class Sees:
    def __init__(self, others):
        self.others = others

    def seen(self):
        return [other.steps for other in self.others]


def test_a_node_that_cannot_be_built_shows_its_traceback_with_its_name(here):
    program = Program("boom")
    program.add("fuse", Boom, "it is wet")
    with pytest.raises(ProgramFailed, match=r"fuse could not be built: ValueError: it is wet \((.|\n)*Traceback"):
        RayRuntime(program)


class Hesitant:
    """Cannot be built the first time."""

    def __init__(self, incarnation=0):
        if not incarnation:
            raise RuntimeError("not yet")


def test_a_node_that_may_be_started_alone_is_tried_twice_before_the_program_begins(here):
    program = Program("hesitant")
    program.add("late", Hesitant, placement=Placement(restart="alone"))
    running = RayRuntime(program)
    running.close()
    (fault,) = running.faults
    assert fault["cause"].startswith("RuntimeError: not yet") and fault["file"].endswith("test_ray.py")


def test_of_nodes_elsewhere_one_sees_their_steps_even_when_they_were_replaced(here):
    program = Program("counting", clock="grown")
    grown = program.add("grown", Grown, placement=Placement(restart="alone"))
    program.add("sees", Sees, [grown])
    running = RayRuntime(program)
    try:
        while not running.steps():
            running.round()
        os.kill(member(running, "grown").pid, signal.SIGKILL)
        while not running.faults:
            running.round()
        before, seen = running.steps(), 0
        while seen < before + 20:
            running.round()
            last, seen = seen, running.call("sees", "seen")[0]
            assert seen >= last, "what was counted before it was replaced still counts"
        assert len(running.faults) == 1 and running.steps() >= seen
    finally:
        running.close()


def test_resources_that_the_cluster_lacks_are_named(here):
    program = Program("large")
    program.add("node", Still, placement=Placement(gpus=2))
    with pytest.raises(UserError, match=r"need 2 GPU, but the Ray cluster has 0"):
        RayRuntime(program)


def test_a_group_gets_the_largest_share_that_its_nodes_ask_for(here):
    program = Program("shares")
    with program.group("one"):
        program.add("a", Still, placement=Placement(cpus=2))
        program.add("b", Still, placement=Placement(cpus=0.5))
    running = RayRuntime(program)
    try:
        deadline = time.monotonic() + 10
        while ray.available_resources().get("CPU") != 4.0 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert ray.available_resources()["CPU"] == 4.0
    finally:
        running.close()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nonsense", "127.0.0.1:99999"])
def test_an_address_that_leads_nowhere_is_said_at_once(tmp_path, address):
    command = ["train", "dqn", "CartPole-v1", "--runtime", "ray", "--address", address, "--out", str(tmp_path / "run")]
    done = subprocess.run([sys.executable, "-m", "cavalcade", *command], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and f"--address {address}" in done.stderr.replace("'", "")
    assert "Traceback" not in done.stderr


def test_an_address_needs_the_runtime_that_goes_there():
    with pytest.raises(UserError, match="--runtime ray"):
        Settings(address="10.0.0.1:6379")


def test_parameters_are_put_once_for_each_version(here):
    from cavalcade.runtimes.ray_host import Host, Job
    from cavalcade.transport.params import ParamsService

    host = Host(Job(ray.cloudpickle.dumps([]), {}, [], [], 0, 0))
    try:
        service = ParamsService(3, np.arange(4.0), {})
        host.services["learner", "actor/0"] = service
        (version, one), (_, two) = (host.ask(("learner", "actor/0"), 0, known) for known in (-1, 1))
        assert version == 3 and one == two and ray.get(one)["vector"].tolist() == [0.0, 1.0, 2.0, 3.0]
        assert host.ask(("learner", "actor/0"), 0, 3) is None
        for number in range(4, 9):
            service.publish_params(number, np.full(4, number), {})
            assert ray.get(host.ask(("learner", "actor/0"), 0, 3)[1])["vector"].tolist() == [number] * 4
        assert [sorted(kept) for kept in host.values.values()] == [[7, 8]]
    finally:
        host.stop(5.0)
