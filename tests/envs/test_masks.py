"""Masks of legal actions, wherever an environment keeps them, arrive in one place."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from cavalcade import envs
from cavalcade.errors import UserError
from cavalcade.failures import EnvironmentFailed
from cavalcade.specs import MASK


@pytest.mark.parametrize("kind", ["loop", *AutoresetMode])
@pytest.mark.parametrize("where", ["observation", "info"])
def test_masks_of_the_bandit(kind, where):
    def one():
        return gym.make("cavalcade/MaskedBandit-v0", arms=5, steps=3, where=where)

    if kind == "loop":
        environments = envs.make("cavalcade/MaskedBandit-v0", 4, seed=0, arms=5, steps=3, where=where)
    else:
        environments = envs.make(SyncVectorEnv([one] * 4, autoreset_mode=kind), 4, seed=0)
    assert environments.spec.masked
    mask_leaf = environments.spec.observation[MASK]
    assert (mask_leaf.kind, mask_leaf.shape, mask_leaf.dtype) == ("multi_binary", (5,), "int8")
    observation, masks = environments.reset(), set()
    for _ in range(40):
        action = 4 - np.argmax(observation[MASK][:, ::-1], axis=1)  # the best legal arm; an illegal one raises
        step = environments.step(action)
        assert (step.reward == np.where(step.valid, action / 4, 0).astype(np.float32)).all()
        assert step.next_observation[MASK].dtype == np.int8 and step.next_observation[MASK].any(axis=1).all()
        masks |= {tuple(mask) for mask in step.observation[MASK].tolist()}
        observation = step.observation
    assert len(masks) > 10


def test_taxi_masks_come_from_infos():
    environments = envs.make(max(name for name in gym.registry if name.startswith("Taxi-")), 3, seed=0)
    observation, random = environments.reset(), np.random.default_rng(0)
    assert set(environments.spec.observation) == {"observation", MASK}
    taxi = environments._envs[0].unwrapped
    for _ in range(250):
        np.testing.assert_array_equal(observation[MASK][0], taxi.action_mask(taxi.s))
        action = np.array([random.choice(np.flatnonzero(mask)) for mask in observation[MASK]])
        observation = environments.step(action).observation


class TupleMask(gym.Env):
    """MultiDiscrete with a mask for each entry; none in the last state, which may be a true end or not."""

    action_space = spaces.MultiDiscrete([2, 3])

    def __init__(self, where="info", ending="terminated", stuck_at=2):
        self.where, self.ending, self.stuck_at = where, ending, stuck_at
        part = spaces.Box(0, 1, (1,))
        self.observation_space = part
        if where == "observation":
            masks = spaces.Tuple([spaces.MultiBinary(2), spaces.MultiBinary(3)])
            self.observation_space = spaces.Dict({"observation": part, MASK: masks})

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return self.give()

    def step(self, action):
        self.steps += 1
        observation, info = self.give()
        over = self.steps == 2
        return (
            observation,
            0.0,
            over and self.ending == "terminated",
            over and self.ending == "truncated",
            info,
        )

    def give(self):
        legal = self.steps != self.stuck_at
        mask = (np.array([1, 0], np.int8) * legal, np.array([0, 1, 1], np.int8) * legal)
        part = np.zeros(1, np.float32)
        return ({"observation": part, MASK: mask}, {}) if self.where == "observation" else (part, {MASK: mask})


@pytest.mark.parametrize("kind", ["loop", *AutoresetMode])
@pytest.mark.parametrize("where", ["observation", "info"])
def test_multi_discrete_masks_and_terminal_states_without_actions(kind, where):
    def make(**options):
        def one():
            return TupleMask(where, **options)

        return envs.make(one if kind == "loop" else SyncVectorEnv([one], autoreset_mode=kind), 1, seed=0)

    environments = make()
    assert environments.reset()[MASK].tolist() == [[1, 0, 0, 1, 1]]
    environments.step(np.zeros((1, 2), int))
    step = environments.step(np.zeros((1, 2), int))
    assert step.next_observation[MASK].tolist() == [[1, 1, 1, 1, 1]]  # terminal: nothing may depend on it
    if kind is not AutoresetMode.NEXT_STEP:
        assert step.observation[MASK].tolist() == [[1, 0, 0, 1, 1]]

    for options, number in (({"stuck_at": 1}, 1), ({"ending": "truncated"}, 2)):
        with pytest.raises(UserError, match=f"no legal action .* environment 0, episode 0, step {number};"):
            environments = make(**options)
            for _ in range(2):
                environments.step(np.zeros((1, 2), int))


def test_masks_that_cannot_be():
    class Short(TupleMask):
        def give(self):
            return np.zeros(1, np.float32), {MASK: np.ones(4, np.int8)}

    with pytest.raises(UserError, match="has 4 entries for 5 choices"):
        envs.make(Short, 1, seed=0)

    class Continuous(Short):
        action_space = spaces.Box(-1, 1, (1,))

    with pytest.raises(UserError, match="Box actions, which cannot be masked"):
        envs.make(Continuous, 1, seed=0)


def test_an_error_inside_an_environment_says_where():
    environments = envs.make("cavalcade/MaskedBandit-v0", 2, seed=0)
    observation = environments.reset()
    action = np.array([np.argmax(observation[MASK][0]), np.argmin(observation[MASK][1])])
    says = "'cavalcade/MaskedBandit-v0' failed in step 1 of an episode: ValueError: .*not among the legal arms"
    with pytest.raises(EnvironmentFailed, match=says) as caught:
        environments.step(action)
    assert isinstance(caught.value.__cause__, ValueError)
