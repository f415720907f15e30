"""Every row of the table of architectures: the same program twice gives the same parameters, and runs in processes."""

import os

import numpy as np
import pytest

import cavalcade
from cavalcade.assembly.wiring import Wiring
from cavalcade.checkpoints import checkpoint
from cavalcade.errors import UserError
from cavalcade.experiment.experiment import ALGORITHMS, ARCHITECTURES, Experiment, Settings
from cavalcade.experiment.matrix import table, why_not, wirings
from cavalcade.experiment.systems import SYSTEMS, example
from cavalcade.runs.inspection import SavedTables, look
from tests.helpers.leftovers import nothing_is_left  # noqa: F401

SMALL = {
    "dqn": {"hidden": (16,), "replay_size": 2_000, "replay_start": 100, "batch": 16, "target_period": 20},
    "a2c": {"hidden": (16,), "unroll": 8},
    "ppo": {"hidden": (16,), "unroll": 8},
    "pg": {"hidden": (16,), "unroll": 8},
    "impala": {"hidden": (16,), "unroll": 8, "batch": 10},
}
CRITICS = {"hidden": (8,), "critic_hidden": (8,), "replay_size": 2_000, "replay_start": 32, "batch": 8}
SMALL |= {name: {**CRITICS, "update_every": 16} for name in ("ddpg", "sac", "mpo")}
RUNS = [(algorithm, row) for algorithm in ("dqn", "a2c") for row in wirings() if not why_not(algorithm, row)]
RUNS += [("impala", ("local", "shards", updates)) for updates in ("own", "allreduce")]
# what ddpg, sac and mpo add to dqn are actions of floats and the parts of their networks: each choice of each axis
RUNS += [
    (algorithm, row)
    for algorithm in ("ddpg", "sac", "mpo")
    for row in [
        ("local", "shared", "own"),
        ("central", "shared", "own"),
        ("central", "shards", "hogwild"),
        ("local", "bundled", "allreduce"),
        ("local", "shared", "parameter-server"),
    ]
]
ALL = "CAVALCADE_ALL_ROWS" in os.environ  # make rows
BOUNDED = {"envs": 4, "actors": 2, "evaluations": 0, "steps": 1_500, "backend": "numpy"}


def named(value):
    return value if isinstance(value, str) else "-".join(value)


def placed(row):
    acting, experience, updates = row
    return {"acting": acting, "experience": experience, "updates": updates, "learners": 1 if updates == "own" else 2}


def learned(algorithm, row):
    """The parameters after some rounds in one process, and what the learners had done by then."""
    settings = Settings(**BOUNDED, **placed(row), seed=3)
    runtime = Experiment.create(algorithm, example(algorithm), settings, SMALL[algorithm]).launch()
    for _ in range(150 if example(algorithm) == "CartPole-v1" else 50):
        runtime.round()
    learners = [node for name, node in runtime.objects.items() if name.startswith("learner")]
    vectors, updates = [node.published[0] for node in learners], [node.version for node in learners]
    for name, node in runtime.objects.items():
        if name.split("/")[0] == "table":
            node.check()
    runtime.close()
    return vectors, updates


@pytest.mark.parametrize("algorithm, row", RUNS, ids=named)
def test_a_row_in_one_process_is_repeatable(algorithm, row):
    (one, updates), (other, again) = learned(algorithm, row), learned(algorithm, row)
    assert updates == again and min(updates) > 0
    assert all(np.array_equal(a, b) for a, b in zip(one, other))
    if row[2] == "allreduce":
        assert np.array_equal(one[0], one[1]), "learners that make every update together stay equal"


def test_trainers_of_ga3c_draw_from_one_queue_and_change_one_model():
    runs = []
    for _ in range(2):
        settings = Settings(**BOUNDED, seed=3)
        runtime = Experiment.create("ga3c", "CartPole-v1", settings, SMALL["a2c"]).launch()
        for _ in range(300):
            runtime.round()
        nodes = runtime.objects
        learners, shared = [nodes["learner"], nodes["learner/1"]], nodes["params"]
        draws, (version, vector, statistics) = [learner.draws for learner in learners], shared.latest(-1)
        assert min(draws) > 3 and sum(draws) == version, "both draw, and each update is one of the model"
        assert max(learner.version for learner in learners) == version
        assert statistics["reward"]["count"] > 0, "normalisers are shared too"
        while nodes["predictor/1"].policy.version < version:
            runtime.round()
        nodes["table"].check()
        runs.append((draws, vector))
        runtime.close()
    assert runs[0][0] == runs[1][0] and np.array_equal(runs[0][1], runs[1][1])


