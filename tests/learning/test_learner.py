"""The learner: one text, three libraries, one result; and what each of its promises means in numbers."""

import jax
import numpy as np
import pytest
import torch

from cavalcade import backends, tree
from cavalcade.backends import torch_backend
from cavalcade.backends.numpy_backend import acting
from cavalcade.errors import UserError
from cavalcade.experiment.experiment import Experiment, Settings
from cavalcade.learning import reward_scaling
from cavalcade.networks.model import forward_of
from cavalcade.optimiser import NAMES as OPTIMISERS
from cavalcade.optimiser import Optimiser
from cavalcade.specs import MASK
from tests.helpers.compilation import quick_compilation  # noqa: F401
from tests.helpers.items import blank

SMALL = {"hidden": (16,), "normalise_observations": False}
DQN = {**SMALL, "batch": 16, "updates_per_draw": 2, "replay_start": 32, "target_period": 3}
ON_POLICY = {**SMALL, "unroll": 6, "normalise_rewards": False}
PPO = {**ON_POLICY, "epochs": 3, "minibatches_per_epoch": 2}
PENALTY = {"surrogate": "penalty", "kl_target": 0.1}
IMPALA = {**ON_POLICY, "batch": 4}
CASES = {
    "dqn": ("dqn", "CartPole-v1", DQN),
    "c51": ("c51", "CartPole-v1", {**DQN, "atoms": 11, "value_low": -3.0, "value_high": 3.0}),
    "quantiles": ("qr-dqn", "CartPole-v1", {**DQN, "quantiles": 8}),
    "quantiles, not dueling": ("qr-dqn", "CartPole-v1", {**DQN, "quantiles": 8, "dueling": False, "double": False}),
    "dqn, squared": ("dqn", "CartPole-v1", {**DQN, "squared": True}),
    "a2c": ("a2c", "CartPole-v1", ON_POLICY),
    "impala": ("impala", "CartPole-v1", IMPALA),
    "pg": ("pg", "CartPole-v1", ON_POLICY),
    "pg, no baseline": ("pg", "CartPole-v1", {**ON_POLICY, "baseline": False, "gae_lambda": 0.9}),
    "ppo": ("ppo", "CartPole-v1", PPO),
    "recurrent ppo": ("ppo", "CartPole-v1", {**PPO, "memory": 16}),
    "recurrent impala": ("impala", "CartPole-v1", {**IMPALA, "memory": 16, "summed": True}),
    "impala, continuous": ("impala", "Pendulum-v1", {**IMPALA, "normalise_observations": True, "rho_bar": 2.0}),
    "ppo, continuous": ("ppo", "Pendulum-v1", {**PPO, "entropy_cost": 0.01, "normalise_observations": True}),
    "ppo, penalty": ("ppo", "CartPole-v1", {**PPO, **PENALTY, "kl_rule": "rllib"}),
    "recurrent ppo, penalty": ("ppo", "CartPole-v1", {**PPO, **PENALTY, "memory": 16}),
    "ppo, penalty, continuous": ("ppo", "Pendulum-v1", {**PPO, **PENALTY, "kl_rule": "heess"}),
    "ppo, masked": ("ppo", "cavalcade/MaskedBandit-v0", {**PPO, "shared": True}),
    "impala, masked": ("impala", "cavalcade/MaskedBandit-v0", {**IMPALA, "normalise_advantages": True}),
    "ppo, small image": ("ppo", "MinAtar/Breakout-v1", {**PPO, "minibatches_per_epoch": 1}),
    "dqn, small image": ("dqn", "MinAtar/Breakout-v1", DQN),
    "dqn, masked": ("dqn", "cavalcade/MaskedBandit-v0", {**DQN, "dueling": False, "double": False}),
}
EACH = ["dqn", "a2c", "ppo", "recurrent ppo", "impala", "ppo, penalty, continuous"]


def parts_of(case, backend="torch", seed=0, **overrides):
    system, environment, settings = CASES[case]
    run = Settings(steps=10_000, seed=seed, backend=backend, envs=4)
    return Experiment.create(system, environment, run, {**settings, **overrides}).parts


