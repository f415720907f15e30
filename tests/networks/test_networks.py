"""Networks and models: the same numbers in every library, the sizes of the papers, and memory that forgets on time."""

from dataclasses import replace
from functools import partial

import gymnasium as gym
import numpy as np
import pytest

from cavalcade import backends, specs, tree
from cavalcade.algorithms.actor_critic import ActorCritic
from cavalcade.algorithms.dqn import DQN
from cavalcade.backends.numpy_backend import acting
from cavalcade.envs.spaces import action_spec, observation_spec
from cavalcade.networks import model, torso
from cavalcade.networks.torso import Lstm, Torso
from cavalcade.specs import EnvSpec
from cavalcade.tree import Layout

BACKENDS = {name: backends.load(name, 1) for name in backends.NAMES}


def rng(seed=0):
    return np.random.default_rng(seed)


def on_every_library(function, *trees):
    """`function(xp, *trees)` on torch, jax, autograd's NumPy and plain NumPy, as NumPy trees."""
    found = {"acting": function(acting, *trees)}
    for name, backend in BACKENDS.items():
        compiled = backend.compile(partial(function, backend.xp))
        found[name] = backend.to_numpy(compiled(*(backend.from_numpy(given) for given in trees)))
    return found


def assert_agree(function, *trees):
    """All libraries give one answer, in float32, to 1e-5 of its scale; that answer, by name of its leaves."""
    found = {name: dict(tree.named(answer)) for name, answer in on_every_library(function, *trees).items()}
    expected = found["acting"]
    for name, answer in found.items():
        assert set(answer) == set(expected)
        for path, leaf in answer.items():
            assert leaf.dtype == np.float32, f"{path} is {leaf.dtype} in {name}"
            tolerance = 1e-5 * max(1.0, float(np.abs(expected[path]).max()))
            np.testing.assert_allclose(leaf, expected[path], atol=tolerance, rtol=0, err_msg=f"{path} in {name}")
    return expected


def size(network):
    return Layout.of(network.init(rng())).size


# --- layers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("initialiser", ["orthogonal", "uniform"])
def test_mlp(activation, initialiser):
    network = torso.mlp(5, (7, 3), activation, initialiser)
    params, x = network.init(rng()), rng(1).standard_normal((4, 5), np.float32)
    y = assert_agree(network.apply, params, x)[""]
    first = params["0"]
    by_hand = x @ first["weight"] + first["bias"]
    by_hand = np.tanh(by_hand) if activation == "tanh" else np.maximum(by_hand, 0)
    by_hand = by_hand @ params["1"]["weight"] + params["1"]["bias"]
    by_hand = np.tanh(by_hand) if activation == "tanh" else np.maximum(by_hand, 0)
    np.testing.assert_allclose(y, by_hand, atol=1e-6)
    assert network.features == y.shape[1] == 3 and size(network) == 5 * 7 + 7 + 7 * 3 + 3


@pytest.mark.parametrize(
    "build, features, height, width",
    [
        (torso.nature_cnn, 512, 37, 44),  # odd sizes: the windows do not divide the picture
        (torso.impala_cnn, 256, 37, 44),
        (torso.impala_cnn, 256, 4, 7),
        (torso.small_cnn, 128, 4, 7),
    ],
)
def test_convolutions(build, features, height, width):
    network = build((2, height, width), "uniform")
    x = rng(1).random((3, 2, height, width), np.float32)
    y = assert_agree(network.apply, network.init(rng()), x)[""]
    assert y.shape == (3, features) and network.features == features
    assert network.small == (build is torso.small_cnn)
    assert np.any(y > 0)


def test_small_cnn_has_the_parameters_of_the_paper():
    # Young and Tian 2019 on 10 x 10 x 4: 16 filters of 3 x 3, 10 -> 8, then 128 units
    assert size(torso.small_cnn((4, 10, 10), "uniform")) == (16 * 3 * 3 * 4 + 16) + (8 * 8 * 16 * 128 + 128) == 131_792