@pytest.mark.parametrize("system", ["apex-dqn", "a2c", "impala", "apex-dpg"])
def test_shards_go_on_exactly_from_a_checkpoint(tmp_path, system):
    """Three actors on two shards. Where queues fill unevenly there are moments when part of a batch has come."""
    settings = Settings(**{**BOUNDED, "actors": 3}, experience="shards", seed=3)
    experiment = Experiment.create(system, example(system), settings, SMALL[SYSTEMS[system].algorithm])
    runtime, waited = experiment.launch(), 0
    for rounds in range(60, 120):
        runtime.round()
        draws = runtime.objects["draws"]
        if rounds % 30 == 0 or (draws.asked and draws.parts and not waited):
            waited += bool(draws.asked and draws.parts)
            checkpoint.save(tmp_path, {"nodes": runtime.state()}, rounds)
            state = checkpoint.load_step(tmp_path, rounds)
            resumed = experiment.launch((tmp_path, rounds, state))
            for _ in range(30):
                runtime.round()
                resumed.round()
            ends = [running.call("learner", "latest", -1) for running in (runtime, resumed)]
            assert ends[0][0] == ends[1][0] > 0 and np.array_equal(ends[0][1], ends[1][1])
            resumed.close()
    runtime.close()
    assert waited or system != "impala"


# each part of each axis, with a replay and with an on-policy algorithm; `make rows` runs all of them
SOME = [
    ("dqn", ("local", "shared", "allreduce")),
    ("dqn", ("local", "bundled", "parameter-server")),
    ("dqn", ("central", "shared", "own")),
    ("dqn", ("central", "bundled", "hogwild")),
    ("a2c", ("local", "shards", "own")),
    ("impala", ("local", "shards", "own")),
    ("a2c", ("local", "bundled", "allreduce")),
    ("a2c", ("local", "bundled", "hogwild")),
    ("a2c", ("central", "shared", "own")),
    ("a2c", ("central", "bundled", "parameter-server")),
    ("d4pg", ("local", "bundled", "allreduce")),
    ("d4pg", ("local", "shared", "parameter-server")),
]


@pytest.mark.parametrize("system, row", [*RUNS, *SOME[-2:]] if ALL else SOME, ids=named)
def test_a_row_runs_in_processes(tmp_path, system, row):
    settings = {**BOUNDED, **placed(row), **SMALL[SYSTEMS[system].algorithm], "runtime": "process"}
    run = cavalcade.train(system, example(system), out=tmp_path / "run", display=False, **settings)
    last = list(run.rows())[-1]
    assert 1_500 <= last["step"] < 1_500 + 2 * 4 and last["updates"] > 0
    assert (run.path / "policy" / "policy.json").exists() and not (run.path / "faults.jsonl").exists()
    assert_tables_can_be_looked_into(run)


def assert_tables_can_be_looked_into(run):
    """Each of them, wherever the process that held it has saved it. On a busy machine one bundle may have made all
    steps, so that the learner of another has made no update."""
    tables, versions = SavedTables(run.path), []
    for number in range(len(tables)):
        with tables.open(number) as (found, version):
            found.check()
            versions.append(version)
    assert max(versions) > 0
    assert "\n".join(look(run.path)).count("window: ") == len(tables) > 0


ON_RAY = [
    ("a2c", ("central", "shared", "own")),
    ("dqn", ("local", "shared", "allreduce")),
]


@pytest.mark.parametrize("algorithm, row", ON_RAY, ids=named)
def test_a_row_runs_on_ray(tmp_path, algorithm, row):
    settings = {**BOUNDED, **placed(row), **SMALL[algorithm], "runtime": "ray"}
    run = cavalcade.train(algorithm, "CartPole-v1", out=tmp_path / "run", display=False, **settings)
    last = list(run.rows())[-1]
    assert 1_500 <= last["step"] < 1_500 + 2 * 4 and last["updates"] > 0 and not (run.path / "faults.jsonl").exists()
    assert_tables_can_be_looked_into(run)


# --- other numbers of actors ----------------------------------------------------------------------------------------

RUNTIMES = ("inprocess", "process", "ray")
ALL_NUMBERS = [(system, actors, runtime) for system in SYSTEMS for actors in (1, 2, 3, 5) for runtime in RUNTIMES]
SOME_NUMBERS = [(system, 3, "inprocess") for system in SYSTEMS] + [("ga3c", 1, "process")]
SOME_NUMBERS += [("apex-dpg", 2, "process"), ("seed-sac", 2, "process")]


