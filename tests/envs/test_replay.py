"""A saved loop continues exactly where it was, or admits that its environment does not repeat itself."""

import gymnasium as gym
import numpy as np
import pytest

from cavalcade import envs, tree
from cavalcade.errors import UserError
from cavalcade.specs import MASK

TAXI = max(name for name in gym.registry if name.startswith("Taxi-"))  # v3 is gone from newer versions


def random_actions(environments, observation, random):
    action = environments.spec.action
    if environments.spec.masked:
        return np.array([random.choice(np.flatnonzero(mask)) for mask in observation[MASK]])
    if action.kind == "box":
        return random.uniform(-3.0, 3.0, (environments.count, *action.shape)).astype(np.float32)
    return random.integers(0, action.counts[0], environments.count)


def assert_same(left, right):
    for (name, a), (_, b) in zip(tree.named(left), tree.named(right), strict=True):
        np.testing.assert_array_equal(a, b, err_msg=name)


def assert_plain(node):
    if isinstance(node, dict):
        assert all(isinstance(key, str) for key in node)
        for child in node.values():
            assert_plain(child)
    else:
        assert isinstance(node, (str, int, float, bool)) or (isinstance(node, np.ndarray) and node.dtype != object)


@pytest.mark.parametrize(
    "name",
    [
        "CartPole-v1",
        "Acrobot-v1",
        TAXI,
        "Pendulum-v1",
        "FrozenLake-v1",
        "cavalcade/CartPoleNoVelocity-v1",
        "cavalcade/MaskedBandit-v0",
    ],
)
def test_replayed_restore_is_exact(name):
    original, random = envs.make(name, 3, seed=7, actor=2), np.random.default_rng(0)
    observation = original.reset()
    for _ in range(137):
        observation = original.step(random_actions(original, observation, random)).observation
    state = original.state()
    assert_plain(state)

    restored = envs.make(name, 3, seed=7, actor=2)
    assert_same(observation, restored.restore(state))
    assert restored.resume == "replayed" and not restored.restarted.any()
    assert_same(state, restored.state())
    finished = []
    for _ in range(250):
        action = random_actions(original, observation, random)
        expected, got = original.step(action), restored.step(action)
        assert_same(expected._asdict() | {"episodes": 0}, got._asdict() | {"episodes": 0})
        assert expected.episodes == got.episodes
        finished += got.episodes
        observation = expected.observation
    assert finished or name == "Acrobot-v1"


def test_a_state_from_before_the_first_step():
    original, restored = (envs.make("CartPole-v1", 2, seed=0) for _ in range(2))
    observation = original.reset()
    assert_same(observation, restored.restore(original.state()))
    assert_same(original.step(np.ones(2, int)).observation, restored.step(np.ones(2, int)).observation)


class Sensor(gym.Env):
    """Reads its own step number; with `noise` from a source that no seed controls."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, noise, breaks=False):
        self.noise, self.breaks = noise, breaks

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        self.surprise = np.random.default_rng().random() if self.noise else 0.0
        return self.read(), {}

    def step(self, action):
        self.steps += 1
        return self.read(), 1.0, False, False, {}

    def read(self):
        return np.array([self.steps + self.surprise])


def test_an_environment_that_does_not_repeat_itself_is_restarted():
    def noisy_second():
        flags = iter([False, True, False])
        return envs.make(lambda: Sensor(next(flags)), 3, seed=0)

    original = noisy_second()
    original.reset()
    for _ in range(4):
        original.step(np.zeros(3, int))
    restored = noisy_second()
    observation = restored.restore(original.state())
    assert restored.resume == "restarted"
    assert restored.restarted.tolist() == [False, True, False]
    assert observation[0] == 4 and 0 <= observation[1] < 1 and observation[2] == 4
    state = restored.state()
    assert state["episode"].tolist() == [0, 1, 0] and state["length"].tolist() == [4, 0, 4]
    assert state["total"].tolist() == [4, 0, 4]


def test_another_number_of_environments_is_refused():
    state = envs.make("CartPole-v1", 2, seed=0).state()
    with pytest.raises(UserError, match="same kind and number"):
        envs.make("CartPole-v1", 3, seed=0).restore(state)


def stream(name="CartPole-v1", count=3, seed=0, actor=0, steps=60):
    environments = envs.make(name, count, seed, actor)
    observations = [environments.reset()]
    for number in range(steps):
        observations.append(environments.step(np.full(count, number % 2)).observation)
    return np.stack(observations)


def test_streams_depend_on_seed_actor_and_index_only():
    base = stream()
    np.testing.assert_array_equal(base, stream())
    np.testing.assert_array_equal(base[:, :2], stream(count=2))  # more environments change no existing one
    for other in (stream(seed=1), stream(actor=1)):
        assert not (base[0] == other[0]).any()
    assert len(np.unique(base[0, :, 0])) == 3
    starts = np.unique(base[np.abs(base).max(axis=2) <= 0.05], axis=0)
    assert len(starts) > 3  # later episodes begin elsewhere


def test_reset_again_begins_other_episodes():
    environments = envs.make("CartPole-v1", 2, seed=0)
    first, second = environments.reset(), environments.reset()
    assert not np.array_equal(first, second)
    assert environments.state()["episode"].tolist() == [1, 1]
