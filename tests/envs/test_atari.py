"""Atari through ale-py: what the agent sees, and how games, lives and the frame limit end."""

import builtins

import numpy as np
import pytest
from gymnasium.vector import VectorEnv

from cavalcade import envs
from cavalcade.errors import UserError

ale_py = pytest.importorskip("ale_py")


def play(environments, steps, seed=0):
    """Each step with the observation acted on."""
    random, observation = np.random.default_rng(seed), environments.reset()
    for _ in range(steps):
        step = environments.step(random.integers(0, environments.spec.action.counts[0], environments.count))
        yield observation, step
        observation = step.observation


def slides(before, after):
    """[N] bool: `after` is `before` with one frame more, as within one episode."""
    return (before[:, 1:] == after[:, :-1]).all(axis=(1, 2, 3))


def test_shapes_and_streams():
    first, second, other = (envs.make("ALE/Breakout-v5", 2, seed) for seed in (0, 0, 1))
    leaf = first.spec.observation
    assert (leaf.shape, leaf.dtype, first.spec.action.counts) == ((4, 84, 84), "uint8", (4,))
    assert first.resume == "restarted" and first.spec.environment == "ALE/Breakout-v5"
    assert (first.spec.frames, first.spec.frame_skip) == (4, 4)
    assert "autoreset_mode" not in VectorEnv.metadata
    differs = False
    for (_, one), (_, same), (_, another) in zip(play(first, 40), play(second, 40), play(other, 40)):
        np.testing.assert_array_equal(one.observation, same.observation)
        differs |= not np.array_equal(one.observation, another.observation)
        assert one.observation.dtype == np.uint8 and one.reward.dtype == np.float32
    assert differs
    frame = first.render()
    assert frame.shape == (84, 84, 3) and frame.dtype == np.uint8


def test_the_frame_limit_truncates_and_keeps_the_final_observation():
    environments = envs.make("ALE/Breakout-v5", 2, seed=0, max_num_frames_per_episode=80)
    ends = []
    for number, (before, step) in enumerate(play(environments, 45), start=1):
        assert step.valid.all() and not step.terminated.any()
        assert slides(before, step.next_observation).all()
        if step.truncated.any():
            assert step.truncated.all() and step.first.all() and len(step.episodes) == 2
            assert not slides(before, step.observation).any()
            ends.append((number, step.episodes[0].length))
        else:
            np.testing.assert_array_equal(step.next_observation, step.observation)
    assert ends == [(20, 20), (40, 20)]


@pytest.mark.parametrize("life_loss_info", [False, True])
def test_a_game_over_is_terminal_and_a_lost_life_only_if_asked(life_loss_info):
    environments = envs.make("ALE/Breakout-v5", 2, seed=0, life_loss_info=life_loss_info)
    lost = episodes = 0
    total = 0.0
    for before, step in play(environments, 320):
        assert slides(before, step.next_observation).all()  # the true successor, also where a game ended
        over = np.isin(np.arange(2), [episode.environment for episode in step.episodes])
        assert (over <= step.terminated).all() and (step.first == step.terminated).all()
        only_life = step.terminated & ~over
        np.testing.assert_array_equal(step.observation[only_life], step.next_observation[only_life])
        assert not slides(before, step.observation)[over].any()
        lost += only_life.sum()
        episodes += over.sum()
        total += step.reward.sum() - sum(episode.total for episode in step.episodes)
    assert episodes >= 1 and total >= 0
    assert (lost >= 4 * episodes) if life_loss_info else (lost == 0)


def test_rewards_are_not_clipped():
    """Some brick rows of Breakout and all points of Space Invaders are worth more than one."""
    rewards = [step.reward for _, step in play(envs.make("ALE/SpaceInvaders-v5", 2, seed=0), 250)]
    assert np.max(rewards) > 1


def test_wrong_names_and_options(monkeypatch):
    with pytest.raises(UserError, match=r"no Atari game 'ALE/Pongg-v5'. Did you mean 'ALE/Pong-v5'"):
        envs.make("ALE/Pongg-v5", 1, seed=0)
    with pytest.raises(UserError, match=r"options \['colour'\] do not suit 'ALE/Pong-v5'"):
        envs.make("ALE/Pong-v5", 1, seed=0, colour="red")
    with pytest.raises(UserError, match=r"Did you mean 'ALE/Pong-v5'"):
        envs.make("Pong-v5", 1, seed=0)

    real_import = builtins.__import__

    def without_ale(name, *args, **kwargs):
        if name.startswith("ale_py"):
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_ale)
    with pytest.raises(UserError, match=r"pip install 'cavalcade\[atari\]'"):
        envs.make("ALE/Pong-v5", 1, seed=0)