def random_items(parts, seed=0):
    """A draw of items with every field filled: legal actions, some ends of episodes, some padding in unrolls."""
    rng = np.random.default_rng(seed)
    count = parts.experience.batch
    zeros = blank(parts.signature)
    items = tree.map(lambda leaf: rng.standard_normal((count, *leaf.shape)), zeros)
    items = tree.map(lambda x, leaf: (x > 1.0 if leaf.dtype == bool else x).astype(leaf.dtype), items, zeros)
    if parts.spec.action.kind == "discrete":
        items["action"] = rng.integers(0, parts.spec.action.logits, items["action"].shape)
    items["discount"] = np.where(rng.random(items["discount"].shape) < 0.1, 0.0, 0.99).astype(np.float32)
    if "valid" in items:
        items["behaviour"] *= 0.3  # not too far from the policy that learns
        items["valid"] = np.ones_like(items["valid"])
        items["valid"][:, -1] = 0.0  # the last row is there for its value only
        items["valid"][0, 4:] = 0.0
        items["first"] = rng.random(items["first"].shape) < 0.15
    for name in ("obs", "next_obs"):
        if parts.spec.masked and name in items:
            items[name][MASK] = (rng.random(items[name][MASK].shape) < 0.6).astype(np.int8)
            items[name][MASK][..., 0] = 1
    return items


def prepared(parts, params, statistics, items):
    """Samples of a draw, as the algorithm makes them, computed in plain NumPy."""

    forward = forward_of(parts.model, acting, params, statistics)
    samples, _ = parts.algorithm.prepare(acting, parts.spec, forward, None, items)
    return tree.map(np.ascontiguousarray, samples)


def vector(learner):
    return learner.params()[0]


# --- one result in three libraries --------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_gradients_and_metrics_agree(case):
    found = {}
    for backend in backends.NAMES if "masked" not in case else ("torch", "numpy"):  # compiling for jax takes a second
        parts = parts_of(case, backend)
        learner = parts.learner()
        params, noise = vector(learner), np.random.default_rng(0).standard_normal(learner.layout.size)
        params += 0.1 * noise.astype(np.float32)  # away from the target network and from the nearly uniform start
        kept = learner.state()
        kept["state"]["params"] = params
        learner.restore(kept)
        statistics = parts.model.statistics()
        samples = prepared(parts, learner.layout.unflatten(params), statistics, random_items(parts))
        found[backend] = learner.gradients(samples)
        assert np.array_equal(vector(learner), params) and learner.updates == 0, "asking for gradients changes nothing"
    gradient, metrics = found["torch"]
    assert gradient.shape == (learner.layout.size,) and np.abs(gradient).max() > 1e-3
    for backend, (other, other_metrics) in found.items():
        assert other.dtype == np.float32
        np.testing.assert_allclose(other, gradient, atol=1e-5 * max(1.0, np.abs(gradient).max()), err_msg=backend)
        assert set(other_metrics) == set(metrics)
        for name, value in metrics.items():
            np.testing.assert_allclose(other_metrics[name], value, rtol=1e-5, atol=1e-5, err_msg=f"{name} {backend}")


def test_gradients_agree_where_a_rectifier_is_exactly_at_zero():
    """Observations of zeros meet the actor-critics' zero biases: every first unit sits on the corner of relu."""
    found = {}
    for backend in ("torch", "numpy"):
        parts = parts_of("a2c", backend, activation="relu")
        items = random_items(parts)
        items["obs"][:] = 0.0
        found[backend], _ = parts.learner().gradients(items)
    np.testing.assert_allclose(found["numpy"], found["torch"], atol=1e-5)


@pytest.mark.parametrize("case", EACH)
def test_parameters_agree_after_updates(case):
    learners = {backend: parts_of(case, backend).learner() for backend in backends.NAMES}
    twin, metrics = parts_of(case).learner(), {}
    start = vector(twin)
    for draw in range(3):
        items = random_items(parts_of(case), seed=draw)
        metrics = {backend: learner.update(items) for backend, learner in learners.items()}
        assert twin.update(items) == metrics["torch"]
    torch, jax, numpy = (vector(learners[backend]) for backend in ("torch", "jax", "numpy"))
    assert np.array_equal(torch, vector(twin)), "the same updates twice give the same bits"
    assert np.abs(torch - start).max() > 1e-3
    np.testing.assert_allclose(jax, torch, atol=1e-4)
    np.testing.assert_allclose(numpy, torch, atol=1e-4)
    assert len({learner.updates for learner in learners.values()}) == 1
    for name, value in metrics["torch"].items():
        np.testing.assert_allclose(metrics["jax"][name], value, rtol=1e-3, atol=1e-4, err_msg=name)
        np.testing.assert_allclose(metrics["numpy"][name], value, rtol=1e-3, atol=1e-4, err_msg=name)


