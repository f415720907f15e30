"""Time limits shorter than an unroll: every step is learned from, once, by the policy that made it."""

import itertools
from collections import Counter

import gymnasium as gym
import numpy as np
import pytest

from cavalcade.experiment.experiment import Experiment, Settings

SMALL = {"hidden": (4,), "unroll": 10}


class Limited(gym.Env):
    """Episodes that are cut short after `limit` steps. An observation is [environment, episode, step]."""

    numbers = itertools.count()
    observation_space = gym.spaces.Box(0, np.inf, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, limit):
        self.limit, self.now = limit, np.array([next(self.numbers), -1, 0], np.float32)

    def reset(self, *, seed=None, options=None):
        self.now[1:] = self.now[1] + 1, 0
        return self.now.copy(), {}

    def step(self, action):
        self.now[2] += 1
        return self.now.copy(), 1.0, False, self.now[2] == self.limit, {}


def learned(system, limit, settings, algorithm, draws):
    """Observations [M, 3] of the steps that were learned from, and how many steps were made by then."""
    made = Settings(**settings, evaluations=0, backend="numpy", seed=1)
    experiment = Experiment.create(system, Limited, made, {**SMALL, **algorithm}, {"limit": limit})
    runtime, seen = experiment.launch(), []
    learner = runtime.objects["learner"]
    draw = learner.source.sample

    def counted(*given):
        sample = draw(*given)
        if sample is not None:
            assert not experiment.algorithm.lock_step or (sample.version == learner.version).all(), "not its own policy"
            seen.append(sample.items["obs"][sample.items["valid"] > 0])
        return sample

    learner.source.sample = counted
    while len(seen) < draws:
        runtime.round()
    steps = runtime.steps()
    runtime.close()
    return np.concatenate(seen), steps


@pytest.mark.parametrize("limit", [1, 3, 5])
@pytest.mark.parametrize("acting", ["local", "central"])
def test_ppo_learns_from_every_step_exactly_once(acting, limit):
    settings = {"envs": 3, "actors": 2, "acting": acting}
    steps, made = learned("ppo", limit, settings, {}, draws=6)
    each = Counter(steps[:, 0].tolist())
    assert len(each) == 6 and made - len(steps) <= 6 * 10, "all but what is under way"
    for environment, count in each.items():
        mine = steps[steps[:, 0] == environment]
        number = mine[:, 1] * limit + mine[:, 2]  # of the step since the environment began
        np.testing.assert_array_equal(np.sort(number), np.arange(count))
    of_place = Counter(steps[:, 2].tolist())  # in the episode
    assert max(of_place.values()) - min(of_place.values()) <= 6, "last steps of episodes count as often as others"


def test_impala_and_memory_lose_no_step_either():
    """Actors that run ahead of the learner, with a queue of several batches and a carry in every unroll."""
    settings = {"envs": 2, "actors": 2}
    steps, _ = learned("impala", 3, settings, {"memory": 4, "batch": 4}, draws=8)
    for environment in set(steps[:, 0].tolist()):
        mine = steps[steps[:, 0] == environment]
        np.testing.assert_array_equal(np.sort(mine[:, 1] * 3 + mine[:, 2]), np.arange(len(mine)))


@pytest.mark.parametrize("limit", [1, 3, 500])
def test_a_run_makes_as_many_updates_as_its_learning_rate_is_planned_for(limit):
    """Unrolls that end early are more in number: the rate would have fallen to zero before the run ends."""
    settings = Settings(envs=3, steps=900, evaluations=0, backend="numpy", seed=1)
    options = {"max_episode_steps": limit}
    runtime = Experiment.create("ppo", "CartPole-v1", settings, SMALL, options).launch()
    while runtime.steps() < settings.steps:
        runtime.round()
    learner = runtime.objects["learner"]
    per_draw, planned = 4 * 4, learner.learner.rule.settings.horizon
    assert planned - 2 * per_draw <= learner.version <= planned
    runtime.close()
