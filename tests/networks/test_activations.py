"""Activations: literal numbers, the same ones on every backend as torch has them, and gradients that stay finite."""

import warnings

import gymnasium as gym
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from cavalcade.algorithms.ppo import PPO
from cavalcade.backends.numpy_backend import acting
from cavalcade.envs.spaces import action_spec, observation_spec
from cavalcade.errors import UserError
from cavalcade.networks.activations import ACTIVATIONS
from cavalcade.networks.layers import mlp
from cavalcade.networks.torso import Torso
from cavalcade.specs import EnvSpec

AT = np.array([-2.0, -1.0, 0.0, 0.5, 2.0], np.float32)
KNOWN = {  # worked out in double precision from the papers' formulas
    "tanh": [-0.9640275801, -0.7615941560, 0.0, 0.4621171573, 0.9640275801],
    "relu": [0.0, 0.0, 0.0, 0.5, 2.0],
    "elu": [-0.8646647168, -0.6321205588, 0.0, 0.5, 2.0],
    "gelu": [-0.0454023059, -0.1588080094, 0.0, 0.3457140218, 1.9545976941],
    "silu": [-0.2384058440, -0.2689414214, 0.0, 0.3112296656, 1.7615941560],
    "leaky_relu": [-0.02, -0.01, 0.0, 0.5, 2.0],
    "selu": [-1.5201664686, -1.1113307378, 0.0, 0.5253504937, 2.1014019747],
    "softplus": [0.1269280110, 0.3132616875, 0.6931471806, 0.9740769842, 2.1269280110],
    "sigmoid": [0.1192029220, 0.2689414214, 0.5, 0.6224593312, 0.8807970780],
}
TORCH = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "elu": F.elu,
    "gelu": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "leaky_relu": F.leaky_relu,
    "selu": F.selu,
    "softplus": F.softplus,
    "sigmoid": torch.sigmoid,
}


def applied(name):
    return lambda xp, x: ACTIVATIONS[name](xp)(x)


def test_every_activation_has_its_numbers_here():
    assert list(KNOWN) == list(TORCH) == list(ACTIVATIONS)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_values(name, on):
    found = on(applied(name), AT)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, KNOWN[name], rtol=0, atol=1e-6)
    np.testing.assert_allclose(applied(name)(acting, AT), KNOWN[name], rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_gradients_are_those_of_torch(name, gradient_of):
    """At zero too, where one-sided slopes differ and a maximum would halve them."""
    x = np.concatenate([np.linspace(-12, 12, 97), [-1e-3, 1e-3]]).astype(np.float32)
    exact = torch.from_numpy(x.astype(np.float64)).requires_grad_()
    TORCH[name](exact).sum().backward()
    np.testing.assert_allclose(gradient_of(applied(name), x), exact.grad.numpy(), rtol=0, atol=2e-6)


EXTREMES = np.array([-3e38, -1e20, -1e4, -100.0, 100.0, 1e4, 1e20, 3e38], np.float32)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_extreme_values_are_finite(name, on):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # NumPy tells of overflows
        assert np.isfinite(on(applied(name), EXTREMES)).all()


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_extreme_gradients_are_finite(name, gradient_of):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        slopes = gradient_of(applied(name), EXTREMES)
    assert np.isfinite(slopes).all() and (np.abs(slopes) <= 1.1).all()


def test_acting_with_the_usual_ones_calls_numpy_itself():
    """No function of ours lies in between: acting is called at every step."""
    assert ACTIVATIONS["tanh"](acting) is np.tanh and ACTIVATIONS["relu"](acting) is acting.relu


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_network_uses_the_one_it_is_told(name):
    network = mlp(1, (1,), name, "uniform")
    identity = {"0": {"weight": np.ones((1, 1), np.float32), "bias": np.zeros(1, np.float32)}}
    np.testing.assert_allclose(network.apply(acting, identity, AT[:, None])[:, 0], KNOWN[name], rtol=0, atol=1e-6)
    spec = EnvSpec("", observation_spec(gym.spaces.Box(-1, 1, (4,))), action_spec(gym.spaces.Discrete(3)))
    assert PPO(activation=name).model(spec).heads


def test_a_name_that_is_none_is_answered_with_all_of_them():
    with pytest.raises(UserError, match="'swoosh' is not one of tanh, relu, elu, gelu, silu, leaky_relu, selu"):
        Torso(activation="swoosh")
    with pytest.raises(UserError, match="Did you mean 'leaky_relu'"):
        Torso(activation="leaky-relu")