def test_nature_cnn_has_the_parameters_of_the_paper():
    # Mnih 2015 on 84 x 84 x 4: 84 -> 20 -> 9 -> 7
    first = 32 * (8 * 8 * 4) + 32
    second = 64 * (4 * 4 * 32) + 64
    third = 64 * (3 * 3 * 64) + 64
    dense = 7 * 7 * 64 * 512 + 512
    assert (first, second, third, dense) == (8_224, 32_832, 36_928, 1_606_144)
    assert size(torso.nature_cnn((4, 84, 84), "uniform")) == first + second + third + dense == 1_684_128


def test_impala_cnn_has_the_parameters_of_the_paper():
    # Espeholt 2018, figure 3 right, on 84 x 84 x 4: 84 -> 42 -> 21 -> 11; a section is an entry and four convolutions
    sections = (592 + 4 * 2_320) + (4_640 + 4 * 9_248) + (9_248 + 4 * 9_248)
    dense = 11 * 11 * 32 * 256 + 256
    assert (16 * (3 * 3 * 4) + 16, 16 * (3 * 3 * 16) + 16, 32 * (3 * 3 * 16) + 32, 32 * (3 * 3 * 32) + 32) == (
        592,
        2_320,
        4_640,
        9_248,
    )
    assert size(torso.impala_cnn((4, 84, 84), "uniform")) == sections + dense == 1_089_232


def test_dueling_values_average_to_the_state_value():
    network = torso.dueling(6, 5)
    params, x = network.init(rng()), rng(1).standard_normal((8, 6), np.float32)
    q = assert_agree(network.apply, params, x)[""]
    both = x @ params["weight"] + params["bias"]
    value, advantage = both[:, :1], both[:, 1:]
    np.testing.assert_allclose(q.mean(axis=1), value[:, 0], atol=1e-6)
    np.testing.assert_allclose(q, value + advantage - advantage.mean(axis=1, keepdims=True), atol=1e-6)


def test_gaussian_head_has_a_mean_of_the_features_and_a_deviation_of_its_own():
    network = torso.gaussian(6, 2)
    params, x = network.init(rng()), rng(1).standard_normal((8, 6), np.float32)
    params["log_std"] = np.array([-0.5, 0.25], np.float32)
    y = assert_agree(network.apply, params, x)[""]
    assert network.features == 4
    np.testing.assert_allclose(y[:, :2], x @ params["mean"]["weight"], atol=1e-6)
    assert np.array_equal(y[:, 2:], np.broadcast_to(np.float32([-0.5, 0.25]), (8, 2)))


# --- initialisation -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inputs, outputs", [(9, 4), (4, 9), (5, 5), (1, 3), (3, 1)])
@pytest.mark.parametrize("gain", [1.0, 0.01, float(np.sqrt(2.0))])
def test_orthogonal_weights_are_orthogonal_with_the_gain(inputs, outputs, gain):
    weight = torso.linear(inputs, outputs, "orthogonal", gain).init(rng())["weight"].astype(np.float64)
    assert weight.shape == (inputs, outputs)
    product = weight.T @ weight if inputs >= outputs else weight @ weight.T
    np.testing.assert_allclose(product, gain**2 * np.eye(min(inputs, outputs)), atol=1e-6 * max(1.0, gain**2))


def test_orthogonal_convolutions_are_orthogonal_as_matrices_of_filters():
    params = torso.nature_cnn((4, 36, 36), "orthogonal").init(rng())
    for name in ("0", "1", "2"):
        filters = params[name]["weight"].reshape(params[name]["weight"].shape[0], -1).astype(np.float64)
        np.testing.assert_allclose(filters @ filters.T, 2.0 * np.eye(len(filters)), atol=1e-5)  # gain sqrt 2
        assert not params[name]["bias"].any()


def test_orthogonal_draws_have_no_preferred_sign():
    corners = [torso.orthogonal(1.0)(rng(seed), (3, 3), 3)[0, 0] for seed in range(200)]
    assert abs(np.mean(corners)) < 0.15  # the Haar measure: without the sign of R's diagonal the mean is about -0.5


