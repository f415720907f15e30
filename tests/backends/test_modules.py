"""A user's own torch.nn.Module or Flax module as the torso: it learns, it is stored, and misfits are refused."""

import flax.linen as flax
import gymnasium as gym
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from torch import nn

from cavalcade import load_policy, tree
from cavalcade.errors import UserError
from cavalcade.experiment.experiment import Experiment, Settings
from cavalcade.specs import MASK
from cavalcade.tree import Layout
from tests.helpers.compilation import quick_compilation  # noqa: F401

SETTINGS = {
    "ppo": {"unroll": 8, "epochs": 2, "minibatches_per_epoch": 3},
    "a2c": {"unroll": 4},
    "dqn": {"replay_start": 16, "batch": 16, "updates_per_draw": 1, "update_every": 4},
}
KINDS = {"torch": "torch", "linen": "jax", "nnx": "jax"}  # of modules, and their backends


# --- environments and modules -------------------------------------------------------------------------------------


class Nested(gym.Env):
    """Observations in a nest: a vector, and a choice inside a tuple inside a dict."""

    observation_space = gym.spaces.Dict(
        {
            "body": gym.spaces.Box(-1.0, 1.0, (3,)),
            "goal": gym.spaces.Dict({"where": gym.spaces.Tuple((gym.spaces.Discrete(4), gym.spaces.Box(-1, 1, (2,))))}),
        }
    )
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 10
        return self._observe(), {}

    def step(self, action):
        self.left -= 1
        return self._observe(), float(action), self.left == 0, False, {}

    def _observe(self):
        r = self.np_random
        body, where = r.uniform(-1, 1, 3).astype(np.float32), r.uniform(-1, 1, 2).astype(np.float32)
        return {"body": body, "goal": {"where": (int(r.integers(4)), where)}}


class TorchPlain(nn.Module):
    def __init__(self, inputs=4):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(inputs, 12), nn.LayerNorm(12), nn.Tanh())
        self.last = nn.Linear(12, 6)
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        return torch.relu(self.last(self.body(x))) * self.scale


class FlaxPlain(flax.Module):
    @flax.compact
    def __call__(self, x):
        x = jnp.tanh(flax.LayerNorm()(flax.Dense(12)(x)))
        return flax.relu(flax.Dense(6)(x)) * self.param("scale", lambda key: jnp.float32(1.5))


class NnxPlain(nnx.Module):
    def __init__(self, inputs=4, seed=0):
        rngs = nnx.Rngs(seed)
        self.body = nnx.Sequential(nnx.Linear(inputs, 12, rngs=rngs), nnx.LayerNorm(12, rngs=rngs), jnp.tanh)
        self.last = nnx.Linear(12, 6, rngs=rngs)
        self.scale = nnx.Param(jnp.float32(1.5))

    def __call__(self, x):
        return nnx.relu(self.last(self.body(x))) * self.scale


