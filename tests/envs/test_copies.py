"""Many copies of an environment that Gymnasium has in a vector form: used from 64 on, like single ones, and saved."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

import cavalcade
from cavalcade import envs
from cavalcade.checkpoints import checkpoint
from cavalcade.envs.copies import MANY
from cavalcade.envs.toy import Corridor, MaskedBandit
from cavalcade.experiment import probe

SMALL = {"backend": "numpy", "envs": MANY, "hidden": (8,), "unroll": 8, "epochs": 1, "rows": 2, "anneal": False}
SMALL |= {"seed": 3, "evaluations": 1, "evaluation_episodes": 2}


def chosen(environment, count=MANY, wanted="auto", **options):
    return envs.copies_of(environment, probe(environment, options), count, wanted, options)


def many(count=MANY, seed=0, **options):
    return envs.make(chosen("CartPole-v1", count, **options).environment, count, seed, **options)


def half_of_them_balance(observation, random):
    """[N] actions with which some episodes end early and others reach their limit."""
    good = (observation[:, 2] + observation[:, 3] > 0).astype(np.int64)
    return np.where(np.arange(len(good)) % 2, good, random.integers(0, 2, len(good)))


# --- the same as single ones ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"sutton_barto_reward": True}], ids=["", "options"])
def test_vectorised_cartpoles_are_single_cartpoles(options):
    """The same actions from the same states, for several episodes: observations, rewards, ends and their kind."""
    options, random = {"max_episode_steps": 30, **options}, np.random.default_rng(0)
    pool = many(**options)
    singles = [gym.make("CartPole-v1", **options) for _ in range(MANY)]
    observation, begin, ends = pool.reset(), np.ones(MANY, bool), []
    totals, lengths = np.zeros(MANY), np.zeros(MANY, int)
    for _ in range(80):
        for row in np.flatnonzero(begin):
            singles[row].reset(seed=0)
            singles[row].unwrapped.state = pool._env.state[:, row].copy()
        totals[begin], lengths[begin] = 0, 0
        action = half_of_them_balance(observation, random)
        step = pool.step(action)
        rows = np.flatnonzero(step.valid)
        seen, reward, terminated, truncated, _ = zip(*(singles[row].step(int(action[row])) for row in rows))
        np.testing.assert_allclose(step.next_observation[rows], seen, rtol=1e-5, atol=1e-6)
        for ours, theirs in ((step.reward, reward), (step.terminated, terminated), (step.truncated, truncated)):
            np.testing.assert_array_equal(ours[rows], theirs)
        totals[rows], lengths[rows] = totals[rows] + reward, lengths[rows] + 1
        ended = np.flatnonzero(step.terminated | step.truncated)
        assert step.episodes == [(row, totals[row], lengths[row]) for row in ended]
        ends += [(step.terminated[row], lengths[row]) for row in ended]
        begin, observation = step.first, step.observation
    assert len(ends) > MANY and (False, 30) in ends and min(length for _, length in ends) < 15


def test_the_spec_is_that_of_single_ones():
    for options in ({}, {"max_episode_steps": 30}):
        assert many(**options).spec == probe("CartPole-v1", options)


# --- when it is used -----------------------------------------------------------------------------------------------


def test_auto_is_from_64_copies_on_and_never_is_never():
    assert chosen("CartPole-v1", MANY - 1).environment == chosen("CartPole-v1", wanted="never").environment
    assert chosen("CartPole-v1", MANY - 1) == ("CartPole-v1", "")
    assert chosen("CartPole-v1").environment != "CartPole-v1"
    assert chosen("gymnasium:CartPole-v1").told == " in their vector form"


def cartpole():
    return gym.make("CartPole-v1")


class Unlike(SyncVectorEnv):
    """Says nothing of which arms are legal."""

    def __init__(self, num_envs, max_episode_steps=None):
        super().__init__([Corridor] * num_envs)


class Failing(VectorEnv):
    def __init__(self, num_envs, max_episode_steps=None):
        raise RuntimeError("no such simulator")


def masked(num_envs, arms=3):
    return SyncVectorEnv([lambda: MaskedBandit(arms=arms)] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)


@pytest.fixture
def registered():
    """An id with this vector entry point; forgotten afterwards."""
    made = []

    def register(entry, vector, **more):
        made.append(f"cavalcade-tests/Many{len(made)}-v0")
        gym.register(made[-1], entry, vector_entry_point=vector, **more)
        return made[-1]

    yield register
    for known in made:
        del gym.registry[known]


def test_what_would_differ_is_stepped_one_by_one_and_says_why(registered):
    limited = "gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv"
    single = "gymnasium.envs.classic_control.cartpole:CartPoleEnv"
    cases = {
        "": [cartpole, "Acrobot-v1", "tests.envs.test_copies:cartpole"],
        "has a time limit in any case": [registered(single, limited)],
        "has other spaces": [registered(MaskedBandit, Unlike)],
        "fails (RuntimeError: no such simulator)": [registered(Corridor, Failing)],
        "no option 'arms'": [registered(MaskedBandit, Unlike, kwargs={"arms": 4})],
    }
    for says, environments in cases.items():
        for environment in environments:
            found = chosen(environment)
            assert found.environment is environment and says in found.told
            assert found.told.startswith(", stepped one by one: ") == bool(says)
    endless = chosen("CartPole-v1", max_episode_steps=-1)  # gym.make takes this for no limit at all
    assert endless.environment == "CartPole-v1" and "a time limit in any case" in endless.told
    wrapper = gym.wrappers.TransformReward.wrapper_spec(func=None)
    wrapped = registered(single, limited, max_episode_steps=5, additional_wrappers=(wrapper,))
    assert "their wrappers" in envs.copies_of(wrapped, probe("CartPole-v1", {}), MANY, "auto", {}).told


def test_gymnasiums_jax_environments_are_stepped_one_by_one():
    """In their vector form all copies stand still while one of them begins an episode."""
    found = envs.copies_of("phys2d/CartPole-v1", probe("CartPole-v1", {}), MANY, "auto", {})
    assert found.environment == "phys2d/CartPole-v1" and "stand still" in found.told


def test_masks_and_options_reach_the_vector_form(registered):
    environment = registered(MaskedBandit, masked)
    found = chosen(environment, arms=5)
    assert found.told == " in their vector form, which cannot be saved: a resumed run begins new episodes"
    pool = envs.make(found.environment, MANY, 0, arms=5)
    assert pool.count == MANY and pool.spec.masked and pool.spec.action.counts == (5,)
    assert pool.reset()["action_mask"].shape == (MANY, 5)
    pool.close()


# --- saved and restored --------------------------------------------------------------------------------------------


def test_saved_environments_go_on_to_the_same_bits(tmp_path):
    original, random = many(seed=7, max_episode_steps=20), np.random.default_rng(0)
    observation = original.reset()
    for _ in range(31):  # some are being reset in the coming step
        observation = original.step(half_of_them_balance(observation, random)).observation
    checkpoint.save(tmp_path, {"environments": original.state()}, 1)
    kept = checkpoint.load_latest(tmp_path)[0]["environments"]
    restored = many(seed=99, max_episode_steps=20)  # nothing of its own is left
    np.testing.assert_array_equal(restored.restore(kept), observation)
    assert restored.resume == "restored" and not restored.restarted.any()
    for _ in range(50):
        action = half_of_them_balance(observation, random)
        ours, theirs = original.step(action), restored.step(action)
        for one, other in zip(ours[:-1], theirs[:-1], strict=True):
            np.testing.assert_array_equal(one, other)
        assert ours.episodes == theirs.episodes
        observation = ours.observation


ELSEWHERE = [0]  # memory that no attribute shows


class Counting(VectorEnv):
    """Gives the number of its steps, which it keeps in an attribute or elsewhere."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(self, num_envs, hidden):
        self.num_envs, self.hidden, self.number = num_envs, hidden, 0
        self.single_observation_space = gym.spaces.Box(0, 1000, (1,))
        self.single_action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.number = ELSEWHERE[0] = 0
        return np.zeros((self.num_envs, 1), np.float32), {}

    def step(self, action):
        ELSEWHERE[0] += 1
        self.number = 0 if self.hidden else self.number + 1
        number, never = ELSEWHERE[0] if self.hidden else self.number, np.zeros((2, self.num_envs), bool)
        return np.full((self.num_envs, 1), number, np.float32), np.ones(self.num_envs), *never, {}


