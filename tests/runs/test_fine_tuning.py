"""Beginning from another policy: its parameters and normalisers reach every learner and actor, on every runtime."""

import json
import shutil

import numpy as np
import pytest

import cavalcade
from cavalcade.errors import UserError
from cavalcade.experiment.experiment import Experiment, Settings
from cavalcade.records.folder import Run

ENVIRONMENT = "CartPole-v1"
SMALL = {"backend": "numpy", "hidden": (8,), "envs": 4, "evaluations": 0, "rows": 5, "display": False}
PPO = {"unroll": 8, "epochs": 1, "normalise_observations": True}
DQN = {"replay_start": 50, "batch": 8, "epsilon_start": 0.0, "epsilon_end": 0.0}


@pytest.fixture(scope="module")
def origins(tmp_path_factory) -> dict[str, Run]:
    """Runs to begin from, with other seeds than those that begin."""
    folder = tmp_path_factory.mktemp("origins")
    given = {**SMALL, "steps": 200, "seed": 9}
    return {
        "ppo": cavalcade.train("ppo", ENVIRONMENT, out=folder / "ppo", **given, **PPO),
        "dqn": cavalcade.train("dqn", ENVIRONMENT, out=folder / "dqn", **given, **DQN),
    }


def begun(origins, system: str, origin: str, overrides: dict, **settings):
    """A program that begins from a run, before its first step."""
    made = Settings(steps=400, backend="numpy", envs=4, evaluations=1, evaluation_episodes=1, **settings)
    given = {"hidden": (8,), **overrides}
    return Experiment.create(system, ENVIRONMENT, made, given, origin=str(origins[origin].path)).launch()


def assert_same(found, policy) -> None:
    """`found`: version, params, statistics."""
    assert found[0] == 0
    np.testing.assert_array_equal(found[1], policy.vector)
    for name in policy.model.statistics():
        np.testing.assert_array_equal(found[2][name]["mean"], policy.statistics[name]["mean"])
        assert found[2][name]["count"] == policy.statistics[name]["count"] > 1


ROWS = {
    "own": {},
    "allreduce": {"actors": 2, "learners": 2, "experience": "bundled"},
    "parameter-server": {"actors": 2, "learners": 2, "experience": "bundled", "servers": 2},
    "hogwild": {"actors": 2, "learners": 2, "experience": "bundled"},
}


@pytest.mark.parametrize("updates", ROWS)
def test_every_learner_and_every_actor_begins_with_the_policy(updates, origins):
    policy = cavalcade.load_policy(origins["ppo"].path)
    runtime = begun(origins, "ppo", "ppo", PPO, updates=updates, **ROWS[updates])
    try:
        nodes = runtime.objects
        for name in nodes:
            if name.startswith("learner"):
                assert_same(nodes[name].latest(-1), policy)
                assert not any(
                    leaf.any() for leaf in np.atleast_1d(nodes[name].learner.state()["state"]["optimiser"]["square"])
                )
            if name.startswith("server"):
                part = nodes[name].arrays["params"]
                assert any(np.array_equal(part, policy.vector[i : i + len(part)]) for i in range(len(policy.vector)))
            if name == "params":
                assert_same((0, nodes[name].arrays["params"], nodes[name].arrays["statistics"]), policy)
        runtime.round()
        for actor in (nodes[name] for name in nodes if name.startswith("actor")):
            assert_same((actor.policy.version, actor.policy.vector, actor.policy.statistics), policy)
    finally:
        runtime.close()


@pytest.mark.parametrize(("system", "settings"), [("dqn", {}), ("apex-dqn", {}), ("gorila-dqn", {"actors": 2})])
def test_a_target_network_begins_with_it_too(system, settings, origins):
    policy = cavalcade.load_policy(origins["dqn"].path)
    runtime = begun(origins, system, "dqn", DQN, **settings)
    try:
        state = runtime.objects["learner"].learner.state()["state"]
        np.testing.assert_array_equal(state["target"], policy.vector)
        np.testing.assert_array_equal(state["params"], policy.vector)
        runtime.round()  # actors that ask for newer parameters now and then only have them at once
        np.testing.assert_array_equal(runtime.objects["actor/0"].policy.vector, policy.vector)
    finally:
        runtime.close()


