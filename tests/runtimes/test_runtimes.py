"""The same small programs on every runtime: one process, local processes, Ray."""

import os

import numpy as np
import pytest

import cavalcade
from cavalcade import tree
from cavalcade.checkpoints import checkpoint
from cavalcade.runs.inspection import SavedTables
from cavalcade.runs.trained import load_policy
from cavalcade.runs.training import resume
from tests.helpers.leftovers import nothing_is_left  # noqa: F401

SMALL = {"backend": "numpy", "hidden": (8,), "envs": 2, "evaluations": 1, "evaluation_episodes": 2, "actors": 2}
DQN = {"replay_start": 100, "batch": 16, "update_every": 8, "updates_per_draw": 1}
SYSTEMS = {
    "dqn": DQN,
    "ppo": {"unroll": 8},
    "apex-dqn": DQN,
    "impala": {"unroll": 8},
}
STEPS = 1500


@pytest.fixture(scope="module")
def one_ray():
    """Ray takes seconds to start: one for all tests."""
    import ray

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    ray.init("local", num_cpus=6, _node_ip_address="127.0.0.1", **quiet)
    yield
    ray.shutdown()


ON_RAY = pytest.param("ray", marks=pytest.mark.xdist_group("ray"))


def train(system, runtime, out, **more):
    settings = {**SMALL, **SYSTEMS[system], "steps": STEPS, "rows": 20, **more}
    return cavalcade.train(system, "CartPole-v1", runtime=runtime, out=out, display=False, **settings)


@pytest.mark.parametrize("runtime", ["inprocess", "process", ON_RAY])
@pytest.mark.parametrize("system", SYSTEMS)
def test_a_system_runs_anywhere(system, runtime, tmp_path, request):
    if runtime == "ray":
        request.getfixturevalue("one_ray")
    run = train(system, runtime, tmp_path / "run")
    rows = run.rows()
    assert STEPS <= rows[-1]["step"] < STEPS + 2 * 2 and rows[-1]["updates"] > 0, "to a step of all environments"
    assert [row["evaluation_step"] for row in rows if "evaluation_step" in row][-1] >= STEPS, "the end is judged"
    assert not (run.path / "faults.jsonl").exists()
    name, other = ("replay_age", "policy_lag") if "dqn" in system else ("policy_lag", "replay_age")
    lags = [row[name] for row in rows if name in row]
    assert not any(other in row for row in rows), "what is replayed has an age, what is drawn once a lag"
    assert lags and (system != "ppo" or set(lags) == {0.0}), "an on-policy algorithm is exactly on-policy"
    assert_table_is_whole(run, system)
    assert load_policy(run.path).version > 0
    assert_it_goes_on(run)


def assert_table_is_whole(run, system):
    tables = SavedTables(run.path)
    with tables.open(0) as (table, version):
        table.check()
        assert tables.step >= STEPS and version > 0
        counted = table.limiter
        assert counted.inserts - counted.deletes == len(table) and counted.samples > 0
        if "dqn" in system:  # one draw for an update, and perhaps one that waits to be learned from
            assert counted.samples - DQN["batch"] * version in (0, DQN["batch"])


def assert_it_goes_on(run):
    """With a larger budget, from where it was."""
    _, step, _ = checkpoint.load_latest(run.checkpoints)
    updates = run.rows()[-1]["updates"]
    last = resume(run.path, steps=step + 500, display=False).rows()[-1]
    assert last["step"] >= step + 500 and last["updates"] > updates


@pytest.mark.xdist_group("ray")
def test_so_many_updates_are_made_for_each_step_on_ray(tmp_path, one_ray):
    """Two for each that is in the table, after the first 50, up to those of one step of an actor's environments. The
    table may not have all steps: items can be on their way to it when a run ends."""
    critics = {"critic_hidden": (8,), "replay_size": 500, "replay_start": 50, "batch": 8, "update_every": 0.5}
    settings = {**SMALL, **critics, "steps": 200, "rows": 5, "evaluations": 0}
    run = cavalcade.train("sac", "Pendulum-v1", runtime="ray", out=tmp_path / "run", display=False, **settings)
    with SavedTables(run.path).open(0) as (table, version):
        counted = table.limiter
        assert counted.inserts > 50 and abs(version - 2 * (counted.inserts - 50)) <= 2 * 2
        assert counted.samples - 8 * version in (0, 8)


@pytest.mark.parametrize("system", ["apex-dqn", "impala"])
def test_in_one_process_a_run_repeats_itself_bit_for_bit(system, tmp_path):
    kept = []
    for name in ("one", "two"):
        run = train(system, "inprocess", tmp_path / name)
        state, step, notes = checkpoint.load_latest(run.checkpoints)
        assert step == run.rows()[-1]["step"] and not notes
        rows = [{k: v for k, v in row.items() if "time" not in k and "second" not in k} for row in run.rows()]
        kept.append((rows, (run.policy / "policy.safetensors").read_bytes(), dict(tree.named(state["nodes"]))))
    (rows, policy, one), (other_rows, other_policy, other) = kept
    assert rows == other_rows and policy == other_policy and len(rows) > 10
    assert one.keys() == other.keys() and sum(isinstance(leaf, np.ndarray) for leaf in one.values()) > 20
    differing = [name for name in one if not np.array_equal(one[name], other[name])]
    assert [name for name in differing if not measured(name)] == []


def measured(name: str) -> bool:
    """Seconds, by the clock on the wall."""
    return name.split("/")[-1] in ("made", "lag", "waited")