def test_uniform_weights_and_biases_fill_the_bounds_of_their_fan_in():
    params = torso.linear(400, 300, "uniform").init(rng())
    for array in (params["weight"], params["bias"]):
        assert 0.95 / 20 < np.abs(array).max() <= 1 / 20  # 1 / sqrt(400)
        assert abs(array.mean()) < 0.2 / 20
    np.testing.assert_allclose(params["weight"].std(), 1 / 20 / np.sqrt(3.0), rtol=0.01)
    convolutions = torso.nature_cnn((4, 36, 36), "uniform").init(rng())
    for name, fan_in in (("0", 4 * 64), ("1", 32 * 16), ("2", 64 * 9)):
        for array in (convolutions[name]["weight"], convolutions[name]["bias"]):
            assert 0.8 < np.abs(array).max() * np.sqrt(fan_in) <= 1.0 + 1e-6


def test_the_same_seed_gives_the_same_parameters_and_another_gives_others():
    network = torso.mlp(3, (4,), "tanh", "orthogonal")
    same, again, other = (Layout.of(p).flatten(p) for p in (network.init(rng(s)) for s in (5, 5, 6)))
    assert np.array_equal(same, again) and not np.array_equal(same, other)


def test_actor_critic_heads_have_the_gains_of_ppo():
    spec = EnvSpec("", observation_spec(gym.spaces.Box(-1, 1, (4,))), action_spec(gym.spaces.Discrete(2)))
    params = ActorCritic().model(spec).init(rng())
    policy, value = (params["head"][name]["weight"].astype(np.float64) for name in ("policy", "value"))
    np.testing.assert_allclose(policy.T @ policy, 1e-4 * np.eye(2), atol=1e-9)
    np.testing.assert_allclose(value.T @ value, 1.0, atol=1e-6)


# --- observations -------------------------------------------------------------------------------------------------

