"""Rewards are scaled by discounted sums over the episode, whatever the unrolls, the actors and the runtime are."""

import numpy as np
import pytest

import cavalcade

LENGTH, DISCOUNT, STEPS, ENVIRONMENTS = 40, 0.97, 120, 8  # of an episode; a reward; each environment; of all actors
RUN = {"backend": "numpy", "hidden": (4,), "steps": STEPS * ENVIRONMENTS, "rows": 2, "evaluations": 0, "display": False}


def moments(tmp_path, system: str, ending: str = "terminated", **settings) -> dict:
    """The moments of the discounted sums at the end of a run in a corridor, where no action changes a reward."""
    options = {"length": LENGTH, "ending": ending, "reward": 3.0}
    given = {**RUN, "discount": DISCOUNT, **settings}
    run = cavalcade.train(system, "cavalcade/Corridor-v0", options=options, out=tmp_path / "run", **given)
    return cavalcade.load_policy(run.path).statistics["reward"]


def assert_whole_episodes(found: dict) -> None:
    sums = 3.0 * (1.0 - DISCOUNT ** np.arange(1, LENGTH + 1)) / (1.0 - DISCOUNT)  # after each step of an episode
    np.testing.assert_allclose(found["count"], STEPS * ENVIRONMENTS, rtol=1e-5)
    np.testing.assert_allclose(found["mean"], sums.mean(), rtol=1e-5)
    np.testing.assert_allclose(found["variance"], sums.var(), rtol=1e-5)


@pytest.mark.parametrize(("system", "unroll"), [("a2c", 1), ("a2c", 8), ("ppo", 60), ("a2c", 120)])
def test_the_units_do_not_depend_on_the_length_of_unrolls(system, unroll, tmp_path):
    assert_whole_episodes(moments(tmp_path, system, unroll=unroll, envs=8))


def test_a_truncated_episode_begins_a_new_sum(tmp_path):
    """Unrolls of 120 steps are shorter here, because final observations take rows; what is not in an unroll yet when
    the run ends is not counted."""
    found = moments(tmp_path, "a2c", "truncated", unroll=5, envs=8)
    sums = 3.0 * (1.0 - DISCOUNT ** np.arange(1, LENGTH + 1)) / (1.0 - DISCOUNT)
    np.testing.assert_allclose(found["mean"], sums.mean(), rtol=0.02)


@pytest.mark.parametrize(("system", "actors", "envs"), [("a2c", 2, 4), ("a2c", 4, 2), ("dppo", 2, 4), ("paac", 4, 2)])
def test_they_do_not_depend_on_the_number_of_actors(system, actors, envs, tmp_path):
    found = moments(tmp_path, system, unroll=20, actors=actors, envs=envs)
    if system == "dppo":  # each learner has the moments of its own actor, all of them the same
        found = {**found, "count": found["count"] * actors}
    assert_whole_episodes(found)


@pytest.mark.parametrize(("system", "actors", "unroll"), [("ppo", 1, 20), ("paac", 2, LENGTH)])
def test_they_do_not_depend_on_the_runtime(system, actors, unroll, tmp_path):
    """In processes a quick actor may give more unrolls than a slow one; if each is an episode, it does not matter."""
    run = {"actors": actors, "envs": ENVIRONMENTS // actors, "runtime": "process"}
    assert_whole_episodes(moments(tmp_path, system, unroll=unroll, **run))


def test_a_resumed_run_goes_on_with_its_sums(tmp_path):
    run = {"unroll": 30, "envs": 8}
    assert_whole_episodes(moments(tmp_path, "a2c", **run))
    moments(tmp_path / "half", "a2c", steps=STEPS * ENVIRONMENTS // 2 - 80, **run)  # in the middle of an episode
    resumed = cavalcade.resume(tmp_path / "half" / "run", steps=STEPS * ENVIRONMENTS, display=False)
    assert_whole_episodes(cavalcade.load_policy(resumed.path).statistics["reward"])