class TorchNest(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.body = nn.Embedding(4, 5), nn.Linear(3 + 5 + 2, 6)

    def forward(self, obs):
        choice, place = obs["goal"]["where"]["0"], obs["goal"]["where"]["1"]
        return torch.tanh(self.body(torch.cat([obs["body"], self.embed(choice), place], 1)))


class FlaxNest(flax.Module):
    @flax.compact
    def __call__(self, obs):
        choice, place = obs["goal"]["where"]["0"], obs["goal"]["where"]["1"]
        joined = jnp.concatenate([obs["body"], flax.Embed(4, 5)(choice), place], 1)
        return jnp.tanh(flax.Dense(6)(joined))


class NnxNest(nnx.Module):
    def __init__(self, seed=0):
        rngs = nnx.Rngs(seed)
        self.embed, self.body = nnx.Embed(4, 5, rngs=rngs), nnx.Linear(3 + 5 + 2, 6, rngs=rngs)

    def __call__(self, obs):
        choice, place = obs["goal"]["where"]["0"], obs["goal"]["where"]["1"]
        return jnp.tanh(self.body(jnp.concatenate([obs["body"], self.embed(choice), place], 1)))


PLAIN = {"torch": TorchPlain, "linen": FlaxPlain, "nnx": NnxPlain}
NEST = {"torch": TorchNest, "linen": FlaxNest, "nnx": NnxNest}


def plain(kind):
    torch.manual_seed(0)
    return PLAIN[kind]()


def create(module, backend, system="a2c", environment="CartPole-v1", **overrides):
    settings = Settings(steps=2_000, backend=backend, envs=3, evaluations=0, seed=2)
    return Experiment.create(system, environment, settings, {**SETTINGS[system], **overrides}, network=module)


def torso_of(parts, vector):
    """The module's parameters in a parameter vector, by path."""
    params = Layout.of(parts.model.init(np.random.default_rng(0))).unflatten(vector)
    return dict(tree.named(params["torso"]["shared"]))


def at_first(run):
    return torso_of(run.parts, run.parts.learner().params()[0])


def trained(run, updates=6):
    """The runtime after at least so many updates; every parameter of the module has moved."""
    runtime = run.launch()
    learner = runtime.objects["learner"]
    before = torso_of(run.parts, learner.published[0].copy())
    while learner.version < updates:
        runtime.round()
    after = torso_of(run.parts, learner.published[0])
    runtime.close()
    for path in before:
        assert np.abs(after[path] - before[path]).max() > 1e-5, f"{path} was not trained"
    return runtime


# --- learning -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("system, kind", [("ppo", "torch"), ("dqn", "torch"), ("dqn", "linen"), ("ppo", "nnx")])
def test_every_parameter_of_the_module_is_trained(system, kind):
    run = create(plain(kind), KINDS[kind], system)
    runtime = trained(run)
    assert sorted(leaf.size for leaf in at_first(run).values()) == [1, 6, 12, 12, 12, 48, 72]
    assert runtime.objects["actor/0"].policy.acts_in == KINDS[kind]


def test_training_starts_from_the_numbers_a_torch_module_was_made_with():
    module = plain("torch")
    with torch.no_grad():
        module.scale.fill_(0.25)
    found = at_first(create(module, "torch"))
    for name, parameter in module.named_parameters():
        assert np.array_equal(found[name.replace(".", "/")], parameter.detach().numpy()), name


def test_training_starts_from_the_numbers_an_nnx_module_was_made_with():
    module = NnxPlain(seed=3)
    found = at_first(create(module, "jax"))
    assert np.array_equal(found["body/layers/0/kernel"], module.body.layers[0].kernel.get_value())
    assert np.array_equal(found["last/bias"], module.last.bias.get_value()) and found["scale"] == 1.5
    assert not np.array_equal(found["last/kernel"], NnxPlain(seed=4).last.kernel.get_value())


class NnxDeep(nnx.Module):
    """More layers than there are digits, one of them used twice, one without a bias."""

    def __init__(self):
        rngs = nnx.Rngs(0)
        self.layers = nnx.List([nnx.Linear(4, 4, rngs=rngs, use_bias=i > 0) for i in range(11)])
        self.layers.append(self.layers[0])

    def __call__(self, x):
        for layer in self.layers:
            x = jnp.tanh(layer(x))
        return x


@pytest.mark.parametrize("make", [NnxPlain, NnxDeep])
def test_a_model_with_an_nnx_module_computes_what_the_module_computes(make):
    module, x = make(), np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
    network = create(module, "jax").parts.model.torsos["shared"]
    params = network.init(np.random.default_rng(0))
    np.testing.assert_allclose(network.apply(jnp, params, x), module(x), atol=1e-6)


def test_a_linen_module_is_born_from_the_seed():
    first, again = (at_first(create(plain("linen"), "jax")) for _ in range(2))
    other = create(plain("linen"), "jax").parts.model.init(np.random.default_rng(5))["torso"]["shared"]
    assert all(np.array_equal(first[path], again[path]) for path in first)
    assert not np.array_equal(first["Dense_0/kernel"], other["Dense_0"]["kernel"])


def test_a_model_with_a_module_computes_what_the_module_computes():
    module = plain("torch")
    parts = create(module, "torch").parts
    x = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
    params = parts.model.init(np.random.default_rng(0))
    network, backend = parts.model.torsos["shared"], parts.learner().backend
    found = network.apply(backend.xp, backend.from_numpy(params["torso"]["shared"]), torch.from_numpy(x))
    torch.testing.assert_close(found, module(torch.from_numpy(x)))
    assert network.features == 6


@pytest.mark.parametrize("kind", KINDS)
def test_memory_and_normalisation_go_around_the_module(kind):
    run = create(plain(kind), KINDS[kind], memory=5, normalise_observations=True)
    trained(run, 2)
    assert run.model.memory and run.model.normalised == ("",)


class TorchWithMask(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 6)

    def forward(self, obs):
        assert set(obs) == {"observation"}, f"the module was given {sorted(obs)}"
        return torch.tanh(self.layer(obs["observation"]))


class FlaxWithMask(flax.Module):
    @flax.compact
    def __call__(self, obs):
        assert set(obs) == {"observation"}, f"the module was given {sorted(obs)}"
        return jnp.tanh(flax.Dense(6)(obs["observation"]))


class NnxWithMask(nnx.Module):
    def __init__(self):
        self.layer = nnx.Linear(1, 6, rngs=nnx.Rngs(0))

    def __call__(self, obs):
        assert set(obs) == {"observation"}, f"the module was given {sorted(obs)}"
        return jnp.tanh(self.layer(obs["observation"]))


MASKED = [(TorchWithMask(), "torch"), (FlaxWithMask(), "jax"), (NnxWithMask(), "jax")]


@pytest.mark.parametrize("module, backend", MASKED)
def test_a_module_is_tried_with_what_it_will_be_given(module, backend):
    """The mask of legal actions is no feature: not in training, and not when the module is tried beforehand."""
    run = create(module, backend, environment="cavalcade/MaskedBandit-v0")
    assert MASK in run.spec.observation
    if backend == "torch":
        trained(run)


class Slashes(Nested):
    """Names as dm_control gives them."""

    observation_space = gym.spaces.Dict({"walker/height": gym.spaces.Box(-1.0, 1.0, (1,))})

    def _observe(self):
        return {"walker/height": self.np_random.uniform(-1, 1, 1).astype(np.float32)}


class TorchSlashes(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 6)

    def forward(self, obs):
        return torch.tanh(self.layer(obs["walker/height"]))


def test_a_name_with_a_slash_reaches_the_module_as_it_is():
    trained(create(TorchSlashes(), "torch", environment=Slashes))


def test_a_frozen_parameter_is_not_trained():
    module = plain("torch")
    frozen = module.body[0].weight.requires_grad_(False).detach().numpy().copy()
    run = create(module, "torch")
    runtime = run.launch()
    while runtime.objects["learner"].version < 3:
        runtime.round()
    after = torso_of(run.parts, runtime.objects["learner"].published[0])
    assert np.array_equal(after.get("body/0/weight", module.body[0].weight.detach().numpy()), frozen)
    assert not np.array_equal(after["last/weight"], module.last.weight.detach().numpy())


class FlaxFlat(flax.Module):
    def __call__(self, x):
        return x.reshape((len(x), -1))


class NnxFlat(nnx.Module):
    def __call__(self, x):
        return x.reshape((len(x), -1))


@pytest.mark.parametrize("module, backend", [(nn.Flatten(), "torch"), (FlaxFlat(), "jax"), (NnxFlat(), "jax")])
def test_a_module_without_parameters_gives_linear_heads(module, backend):
    runtime = create(module, backend).launch()
    while runtime.objects["learner"].version < 2:
        runtime.round()
    assert runtime.objects["learner"].learner.layout.size == (4 * 2 + 2) + (4 * 1 + 1)


# --- refusals -----------------------------------------------------------------------------------------------------


class TorchReturns(nn.Module):
    def __init__(self, what):
        super().__init__()
        self.layer, self.what = nn.Linear(4, 6), what

    def forward(self, x):
        return self.what(self.layer(x))


class FlaxReturns(flax.Module):
    what: object

    @flax.compact
    def __call__(self, x):
        return self.what(flax.Dense(6)(x))


class NnxReturns(nnx.Module):
    def __init__(self, what):
        self.layer, self.what = nnx.Linear(4, 6, rngs=nnx.Rngs(0)), what

    def __call__(self, x):
        return self.what(self.layer(x))


@pytest.mark.parametrize("returns, backend", [(TorchReturns, "torch"), (FlaxReturns, "jax"), (NnxReturns, "jax")])
@pytest.mark.parametrize(
    "what",
    [
        lambda y: y[0],
        lambda y: y[None],
        lambda y: y[:1],
        lambda y: y.sum(),
        lambda y: (y, y),
        lambda y: {"features": y},
    ],
    ids=["one row", "an axis more", "a row less", "a number", "a tuple", "a dict"],
)
def test_anything_but_features_for_each_observation_is_refused(returns, backend, what):
    with pytest.raises(UserError, match=r"has to give \[2, features\]"):
        create(returns(what), backend)


@pytest.mark.parametrize("module, backend", [(TorchPlain(5), "torch"), (FlaxNest(), "jax"), (NnxPlain(5), "jax")])
def test_a_module_that_does_not_take_the_observations_is_refused_with_their_shapes(module, backend):
    with pytest.raises(UserError, match=r"does not take observations .*'observation': \(4,\)"):
        create(module, backend)


@pytest.mark.parametrize(
    "module, backend, needed",
    [
        (TorchPlain(), "jax", "torch"),
        (TorchPlain(), "numpy", "torch"),
        (FlaxPlain(), "torch", "jax"),
        (FlaxPlain(), "numpy", "jax"),
        (NnxPlain(), "torch", "jax"),
    ],
)
def test_a_module_on_another_backend_is_refused_with_the_right_one(module, backend, needed):
    with pytest.raises(UserError, match=f"--backend {needed}, not {backend}"):
        create(module, backend)


@pytest.mark.parametrize("given, kind", [(lambda x: x, "function"), (torch.ones(2), "Tensor"), (nnx.Rngs(0), "Rngs")])
def test_what_is_no_module_is_refused(given, kind):
    with pytest.raises(UserError, match=rf"is a {kind}; give a torch\.nn\.Module or a Flax module"):
        create(given, "torch")


@pytest.mark.parametrize("kind", KINDS)
def test_a_class_in_the_place_of_a_module_is_refused(kind):
    with pytest.raises(UserError, match=rf"is the class {PLAIN[kind].__name__}; give an instance"):
        create(PLAIN[kind], KINDS[kind])


class FlaxBatchNorm(flax.Module):
    averages: bool

    @flax.compact
    def __call__(self, x):
        return flax.BatchNorm(use_running_average=self.averages)(flax.Dense(6)(x))


class NnxWith(NnxPlain):
    """Something beside the parameters."""

    def __init__(self, what):
        super().__init__()
        self.what = nnx.data(what)


@pytest.mark.parametrize(
    "module, backend, kept",
    [
        (nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6)), "torch", "keeps buffers"),
        (nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.1)), "torch", "has Dropout"),
        (FlaxBatchNorm(averages=True), "jax", "keeps batch_stats"),
        (FlaxBatchNorm(averages=False), "jax", "keeps batch_stats"),
        (NnxWith(nnx.BatchNorm(6, rngs=nnx.Rngs(0))), "jax", "keeps BatchStat"),
        (NnxWith(nnx.Dropout(0.1, rngs=nnx.Rngs(0))), "jax", "keeps RngCount, RngKey"),
        (NnxWith(jnp.ones(3)), "jax", "keeps an array"),
    ],
)
def test_what_is_no_parameter_is_refused_in_one_sentence(module, backend, kept):
    with pytest.raises(UserError, match=f"The module {kept}") as caught:
        create(module, backend)
    assert "\n" not in str(caught.value) and "http" not in str(caught.value)