DTYPES = ["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


def agree_on(space):
    """A torso with one layer of six on four observations: network, parameters, observations, features."""
    network = torso.torso(observation_spec(space), Torso((6,), "tanh", "auto", "orthogonal"))
    params, obs = network.init(rng()), drawn(space, 4)
    return network, params, obs, assert_agree(network.apply, params, obs)[""]


def drawn(space, *leading, seed=0):
    """Observations [*leading, ...] of a space."""
    space.seed(seed)
    rows = [_as_spec(space, space.sample()) for _ in range(int(np.prod(leading)))]
    return tree.map(lambda *leaves: np.stack(leaves).reshape(*leading, *leaves[0].shape), *rows)


def _as_spec(space, value):
    """A sample as the environment adapter gives it: nested dicts, choices counted from zero."""
    if isinstance(space, gym.spaces.Dict):
        return {key: _as_spec(child, value[key]) for key, child in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return {str(i): _as_spec(child, value[i]) for i, child in enumerate(space.spaces)}
    return np.asarray(value - space.start if hasattr(space, "start") else value)


@pytest.mark.parametrize(
    "dtype, shape", [*((dtype, (3,)) for dtype in DTYPES), ("float64", ()), ("uint8", (2, 2)), ("int64", (2, 3, 2))]
)
def test_boxes_of_any_dtype_and_shape_join_the_vector_as_they_are(dtype, shape):
    network, params, obs, y = agree_on(gym.spaces.Box(0, 1, shape, np.dtype(dtype)))
    flat = obs.reshape(4, -1).astype(np.float32)
    assert y.shape == (4, 6) == (4, network.features) and network.small
    np.testing.assert_allclose(y, np.tanh(flat @ params["vector"]["0"]["weight"]), atol=1e-6)


def test_bytes_of_an_image_become_fractions_whichever_axis_holds_the_channels():
    last, first = gym.spaces.Box(0, 255, (36, 40, 3), np.uint8), gym.spaces.Box(0, 255, (3, 36, 40), np.uint8)
    network, params, obs, y = agree_on(last)
    other, other_params, _, _ = agree_on(first)
    assert Layout.of(params) == Layout.of(other_params) and not network.small
    np.testing.assert_allclose(y, other.apply(acting, params, obs.transpose(0, 3, 1, 2)), atol=1e-6)
    floats = gym.spaces.Box(0.0, 1.0, (36, 40, 3), np.float32)  # floats are fractions already
    scaled = torso.torso(observation_spec(floats), Torso((6,)))
    np.testing.assert_allclose(y, scaled.apply(acting, params, obs.astype(np.float32) / 255), atol=1e-6)


def test_discrete_is_one_hot_from_zero():
    _, params, obs, y = agree_on(gym.spaces.Discrete(5, start=-2))
    assert obs.min() >= 0 and obs.max() <= 4
    np.testing.assert_allclose(y, np.tanh(params["vector"]["0"]["weight"][obs]), atol=1e-6)


@pytest.mark.parametrize("counts", [[2, 3, 4], [[2, 3], [4, 5]]])
def test_multi_discrete_is_one_hot_after_one_hot(counts):
    _, params, obs, y = agree_on(gym.spaces.MultiDiscrete(counts))
    weight, expected, row = params["vector"]["0"]["weight"], 0.0, 0
    assert len(weight) == np.sum(counts)
    for choice, count in zip(obs.reshape(4, -1).T, np.ravel(counts)):
        expected, row = expected + weight[row + choice], row + count
    np.testing.assert_allclose(y, np.tanh(expected), atol=1e-6)


@pytest.mark.parametrize("shape", [3, [2, 2]])
def test_multi_binary_is_its_bits(shape):
    _, params, obs, y = agree_on(gym.spaces.MultiBinary(shape))
    flat = obs.reshape(4, -1).astype(np.float32)
    np.testing.assert_allclose(y, np.tanh(flat @ params["vector"]["0"]["weight"]), atol=1e-6)


def nested_space():
    box, camera = gym.spaces.Box(-1, 1, (2,)), gym.spaces.Box(0, 255, (36, 36, 1), np.uint8)
    inner = gym.spaces.Dict({"depth": gym.spaces.Box(0, 1, (1, 36, 36)), "gear": gym.spaces.Discrete(3)})
    return gym.spaces.Dict(
        {"arm": gym.spaces.Tuple((box, gym.spaces.MultiBinary(2), inner)), "camera": camera, "way": box}
    )


def test_nests_of_images_and_vectors_are_joined():
    network, params, obs, y = agree_on(nested_space())
    assert network.features == y.shape[1] == 512 + 512 + 6
    assert set(params) == {"image:arm.2.depth", "image:camera", "vector"}
    gear = np.eye(3, dtype=np.float32)[obs["arm"]["2"]["gear"]]
    joined = np.concatenate([obs["arm"]["0"], obs["arm"]["1"], gear, obs["way"]], axis=1).astype(np.float32)
    np.testing.assert_allclose(y[:, -6:], np.tanh(joined @ params["vector"]["0"]["weight"]), atol=1e-6)


def test_the_action_mask_is_no_feature():
    space = gym.spaces.Dict({specs.MASK: gym.spaces.Box(0, 1, (6,), np.int8), "x": gym.spaces.Box(-1, 1, (2,))})
    _, params, _, _ = agree_on(space)
    assert params["vector"]["0"]["weight"].shape == (2, 6)


# --- memory -------------------------------------------------------------------------------------------------------

MEMORY = Lstm(3, 5)
STEPS, BATCH = 12, 4


def unroll(seed):
    r = rng(seed)
    x = r.standard_normal((STEPS, BATCH, 3), np.float32)
    carry = {name: r.standard_normal((BATCH, 5), np.float32) for name in ("cell", "hidden")}
    return x, carry, r.random((STEPS, BATCH)) < 0.3


def test_lstm_is_the_same_in_every_library():
    def run(xp, params, x, carry, first):
        y, after = MEMORY.apply(xp, params, x, carry, first)
        return {"y": y, "after": after}

    assert_agree(run, MEMORY.init(rng()), *unroll(1))


def test_lstm_step_in_hand_computed_numbers():
    params = {
        "input": np.array([[1.0, 2.0, 3.0, 4.0]], np.float32),  # gates in, forget, content, out
        "recurrent": np.array([[0.5, 0.0, -1.0, 0.0]], np.float32),
        "bias": np.array([0.0, 1.0, 0.0, 0.0], np.float32),
    }
    carry = {"cell": np.array([[0.2]], np.float32), "hidden": np.array([[0.4]], np.float32)}
    x = np.array([[[0.1]]], np.float32)
    y, after = Lstm(1, 1).apply(acting, params, x, carry, np.zeros((1, 1), bool))
    # gates: in 0.1 + 0.2, forget 0.2 + 1, content 0.3 - 0.4, out 0.4
    # cell = 0.7685248 * 0.2 + 0.5744425 * tanh(-0.1) = 0.0964514; hidden = 0.5986877 * tanh(cell)
    np.testing.assert_allclose(after["cell"], 0.0964512, atol=1e-6)
    np.testing.assert_allclose(y[0], 0.0575661, atol=1e-6)
    np.testing.assert_array_equal(after["hidden"], y[0])


def test_lstm_starts_with_an_open_forget_gate_and_orthogonal_weights():
    params = MEMORY.init(rng())
    assert params["bias"].tolist() == [0.0] * 5 + [1.0] * 5 + [0.0] * 10
    for name, rows in (("input", 3), ("recurrent", 5)):
        np.testing.assert_allclose(params[name] @ params[name].T, np.eye(rows), atol=1e-6)
    assert not any(leaf.any() for leaf in tree.leaves(MEMORY.carry(2)))


@pytest.mark.parametrize("seed", range(3))
def test_lstm_step_by_step_equals_the_whole_unroll(seed):
    params = MEMORY.init(rng())
    x, carry, first = unroll(seed)
    whole, last = MEMORY.apply(acting, params, x, carry, first)
    for t in range(STEPS):
        y, carry = MEMORY.apply(acting, params, x[t : t + 1], carry, first[t : t + 1])
        np.testing.assert_allclose(y[0], whole[t], atol=1e-6)
    for name in ("cell", "hidden"):
        np.testing.assert_allclose(carry[name], last[name], atol=1e-6)


def test_first_in_the_middle_equals_starting_afresh():
    params = MEMORY.init(rng())
    x, carry, _ = unroll(0)
    first = np.zeros((STEPS, BATCH), bool)
    first[7, 1] = True
    whole, last = MEMORY.apply(acting, params, x, carry, first)
    fresh, fresh_last = MEMORY.apply(acting, params, x[7:], MEMORY.carry(BATCH), np.zeros((STEPS - 7, BATCH), bool))
    without, _ = MEMORY.apply(acting, params, x, carry, np.zeros((STEPS, BATCH), bool))
    np.testing.assert_allclose(whole[7:, 1], fresh[:, 1], atol=1e-6)
    np.testing.assert_allclose(last["cell"][1], fresh_last["cell"][1], atol=1e-6)
    np.testing.assert_array_equal(whole[:7], without[:7])  # nothing flows backwards
    others = [0, 2, 3]
    np.testing.assert_array_equal(whole[:, others], without[:, others])  # nor to other columns
    assert np.abs(whole[7:, 1] - without[7:, 1]).max() > 1e-3


# --- models -------------------------------------------------------------------------------------------------------


def a_model(space, memory=0, shared=False, normalise=True, hidden=(6, 6)):
    spec = EnvSpec("", observation_spec(space), action_spec(gym.spaces.Discrete(3)))
    algorithm = ActorCritic(hidden=hidden, memory=memory, shared=shared, normalise_observations=normalise)
    return algorithm.model(spec)


SPACES = {
    "box": gym.spaces.Box(-3.0, 5.0, (3,)),
    "image": gym.spaces.Box(0, 255, (36, 36, 1), np.uint8),  # the smallest for the Nature CNN
    "small image": gym.spaces.Dict({"map": gym.spaces.Box(0, 1, (5, 6, 2), bool), "way": gym.spaces.Discrete(4)}),
    "nest": gym.spaces.Dict(
        {
            "a": gym.spaces.Tuple((gym.spaces.Box(-9.0, 9.0, (2,), np.float64), gym.spaces.Discrete(4))),
            "b": gym.spaces.Box(0.0, 7.0, ()),
            specs.MASK: gym.spaces.Box(0, 1, (3,), np.int8),
        }
    ),
    "discrete": gym.spaces.Discrete(4),
}


@pytest.mark.parametrize("memory, shared", [(0, False), (0, True), (5, False)])
@pytest.mark.parametrize("space", SPACES)
def test_a_whole_unroll_equals_row_by_row_with_the_carry(space, memory, shared):
    made, steps, batch = a_model(SPACES[space], memory, shared), 6, 3
    params, obs = made.init(rng()), drawn(SPACES[space], steps, batch)
    statistics = made.observe(acting, made.statistics(), obs)
    first = rng(1).random((steps, batch)) < 0.3
    whole, last = made.apply(acting, params, statistics, obs, made.carry(batch), first)
    assert whole["policy"].shape == (steps, batch, 3) and whole["value"].shape == (steps, batch, 1)
    carry = made.carry(batch)
    for t in range(steps):
        rows, carry = made.apply(acting, params, statistics, tree.take(obs, t), carry, first[t])
        for head in ("policy", "value"):
            np.testing.assert_allclose(rows[head], whole[head][t], atol=1e-5)
    assert set(carry) == set(last) and (memory == 0 or np.abs(carry["cell"] - last["cell"]).max() < 1e-5)


@pytest.mark.parametrize("space", ["box", "nest"])
def test_a_model_with_memory_starts_afresh_where_an_episode_does(space):
    made = a_model(SPACES[space], memory=5, normalise=False)
    params, obs = made.init(rng()), drawn(SPACES[space], 6, 3)
    carry = tree.map(lambda leaf: rng(2).standard_normal(leaf.shape).astype(np.float32), made.carry(3))
    first = np.zeros((6, 3), bool)
    first[4] = True
    whole, _ = made.apply(acting, params, {}, obs, carry, first)
    fresh, _ = made.apply(acting, params, {}, tree.take(obs, slice(4, 6)), made.carry(3), first[4:])
    other, _ = made.apply(acting, params, {}, obs, carry, np.zeros((6, 3), bool))
    np.testing.assert_allclose(whole["value"][4:], fresh["value"], atol=1e-6)
    assert np.abs(whole["value"][4:] - other["value"][4:]).max() > 1e-3


@pytest.mark.parametrize("space", ["box", "nest", "small image"])
@pytest.mark.parametrize("memory", [0, 5])
def test_models_agree_in_every_library(space, memory):
    made = a_model(SPACES[space], memory)
    obs = drawn(SPACES[space], 5, 3)
    statistics = made.observe(acting, made.statistics(), obs)
    first = rng(1).random((5, 3)) < 0.3

    def run(xp, params, statistics, obs, carry, first):
        outputs, after = made.apply(xp, params, statistics, obs, carry, first)
        return {"outputs": outputs, "after": after} if memory else outputs

    assert_agree(run, made.init(rng()), statistics, obs, made.carry(3), first)


@pytest.mark.parametrize("normalise", [False, True])
def test_names_of_observations_may_hold_slashes(normalise):
    """dm_control's do ("walker/height"); a path must not be taken for a nest."""
    space = gym.spaces.Dict(
        {
            "walker": gym.spaces.Box(-1, 1, (2,)),
            "walker/height": gym.spaces.Box(-1, 1, (1,)),
            "a/b/c": SPACES["discrete"],
        }
    )
    made = a_model(space, normalise=normalise)
    obs = drawn(space, 6, 3)
    statistics = made.observe(acting, made.statistics(), obs)
    outputs, _ = made.apply(acting, made.init(rng()), statistics, obs, {}, np.ones((6, 3), bool))
    assert outputs["policy"].shape == (6, 3, 3) and np.isfinite(outputs["policy"]).all()


def test_one_head_alone_is_the_same_as_among_all():
    made = a_model(SPACES["box"])
    params, obs = made.init(rng()), drawn(SPACES["box"], 4)
    statistics, first = made.statistics(), np.zeros(4, bool)
    every, _ = made.apply(acting, params, statistics, obs, {}, first)
    only, _ = made.apply(acting, params, statistics, obs, {}, first, ("policy",))
    assert set(only) == {"policy"} and np.array_equal(only["policy"], every["policy"])


def test_policy_and_value_have_torsos_of_their_own_unless_shared_remembered_or_seen():
    assert set(a_model(SPACES["box"]).torsos) == {"policy", "value"}
    seen = a_model(SPACES["image"]), a_model(SPACES["small image"])
    for made in (a_model(SPACES["box"], shared=True), a_model(SPACES["box"], memory=5), *seen):
        assert set(made.torsos) == {"shared"}


LINEAR = ActorCritic(hidden=(), normalise_observations=False)


@pytest.mark.parametrize("algorithm", [LINEAR, replace(LINEAR, memory=5), DQN(hidden=())])
def test_no_hidden_layers_is_a_linear_model(algorithm):
    """The parameters pass through the flat vector, as they do in every learner and policy."""
    spec = EnvSpec("", observation_spec(SPACES["box"]), action_spec(gym.spaces.Discrete(3)))
    made = algorithm.model(spec)
    born = made.init(rng())
    layout = Layout.of(born)
    params, obs = layout.unflatten(layout.flatten(born)), drawn(SPACES["box"], 4)
    outputs, _ = made.apply(acting, params, {}, obs, made.carry(4), np.ones(4, bool))
    assert outputs["q" if "q" in outputs else "policy"].shape == (4, 3)
    if algorithm == LINEAR:
        head = params["head"]["policy"]
        np.testing.assert_allclose(outputs["policy"], obs @ head["weight"] + head["bias"], atol=1e-6)


# --- normalisation ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*backends.NAMES, "acting"])
def test_statistics_of_pieces_are_those_of_all_data(name):
    made = a_model(SPACES["box"])
    data = (rng(1).standard_normal((1000, 3)) * [0.1, 1.0, 5.0] + [2.0, -1.0, 30.0]).astype(np.float32)
    xp = acting if name == "acting" else BACKENDS[name].xp
    to, back = (lambda x: x, lambda x: x)
    if name != "acting":
        to, back = BACKENDS[name].from_numpy, BACKENDS[name].to_numpy
    statistics = to(made.statistics())
    for piece in np.split(data, [1, 30, 31, 430]):
        statistics = made.observe(xp, statistics, to(piece))
    found = back(statistics)["observation"]
    np.testing.assert_allclose(found["mean"], data.mean(axis=0), rtol=1e-4)
    np.testing.assert_allclose(found["variance"], data.var(axis=0), rtol=1e-4)
    np.testing.assert_allclose(found["count"], 1000, rtol=1e-4)


def test_statistics_take_any_leading_axes_and_only_boxes_that_are_no_pictures():
    made = a_model(SPACES["nest"])
    assert made.normalised == ("a/0", "b")
    obs = drawn(SPACES["nest"], 6, 5)
    found = made.observe(acting, made.statistics(), obs)
    assert set(found) == {"a.0", "b"}
    np.testing.assert_allclose(found["a.0"]["mean"], obs["a"]["0"].reshape(30, 2).mean(axis=0), atol=1e-4)
    np.testing.assert_allclose(found["b"]["variance"], obs["b"].reshape(30).var(axis=0), rtol=1e-3)
    assert a_model(SPACES["image"]).normalised == a_model(SPACES["discrete"]).normalised == ()


def test_networks_see_observations_in_deviations_within_ten():
    made = a_model(SPACES["box"])
    statistics = {
        "observation": {
            "count": np.float32(10),
            "mean": np.array([1.0, 0.0, 0.0], np.float32),
            "variance": np.array([4.0, 1.0, 1e-6], np.float32),
        }
    }
    plain, params = a_model(SPACES["box"], normalise=False), made.init(rng())
    given = np.array([[5.0, 0.5, 1.0]], np.float32)
    seen = np.array([[2.0, 0.5, 10.0]], np.float32)  # (5 - 1) / 2; itself; a thousand deviations, cut at ten
    scaled, _ = made.apply(acting, params, statistics, given, {}, np.ones(1, bool))
    expected, _ = plain.apply(acting, params, {}, seen, {}, np.ones(1, bool))
    np.testing.assert_allclose(scaled["value"], expected["value"], atol=1e-5)


def test_a_model_says_what_is_small_and_where_it_can_run():
    assert a_model(SPACES["box"]).small and not a_model(SPACES["image"]).small and a_model(SPACES["small image"]).small
    assert a_model(SPACES["box"]).backend is None
    assert isinstance(a_model(SPACES["box"]), model.Towers)
