"""Whatever the autoreset mode, an environment gives the same valid transitions; none crosses an episode."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from cavalcade import envs
from cavalcade.envs.toy import ENDINGS, Corridor
from cavalcade.errors import UserError

MODES = ["loop", *AutoresetMode]


def build(mode, count, copy=True, **options):
    def one():
        return Corridor(**options)

    if mode == "loop":
        return envs.make(one, count, seed=1)
    return envs.make(SyncVectorEnv([one] * count, copy=copy, autoreset_mode=mode), count, seed=1)


def valid_transitions(environments, wanted):
    """For each environment its first `wanted` valid transitions, as plain tuples."""
    streams = [[] for _ in range(environments.count)]
    observation = environments.reset()
    while min(map(len, streams)) < wanted:
        step = environments.step(np.zeros(environments.count, np.int64))
        for row in np.flatnonzero(step.valid):
            values = (observation[row], step.reward[row], step.next_observation[row])
            ends = (bool(step.terminated[row]), bool(step.truncated[row]))
            streams[row].append((*(np.asarray(value).tolist() for value in values), *ends))
        observation = step.observation
    environments.close()
    return [stream[:wanted] for stream in streams]


@pytest.mark.parametrize("length", [1, 2, 5])
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_gives_the_same_transitions(mode, ending, length):
    expected = []
    for number in range(30):
        episode, step = divmod(number, length)
        ends = step + 1 == length
        expected.append(
            (
                [episode, step],
                0.5,
                [episode, step + 1],
                ends and ending != "truncated",
                ends and ending != "terminated",
            )
        )
    environments = build(mode, 3, length=length, ending=ending, reward=0.5)
    assert valid_transitions(environments, 30) == [expected] * 3


def test_async_vector_environment_and_reused_buffers():
    expected = valid_transitions(build("loop", 2, length=3), 10)
    for mode in AutoresetMode:
        asynchronous = AsyncVectorEnv([corridor_of_three] * 2, autoreset_mode=mode, copy=False)
        assert valid_transitions(envs.make(asynchronous, 2, seed=0), 10) == expected
        asynchronous.close()  # whoever made it closes it


def corridor_of_three():
    return Corridor(length=3)


@pytest.mark.parametrize("mode", MODES)
def test_earlier_steps_are_never_written_again(mode):
    environments = build(mode, 2, copy=False, length=3)
    kept, copies = [environments.reset()], []
    copies.append(kept[0].copy())
    for _ in range(12):
        step = environments.step(np.zeros(2, np.int64))
        for array in step[:-1]:
            kept.append(array)
            copies.append(array.copy())
    for array, copy in zip(kept, copies, strict=True):
        np.testing.assert_array_equal(array, copy)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("mode", MODES)
def test_fuzz_no_pair_crosses_an_episode(mode, ending):
    """Twelve runs of 18,000 environment steps with episodes of 1 to 7 steps."""
    count, steps = 12, 1500
    environments = build(mode, count, length=(1, 7), ending=ending, reward=2.0)
    observation, first = environments.reset(), np.ones(count, bool)
    finished = valid = 0
    lengths = set()
    for _ in range(steps):
        step = environments.step(np.zeros(count, np.int64))
        ok = step.valid
        assert (observation[first][:, 1] == 0).all()
        assert (step.next_observation[ok] == observation[ok] + [0, 1]).all()  # same episode, next step
        assert (step.reward == np.where(ok, 2.0, 0.0)).all()
        ended = step.terminated | step.truncated
        assert not (ended & ~ok).any()
        assert sorted(np.flatnonzero(ended)) == [episode.environment for episode in step.episodes]
        for episode in step.episodes:
            assert episode.length == step.next_observation[episode.environment, 1]
            assert episode.total == 2.0 * episode.length
            lengths.add(episode.length)
        goes_on = ok & ~ended
        assert (step.observation[goes_on] == step.next_observation[goes_on]).all()
        began = step.first & ok
        assert (step.observation[began] == step.next_observation[began] * [1, 0] + [1, 0]).all()  # the next episode
        assert (step.first == (~ok if mode is AutoresetMode.NEXT_STEP else ended)).all()
        finished += len(step.episodes)
        valid += ok.sum()
        observation, first = step.observation, step.first
    assert lengths == set(range(1, 8))
    resetting = finished if mode is AutoresetMode.NEXT_STEP else 0
    assert valid >= count * steps - resetting


def test_gymnasium_cartpole_vector_environment():
    environments = envs.make(CartPoleVectorEnv, 4, seed=3)  # told how many by its parameter num_envs
    assert environments.count == 4 and environments.resume == "restored"
    environments.reset()
    random, episodes, invalid = np.random.default_rng(0), 0, 0
    for _ in range(300):
        step = environments.step(random.integers(0, 2, 4))
        episodes += len(step.episodes)
        invalid += (~step.valid).sum()
        assert (np.abs(step.observation[step.first]) <= 0.05).all()
        assert all(episode.total == episode.length for episode in step.episodes)
    assert episodes > 20 and 0 <= episodes - invalid <= 4


class BatchedFinals(SyncVectorEnv):
    """Gives its final observations batched like its observations, as fast vector environments do."""

    def step(self, actions):
        *results, info = super().step(actions)
        if "final_obs" in info:
            rows = info.pop("final_obs")
            one = next(row for row in rows if row is not None)
            info["final_obs"] = {
                key: np.stack([np.zeros_like(one[key]) if row is None else row[key] for row in rows]) for key in one
            }
        return (*results, info)


class DictCorridor(gym.ObservationWrapper):
    def __init__(self, length):
        super().__init__(Corridor(length))
        self.observation_space = gym.spaces.Dict({"where": self.env.observation_space})

    def observation(self, observation):
        return {"where": observation}


@pytest.mark.parametrize("kind", [SyncVectorEnv, BatchedFinals])
def test_final_observations_of_dict_spaces(kind):
    vector = kind([lambda: DictCorridor(2), lambda: DictCorridor(3)], autoreset_mode=AutoresetMode.SAME_STEP)
    environments = envs.make(vector, 2, seed=0)
    environments.reset()
    environments.step(np.zeros(2, np.int64))
    step = environments.step(np.zeros(2, np.int64))
    assert step.next_observation["where"].tolist() == [[0, 2], [0, 2]]
    assert step.observation["where"].tolist() == [[1, 0], [0, 2]]
    assert step.first.tolist() == [True, False]


def test_same_step_without_final_observations_is_refused():
    class Forgetful(SyncVectorEnv):
        def step(self, actions):
            return (*super().step(actions)[:4], {})

    environments = envs.make(Forgetful([lambda: Corridor(1)], autoreset_mode=AutoresetMode.SAME_STEP), 1, seed=0)
    with pytest.raises(UserError, match=r"SAME_STEP.*final_obs"):
        environments.step(np.zeros(1, np.int64))


def test_a_wrong_mode_is_found_out():
    vector = SyncVectorEnv([lambda: Corridor(1)], autoreset_mode=AutoresetMode.DISABLED)
    environments = envs.make(vector, 1, seed=0)
    environments._mode = AutoresetMode.NEXT_STEP  # what a wrong metadata entry leads to
    environments.step(np.zeros(1, np.int64))
    vector._autoreset_envs[:] = False
    with pytest.raises(UserError, match="NEXT_STEP"):
        environments.step(np.zeros(1, np.int64))


@pytest.mark.parametrize("metadata", [{}, {"autoreset_mode": "sometimes"}, None])
def test_a_missing_or_unknown_mode_is_refused(metadata, monkeypatch):
    # Another environment may have written its mode into the dict that all classes without their own share.
    monkeypatch.setitem(VectorEnv.metadata, "autoreset_mode", AutoresetMode.SAME_STEP)

    class Silent(VectorEnv):
        num_envs = 1
        single_observation_space = observation_space = gym.spaces.Box(0, 1, (1,))
        single_action_space = action_space = gym.spaces.Discrete(2)

    if metadata is not None:
        Silent.metadata = metadata
    with pytest.raises(UserError, match=r"metadata\['autoreset_mode'\] to one of AutoresetMode.NEXT_STEP"):
        envs.make(Silent(), 1, seed=0)


def test_vector_environments_restart_from_new_seeds():
    def fresh():
        vector = SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
        return envs.make(vector, 2, seed=4)

    environments = fresh()
    first = environments.reset()
    for _ in range(60):
        environments.step(np.ones(2, np.int64))
    state = environments.state()
    restored = [fresh(), fresh()]
    again = [other.restore(state) for other in restored]
    np.testing.assert_array_equal(*again)
    assert not np.array_equal(first, again[0])
    assert restored[0].resume == "restarted" and restored[0].restarted.all()
    step = restored[0].step(np.ones(2, np.int64))
    assert step.valid.all() and restored[0].state()["episode"].min() >= 2
    with pytest.raises(UserError, match="same kind and number"):
        envs.make("CartPole-v1", 2, seed=4).restore(state)