# --- update is gradients and apply --------------------------------------------------------------------------------


def test_an_update_of_one_minibatch_is_its_gradients_applied():
    parts = parts_of("a2c")
    whole, cut = parts.learner(), parts.learner()
    for draw in range(3):
        items = random_items(parts, draw)
        metrics = whole.update(items)
        gradient, loss = cut.gradients(items)
        norm = cut.apply(gradient)["gradient_norm"]
        assert np.array_equal(vector(whole), vector(cut)) and whole.updates == cut.updates == draw + 1
        assert metrics == {**{name: float(value) for name, value in loss.items()}, "gradient_norm": float(norm)}
        np.testing.assert_allclose(norm, np.linalg.norm(gradient), rtol=1e-5)


def test_several_updates_of_one_draw_are_the_same_as_one_draw_each():
    together, apart = parts_of("dqn").learner(), parts_of("dqn", updates_per_draw=1).learner()
    for draw in range(3):
        items = random_items(parts_of("dqn"), draw)
        together.update(items)
        for half in (slice(0, 16), slice(16, 32)):
            apart.update(tree.take(items, half))
        assert together.updates == apart.updates == 2 * (draw + 1)
        for name in ("params", "target"):
            assert np.array_equal(together.state()["state"][name], apart.state()["state"][name]), name


def test_jax_compiles_an_update_once():
    """Also after parameters were loaded: neither the first result nor a checkpoint may look different to it."""
    compiled = []

    def listen(event, seconds, fun_name="", **_):
        if event.endswith("backend_compile_duration") and "update" in fun_name:
            compiled.append(fun_name)

    parts = parts_of("ppo", "jax")
    learner, items = parts.learner(), random_items(parts)
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        for _ in range(3):
            learner.update(items)
        learner.restore(learner.state())
        learner.update(items)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert len(compiled) == 1


def test_ppo_makes_epochs_times_minibatches_and_uses_every_sample_once_per_epoch():
    parts = parts_of("ppo", epochs=3, minibatches_per_epoch=4)
    indices = parts.algorithm.minibatches(np.random.default_rng(0), 4)  # 4 unrolls of 6 steps
    assert indices.shape == (12, 6)
    for epoch in indices.reshape(3, -1):
        assert sorted(epoch) == list(range(24))
    assert len({tuple(epoch) for epoch in indices.reshape(3, -1)}) == 3
    learner = parts.learner()
    learner.update(random_items(parts))
    assert learner.updates == 12


# --- torch: recorded programs are the eager calls -----------------------------------------------------------------


class Watched(torch_backend.Recorded):
    """The same, and it can be found."""

    made: list = []

    def __init__(self, function):
        super().__init__(function)
        self.made.append(self)


@pytest.mark.parametrize("case", ["dqn", "ppo", "recurrent ppo", "impala", "ppo, penalty, continuous"])
def test_recorded_programs_give_the_bits_of_eager_calls(case, monkeypatch):
    monkeypatch.setattr(torch_backend, "Recorded", Watched)
    parts = parts_of(case, anneal=True)
    draws = [random_items(parts, seed) for seed in range({"dqn": 15, "impala": 30}.get(case, 5))]  # 2, 1 or 6 updates

    def run(warm_up):
        monkeypatch.setattr(Watched, "WARM_UP", warm_up)
        Watched.made = []
        learner, path = parts.learner(), []
        for items in draws:
            metrics = learner.update(items)
            path.append((learner.updates, metrics, vector(learner)))
        assert learner.updates >= 30
        return path, learner, [program for one in Watched.made for program in one.programs.values()]

    eager, one, none = run(10**9)
    recorded, other, programs = run(3)
    assert not none
    assert len(programs) == 1 and None not in programs, "the update was recorded"
    for (updates, metrics, params), (_, eager_metrics, eager_params) in zip(recorded, eager):
        assert np.array_equal(params, eager_params), f"after {updates} updates"
        assert metrics == eager_metrics
    for mine, its in zip(tree.leaves(one.state()["state"]), tree.leaves(other.state()["state"]), strict=True):
        assert np.array_equal(mine, its)


