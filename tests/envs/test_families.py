"""MinAtar and MiniGrid by their ids: repeatable episodes, an end to each, true bounds, and no text."""

import gymnasium as gym
import numpy as np
import pytest

import cavalcade
from cavalcade import envs
from cavalcade.envs.reading import readable, unread
from cavalcade.networks.torso import Torso, torso

GAMES = ["Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders"]


def steps(loop, actions):
    """The observations of one environment under these actions."""
    return [np.array(loop.step(np.array([action])).observation) for action in actions]


@pytest.mark.parametrize("game", GAMES)
def test_episodes_of_minatar_depend_on_their_seed_alone(game):
    env = gym.make(str(envs.named(f"MinAtar/{game}-v1")))
    actions = np.random.default_rng(0).integers(0, env.action_space.n, 60)

    def episode(made):
        seen = [made.reset(seed=7)[0]]
        for action in actions:
            observation, reward, terminated, truncated, _ = made.step(action)
            seen.append(np.append(observation.ravel(), reward))
            if terminated or truncated:
                break
        return np.concatenate([np.ravel(one) for one in seen])

    first = episode(env)
    env.unwrapped.game.last_action = env.unwrapped.action_set[-1]  # as the episode before may have left it
    assert np.array_equal(episode(env), first)
    assert np.array_equal(episode(gym.make(f"MinAtar/{game}-v1")), first)


def test_minatar_is_found_by_its_id_and_ends():
    loop = envs.make("MinAtar/Breakout-v1", 2, seed=0, render=True)
    assert loop.spec.observation.shape == (10, 10, 4) and loop.spec.observation.dtype == "bool"
    assert loop.spec.time_limit == 5_000
    assert envs.make("minatar.gym:MinAtar/Breakout-v1", 1, seed=0, max_episode_steps=9).spec.time_limit == 9
    picture = loop.render()
    assert picture.shape == (160, 160, 3) and picture.dtype == np.uint8 and picture.max() > 100


def test_minatar_goes_on_from_where_it_was():
    loop, other = (envs.make("MinAtar/SpaceInvaders-v1", 1, seed=3) for _ in range(2))
    loop.reset()
    actions = np.random.default_rng(1).integers(0, 4, 200)
    steps(loop, actions)
    assert loop._episode[0] > 0  # not the first, after which sticky actions could tell
    other.restore(loop.state())
    assert other.resume == "replayed"
    assert np.array_equal(steps(loop, actions), steps(other, actions))


def test_minigrid_is_read_as_codes_and_direction():
    loop = envs.make("MiniGrid-DoorKey-5x5-v0", 1, seed=0)
    spec = loop.spec.observation
    assert set(spec) == {"direction", "image"} and spec["direction"].counts == (4,)
    assert spec["image"].high[:6] == (10.0, 5.0, 3.0, 10.0, 5.0, 3.0)
    assert loop.remarks == {}  # its mission is always the same
    network = torso(spec, Torso())
    assert network.sees == "image 'image' 7x7, 3 channels (last axis), small CNN"
    assert network.features == 128 + 64


def test_text_that_matters_is_said_to_be_left_out():
    text = gym.spaces.Dict({"aim": gym.spaces.Dict({"words": gym.spaces.Text(9)}), "x": gym.spaces.Box(0, 1, (2,))})
    assert dict(unread(text)) == {
        "aim/words": "The text 'aim/words' of the observation is left out: policies see only numbers."
    }
    assert list(envs.make("MiniGrid-Fetch-5x5-N2-v0", 1, seed=0).remarks) == ["mission"]


def test_wrappers_of_minigrid_keep_the_bounds_of_what_they_give():
    minigrid = pytest.importorskip("minigrid")
    wrappers = minigrid.wrappers
    env = gym.make("MiniGrid-Empty-5x5-v0")
    assert readable(wrappers.ImgObsWrapper(env)).high.max() == 10
    assert readable(wrappers.FullyObsWrapper(env))["image"].high.max() == 10
    assert readable(wrappers.OneHotPartialObsWrapper(env))["image"].high.max() == 1
    assert readable(wrappers.RGBImgPartialObsWrapper(env))["image"].high.max() == 255
    cart = gym.make("CartPole-v1")
    assert readable(cart) is cart.observation_space


def test_two_equal_runs_of_minatar_are_equal_and_the_start_line_states_the_image(tmp_path, capsys):
    settings = {"steps": 64, "envs": 2, "unroll": 16, "backend": "numpy", "evaluations": 0, "seed": 4}
    runs = [cavalcade.train("a2c", "MinAtar/Breakout-v1", out=tmp_path / out, **settings) for out in "ab"]
    assert "image 10x10, 4 channels (last axis), small CNN; " in capsys.readouterr().out
    one, other = (cavalcade.load_policy(run.path).vector for run in runs)
    assert np.array_equal(one, other)


def test_check_says_that_bytes_are_far_below_their_bounds():
    class Faint(gym.Env):
        observation_space, action_space = gym.spaces.Box(0, 255, (5, 5, 1), np.uint8), gym.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return self.np_random.integers(0, 4, (5, 5, 1), np.uint8), {}

        def step(self, action):
            return self.reset()[0], 1.0, True, False, {}

    found = [one for one in cavalcade.check(Faint, steps=20) if one.level == "warning"]
    assert "divided by the highest value of their Box, 255; declare bounds that fit" in found[0].sentence
