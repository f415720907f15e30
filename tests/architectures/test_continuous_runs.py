"""Runs of continuous control: how many updates they make, that they repeat themselves and go on exactly, whatever the
Box of actions is, and which items a replay with prioritised removal loses."""

from dataclasses import replace
from math import floor

import gymnasium as gym
import numpy as np
import pytest

import cavalcade
from cavalcade import tree
from cavalcade.errors import UserError
from cavalcade.experiment.experiment import Experiment, Settings
from cavalcade.runtimes.inprocess import InProcess
from tests.helpers.continuous import ATOMS
from tests.helpers.leftovers import nothing_is_left  # noqa: F401

SMALL = {"hidden": (4,), "critic_hidden": (4,), "batch": 4, "replay_start": 50}
SYSTEMS = {  # with settings that make its particulars matter in few updates
    "ddpg": {"noise_correlation": 0.85},
    "td3": {"policy_every": 3},
    "d4pg": {**ATOMS, "n_step": 3, "target_period": 7},
    "sac": {"updates_per_draw": 2},
    "mpo": {"sampled_actions": 3, "target_period": 7},
    "dmpo": {**ATOMS, "sampled_actions": 3, "target_period": 7},
    "apex-dpg": {"replay_size": 60, "flush": 5},
}


def experiment(system, steps=450, envs=1, actors=1, environment="Pendulum-v1", options=None, **overrides):
    settings = Settings(steps=steps, backend="torch", envs=envs, actors=actors, evaluations=0, seed=1)
    return Experiment.create(system, environment, settings, {**SMALL, **overrides}, options)


def rounds(runtime, count):
    for _ in range(count):
        runtime.round()
    return runtime


EPISODE = 40  # steps

# --- updates for each step ----------------------------------------------------------------------------------------


def counted(steps, every, envs, actors, n_step):
    """A run to its end in one process: the updates that it made, and those by which its window lets it be ahead."""
    short = {"max_episode_steps": EPISODE}
    run = experiment("ddpg", steps, envs, actors, options=short, update_every=every, n_step=n_step)
    runtime = InProcess(run.program())
    while runtime.moved or not runtime.spent:
        runtime.round()
    assert runtime.steps() == steps
    table, updates = runtime.objects["table"], runtime.objects["learner"].version
    slack = (table.limiter.max_diff - table.limiter.min_diff) / 2 / SMALL["batch"]
    done = table.state()["limiter"]
    assert updates * SMALL["batch"] == done["samples"]
    assert updates == floor((done["inserts"] - 50) / every + slack), "as far as the window goes"
    return updates, slack


@pytest.mark.parametrize(
    "every, envs, actors, n_step, ahead", [(1.0, 1, 1, 1, 1), (2.0, 2, 1, 3, 3), (0.5, 2, 2, 1, 4), (0.25, 1, 1, 3, 12)]
)
def test_a_run_makes_one_update_for_so_many_steps(every, envs, actors, n_step, ahead):
    """At its end it is `ahead` of the items in the table by what one draw or one insert is worth. This does not grow:
    a run that is longer by an episode of each environment makes exactly its share of updates more."""
    episode = EPISODE * envs * actors
    (one, slack), (more, _) = (counted(120 + extra, every, envs, actors, n_step) for extra in (0, episode))
    assert slack == ahead and more - one == episode / every
    waiting = n_step * envs * actors  # steps whose items are not complete, or not inserted yet
    assert (120 - waiting - 50) / every + ahead - 1 < one <= (120 - 50) / every + ahead


def test_updates_for_each_step_on_processes(tmp_path):
    """The learner ends as far ahead as the tolerance lets it, to the update: 0.2 of 50 items are 10, or 5 updates."""
    settings = {**SMALL, "steps": 400, "actors": 2, "backend": "numpy", "update_every": 2.0, "tolerance": 0.2}
    run = cavalcade.train(
        "ddpg", "Pendulum-v1", out=tmp_path, runtime="process", evaluations=0, display=False, **settings
    )
    last = run.rows()[-1]
    assert last["updates"] == floor((last["step"] - 50) / 2.0 + 5) and last["step"] in (400, 401)
    assert all(row["updates"] <= (row["step"] - 50) / 2.0 + 5 + 2 for row in run.rows() if row["updates"])


