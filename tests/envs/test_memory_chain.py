"""The memory chain: what is shown, what pays, and that nothing but memory helps."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from cavalcade import envs
from cavalcade.errors import UserError

NAME = "cavalcade/MemoryChain-v0"


def played(env: gym.Env, seed: int, act) -> float:
    """The return of an episode; act(observation, first observation) -> action."""
    observation, _ = env.reset(seed=seed)
    first, total, over = observation, 0.0, False
    while not over:
        observation, reward, over, truncated, _ = env.step(act(observation, first))
        assert not truncated
        total += float(reward)
    return total


def test_an_episode_by_hand():
    env = gym.make(NAME, length=3).unwrapped
    check_env(gym.make(NAME).unwrapped, skip_render_check=True)
    cues = set()
    for seed in range(8):
        observation, _ = env.reset(seed=seed)
        cue = observation[0]
        cues.add(float(cue))
        assert observation[1] == 0.0
        right = int(cue > 0)
        rows = [env.step(action) for action in (right, 1 - right, right)]
        np.testing.assert_allclose([row[0] for row in rows], [[0, 1 / 3], [0, 2 / 3], [0, 1]], rtol=1e-6)
        assert [row[1] for row in rows] == [0.0, 0.0, 1.0] and [row[2] for row in rows] == [False, False, True]
    assert cues == {-1.0, 1.0}


def test_memory_earns_all_and_no_policy_without_it_anything():
    env = gym.make(NAME).unwrapped
    seeds = range(200)
    assert all(played(env, seed, lambda now, first: int(first[0] > 0)) == 1.0 for seed in seeds)
    # what a policy without memory does in the last step cannot depend on the cue: it is one of these two
    earned = {action: [played(env, seed, lambda now, first, a=action: a) for seed in seeds] for action in (0, 1)}
    assert np.array_equal(earned[0], np.negative(earned[1]))
    assert abs(np.mean(earned[0])) < 0.2, "both cues are as likely"


def test_a_chain_of_one_step_is_refused():
    with pytest.raises(UserError, match="needs a length of at least 2, but 1 was given"):
        envs.make(NAME, 1, seed=0, length=1)