@pytest.mark.parametrize(
    ("system", "more"),
    [
        ("ppo", {}),
        ("impala", {"batch": 8, "seed": 3}),
        ("ppo", {"runtime": "process", "actors": 2, "steps": 2_000}),  # the evaluator does not wait for learners: in a
        ("a3c", {"runtime": "process", "actors": 2, "steps": 2_000}),  # short run it may judge before the first update
    ],
)
def test_a_run_that_learns_nothing_ends_where_it_began(system, more, origins, tmp_path):
    """With a rate of zero: what evaluation judged and what was saved is the policy that it was given."""
    settings = {**SMALL, **PPO, "steps": 200, "learning_rate": 0.0, "evaluations": 1, "evaluation_episodes": 1, **more}
    if system != "ppo":
        del settings["epochs"]
    run = cavalcade.train(system, ENVIRONMENT, out=tmp_path / "run", from_run=origins["ppo"].path, **settings)
    one, other = (cavalcade.load_policy(r.path) for r in (run, origins["ppo"]))
    assert run.rows()[-1]["updates"] > 0
    np.testing.assert_array_equal(one.vector, other.vector)
    ours, theirs = (policy.statistics["observation"]["count"] for policy in (one, other))
    assert ours > theirs, "normalisers go on from where they were"


def test_the_origin_is_written_down_and_needed_once(origins, tmp_path):
    origin = shutil.copytree(origins["ppo"].path, tmp_path / "origin")
    settings = {**SMALL, **PPO, "steps": 100}
    run = cavalcade.train("ppo", ENVIRONMENT, out=tmp_path / "run", from_run=origin / "policy", **settings)
    assert run.config["from"] == str(origin / "policy") and origins["ppo"].config["from"] is None
    from cavalcade.runs.training import repeat

    again = repeat(run.config, out=tmp_path / "again", display=False)
    np.testing.assert_array_equal(*(cavalcade.load_policy(r.path).vector for r in (run, again)))
    shutil.rmtree(origin)
    assert cavalcade.resume(run.path, steps=140, display=False).rows()[-1]["step"] == 140, "the checkpoint has it all"
    with pytest.raises(UserError, match="There is no policy in"):
        repeat(run.config, out=tmp_path / "third")
    assert not (tmp_path / "third").exists()


# --- what does not fit --------------------------------------------------------------------------------------------

MISFITS = {
    "another environment": (
        "ppo",
        "Acrobot-v1",
        {"preset": "none"},
        "trained on CartPole-v1, whose observation is .*Acrobot-v1 has",
    ),
    "another layer": (
        "ppo",
        ENVIRONMENT,
        {"hidden": (16,)},
        "made with --hidden 8, but this run has 16; give it the same",
    ),
    "another function": (
        "ppo",
        ENVIRONMENT,
        {"activation": "relu"},
        "made with --activation tanh, but this run has relu",
    ),
    "a memory": ("ppo", ENVIRONMENT, {"memory": 4}, "made with --memory 0, but this run has 4"),
    "no normaliser": ("ppo", ENVIRONMENT, {"normalise_observations": False}, "--normalise-observations True, but"),
    "another family": (
        "dqn",
        ENVIRONMENT,
        {},
        "learned by ppo, whose network gives policy and value; that of dqn gives q",
    ),
}


@pytest.mark.parametrize("case", MISFITS)
def test_what_does_not_fit_is_refused_before_anything_is_written(case, origins, tmp_path):
    system, environment, changes, said = MISFITS[case]
    settings = {**SMALL, **(PPO if system == "ppo" else DQN), "steps": 400, **changes}
    with pytest.raises(UserError, match=said):
        cavalcade.train(system, environment, out=tmp_path / "run", from_run=origins["ppo"].path, **settings)
    assert not any(tmp_path.iterdir())


def test_a_damaged_policy_is_one_sentence(origins, tmp_path):
    shutil.copytree(origins["ppo"].policy, tmp_path / "policy")
    about = json.loads((tmp_path / "policy" / "policy.json").read_text())
    del about["spec"]
    (tmp_path / "policy" / "policy.json").write_text(json.dumps(about))
    with pytest.raises(UserError, match="is damaged"):
        cavalcade.train("ppo", ENVIRONMENT, out=tmp_path / "run", from_run=tmp_path, steps=400, **SMALL, **PPO)
