"""DeepMind's control suite by its ids: spaces, time limits, true ends, repeatable episodes, and whole runs."""

import gymnasium as gym
import numpy as np
import pytest

import cavalcade
from cavalcade import envs

ID = "dm_control/cartpole-balance-v0"
SMALL = {"backend": "numpy", "hidden": (8,), "unroll": 8, "epochs": 1, "seed": 1, "display": False}
SMALL |= {"options": {"max_episode_steps": 5}, "evaluations": 1, "evaluation_episodes": 1}


def steps(environments, count):
    """The records of `count` steps with actions that are always the same."""
    actions = np.random.default_rng(0).uniform(-1, 1, (count, environments.count, *environments.spec.action.shape))
    return [environments.step(action) for action in actions]


@pytest.mark.parametrize("name", [ID, f"shimmy:{ID}"])
def test_the_suite_is_found_with_and_without_its_module(name):
    environments = envs.make(name, 2, seed=0)
    spec = environments.spec
    assert {key: (leaf.shape, leaf.dtype) for key, leaf in spec.observation.items()} == {
        "position": ((3,), "float64"),
        "velocity": ((2,), "float64"),
    }
    assert spec.environment == name and spec.action.dtype == "float64" and spec.time_limit == 1_000
    assert envs.make(name, 1, seed=0, max_episode_steps=7).spec.time_limit == 7


def test_numbers_without_an_axis_are_observations_too():
    environments = envs.make("dm_control/walker-walk-v0", 2, seed=0)
    assert environments.spec.observation["height"].shape == () and environments.reset()["height"].shape == (2,)


def test_the_limit_of_the_suite_truncates():
    environments = envs.make(ID, 1, seed=0, task_kwargs={"time_limit": 0.03})  # 0.01 seconds for each step
    assert environments.spec.time_limit == 3
    environments.reset()
    taken = steps(environments, 3)
    assert [bool(step.truncated[0]) for step in taken] == [False, False, True]
    assert not any(step.terminated.any() for step in taken)
    assert taken[2].episodes[0].length == 3 and taken[2].first.all()
    assert environments.metrics.sums == {}  # what Shimmy puts into infos is no metric


def test_a_discount_of_zero_terminates():
    def ends_at_once():
        env = gym.make(str(envs.named(ID)), disable_env_checker=True)
        env.unwrapped._env.task.get_termination = lambda physics: 0.0
        return env

    environments = envs.make(ends_at_once, 1, seed=0)
    environments.reset()
    step = steps(environments, 1)[0]
    assert step.terminated.all() and not step.truncated.any()


def test_episodes_depend_on_their_seed_alone_and_go_on_from_where_they_were():
    one, other = (envs.make("dm_control/hopper-hop-v0", 1, seed=3, max_episode_steps=6) for _ in range(2))
    one.reset()
    steps(one, 9)
    other.restore(one.state())
    assert other.resume == "replayed"
    for ours, theirs in zip(steps(one, 9), steps(other, 9)):
        np.testing.assert_array_equal(ours.observation["position"], theirs.observation["position"])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("suite") / "run"
    return cavalcade.train("ppo", ID, steps=64, envs=2, out=out, **SMALL)


def test_a_run_its_evaluation_and_its_resumption(run):
    assert "env/timestep.discount" not in run.rows()[-1]
    spec = cavalcade.load_policy(run.path).model.spec
    assert spec == envs.make(ID, 1, seed=0, max_episode_steps=5).spec
    np.testing.assert_array_equal(spec.action.bounds, [[-1], [1]])
    assert cavalcade.evaluate(run.path, episodes=2)["episodes"] == 2
    assert cavalcade.resume(run.path, steps=96, display=False).rows()[-1]["step"] == 96


def test_a_run_on_processes(tmp_path):
    run = cavalcade.train("ppo", f"shimmy:{ID}", steps=64, envs=1, runtime="process", out=tmp_path / "run", **SMALL)
    assert run.rows()[-1]["step"] == 64 and not (run.path / "faults.jsonl").exists()