@pytest.mark.parametrize("case", ["dqn", "a2c", "recurrent ppo, penalty"])
def test_recorded_gradients_have_the_bits_of_eager_ones(case, monkeypatch):
    monkeypatch.setattr(torch_backend, "Recorded", Watched)
    monkeypatch.setattr(Watched, "WARM_UP", 1)
    Watched.made = []
    parts = parts_of(case)
    learner, changes = parts.learner(), np.random.default_rng(0)
    learner.adopt(vector(learner), 1)  # updates, by others
    eager = learner.backend.compile(learner.text.gradients)
    for seed in range(4):
        items = learner.backend.from_numpy(random_items(parts, seed))
        for samples, index in learner.minibatches(items):
            gradient, metrics = learner.gradients(samples, index)
            expected = learner.backend.to_numpy(eager(learner.arrays, samples, learner.backend.from_numpy(index)))
            row = [*metrics.values(), *([] if learner.judged is None else learner.judged)]
            assert np.array_equal(np.concatenate([gradient, np.float32(row)]), expected) and np.abs(gradient).max() > 0
            moved = vector(learner) + np.float32(0.01) * changes.standard_normal(gradient.shape, np.float32)
            learner.adopt(moved, learner.updates + 1)  # in place: the program sees it
    programs = [program for one in Watched.made for program in one.programs.values()]
    assert len(programs) == 1 and None not in programs, "the gradient was recorded"


# --- optimisers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OPTIMISERS)
@pytest.mark.parametrize("clip, anneal", [(0.0, False), (0.5, True)])
def test_optimisers_walk_the_same_way_everywhere(name, clip, anneal):
    paths = {}
    for backend in backends.NAMES:
        settings = {"optimiser_name": name, "max_gradient_norm": clip, "anneal": anneal, "learning_rate": 0.01}
        learner = parts_of("a2c", backend, hidden=(2,), unroll=100, **settings).learner()  # 25 updates in 10,000 steps
        rng, path = np.random.default_rng(0), [vector(learner)]
        for _ in range(20):
            gradient = rng.standard_normal(learner.layout.size) * rng.choice([0.01, 1.0, 3.0])
            learner.apply(gradient.astype(np.float32))
            path.append(vector(learner))
        paths[backend] = np.array(path)
    assert np.abs(paths["torch"][-1] - paths["torch"][0]).max() > 1e-3
    np.testing.assert_allclose(paths["jax"], paths["torch"], atol=1e-5)
    np.testing.assert_allclose(paths["numpy"], paths["torch"], atol=1e-5)
    if anneal and name == "sgd":
        moves = np.linalg.norm(np.diff(paths["torch"], axis=0), axis=1)
        rates = 0.01 * (1.0 - np.arange(20) / 25)  # falls linearly; the norm of a clipped gradient is 0.5
        assert (moves <= 0.5 * rates * 1.001 + 1e-7).all() and (moves >= 0.5 * rates * 0.99 - 1e-7).sum() > 10


def first_steps(backend, settings, gradients):
    library = backends.load(backend, 1)
    optimiser = library.optimiser(settings)
    params = library.vector(np.array([1.0, -1.0], np.float32))
    state = optimiser.init(params)
    for gradient in gradients:
        params, state = optimiser.update(library.vector(np.array(gradient, np.float32)), state, params)
    return np.array(library.to_numpy(params))


