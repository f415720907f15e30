"""A loaded policy in a loop of one's own: raw observations and infos in, actions as the environment takes them out."""

import copy

import gymnasium as gym
import numpy as np
import pytest

import cavalcade
from cavalcade import envs
from cavalcade.acting.greedy import Greedy
from cavalcade.envs.encoding import ActionDecoder
from cavalcade.envs.spaces import action_space, action_spec
from cavalcade.envs.vector import stream_seed
from cavalcade.errors import UserError
from cavalcade.experiment.experiment import Experiment, Settings
from cavalcade.specs import MASK

SEED = 7


class Spaces(gym.Env):
    """Random observations of any space; actions outside the action space, and illegal ones, raise."""

    def __init__(self, observation, action, masked=False):
        self.observation_space, self.action_space = copy.deepcopy(observation), action  # each draws its own samples
        self.masked = masked

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.steps = 0
        return self._observe()

    def step(self, action):
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        if self.masked:
            starts, actions = np.ravel(self.action_space.start), np.ravel(action)
            assert all(part[a - s] for part, a, s in zip(self.legal, actions, starts)), f"{action} is not legal"
        self.steps += 1
        observation, info = self._observe()
        return observation, 1.0, self.steps == 12, False, info

    def _observe(self):
        observation = self.observation_space.sample()
        if not self.masked:
            return observation, {"anything": 1}
        counts = np.ravel(getattr(self.action_space, "nvec", getattr(self.action_space, "n", None)))
        self.legal = tuple(np.eye(count, dtype=np.int8)[self.np_random.integers(count)] for count in counts)
        return observation, {MASK: self.legal if len(counts) > 1 else self.legal[0]}


box, discrete, multi = gym.spaces.Box, gym.spaces.Discrete, gym.spaces.MultiDiscrete
VECTOR = box(-1.0, 1.0, (3,))
NEST = gym.spaces.Dict({"body": VECTOR, "where": gym.spaces.Tuple((discrete(4, start=-2), multi([2, 3])))})
ENVIRONMENTS = {
    "a start": lambda: Spaces(discrete(5, start=3), discrete(3, start=10)),
    "a tuple": lambda: Spaces(gym.spaces.Tuple((VECTOR, discrete(4, start=1))), discrete(2)),
    "a nest": lambda: Spaces(NEST, discrete(2)),
    "bits": lambda: Spaces(gym.spaces.MultiBinary((2, 2)), discrete(2)),
    "pixels": lambda: Spaces(box(0, 255, (5, 4), np.uint8), discrete(6)),
    "many choices": lambda: Spaces(VECTOR, multi([2, 3], start=[1, -1])),
    "continuous": lambda: Spaces(VECTOR, box(np.float32([-0.01, 2.0]), np.float32([0.01, 3.0]))),
    "mask and nest": lambda: Spaces(NEST, discrete(3, start=4), masked=True),
    "masks of many choices": lambda: Spaces(VECTOR, multi([2, 3], start=[1, -1]), masked=True),
    "Taxi-v4": "Taxi-v4",
    "bandit": "cavalcade/MaskedBandit-v0",
    "bandit, info": "cavalcade/MaskedBandit-v0",
    "Pendulum-v1": "Pendulum-v1",
}
OPTIONS = {"bandit, info": {"where": "info"}}
MEMORY = {"a nest", "bandit, info"}


def made(name):
    given = ENVIRONMENTS[name]
    return gym.make(given, **OPTIONS.get(name, {})) if isinstance(given, str) else given()


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """A policy that was saved and loaded again; it was not trained, and its choices are as good as others here."""
    folder, found = tmp_path_factory.mktemp("policies"), {}

    def get(name):
        if name not in found:
            settings = Settings(backend="numpy", envs=1, seed=SEED)
            changes = {"memory": 4} if name in MEMORY else {}
            run = Experiment.create("a2c", ENVIRONMENTS[name], settings, changes, OPTIONS.get(name, {}))
            policy = run.parts.policy()
            policy.load(20.0 * policy.vector, policy.statistics, 1)  # far from indifferent
            policy.save(folder / name, {"backend": "numpy", "custom_network": False})
            found[name] = cavalcade.load_policy(folder / name)
        return found[name]

    return get


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_a_loop_of_ones_own_does_what_evaluation_does(name, loaded):
    """Two episodes of an environment that was made by Gymnasium, against the same two in the framework's own loop."""
    policy, env = loaded(name), made(name)
    pool = envs.make(ENVIRONMENTS[name], 1, SEED, **OPTIONS.get(name, {}))
    act, decoder = Greedy(policy), ActionDecoder(env.action_space)
    obs, first, carry, actions = pool.reset(), np.ones(1, np.bool_), policy.model.carry(1), set()
    for episode in range(2):
        act.reset()
        observation, info = env.reset(seed=stream_seed(SEED, 0, 0, episode))
        for _ in range(20):
            action = act(observation, info)
            ours, _, carry = policy.act(obs, carry, first, None)
            step = pool.step(ours)
            obs, first = step.observation, step.first
            observation, reward, terminated, truncated, info = env.step(action)
            assert reward == pytest.approx(float(step.reward[0]), rel=1e-6)
            assert np.array_equal(action, decoder.rows(ours)[0])
            actions.add(str(action))
            if terminated or truncated:
                break
        if not first[0]:  # episodes that are longer than the test
            break
    assert len(actions) > 1 or name == "Taxi-v4", "a policy that does not look would prove nothing"


