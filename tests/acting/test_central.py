"""Central acting: the same items as beside the environments, bounded batches, workers that die, real processes, Ray."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from cavalcade import backends, tree
from cavalcade.acting.central import CentralActor
from cavalcade.acting.env_loop import EnvLoop
from cavalcade.acting.env_worker import EnvWorker
from cavalcade.acting.policy import Policy
from cavalcade.checkpoints import checkpoint
from cavalcade.experiment.experiment import Experiment, Settings
from cavalcade.learning.loop import LearnerLoop
from cavalcade.programs.program import Handle, Node, Placement, Program
from cavalcade.runtimes.inprocess import InProcess
from cavalcade.runtimes.processes import Processes
from cavalcade.table import Table
from tests.helpers.leftovers import nothing_is_left  # noqa: F401

DQN = {"hidden": (8,), "replay_start": 40, "batch": 16, "update_every": 8, "updates_per_draw": 1, "n_step": 3}
SYSTEMS = {
    "ppo": {"hidden": (8,), "unroll": 8, "epochs": 1},
    "ppo with memory": {"hidden": (8,), "unroll": 8, "memory": 6, "epochs": 1},
    "impala": {"hidden": (8,), "unroll": 8},
    "dqn": {**DQN, "epsilon_steps": 200},
    "apex-dqn": {**DQN, "pull_every": 3, "flush": 6},
}


def parts_of(system, runtime="inprocess", backend="numpy", **more):
    settings = Settings(steps=4_000, backend=backend, actors=2, envs=2, evaluations=0, seed=3, runtime=runtime)
    return Experiment.create(system.split()[0], "CartPole-v1", settings, {**SYSTEMS[system], **more}).parts


def program_of(x, acting, worker=EnvWorker, **limits):
    """Table and learner in one process, with the central actor if there is one; two actors."""
    program = Program(acting)
    with program.group("learner"):
        table = program.add("table", x.table)
        learner = program.add(
            "learner", LearnerLoop, x.learner, table, x.experience.batch, importance=x.experience.store.correction
        )
        if acting == "central":
            central = program.add("central", CentralActor, x.policy, x.experience, [table], learner, x.envs, **limits)
    for i in range(2):
        numbers = {"seed": x.seed, "actor": i, "actors": 2, "placement": Placement(restart="alone")}
        if acting == "central":
            program.add("actor", worker, x.environments, x.algorithm, x.spec, central, **numbers)
        else:
            program.add("actor", EnvLoop, x.policy, x.environments, x.experience, table, learner, **numbers)
    return program


class Inserts:
    """What reaches a table, read as a draw would read it."""

    def __init__(self, table):
        self.table, self.insert, self.found = table, table.insert, []
        table.insert = self

    def __call__(self, items, version=0, priority=None, **more):
        if not self.insert(items, version, priority, **more):
            return False
        signature = self.table.signature
        whole = signature.build(self.table.rows, items.rows, signature.flatten(items.own))
        origin = self.table.rows.seen.read(np.ascontiguousarray(items.rows[:, 0]), names=("#origin",))["#origin"]
        self.found.append((version, origin, tree.map(np.copy, whole), priority))
        return True


def ran(runtime, steps):
    while runtime.steps() < steps:
        runtime.round()
    return runtime


@pytest.mark.parametrize("system", SYSTEMS)
def test_in_lock_step_the_items_are_those_of_local_acting(system):
    x, kept = parts_of(system), {}
    for acting in ("local", "central"):
        runtime = InProcess(program_of(x, acting))
        kept[acting] = Inserts(runtime.objects["table"])
        ran(runtime, 1_200)
        runtime.objects["table"].check()
        runtime.close()
    local, central = kept["local"].found, kept["central"].found
    assert len(central) > 30 and abs(len(local) - len(central)) <= 4, "the last may not have been recorded"
    versions = {version for version, *_ in local}
    assert len(versions) > 5 and any(origin[:, 1].max() > 5 for _, origin, *_ in local), "it learns, and episodes end"
    for (version, origin, items, priority), (version2, origin2, items2, priority2) in zip(local, central):
        assert version == version2 and np.array_equal(origin, origin2)
        assert items.keys() == items2.keys()
        for (name, one), (_, other) in zip(tree.named(items), tree.named(items2)):
            if name.split("/")[0] in ("behaviour", "carry"):
                assert np.allclose(one, other, rtol=0, atol=1e-6), name
            else:
                assert np.array_equal(one, other), name
        assert (priority is None) == (priority2 is None)
        assert priority is None or np.allclose(priority, priority2, rtol=0, atol=1e-5)


# --- batches --------------------------------------------------------------------------------------------------------


def service(workers=5, system="dqn", **limits):
    """A central actor and workers that nobody gives turns, and the sizes of the batches acted on, in workers."""
    x, sizes = parts_of(system, **({"replay_start": 1_000} if system == "dqn" else {})), []
    table, learner = x.table(), LearnerLoop(x.learner, None, x.experience.batch)
    central = CentralActor(x.policy, x.experience, [table], learner, x.envs, **limits)
    guests = [EnvWorker(x.environments, x.algorithm, x.spec, central, 0, i, workers) for i in range(workers)]
    act = central.policy.act

    def counted(obs, **more):
        sizes.append(len(obs) // x.envs)
        return act(obs, **more)

    central.policy.act = counted
    return central, guests, sizes, table


def test_who_may_still_ask_is_waited_for_but_not_for_ever():
    central, workers, sizes, _ = service(most=8, patience=1e9)
    for worker in workers[:4]:
        assert worker.step() and not worker.step(), "it asks, and waits"
    assert central.step(), "it listens"
    assert not central.step() and not sizes, "one of five has not asked, and there is time"
    central.patience = 0.0
    assert central.step() and sizes == [4]
    assert all(worker.step() and worker.steps == 2 for worker in workers[:4])
    central.patience = 1e9
    workers[4].step()
    assert central.step() and central.step() and sizes == [4, 5], "all ask: nobody is worth waiting for"
    assert central.report()["batch_acted"] == 9.0, "environments, of two batches"
    for worker in workers:
        worker.close()
    central.close()


@pytest.mark.parametrize("most", [1, 2, 3])
def test_batches_are_bounded_and_nobody_starves(most):
    central, workers, sizes, _ = service(most=most, patience=0.0)
    eager = workers[:2]  # these get more turns than the others
    for _ in range(1_000):
        if sum(sizes) >= 100:
            break
        central.step()
        for worker in [*eager, *workers]:
            worker.step()
    assert max(sizes) == most
    done = [worker.steps // 2 for worker in workers]
    assert max(done) - min(done) <= 1 and min(done) >= 19, done
    for worker in workers:
        worker.close()
    central.close()


def test_without_room_a_worker_waits_and_room_is_promised_once():
    """A queue of two unrolls for two workers: the one that is ahead may not take the room of the other."""
    central, (ahead, behind), _, table = service(2, "ppo", most=8, patience=0.0)
    for _ in range(100):
        ahead.step(), central.step()
    assert ahead.steps == 2 * 2 * 8 and table.limiter.inserts == 4, "the queue is full with its two unrolls"
    behind.step()
    assert central.step() and not central.step() and not central.step(), "no room for the other's unroll"
    assert table.sample(2)
    for _ in range(40):  # the room is given to whoever waits longest, and to no other
        ahead.step(), behind.step(), central.step()
    assert (ahead.steps, behind.steps) == (3 * 2 * 8, 0) and table.limiter.inserts == 6
    for worker in (ahead, behind):
        worker.close()
    central.close()


# --- workers that come and go ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("system", ["ppo", "dqn", "apex-dqn"])
def test_no_item_joins_two_lives_of_a_worker(system):
    """A life that ends in the middle of an unroll leaves whole items only."""
    x = parts_of(system)
    runtime = InProcess(program_of(x, "central"))
    table, central = runtime.objects["table"], runtime.objects["central"]
    inserts, lives = Inserts(table), 1
    for round_number in range(600):
        runtime.round()
        if round_number % 37 == 36:  # in the middle of an unroll
            old = runtime.objects["actor/1"]
            central.guests[1].desk.reclaim()
            new = EnvWorker(x.environments, x.algorithm, x.spec, Found(old.desk), x.seed, 1, 2, incarnation=lives)
            old.close()
            runtime.objects["actor/1"] = new
            runtime.arrange()
            assert central.guests[1].run == lives - 1
            lives += 1
    table.check()
    assert central.guests[1].run == lives - 1 > 10
    mine = [(origin, items) for _, origin, items, _ in inserts.found if (origin[:, 0] >= 2).any()]
    assert len(mine) > 20
    for _, items in mine:
        joined = steps_that_do_not_follow(items)
        assert not joined.any()
    assert runtime.steps() > 400
    runtime.close()


class Found:
    """The desk that an earlier life has left."""

    def __init__(self, desk):
        self.found = desk
        self.found.number = self.found.places.answered.rung()

    def desk(self, name):
        return self.found


def steps_that_do_not_follow(items):
    """CartPole's position moves by a fiftieth of its speed: where it does not, two episodes were joined."""
    if "next_obs" in items:  # up to three steps
        obs, after = items["obs"], items["next_obs"]
        return np.abs(after[:, 0] - obs[:, 0]) > 3 * 0.02 * (np.maximum(np.abs(obs[:, 1]), np.abs(after[:, 1])) + 0.6)
    obs = items["obs"]
    follows = np.abs(obs[:, 1:, 0] - obs[:, :-1, 0] - 0.02 * obs[:, :-1, 1]) < 1e-5
    counts = (items["valid"][:, :-1] > 0) & ~items["first"][:, 1:]
    return counts & ~follows


