"""What an environment gives is held against what it declares and what Gymnasium asks; each misfit is one sentence."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from cavalcade import envs
from cavalcade.envs import inspector
from cavalcade.envs.encoding import random_actions
from cavalcade.errors import UserError
from cavalcade.failures import EnvironmentFailed
from cavalcade.specs import MASK

UINT8 = spaces.Box(0, 255, (2, 2), np.uint8)
BLACK = np.zeros((2, 2), np.uint8)
FLOATS = spaces.Box(-1.0, 1.0, (2,), np.float32)
OBS = np.zeros(2, np.float32)


class Odd(gym.Env):
    """Gives `good` until step `at` of episode `episode`, and then `odd`; episodes of five steps."""

    def __init__(self, space, good, odd, at=2, episode=0, action_space=None):
        self.observation_space, self.action_space = space, action_space or spaces.Discrete(2)
        self.good, self.odd, self.at, self.wanted = good, odd, at, episode
        self.episode, self.steps = -1, 0

    def reset(self, *, seed=None, options=None):
        self.episode, self.steps = self.episode + 1, 0
        return self.give(), {}

    def step(self, action):
        self.steps += 1
        return self.give(), 0.0, self.steps == 5, False, {}

    def give(self):
        return self.odd if (self.episode, self.steps) == (self.wanted, self.at) else self.good


def made(kind, makers):
    if kind == "loop":
        waiting = iter(makers)
        return envs.make(lambda: next(waiting)(), len(makers), seed=0)
    return envs.make(SyncVectorEnv(makers, autoreset_mode=kind), len(makers), seed=0)


def stepped(environments, steps=12):
    random, observation = np.random.default_rng(0), environments.reset()
    for _ in range(steps):
        action = random_actions(environments.spec, observation, environments.count, random)
        observation = environments.step(action).observation
    return environments


MISFITS = {  # space, what fits, what does not, what came, what is declared
    "a float image": (UINT8, BLACK, np.full((2, 2), 0.53), "0.53 (float64) at [0, 0]", "uint8 from 0 to 255"),
    "300 in uint8": (UINT8, BLACK, np.array([[0, 300], [0, 0]]), "300 (int64) at [0, 1]", "uint8 from 0 to 255"),
    "-1 in uint8": (UINT8, BLACK, np.array([[0, 0], [-1, 0]], np.int16), "-1 (int16)", "uint8 from 0 to 255"),
    "a wrap among integers": (UINT8, BLACK, np.full((2, 2), 300, np.uint16), "300 (uint16)", "uint8"),
    "NaN among integers": (UINT8, BLACK, np.full((2, 2), np.nan), "nan (float64)", "uint8"),
    "half a Discrete": (spaces.Discrete(3), 1, 0.5, "0.5 (float64)", "Discrete(3)"),
    "a Discrete too high": (spaces.Discrete(3), 1, 3, "3 (int64)", "Discrete(3)"),
    "a Discrete too low": (spaces.Discrete(3, start=5), 5, 4, "4 (int64)", "Discrete(3, start=5)"),
    "MultiDiscrete": (spaces.MultiDiscrete([3, 4]), np.array([2, 3]), np.array([2, 4]), "4 (int64) at [1]", "MultiDis"),
    "MultiBinary": (spaces.MultiBinary(2), np.array([1, 0]), np.array([1, 2]), "2 (int", "MultiBinary(2)"),
    "another shape": (FLOATS, np.zeros(2), np.zeros(3), "an array of shape (3,)", "the shape (2,)"),
    "too many axes": (FLOATS, np.zeros(2), np.zeros((2, 1)), "an array of shape (2, 1)", "the shape (2,)"),
}


@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")
@pytest.mark.parametrize("kind", ["loop", *AutoresetMode])
@pytest.mark.parametrize("case", MISFITS)
def test_what_does_not_fit_is_refused_with_its_place(kind, case):
    space, good, odd, came, declared = MISFITS[case]
    for at in (0, 2, 5):  # the first, one in between and the last observation of an episode
        with pytest.raises(UserError) as caught:
            stepped(made(kind, [lambda: Odd(space, good, good), lambda at=at: Odd(space, good, odd, at, episode=1)]))
        said = str(caught.value)
        assert said.startswith("The environment 'Odd' gave ") and came in said and declared in said, said
        assert f"environment 1, episode 1, step {at}," in said or at == 0, said


def test_the_field_of_a_nested_observation_is_named():
    space = spaces.Dict({"eyes": spaces.Tuple([FLOATS, UINT8])})
    good = {"eyes": (np.zeros(2), BLACK)}
    text = r"gave 0.5 \(float64\) at \[0, 0\] in 'eyes/1' of the observation in environment 0, episode 0, step 2"
    with pytest.raises(UserError, match=text):
        stepped(made("loop", [lambda: Odd(space, good, {"eyes": (np.zeros(2), np.full((2, 2), 0.5))})]))
    with pytest.raises(UserError, match=r"a tuple without 'eyes/1' in the observation|a dict without 'eyes/1'"):
        stepped(made("loop", [lambda: Odd(space, good, {"eyes": (np.zeros(2),)})]))
    with pytest.raises(UserError, match="gave a str in 'eyes/0' of the observation"):
        stepped(made("loop", [lambda: Odd(space, good, {"eyes": ("ab", BLACK)})]))


def test_what_a_cast_leaves_as_it_is_passes():
    for space, value in (
        (FLOATS, np.array([0.5, 1.0000001])),  # float64, and rounding at the edge
        (FLOATS, [1, 0]),
        (UINT8, np.full((2, 2), 7.0)),
        (UINT8, [[True, False], [1, 255]]),
        (spaces.Discrete(3), np.int8(2)),
        (spaces.Box(0, 1, (2,), bool), np.array([1, 0])),
    ):
        assert stepped(made("loop", [lambda s=space, v=value: Odd(s, v, v)])).remarks == {}


@pytest.mark.parametrize("kind", ["loop", AutoresetMode.SAME_STEP])
def test_a_value_out_of_its_bounds_is_said_once_and_goes_through(kind):
    environments = stepped(made(kind, [lambda: Odd(FLOATS, np.zeros(2), np.array([0.0, 7.0]))] * 2))
    [(field, remark)] = environments.remarks.items()
    assert field == "" and remark == (
        "The environment 'Odd' gave 7 (float64) at [1] in the observation in environment 0, episode 0, step 2, but its "
        "space declares float32 from -1 to 1; correct the bounds."
    )
    small = spaces.Box(0, 9, (1,), np.int64)
    assert "12 (int64)" in stepped(made("loop", [lambda: Odd(small, [0], [12])])).remarks[""]


def test_gymnasiums_own_environments_pass_without_a_remark():
    for name in ("CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1", "Acrobot-v1"):
        assert stepped(envs.make(name, 2, seed=0), 250).remarks == {}
    for name in ("Blackjack-v1", "FrozenLake-v1", "CliffWalking-v1", *(n for n in gym.registry if "Taxi-" in n)):
        assert stepped(envs.make(name, 2, seed=0), 250).remarks == {}


def test_later_steps_are_sampled(monkeypatch):
    """The first episodes of every environment are looked at whole, later one step of many."""
    looked = []
    whole = inspector.Inspector.check_steps
    monkeypatch.setattr(inspector.Inspector, "check_steps", lambda self, results: looked.append(whole(self, results)))
    environments = stepped(made("loop", [lambda: Odd(FLOATS, np.zeros(2), np.zeros(2))] * 3), 10)
    assert len(looked) == 10
    stepped(environments, 10 * inspector.EVERY)
    assert len(looked) - 10 in (10, 11)

    class Late(Odd):
        def give(self):
            return self.odd if self.steps == self.at and self.episode >= self.wanted else self.good

    for at in range(1, 6):  # all steps of episodes of one length have their turn
        with pytest.raises(UserError, match=f"gave 9 .*, step {at},"):
            stepped(made("loop", [lambda at=at: Late(spaces.Discrete(3), 1, 9, at, episode=4)]), 6 * inspector.EVERY)


def corridor_of_floats():
    return Odd(UINT8, BLACK, np.full((2, 2), 0.5), at=3)


def test_async_vector_environments_cast_out_of_sight():
    vector = AsyncVectorEnv([corridor_of_floats])
    try:
        with pytest.raises(UserError, match=r"gave 0.5 \(float64\) at \[0, 0\] in the observation"):
            envs.make(vector, 1, seed=0)
    finally:
        vector.close()


class Rude(gym.Env):
    """Keeps to Gymnasium's protocol except where told."""

    observation_space, action_space = FLOATS, spaces.Discrete(2)
    good = (OBS, 0.0, False, False, {})

    def __init__(self, result=good, begins=(OBS, {})):
        self.result, self.begins = result, begins

    def reset(self, *, seed=None, options=None):
        return self.begins

    def step(self, action):
        return self.result