@pytest.mark.parametrize("backend", backends.NAMES)
def test_first_steps_in_hand_computed_numbers(backend):
    gradient = [0.5, -2.0]
    # Adam: both moments are divided by their bias at once, so the step is rate * g / (|g| + epsilon)
    adam = first_steps(backend, Optimiser("adam", 0.1, epsilon=0.1), [gradient])
    np.testing.assert_allclose(adam, [1.0 - 0.1 * 0.5 / 0.6, -1.0 + 0.1 * 2.0 / 2.1], rtol=1e-6)
    # RMSProp: square = 0.1 g^2 with decay 0.9; rate * g / (sqrt(square) + epsilon)
    rmsprop = first_steps(backend, Optimiser("rmsprop", 0.1, epsilon=0.01, decay=0.9), [gradient])
    np.testing.assert_allclose(rmsprop, [1.0 - 0.05 / 0.16811388, -1.0 + 0.2 / 0.64245553], rtol=1e-6)
    # centred: square - mean^2 = 0.1 g^2 - (0.1 g)^2 = 0.09 g^2 = 0.0225, 0.36; rate * g / sqrt(0.09 g^2 + epsilon)
    centred = first_steps(backend, Optimiser("centred-rmsprop", 0.1, epsilon=0.04, decay=0.9), [gradient])
    np.testing.assert_allclose(centred, [1.0 - 0.05 / 0.25, -1.0 + 0.2 / 0.63245553], rtol=1e-6)
    # where a gradient never changes its variance falls to nothing, which rounding must not make less
    steady = first_steps(backend, Optimiser("centred-rmsprop", 1e-6, epsilon=1e-12, decay=0.5), [[3.3, -0.7]] * 60)
    assert np.isfinite(steady).all() and steady[0] < 0
    # AdaGrad: sum of squares 0.25, then 0.5; 4, then 8
    adagrad = first_steps(backend, Optimiser("adagrad", 0.1, epsilon=0.1), [gradient] * 2)
    expected = [1.0 - 0.05 / 0.6 - 0.05 / 0.80710678, -1.0 + 0.2 / 2.1 + 0.2 / 2.92842712]
    np.testing.assert_allclose(adagrad, expected, rtol=1e-6)
    # SGD with a horizon of four: rates 0.1, 0.075, 0.05, 0.025 and then nothing
    sgd = first_steps(backend, Optimiser("sgd", 0.1, horizon=4), [gradient] * 6)
    np.testing.assert_allclose(sgd, [1.0 - 0.25 * 0.5, -1.0 + 0.25 * 2.0], rtol=1e-6)


@pytest.mark.parametrize("backend", backends.NAMES)
def test_adagrad_walks_as_torchs_own_does(backend):
    gradients = np.random.default_rng(0).standard_normal((30, 2)).astype(np.float32)
    found = first_steps(backend, Optimiser("adagrad", 0.3, epsilon=1e-10), gradients)
    params = torch.tensor([1.0, -1.0])
    library = torch.optim.Adagrad([params], lr=0.3)
    for gradient in gradients:
        params.grad = torch.from_numpy(gradient)
        library.step()
    np.testing.assert_allclose(found, params.numpy(), rtol=2e-6)


def test_adams_second_step_remembers_the_first():
    # mean 0.9 * 0.1 + 0.1 * 3 = 0.39 of gradients 1 and 3, over 1 - 0.81; square 0.000999 + 0.009, over 1 - 0.998001
    second = 0.1 * (0.39 / 0.19) / (np.sqrt(0.009999 / 0.001999) + 1e-8)
    for backend in backends.NAMES:
        found = first_steps(backend, Optimiser("adam", 0.1), [[1.0, 1.0], [3.0, 3.0]])
        np.testing.assert_allclose(found[0], 1.0 - 0.1 - second, rtol=1e-5)


def test_a_gradient_longer_than_the_limit_is_shortened_and_a_shorter_one_is_not():
    settings = {"optimiser_name": "sgd", "learning_rate": 1.0, "anneal": False, "max_gradient_norm": 0.5}
    learner = parts_of("a2c", **settings).learner()
    for scale, expected in ((10.0, 0.5), (0.4, 0.4)):
        gradient = np.zeros(learner.layout.size, np.float32)
        gradient[:2] = scale * 0.6, scale * 0.8
        before = vector(learner)
        assert abs(learner.apply(gradient)["gradient_norm"] - scale) < 1e-5, "the norm before clipping is reported"
        np.testing.assert_allclose((before - vector(learner))[:3], [0.6 * expected, 0.8 * expected, 0.0], atol=1e-6)


# --- the target network -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", backends.NAMES)
def test_the_target_is_copied_exactly_at_every_period_and_never_between(backend):
    learner = parts_of("dqn", backend).learner()  # target_period 3
    expected, rng = vector(learner), np.random.default_rng(0)
    for update in range(1, 11):
        learner.apply(rng.standard_normal(learner.layout.size).astype(np.float32))
        if update in (3, 6, 9):
            expected = vector(learner)
        assert np.array_equal(learner.state()["state"]["target"], expected), f"update {update}"
        assert update in (3, 6, 9) or not np.array_equal(vector(learner), expected)


