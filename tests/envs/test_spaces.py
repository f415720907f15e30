"""Spaces arrive as trees of arrays that count from zero; actions arrive as the environment wants them."""

import json

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from cavalcade import envs, tree
from cavalcade.errors import UserError
from cavalcade.specs import EnvSpec


class Scripted(gym.Env):
    """Any spaces; observations are samples, and the actions received are written down."""

    def __init__(self, observation_space, action_space=None):
        self.observation_space = observation_space
        self.action_space = action_space or spaces.Discrete(2)
        self.received, self.given, self.steps = [], [], 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.steps = 0
        return self.give(), {}

    def step(self, action):
        self.received.append(np.copy(action))
        if isinstance(action, np.ndarray):
            action[...] = 0  # some environments do this
        self.steps += 1
        return self.give(), 0.25, self.steps == 3, False, {}

    def give(self):
        self.given.append(self.observation_space.sample())
        return self.given[-1]


NESTED = spaces.Dict(
    {
        "image": spaces.Box(0, 255, (4, 3), np.uint8),
        "pair": spaces.Tuple([spaces.Discrete(3, start=5), spaces.Box(-1, 1, (2,), np.float64)]),
        "multi": spaces.MultiDiscrete([3, 4], start=[10, -2]),
        "bits": spaces.MultiBinary(3),
        "scalar": spaces.Box(0, 1, (), np.float32),
    }
)


def shifted(sample):
    """What a sample of NESTED should become."""
    return {
        "image": sample["image"],
        "pair/0": sample["pair"][0] - 5,
        "pair/1": sample["pair"][1],
        "multi": sample["multi"] - [10, -2],
        "bits": sample["bits"],
        "scalar": sample["scalar"],
    }


@pytest.mark.parametrize("kind", ["loop", *AutoresetMode])
def test_nested_observations(kind):
    made = []

    def one():
        made.append(Scripted(NESTED))
        return made[-1]

    if kind == "loop":
        environments = envs.make(one, 2, seed=0)
    else:
        environments = envs.make(SyncVectorEnv([one, one], autoreset_mode=kind), 2, seed=0)
    made = made[-2:]
    dtypes = {name: leaf.dtype for name, leaf in tree.named(environments.spec.observation)}
    assert dtypes == {
        "bits": "int8",
        "image": "uint8",
        "multi": "int64",
        "pair/0": "int64",
        "pair/1": "float64",
        "scalar": "float32",
    }

    def check(observation, places):
        for name, array in tree.named(observation):
            assert array.dtype == dtypes[name]
            for row, place in enumerate(places):
                np.testing.assert_array_equal(array[row], shifted(made[row].given[place])[name])

    check(environments.reset(), [-1, -1])
    for number in range(1, 6):
        step = environments.step(np.zeros(2, int))
        ended = (step.terminated | step.truncated).all()
        check(step.next_observation, [-2 if ended and kind is not AutoresetMode.NEXT_STEP else -1] * 2)
        check(step.observation, [-1, -1])
        assert ended == (number == 3)


def both_kinds(make_one):
    """The loop, and a vector environment, with the environments inside."""
    loop_env = make_one()
    yield envs.make(loop_env, 1, seed=0), [loop_env]
    inside = []

    def remember():
        inside.append(make_one())
        return inside[-1]

    yield envs.make(SyncVectorEnv([remember], autoreset_mode=AutoresetMode.SAME_STEP), 1, seed=0), inside


def test_discrete_actions_start_where_the_space_starts():
    for environments, inside in both_kinds(lambda: Scripted(spaces.Box(0, 1, (1,)), spaces.Discrete(3, start=-1))):
        for action in (0, 2):
            environments.step(np.array([action]))
        assert [int(action) for action in inside[-1].received] == [-1, 1]


def test_multi_discrete_actions():
    space = spaces.MultiDiscrete([3, 2], start=[4, 0])
    for environments, inside in both_kinds(lambda: Scripted(spaces.Box(0, 1, (1,)), space)):
        environments.step(np.array([[2, 1]]))
        assert inside[-1].received[0].tolist() == [6, 1]


def test_box_actions_are_clipped_and_keep_their_dtype():
    space = spaces.Box(np.array([-1.0, -np.inf]), np.array([0.5, np.inf]), dtype=np.float64)
    for environments, inside in both_kinds(lambda: Scripted(spaces.Box(0, 1, (1,)), space)):
        action = np.array([[9.0, 9.0]], np.float32)
        environments.step(action)
        assert inside[-1].received[0].tolist() == [0.5, 9.0] and inside[-1].received[0].dtype == np.float64
        assert action.tolist() == [[9.0, 9.0]]  # the caller's array is its own
        if environments.resume == "replayed":
            assert environments.state()["actions"].tolist() == [[0.5, 9.0]]  # though the environment zeroed its copy


ONE_SIDED = spaces.Box(np.array([0.0, -np.inf, -2.0]), np.array([np.inf, 1.0, 3.0]), dtype=np.float64)