def test_actions_are_what_the_environment_takes(loaded):
    assert type(Greedy(loaded("a start"))(np.int64(3))) is int
    assert Greedy(loaded("a start"))(3) in (10, 11, 12)
    choices = Greedy(loaded("many choices"))(np.zeros(3))
    assert choices.dtype == np.int64 and choices.shape == (2,)
    pushed = Greedy(loaded("continuous"))([1.0, -1.0, 1.0])
    assert pushed.dtype == np.float32 and -0.01 <= pushed[0] <= 0.01 and 2.0 <= pushed[1] <= 3.0


def test_a_mask_may_be_given_by_itself(loaded):
    only = np.array([0, 0, 0, 0, 1, 0], np.int8)
    for name in ("bandit", "bandit, info"):
        act = Greedy(loaded(name))
        assert act([0.5], mask=only) == 4 and act({"observation": [0.5]}, mask=only.tolist()) == 4
        assert act({"observation": [0.5], MASK: only}) == 4 and act([0.5], {MASK: only == 1}) == 4
        assert act({"observation": [0.5], MASK: only}, mask=np.roll(only, 1)) == 5
    assert Greedy(loaded("masks of many choices"))(np.zeros(3), mask=([0, 1], [1, 0, 0])).tolist() == [2, -1]
    assert Greedy(loaded("masks of many choices"))(np.zeros(3), mask=[0, 1, 1, 0, 0]).tolist() == [2, -1]


IMAGE = np.full((5, 4), 0.5, np.float32)
BODY = np.zeros(3, np.float32)
MISFITS = {
    "no mask": ("bandit, info", ([0.5],), r"says which actions are legal; give that too: act\(observation, info\)"),
    "no mask in info": ("Taxi-v4", (3, {"prob": 1.0}), "info['action_mask']"),
    "a mask too short": ("Taxi-v4", (3, {MASK: [1, 1]}), "has 2 entries for 6 choices"),
    "a mask of logits": ("Taxi-v4", (3, None, [0.1] * 6), "other numbers than 0 and 1"),
    "nothing legal": ("Taxi-v4", (3, None, [0] * 6), "allows no action"),
    "a mask for nothing": ("a tuple", ((BODY, 1), None, [1, 1]), "without masks"),
    "a shape": ("continuous", (np.zeros(4),), "has the shape (4,), but Spaces, on which .* has the shape (3,)"),
    "a batch": ("continuous", (np.zeros((1, 3)),), "has the shape (1, 3)"),
    "observation and info": ("continuous", ((BODY, {}),), "has a tuple"),
    "a ragged list": ("pixels", ([[1, 2], [3]],), "has a list"),
    "NaN": ("continuous", ([0.0, np.nan, 0.0],), "not finite"),
    "fractions for bytes": ("pixels", (IMAGE,), r"has 0.5 \(float32\), but .* has uint8"),
    "more than a byte": ("pixels", (np.full((5, 4), 300),), r"has 300 \(int64\), but .* has uint8"),
    "a choice too low": ("a start", (2,), "has the choice 2, but .* choices from 3 to 7"),
    "a choice too high": ("a tuple", ((BODY, 5),), "'1' of the observation has the choice 5, but .* from 1 to 4"),
    "three values of a bit": ("bits", ([[0, 1], [2, 0]],), "choices from"),
    "a part missing": ("a nest", ({"body": BODY},), "a dict without 'where'"),
    "an array for a nest": ("a nest", (BODY,), "a ndarray without 'body'"),
    "a shape in a nest": (
        "a nest",
        ({"body": BODY[:2], "where": (0, [0, 0])},),
        "'body' of the observation has the",
    ),
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_what_does_not_fit_is_one_sentence(misfit, loaded):
    name, given, said = MISFITS[misfit]
    said = said.replace("(4,)", r"\(4,\)").replace("(3,)", r"\(3,\)").replace("(1, 3)", r"\(1, 3\)")
    act = Greedy(loaded(name))
    with pytest.raises(UserError, match=said.replace("['action_mask']", r"\['action_mask'\]")) as caught:
        act(*given)
    assert "\n" not in str(caught.value) and str(caught.value).count(". ") == 0


@pytest.mark.parametrize(
    "space",
    [
        discrete(4, start=-1),
        multi([2, 3], start=[1, -1]),
        multi(np.array([[2, 3], [4, 5]])),
        box(-1.0, 1.0, (2, 3), np.float64),
        box(np.float32([-1, -np.inf]), np.float32([np.inf, 2])),
        box(-2.0, 2.0, (100,)),
    ],
    ids=str,
)
def test_an_action_space_comes_back_from_its_description(space):
    again = action_space(action_spec(space))
    assert again == space and again.dtype == space.dtype