# --- the stored policy --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make, environment", [(PLAIN, "CartPole-v1"), (NEST, Nested)], ids=["array", "nest"])
def test_a_stored_policy_acts_the_same_with_a_fresh_module(tmp_path, kind, make, environment):
    """And a nest of observations reaches the module as a nest, in training and afterwards."""
    backend = KINDS[kind]
    torch.manual_seed(0)
    run = create(make[kind](), backend, environment=environment, normalise_observations=True)
    runtime = trained(run)
    policy, learner = run.parts.policy(), runtime.objects["learner"]
    policy.load(*learner.published, learner.version)
    policy.save(tmp_path, {"backend": backend, "custom_network": True})

    torch.manual_seed(99)
    fresh = make[kind](seed=99) if kind == "nnx" else make[kind]()
    loaded = load_policy(tmp_path, network=fresh)
    assert loaded.acts_in == backend and loaded.version == learner.version
    rng = np.random.default_rng(0)
    obs = tree.map(lambda leaf: rng.uniform(0, 3, leaf.shape).astype(leaf.dtype), run.spec.zeros(64))
    first, noise = np.ones(64, bool), run.algorithm.noise(run.spec, rng, 64, None)
    for given in (None, noise):
        action, extras, _ = policy.act(obs, {}, first, given)
        other, other_extras, _ = loaded.act(obs, {}, first, given)
        assert np.array_equal(action, other)
        for name in extras:
            np.testing.assert_allclose(other_extras[name], extras[name], atol=1e-6)
    assert len(set(action.tolist())) == 2, "both actions occur, so equality means something"


def test_a_policy_with_a_module_asks_for_it(tmp_path):
    run = create(plain("torch"), "torch")
    policy = run.parts.policy()
    policy.save(tmp_path, {"backend": "torch", "custom_network": True})
    with pytest.raises(UserError, match=r"network=\.\.\."):
        load_policy(tmp_path)
    with pytest.raises(UserError, match="--backend jax, not torch"):
        load_policy(tmp_path, network=FlaxPlain())


def test_a_policy_without_a_module_refuses_one(tmp_path):
    policy = create(None, "torch").parts.policy()
    policy.save(tmp_path, {"backend": "torch", "custom_network": False})
    with pytest.raises(UserError, match=r"without .*network"):
        load_policy(tmp_path, network=plain("torch"))