def started(system, out, steps, **settings):
    """A short run of a system; skipped where the runtime cannot have it."""
    if settings["runtime"] == "ray" and ARCHITECTURES[SYSTEMS[system].architecture][0].updates == "hogwild":
        pytest.skip(f"{system} changes memory that its learners share")
    run = cavalcade.train(system, example(system), out=out, display=False, evaluations=0, steps=steps, **settings)
    last = list(run.rows())[-1]
    assert last["step"] >= steps and last["updates"] > 0 and not (run.path / "faults.jsonl").exists()


@pytest.mark.parametrize("system, actors, runtime", ALL_NUMBERS if ALL else SOME_NUMBERS)
def test_a_system_runs_with_any_number_of_actors(tmp_path, system, actors, runtime):
    algorithm = SYSTEMS[system].algorithm
    small = {**SMALL[algorithm], **({"replay_start": 32} if algorithm == "dqn" else {})}
    started(system, tmp_path / "run", 400, actors=actors, runtime=runtime, envs=4, backend="numpy", **small)


@pytest.mark.skipif(not ALL, reason="make rows")
@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("system", SYSTEMS)
def test_a_system_runs_as_it_comes(tmp_path, system, runtime):
    started(system, tmp_path / "run", 3_000, runtime=runtime)  # replay starts after 1,000


def test_central_acting_in_lock_step_learns_what_local_acting_learns():
    local, central = (learned("a2c", (acting, "shared", "own")) for acting in ("local", "central"))
    assert local[1][0] > 5 and central[1][0] > 5
    runs = []
    for acting in ("local", "central"):
        settings = Settings(**BOUNDED, acting=acting, seed=3)
        runtime = Experiment.create("a2c", "CartPole-v1", settings, SMALL["a2c"]).launch()
        learner, seen = runtime.objects["learner"], []
        while learner.version < 6:
            runtime.round()
            if learner.version > len(seen):
                seen.append(learner.published[0].copy())
        runs.append(seen)
        runtime.close()
    assert all(np.allclose(a, b, atol=1e-6) for a, b in zip(*runs)), "the same updates from the same unrolls"


def test_a_server_with_one_learner_in_lock_step_is_the_sync_architecture_bit_for_bit():
    vectors = []
    for more in ({}, {"updates": "parameter-server"}, {"updates": "parameter-server", "servers": 3}):
        settings = Settings(**{**BOUNDED, "backend": "torch"}, **more, seed=3)
        runtime = Experiment.create("a2c", "CartPole-v1", settings, SMALL["a2c"]).launch()
        learner = runtime.objects["learner"]
        while learner.version < 8:
            runtime.round()
        vectors.append(learner.published[0])
        runtime.close()
    assert np.array_equal(vectors[0], vectors[1]), "one server"
    assert np.array_equal(vectors[1], vectors[2]), "three servers"


def test_every_system_is_a_row_and_can_be_drawn():
    for name, system in SYSTEMS.items():
        row, _ = ARCHITECTURES[system.architecture]
        assert isinstance(row, Wiring)
        drawn = Experiment.create(name, example(name), Settings(actors=2), {}).program().graph()
        assert drawn.startswith("flowchart") and "learner" in drawn


def test_the_matrix_is_made_by_asking():
    lines = table()
    assert len([line for line in lines if line.startswith(("local", "central"))]) == 24
    assert all(name in lines[0] for name in ALGORITHMS)
    assert any("bears no policy lag" in line for line in lines)


@pytest.mark.parametrize(
    "settings, says",
    [
        ({"learners": 2}, "--updates own contradict each other"),
        ({"updates": "allreduce", "learners": 2, "stragglers": 2}, "leaves no gradient"),
        ({"updates": "hogwild", "stragglers": 1}, "--stragglers"),
        ({"predictors": 1}, "--acting local"),
        ({"experience": "shared", "updates": "hogwild", "learners": 2}, "bears no policy lag"),
        ({"shards": 2}, "--experience shared has none"),
        ({"experience": "shards", "shards": 3}, "--shards 3 and --actors 2"),
        ({"experience": "shards", "updates": "allreduce", "learners": 2}, "no policy lag"),
        ({"experience": "bundled", "updates": "allreduce", "learners": 2, "actors": 3}, "cannot be divided"),
        ({"acting": "centrla"}, "did you mean|central"),
        ({"updates": "hogwild", "runtime": "ray"}, "shares none"),
    ],
)
def test_contradictions_are_refused_with_both_facts(settings, says):
    with pytest.raises(UserError, match=says):
        Experiment.create("a2c", "CartPole-v1", Settings(**{"actors": 2, **settings}), {}).program()