@pytest.mark.parametrize("system", ["ppo with memory", "apex-dqn"])
def test_in_one_process_a_run_goes_on_exactly_from_its_checkpoint(system, tmp_path):
    x, kept = parts_of(system), []
    runtime = ran(InProcess(program_of(x, "central")), 700)
    for extra in range(2):  # once with requests that wait, once with answers that were not taken
        checkpoint.save(tmp_path, {"nodes": runtime.state()}, 700 + extra)
        resumed = InProcess(program_of(x, "central"), (tmp_path, 700, checkpoint.load_step(tmp_path, 700 + extra)))
        for running in (runtime, resumed):
            inserts = Inserts(running.objects["table"])
            for _ in range(120):
                running.round()
            running.objects["table"].check()
            running.objects["table"].insert = inserts.insert
            kept.append((inserts.found, running.call("learner", "latest", -1)))
        resumed.close()
        (one, params), (other, params2) = kept[-2:]
        assert len(one) == len(other) > 5 and params[0] == params2[0] and np.array_equal(params[1], params2[1])
        for (version, origin, items, _), (version2, origin2, items2, _) in zip(one, other):
            assert version == version2 and np.array_equal(origin, origin2)
            assert all(np.array_equal(a, b) for a, b in zip(tree.leaves(items), tree.leaves(items2)))
        runtime.round()
    runtime.close()