class Seedless(Rude):
    def reset(self):
        return self.begins


PROTOCOL = {
    "four values": ({"result": (OBS, 0.0, False, {})}, "4 values in .*terminated, truncated"),
    "six values": ({"result": (*Rude.good, 1)}, "(6|more) values in .*terminated, truncated"),
    "no tuple": ({"result": OBS}, "returned a ndarray in environment 0, episode 0, step 1"),
    "a reward of words": ({"result": (OBS, "much", False, False, {})}, "the reward 'much' in environment 0, .*step 1"),
    "no reward": ({"result": (OBS, None, False, False, {})}, "the reward None in environment 0, episode 0, step 1"),
    "two rewards": ({"result": (OBS, np.ones(2), False, False, {})}, "the reward array.* step 1"),
    "a flag of words": ({"result": (OBS, 0.0, "no", False, {})}, "terminated='no' in environment 0, .*step 1"),
    "no flag": ({"result": (OBS, 0.0, False, None, {})}, "truncated=None in environment 0, episode 0, step 1"),
    "a flag of two": ({"result": (OBS, 0.0, 2, False, {})}, "terminated=2 in environment 0, episode 0, step 1"),
    "no info": ({"result": (OBS, 0.0, False, False, None)}, "the info None in environment 0, episode 0, step 1"),
    "reset without info": ({"begins": OBS}, r"reset\(\).* returned a ndarray .*episode 0, step 0; return \(obs"),
    "reset of three": ({"begins": (OBS, {}, 1)}, r"reset\(\).* returned 3 values in environment 0"),
    "reset with a list": ({"begins": (OBS, [])}, r"reset\(\).* a pair with a list in environment 0"),
}