@pytest.mark.parametrize(
    ("environment", "low", "high"),
    [
        ("InvertedPendulum-v5", [-3], [3]),
        ("HalfCheetah-v5", [-1] * 6, [1] * 6),
        ("BipedalWalker-v3", [-1] * 4, [1] * 4),
        ("LunarLanderContinuous-v3", [-1, -1], [1, 1]),
        ("dm_control/quadruped-walk-v0", [-1, -1, -0.8] * 4, [1, 1.1, 0.8] * 4),
        ("dm_control/lqr-lqr_2_1-v0", [-np.inf], [np.inf]),  # declared as 1e10, MuJoCo's largest number
        (lambda: Scripted(spaces.Box(0, 1, (1,)), ONE_SIDED), [0, -np.inf, -2], [np.inf, 1, 3]),
        (lambda: Scripted(spaces.Box(0, 1, (1,)), spaces.Box(-2, 5, (9, 9))), np.full((9, 9), -2), np.full((9, 9), 5)),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_bounds_of_actions_and_the_same_from_json(environment, low, high):
    environments = envs.make(environment, 1, seed=0)
    written = json.dumps(environments.spec.to_json(), allow_nan=False)
    environments.close()
    for spec in (environments.spec, EnvSpec.from_json(json.loads(written))):
        bounds = spec.action.bounds
        assert [bound.shape for bound in bounds] == [spec.action.shape] * 2
        np.testing.assert_array_equal(bounds, np.asarray([low, high], spec.action.dtype))
        actions = envs.random_actions(spec, None, 5, np.random.default_rng(0))
        assert actions.shape == (5, *spec.action.shape)


@pytest.mark.parametrize(
    ("space", "text"),
    [
        (spaces.Text(5), "observation space Text is not supported"),
        (spaces.Dict({"a": spaces.Graph(spaces.Box(0, 1, (1,)), None)}), "observation.a space Graph"),
        (spaces.Tuple([spaces.Sequence(spaces.Discrete(2))]), "observation.0 space Sequence"),
    ],
)
def test_unsupported_observation_spaces(space, text):
    with pytest.raises(UserError, match=text):
        envs.make(lambda: Scripted(space), 1, seed=0)


@pytest.mark.parametrize("space", [spaces.Dict({"a": spaces.Discrete(2)}), spaces.MultiBinary(3)])
def test_unsupported_action_spaces(space):
    with pytest.raises(UserError, match=r"action space \w+ is not supported; use Discrete"):
        envs.make(lambda: Scripted(spaces.Box(0, 1, (1,)), space), 1, seed=0)


def test_observations_that_break_their_promise():
    class Liar(Scripted):
        def give(self):
            return np.zeros(7)

    with pytest.raises(
        UserError, match=r"an array of shape \(7,\) in the observation in environment 0, episode 0, step 0"
    ):
        envs.make(lambda: Liar(spaces.Box(0, 1, (2,))), 1, seed=0)
    with pytest.raises(UserError, match="a ndarray without 'a' in the observation"):
        envs.make(lambda: Liar(spaces.Dict({"a": spaces.Box(0, 1, (2,))})), 1, seed=0)


class Poisoned(gym.Env):
    observation_space = spaces.Dict({"arm": spaces.Box(-np.inf, np.inf, (2,)), "id": spaces.Discrete(3)})
    action_space = spaces.Box(-1, 1, (1,))

    def __init__(self, reward=0.0, value=0.0, at_reset=False):
        self.reward, self.value, self.at_reset, self.episode = reward, value, at_reset, -1

    def reset(self, *, seed=None, options=None):
        self.episode, self.steps = self.episode + 1, 0
        return self.give(self.value if self.at_reset and self.episode == 2 else 0.0), {}

    def step(self, action):
        self.steps += 1
        bad = self.episode == 1 and self.steps == 2
        value = 0.0 if self.at_reset or not bad else self.value
        return self.give(value), self.reward if bad else 0.0, self.steps == 3, False, {}

    def give(self, value):
        return {"arm": np.array([0.0, value], np.float32), "id": 0}


@pytest.mark.parametrize("kind", ["loop", *AutoresetMode])
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"reward": np.nan}, "gave the reward nan in environment 1, episode 1, step 2"),
        ({"reward": -np.inf}, "gave the reward -inf in environment 1, episode 1, step 2"),
        ({"value": np.nan}, "gave nan in 'arm' of the observation in environment 1, episode 1, step 2"),
        ({"value": np.inf}, "gave inf in 'arm' of the observation in environment 1, episode 1, step 2"),
        (
            {"value": np.nan, "at_reset": True},
            "gave nan in 'arm' of the observation in environment 1, episode 2, step 0",
        ),
    ],
)
def test_values_that_are_not_finite_are_named(kind, options, text):
    makers = [Poisoned, lambda: Poisoned(**options)]
    if kind == "loop":
        waiting = iter(makers)
        environments = envs.make(lambda: next(waiting)(), 2, seed=0)
    else:
        environments = envs.make(SyncVectorEnv(makers, autoreset_mode=kind), 2, seed=0)
    with pytest.raises(UserError, match=text) as caught:
        for _ in range(9):
            environments.step(np.zeros((2, 1)))
    assert "finite either" not in str(caught.value)


def test_large_but_finite_values_pass_and_a_bad_action_is_mentioned():
    class Huge(Scripted):
        def give(self):
            return np.full(2, 1e30, np.float32)

    environments = envs.make(lambda: Huge(spaces.Box(-np.inf, np.inf, (2,))), 1, seed=0)
    environments.step(np.zeros(1, int))
    with pytest.raises(UserError, match="the policy's action was not finite either"):
        pendulum = envs.make("Pendulum-v1", 2, seed=0)
        pendulum.step(np.array([[0.0], [np.nan]]))