@pytest.mark.parametrize("hidden", [False, True])
def test_what_attributes_do_not_show_is_not_taken_for_saved(hidden):
    """Plain attributes may be all there is or not: it is tried out, and the first episode begins as if it had not."""
    pool = envs.make(Counting, 2, seed=0, hidden=hidden)
    assert pool.resume == pool.state()["resume"] == ("restarted" if hidden else "restored")
    assert pool.reset().tolist() == [[0], [0]]
    assert pool.step(np.zeros(2, int)).observation.tolist() == [[1], [1]]


def test_a_state_of_other_attributes_begins_new_episodes():
    """As of another version of the package that the environment is from."""
    state = many().state()
    state["attributes"]["values"]["friction"] = state["attributes"]["values"].pop("gravity")
    pool = many()
    pool.restore(state)
    assert pool.resume == "restarted" and pool.restarted.all() and not hasattr(pool._env, "friction")


def test_a_run_goes_on_to_the_same_bits(tmp_path, capsys):
    def train(name, steps, **more):
        return cavalcade.train("ppo", "CartPole-v1", out=tmp_path / name, steps=steps, **SMALL, **more)

    def last(run):
        return checkpoint.load_latest(run.checkpoints)[0]["nodes"]

    short, whole = train("run", 2_000), train("whole", 4_000)
    assert f"1 x {MANY} environments in their vector form; table" in capsys.readouterr().out
    assert short.config["vector"] == "auto"
    before = last(short)
    cavalcade.resume(short.path, steps=4_000)
    assert "actor/0: environments restored, the run goes on exactly" in capsys.readouterr().out
    ours, theirs = last(short), last(whole)
    np.testing.assert_equal(ours["actor/0"], theirs["actor/0"])
    params = [nodes["learner"]["state"]["params"] for nodes in (ours, theirs, before)]
    np.testing.assert_array_equal(params[0], params[1])
    assert not np.array_equal(params[0], params[2])
    single = train("single", 1_000, vector="never")
    assert single.config["vector"] == "never" and last(single)["actor/0"]["environments"]["resume"] == "replayed"
    assert "vector form" not in capsys.readouterr().out