@pytest.mark.parametrize("case", PROTOCOL)
def test_what_gymnasium_asks(case):
    options, text = PROTOCOL[case]
    with pytest.raises(UserError, match=text):
        stepped(envs.make(lambda: Rude(**options), 2, seed=0))


def test_what_gymnasium_asks_inside_its_wrappers_and_vectors():
    """Gymnasium itself unpacks what environments return, and fails there."""
    four, bare = PROTOCOL["four values"][0], PROTOCOL["reset without info"][0]
    with pytest.raises(UserError, match=r"returned 4 values in environment 0, episode 0, step 1, .*step\(\) to return"):
        stepped(envs.make(lambda: gym.wrappers.TimeLimit(Rude(**four), 5), 2, seed=0))
    with pytest.raises(UserError, match=r"returned 4 values in one of its environments, .*step\(\) to return"):
        stepped(envs.make(SyncVectorEnv([lambda: Rude(**four)]), 1, seed=0))
    with pytest.raises(UserError, match=r"reset\(\) of 'Rude' returned|asks its reset\(\) to return"):
        stepped(envs.make(lambda: gym.wrappers.TransformObservation(Rude(**bare), lambda o: o, FLOATS), 2, seed=0))
    for environment in (Seedless, lambda: gym.wrappers.TimeLimit(Seedless(), 5), SyncVectorEnv([Seedless])):
        with pytest.raises(
            UserError, match=r"reset\(\) of 'Seedless' takes no 'seed'; write it as reset\(self, \*, seed"
        ):
            envs.make(environment, 1, seed=0)


def test_an_unpacking_error_of_the_users_own_stays_as_it_is():
    class Own(Rude):
        def step(self, action):
            reward, done = (1, False, {})
            return OBS, reward, done, False, {}

    with pytest.raises(EnvironmentFailed, match=r"'Own' failed in step 1 .*too many values.*test_checks"):
        stepped(envs.make(Own, 1, seed=0))

    class Broken(Rude):
        def reset(self, *, seed=None, options=None):
            raise RuntimeError("no connection")

    with pytest.raises(EnvironmentFailed, match=r"'Broken' failed in its first reset\(\): RuntimeError: no connection"):
        envs.make(Broken, 1, seed=0)


def test_vector_environments_keep_to_the_protocol_too():
    class Short(SyncVectorEnv):
        def step(self, actions):
            obs, reward, *rest = super().step(actions)
            return obs, reward[:1], *rest

    with pytest.raises(UserError, match=r"gave reward as float64 of shape \(1,\) in environment 0, episode 0, step 1"):
        stepped(envs.make(Short([Rude] * 2), 2, seed=0))


class Masked(Rude):
    action_space = spaces.MultiDiscrete([2, 3])

    def __init__(self, mask):
        self.mask, self.steps = mask, 0

    def reset(self, *, seed=None, options=None):
        return OBS, {MASK: np.ones(5, np.int8)}

    def step(self, action):
        self.steps += 1
        return OBS, 0.0, False, False, {MASK: self.mask if self.steps == 3 else np.ones(5, np.int8)}


NO_ENTRY = np.array([1, 1, 0, 0, 0], np.int8)


@pytest.mark.parametrize(
    ("kind", "mask", "text"),
    [
        ("loop", np.ones(4, np.int8), "has 4 entries for 5 choices in environment 1, episode 0, step 3"),
        ("loop", np.array([0.0, -np.inf, 0.0, 0.0, 0.0]), "holds -inf in environment 1, episode 0, step 3; give 1 for"),
        ("loop", NO_ENTRY, "no legal action in its 'action_mask' in environment 1, episode 0, step 3"),
        (AutoresetMode.NEXT_STEP, NO_ENTRY, "no legal action in its 'action_mask' in environment 1, .* step 3"),
    ],
)
def test_masks_that_cannot_be_say_where(kind, mask, text):
    with pytest.raises(UserError, match=text):
        stepped(made(kind, [lambda: Masked(np.ones(5, np.int8)), lambda: Masked(mask)]))