def test_algorithms_without_a_target_have_none():
    assert "target" not in parts_of("ppo").learner().state()["state"]


# --- kept and put back --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "case, backend", [*(("dqn", name) for name in backends.NAMES), ("ppo", "torch"), ("ppo", "numpy")]
)
def test_a_learner_put_back_goes_on_exactly(case, backend):
    settings = {"anneal": True, "normalise_observations": True}
    settings |= {"normalise_rewards": True} if case == "ppo" else {}
    parts = parts_of(case, backend, **settings)
    learner = parts.learner()
    learner.update(random_items(parts, 0))
    kept = learner.state()
    frozen = tree.map(np.copy, kept["state"])
    learner.update(random_items(parts, 1))
    for (path, then), (_, now) in zip(tree.named(frozen), tree.named(kept["state"])):
        assert np.array_equal(then, now), f"{path} was not kept as a copy"
    expected, expected_statistics = learner.params()

    other = parts_of(case, backend, seed=9, **settings).learner()  # another start, another generator
    assert not np.array_equal(vector(other), expected)
    other.restore(kept)
    assert other.updates == (2 if case == "dqn" else 6)
    other.update(random_items(parts, 1))
    found, statistics = other.params()
    assert np.array_equal(found, expected)
    for (path, mine), (_, its) in zip(tree.named(statistics), tree.named(expected_statistics)):
        assert np.array_equal(mine, its), path
    for (path, mine), (_, its) in zip(tree.named(other.state()["state"]), tree.named(learner.state()["state"])):
        assert np.array_equal(mine, its), path
    assert learner.state()["rng"] == other.state()["rng"]


# --- errors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["torch", "numpy"])
def test_a_loss_that_is_not_finite_stops_the_run_and_names_the_update(backend):
    parts = parts_of("a2c", backend)
    learner, items = parts.learner(), random_items(parts)
    learner.update(items)
    learner.update(items)
    items["reward"][1, 1] = np.nan
    with pytest.raises(UserError, match=r"nan at update 3.*--learning-rate"):
        learner.update(items)


# --- padding ------------------------------------------------------------------------------------------------------


