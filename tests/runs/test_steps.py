"""How exact the budget of environment steps is where actors have processes of their own."""

import os

import pytest

import cavalcade
from tests.helpers.leftovers import nothing_is_left  # noqa: F401

STEPS, ENVS = 4_000, 4
SMALL = {"backend": "numpy", "hidden": (8,), "envs": ENVS, "steps": STEPS, "evaluations": 2, "evaluation_episodes": 20}
DQN = {"replay_start": 100, "batch": 16, "update_every": 16, "updates_per_draw": 1}
REPLAYED = {"apex-dqn": DQN, "gorila-dqn": DQN}
SYSTEMS = ["impala", "apex-dqn", "ppo", "seed-impala", "ga3c", "a3c", "gorila-dqn", "dppo", "paac"]
EVERY = "CAVALCADE_ALL_ROWS" in os.environ
RUNS = [("impala", 3), ("seed-impala", 1), ("ga3c", 3), ("a3c", 1), ("gorila-dqn", 1)]
if EVERY:
    RUNS = [(system, actors) for system in SYSTEMS for actors in (1, 2, 3)]


def trained(system, out, environment="CartPole-v1", **more):
    settings = {**SMALL, **REPLAYED.get(system, {"unroll": 8}), **more}
    return cavalcade.train(system, environment, out=out, display=False, **settings)


def assert_budget_is_held(run, actors):
    """To one step of all environments: a step that an actor has begun is finished."""
    rows = run.rows()
    last = rows[-1]["step"]
    assert STEPS <= last < STEPS + actors * ENVS and rows[-1]["updates"] > 0
    judged = [row["evaluation_step"] for row in rows if "evaluation_step" in row]
    assert judged[-1] >= STEPS, "the end is judged too, as in one process"


@pytest.mark.parametrize(("system", "actors"), RUNS)
def test_the_budget_holds_in_processes(system, actors, tmp_path):
    assert_budget_is_held(trained(system, tmp_path / "run", actors=actors, runtime="process"), actors)


@pytest.mark.xdist_group("ray")
@pytest.mark.skipif(not EVERY, reason="test_runtimes.py and test_rows.py look at some on Ray; `make rows` runs all")
@pytest.mark.parametrize("system", SYSTEMS)
def test_the_budget_holds_on_ray(system, tmp_path):
    more = {"updates": "own"} if system == "ga3c" else {"updates": "parameter-server"} if system == "a3c" else {}
    assert_budget_is_held(trained(system, tmp_path / "run", actors=3, runtime="ray", **more), 3)