def test_jax_sees_few_batch_sizes_and_gives_the_same_actions():
    pytest.importorskip("jax")
    found = {}
    for backend in ("numpy", "jax"):
        x = parts_of("dqn", backend=backend)
        table, learner = x.table(), LearnerLoop(x.learner, None, x.experience.batch)
        central = CentralActor(acting_on(x, backend), x.experience, [table], learner, x.envs, patience=0.0)
        workers = [EnvWorker(x.environments, x.algorithm, x.spec, central, 0, i, 3) for i in range(3)]
        sizes, act = [], central.policy.act

        def counted(obs, sizes=sizes, act=act, **more):
            sizes.append(len(obs))
            return act(obs, **more)

        central.policy.act = counted
        for worker in workers:
            worker.step()
        central.step(), central.step()
        found[backend] = [worker.desk.take()["action"].tolist() for worker in workers]
        assert sizes == ([6] if backend == "numpy" else [8])
        for worker in workers:
            worker.close()
        central.close()
    assert found["numpy"] == found["jax"]


def acting_on(x, backend):
    params = x.model.init(np.random.default_rng(0))
    loaded = None if backend == "numpy" else backends.load(backend)
    return lambda: Policy(x.algorithm, x.model, params, x.model.statistics(), loaded)


# --- processes ------------------------------------------------------------------------------------------------------


class Watching(EnvWorker):
    """Can be asked what its process has imported."""

    def loaded(self):
        return sorted({"torch", "jax", "ray", "autograd"} & set(sys.modules))


def test_a_worker_needs_neither_torch_nor_jax():
    """In a process of its own, with environments made from parts, asking a desk as a worker does."""
    script = """
import sys
from cavalcade.acting.env_worker import EnvWorker
from cavalcade.transport import Exchange
from cavalcade.acting.requests import RequestLayout
from tests.acting.test_central import parts_of
x = parts_of("ppo")
exchange = Exchange(RequestLayout(x.algorithm, x.spec).blank(x.envs), {"action": x.spec.action.zeros(x.envs)})
worker = EnvWorker(x.environments, x.algorithm, x.spec, exchange, 0)
assert worker.step() and not worker.step()
exchange.desks[0].answer({"action": [0, 1]})
assert worker.step() and worker.steps == 2
found = {"torch", "jax", "ray", "autograd"} & set(sys.modules)
assert not found, found
"""
    script = script.replace("from tests.acting.test_central import parts_of", SMALL_PARTS)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[-2000:]