def with_absurd_padding(items):
    """The same items, with nonsense in every row that is no transition and is nobody's successor."""
    padding = items["valid"] == 0
    successor = np.zeros_like(padding)
    successor[:, 1:] = items["valid"][:, :-1] == 1
    absurd = tree.map(np.copy, items)
    absurd["reward"][padding] = 1e6
    absurd["discount"][padding] = 1e3
    absurd["behaviour"][padding] = np.tile([1e6, -1e6], items["behaviour"].shape[-1] // 2)
    absurd["action"][padding] = 1
    absurd["obs"][padding & ~successor] = 1e6
    absurd["first"][padding & ~successor] = True
    return absurd


@pytest.mark.parametrize("case", ["a2c", "ppo", "recurrent ppo, penalty", "impala", "recurrent impala"])
@pytest.mark.parametrize("normalise_advantages", [False, True])
def test_padding_does_not_reach_the_gradients(case, normalise_advantages):
    parts = parts_of(case, normalise_advantages=normalise_advantages, entropy_cost=0.1)
    learner, items = parts.learner(), random_items(parts)
    items["valid"][1, 3:] = 0.0
    items["valid"][2, :] = 0.0  # a column without a single step
    items["first"][3, 2], items["valid"][3, 1] = True, 0.0  # a truncation: row 1 is the final observation
    params = learner.layout.unflatten(vector(learner))
    plain, metrics = learner.gradients(prepared(parts, params, {}, items))
    absurd, absurd_metrics = learner.gradients(prepared(parts, params, {}, with_absurd_padding(items)))
    assert np.abs(plain).max() > 1e-3
    np.testing.assert_allclose(absurd, plain, atol=1e-6)
    for name, value in metrics.items():
        np.testing.assert_allclose(absurd_metrics[name], value, atol=1e-5, err_msg=name)
    # and the test can fail: the same nonsense in a row that counts is seen
    items["reward"][3, 3] = 1e6
    assert np.abs(learner.gradients(prepared(parts, params, {}, items))[0] - plain).max() > 1e-3


@pytest.mark.parametrize("option", ["normalise_observations", "normalise_rewards"])
def test_padding_does_not_reach_the_statistics(option):
    parts = parts_of("a2c", **{option: True})
    items = random_items(parts)
    items["valid"][1, 3:] = 0.0
    plain, absurd = parts.learner(), parts.learner()
    plain.update(items)
    absurd.update(with_absurd_padding(items))
    for (path, mine), (_, its) in zip(tree.named(plain.params()[1]), tree.named(absurd.params()[1])):
        np.testing.assert_allclose(its, mine, rtol=1e-5, err_msg=path)


# --- normalised rewards -------------------------------------------------------------------------------------------


def reward_items(parts, rewards, discounts, totals=()):
    """`parts`: of an algorithm that does not scale. `totals`: the discounted sums of the rewards of the episode so far,
    which actors count for one that does."""
    items = random_items(parts)
    items["valid"][:, :-1] = 1.0
    items["reward"][:], items["discount"][:] = [*rewards, 0.0], [*discounts, 0.0]  # the same in every column
    if totals:
        items["total"] = np.zeros_like(items["reward"])
        items["total"][:, :-1] = totals
    return items


def test_rewards_are_scaled_by_the_deviation_of_their_discounted_sums():
    settings = {"unroll": 4, "discount": 0.5, "normalise_advantages": False}
    scaling, plain = parts_of("a2c", normalise_rewards=True, **settings), parts_of("a2c", **settings)
    rewards, discounts = [1.0, 2.0, 3.0, 2.0], [0.5, 0.5, 0.0, 0.5]  # an episode ends after the third step
    sums = [5.0, 4.5, 5.25, 2.0]  # 1 + 0.5 * 8 from before the unroll; 2 + 0.5 * 5; 3 + 0.5 * 4.5; and afresh
    items = reward_items(plain, rewards, discounts, sums)
    mean = 4.1875
    deviation = np.sqrt(np.mean([(s - mean) ** 2 for s in sums]))  # 1.2884
    learner = scaling.learner()
    learner.update(items)
    statistics = learner.params()[1]["reward"]
    np.testing.assert_allclose(statistics["mean"], mean, rtol=1e-3)
    np.testing.assert_allclose(np.sqrt(statistics["variance"]), deviation, rtol=1e-3)

    by_hand = plain.learner()
    by_hand.update({**items, "reward": items["reward"] / np.sqrt(statistics["variance"] + 1e-8)})
    np.testing.assert_allclose(vector(learner), vector(by_hand), atol=1e-6)


def test_scaled_rewards_stay_within_ten_and_do_not_lose_their_sign():
    settings = {"unroll": 4, "normalise_advantages": False}
    scaling, plain = parts_of("a2c", normalise_rewards=True, **settings), parts_of("a2c", **settings)
    learner, by_hand = scaling.learner(), plain.learner()
    calm = reward_items(plain, [0.1, -0.1, 0.1, -0.1], [0.0] * 4, [0.1, -0.1, 0.1, -0.1])
    for _ in range(300):
        items, statistics = learner.backend.from_numpy(calm), learner.arrays["statistics"]
        learner.arrays["statistics"] = reward_scaling.scaled(learner.backend.xp, statistics, items)[1]
    burst = reward_items(plain, [50.0, -50.0, 0.0, 0.0], [0.0] * 4, [50.0, -50.0, 0.0, 0.0])
    learner.update(burst)
    by_hand.update(reward_items(plain, [10.0, -10.0, 0.0, 0.0], [0.0] * 4))
    np.testing.assert_allclose(vector(learner), vector(by_hand), atol=1e-6)


def test_clipped_rewards_are_clipped_to_one():
    clipped, plain = parts_of("a2c", clip_rewards=True, unroll=4), parts_of("a2c", unroll=4)
    learner, by_hand = clipped.learner(), plain.learner()
    learner.update(reward_items(clipped, [7.0, -0.5, -3.0, 1.0], [0.9] * 4))
    by_hand.update(reward_items(plain, [1.0, -0.5, -1.0, 1.0], [0.9] * 4))
    assert np.array_equal(vector(learner), vector(by_hand))


def test_the_cases_are_what_their_names_say():
    assert parts_of("ppo, masked").spec.masked and parts_of("dqn, masked").spec.masked
    assert parts_of("ppo, continuous").spec.action.kind == "box" and parts_of("recurrent ppo").model.memory