# --- one run, twice and with an interruption ----------------------------------------------------------------------


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_run_repeats_itself_and_goes_on_exactly(system):
    run = experiment(system, envs=2, actors=2, **SYSTEMS[system])
    first = rounds(InProcess(run.program()), 60)
    kept = first.state()
    rounds(first, 40)
    again, restored = rounds(InProcess(run.program()), 100), InProcess(run.program())
    restored.restore(kept)
    rounds(restored, 40)
    for other in (again, restored):
        assert other.objects["learner"].version == first.objects["learner"].version > 20
        learned, stored = ([one.objects[name] for one in (first, other)] for name in ("learner", "table"))
        for both in ([one.learner.state()["state"] for one in learned], [one.state() for one in stored]):
            for (path, mine), (_, its) in zip(*map(tree.named, both), strict=True):
                assert np.array_equal(mine, its), path


# --- actions ------------------------------------------------------------------------------------------------------


class Boxed(gym.Env):
    """Takes actions of a Box, and refuses others."""

    def __init__(self, low=-1.0, high=1.0, dtype=np.float64):
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float64)
        self.action_space = gym.spaces.Box(np.array(low, dtype), np.array(high, dtype), dtype=dtype)
        self.seen = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.uniform(-1.0, 1.0, 2), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.seen.append(action)
        over = len(self.seen) % 20 == 0
        return self.np_random.uniform(-1.0, 1.0, 2), -float(np.square(action).sum()), False, over, {}


@pytest.mark.parametrize("system", ["td3", "sac", "mpo"])
def test_actions_fill_their_box_whatever_it_is(system):
    """Shape [2, 2], no entry like another, in double precision."""
    low, high = [[-3.0, 0.0], [1.0, -1e-3]], [[1.0, 10.0], [5.0, 1e-3]]
    made = []

    def make():
        made.append(Boxed(low, high))
        return made[-1]

    runtime = InProcess(experiment(system, environment=make, **{**SYSTEMS[system], "replay_start": 200}).program())
    while runtime.steps() < 230:
        runtime.round()
    seen = np.concatenate([np.stack(env.seen) for env in made if env.seen])[:200]
    assert seen.shape == (200, 2, 2) and runtime.objects["learner"].version > 10
    share = (seen - np.array(low)) / (np.array(high) - low)
    assert (share.min(0) < 0.1).all() and (share.max(0) > 0.9).all() and (abs(share.mean(0) - 0.5) < 0.1).all()


@pytest.mark.parametrize("system", SYSTEMS)
def test_actions_that_a_system_cannot_take_are_refused_in_one_sentence(system):
    name = {"td3": "ddpg", "d4pg": "ddpg", "apex-dpg": "ddpg", "dmpo": "mpo", "seed-sac": "sac"}.get(system, system)
    for low, high, said in ((-np.inf, np.inf, "-inf to inf"), (0.0, np.inf, "0 to inf"), (-np.inf, 2.0, "-inf to 2")):
        with pytest.raises(
            UserError, match=f"^{name} scales actions to their bounds, but an action .* from {said}; .*ppo"
        ):
            experiment(system, environment=lambda low=low, high=high: Boxed([-1.0, low], [1.0, high]))
    if name != "sac":
        with pytest.raises(
            UserError, match=f"^{name} needs a Box of actions, but CartPole-v1 has .*; use dqn, ppo or sac"
        ):
            experiment(system, environment="CartPole-v1")


# --- prioritised removal ------------------------------------------------------------------------------------------


def test_items_of_low_priority_are_removed_more_often_and_a_checkpoint_keeps_that():
    """Half of 200 items have a priority of 0.01, half of 1: their shares are 0.01 ** -0.4 = 6.3096 and 1. Of those that
    go first 6.3096 / 7.3096 = 86.3 % are of the first kind."""
    store = experiment("apex-dpg", replay_size=200).parts.experience.store
    assert store.eviction == -0.4 and experiment("ddpg").parts.experience.store.eviction == 0.0
    free = replace(store, tolerance=1e6)
    low = []
    for seed in range(100):
        table, other = (free.table({"n": np.zeros((), np.int64)}, free.plan(4, 1, 1, 1), s) for s in (seed, 999))
        assert table.insert({"n": np.arange(200)}, priority=np.tile([0.01, 1.0], 100))
        other.restore(table.state())
        gone = [_gone(one) for one in (table, other)]
        assert gone[0] == gone[1]
        low += [number % 2 == 0 for number in gone[0]]
    # as they go there are fewer, so 86.1 % in the mean; four deviations of 1,000 removals are 4.4 %
    assert len(low) > 990 and np.mean(low) == pytest.approx(0.861, abs=0.044)


def _gone(table):
    """Which of 200 items go when ten more come, whose priority is so high that they have no share."""
    for number in range(200, 210):
        assert table.insert({"n": np.array([number])}, priority=np.full(1, 1e6))
    return set(range(200)) - set((table.key[table.key >= 0] >> table.bits).tolist())