SMALL_PARTS = """
from cavalcade.experiment import Experiment, Settings
settings = Settings(steps=4_000, backend="numpy", actors=2, envs=2, evaluations=0)
parts_of = lambda system: Experiment.create(system, "CartPole-v1", settings, {"hidden": (8,)}).parts
"""


def rounds(running, steps, most=20_000):
    for _ in range(most):
        running.round()
        if running.steps() >= steps:
            return
    raise AssertionError(f"only {running.steps('actor')} steps")


@pytest.mark.parametrize("system, backend", [("ppo with memory", "torch"), ("apex-dqn", "numpy")])
def test_workers_in_processes_of_their_own(system, backend):
    x = parts_of(system, "process", backend)
    program = program_of(x, "central", worker=Watching)
    running = Processes(program)
    try:
        rounds(running, 1_500)
        assert running.call("actor/0", "loaded") == [], "a worker computes nothing"
        reports = running.reports()
        assert reports["learner"]["updates"] > 0 and 2 <= reports["central"]["batch_acted"] <= 4
        assert "dqn" in system or reports["learner"]["policy_lag"] == 0.0, "exactly on-policy"
        assert {"acting", "storing", "pulling"} <= reports["central"]["seconds"].keys()
        member = next(member for member in running.members if member.group == "actor/1")
        os.kill(member.process.pid, signal.SIGKILL)
        before, updates = running.steps(), running.reports()["learner"]["updates"]
        rounds(running, before + 3_000)
        assert [fault["node"] for fault in running.faults] == ["actor/1"]
        last = running.reports()
        assert last["learner"]["updates"] > updates and last["actor/1"]["steps"] > 0
        assert "dqn" in system or last["learner"]["policy_lag"] == 0.0
        running.call("table", "check")
    finally:
        running.close()


def table_with_origins(x) -> Table:
    made = x.table()
    slots = np.arange(1, made.rows.count, dtype=np.int32)
    made.origins = lambda: np.unique(made.rows.seen.read(slots, names=("#origin",))["#origin"][:, 0]).tolist()
    return made


def predictors_of(x):
    """GA3C's shape: table and learner in one process, a predictor in another, the workers in their own."""
    program = Program("predictors")
    with program.group("learner"):
        table = program.add("table", table_with_origins, x)
        learner = program.add("learner", LearnerLoop, x.learner, table, x.experience.batch)
    limits = {"most": 2, "patience": 0.001}
    program.nodes["predictor/0"] = Node(
        "predictor/0",
        CentralActor,
        (x.policy, x.experience, [table], learner, x.envs),
        limits,
        Placement(group="predictor/0"),
    )
    for i in range(2):
        numbers = {"seed": x.seed, "actor": i, "actors": 2, "placement": Placement(restart="alone")}
        program.add("actor", EnvWorker, x.environments, x.algorithm, x.spec, Handle("predictor/0"), **numbers)
    return program


def test_a_predictor_in_another_process_than_the_table():
    x = parts_of("ppo", "process")
    running = Processes(predictors_of(x))
    try:
        rounds(running, 2_000)
        reports = running.reports()
        assert reports["learner"]["updates"] > 20 and reports["learner"]["policy_lag"] == 0.0
        running.call("table", "check")
        assert running.call("table", "origins") == [0, 1, 2, 3], "two environments of each worker"
    finally:
        running.close()


@pytest.mark.xdist_group("ray")
def test_workers_on_ray(monkeypatch):
    import ray

    from cavalcade.runtimes.ray import RayRuntime

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    ray.init("local", num_cpus=4, _node_ip_address="127.0.0.1", **quiet)
    running = RayRuntime(program_of(parts_of("ppo", "ray"), "central"))
    try:
        rounds(running, 300)
        victim = next(member for member in running.members if member.group == "actor/1")
        os.kill(victim.pid, signal.SIGKILL)
        rounds(running, running.steps() + 300)
        reports = running.reports()
        assert reports["learner"]["updates"] > 10 and reports["learner"]["policy_lag"] == 0.0
        assert [fault["node"] for fault in running.faults] == ["actor/1"]
        running.call("table", "check")
    finally:
        running.close()
        ray.shutdown()
