"""What can be made into environments, and the sentence for what cannot."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from cavalcade import envs
from cavalcade.envs.toy import Corridor
from cavalcade.errors import UserError


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("CartPol-v1", "There is no environment 'CartPol-v1'. Did you mean 'CartPole-v1'?"),
        ("CartPole-v7", "There is no environment 'CartPole-v7'. Did you mean 'CartPole-v1'?"),
        ("LunarLander-v2", "There is no environment 'LunarLander-v2'. Did you mean 'LunarLander-v3'?"),
        (
            "cavalcade/Coridor-v0",
            "There is no environment 'cavalcade/Coridor-v0'. Did you mean 'cavalcade/Corridor-v0'?",
        ),
        ("no_such_module:X-v0", "The module 'no_such_module' of 'no_such_module:X-v0' cannot be imported"),
        ("a:b:c", "The module 'a:b' of 'a:b:c' cannot be imported"),
        ("what is this", "The environment 'what is this' cannot be made"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_unknown_ids(name, text):
    with pytest.raises(UserError) as caught:
        envs.make(name, 1, seed=0)
    assert str(caught.value).startswith(text)


def test_a_missing_package_is_named():
    gym.register("cavalcade-tests/NeedsSomething-v0", entry_point="package_that_is_not_there:Env")
    try:
        with pytest.raises(UserError, match=r"needs a package that is missing: .*package_that_is_not_there"):
            envs.make("cavalcade-tests/NeedsSomething-v0", 1, seed=0)
    finally:
        del gym.registry["cavalcade-tests/NeedsSomething-v0"]


def test_options_and_modules():
    environments = envs.make("cavalcade.envs.toy:cavalcade/Corridor-v0", 2, seed=0, length=2, reward=3.0)
    assert environments.spec.environment == "cavalcade.envs.toy:cavalcade/Corridor-v0"
    environments.reset()
    environments.step(np.zeros(2, int))
    step = environments.step(np.zeros(2, int))
    assert step.episodes == [(0, 6.0, 2), (1, 6.0, 2)] and step.episodes[0].total == 6.0
    with pytest.raises(UserError, match=r"does not take these options: .*'colour'"):
        envs.make("CartPole-v1", 1, seed=0, colour="red")
    with pytest.raises(UserError, match="length of at least 1 and an ending"):
        envs.make("cavalcade/Corridor-v0", 1, seed=0, ending="never")


def test_functions_and_instances():
    assert envs.make(Corridor, 2, seed=0, length=3).spec.environment == "Corridor"
    assert envs.make(lambda: gym.make("CartPole-v1"), 2, seed=0).spec.environment == "CartPole-v1"
    assert envs.make(lambda num_envs: SyncVectorEnv([Corridor] * num_envs), 3, seed=0).count == 3
    assert envs.make(Corridor(), 1, seed=0).count == 1
    with pytest.raises(UserError, match="give a function that makes a new one each time"):
        envs.make(Corridor(), 2, seed=0)
    one = Corridor()
    with pytest.raises(UserError, match="give a function that makes a new one each time"):
        envs.make(lambda: one, 2, seed=0)
    with pytest.raises(UserError, match="holds 2 environments where 3 are asked for"):
        envs.make(SyncVectorEnv([Corridor] * 2), 3, seed=0)
    with pytest.raises(UserError, match="come too late"):
        envs.make(Corridor(), 1, seed=0, length=3)
    with pytest.raises(UserError, match="returned int"):
        envs.make(lambda: 3, 1, seed=0)
    with pytest.raises(UserError, match="cannot be made from 3"):
        envs.make(3, 1, seed=0)
    with pytest.raises(UserError, match="count of at least 1"):
        envs.make("CartPole-v1", 0, seed=0)
    sizes = iter([1, 2])
    with pytest.raises(UserError, match="different spaces"):
        envs.make(lambda: Corridor(next(sizes), numbered=False), 2, seed=0)


def test_the_number_of_actions_is_checked():
    with pytest.raises(ValueError, match="2 actions for 3 environments"):
        envs.make("CartPole-v1", 3, seed=0).step(np.zeros(2, int))


def test_rendering():
    environments = envs.make("CartPole-v1", 2, seed=0, render=True)
    environments.reset()
    frame = environments.render()
    assert frame.dtype == np.uint8 and frame.shape[2] == 3
    environments.close()
    assert envs.make("CartPole-v1", 1, seed=0).render() is None


def test_cartpole_without_velocity():
    hidden, full = (envs.make(name, 2, seed=0) for name in ("cavalcade/CartPoleNoVelocity-v1", "CartPole-v1"))
    assert hidden.spec.observation.shape == (2,)
    np.testing.assert_array_equal(hidden.reset(), full.reset()[:, [0, 2]])
    for number in range(50):
        action = np.full(2, number % 2)
        np.testing.assert_array_equal(hidden.step(action).observation, full.step(action).observation[:, [0, 2]])
    assert gym.spec("cavalcade/CartPoleNoVelocity-v1").max_episode_steps == 500


@pytest.mark.parametrize("ending", ["terminated", "truncated", "both"])
def test_corridor_values_satisfy_bellman(ending):
    corridor, discount = Corridor(4, ending, reward=2.0), 0.9
    environments = envs.make(corridor, 1, seed=0)
    environments.reset()
    for number in range(4):
        step = environments.step(np.zeros(1, int))
        after = 0.0 if step.terminated[0] else corridor.value(number + 1, discount)
        assert corridor.value(number, discount) == pytest.approx(step.reward[0] + discount * after)
