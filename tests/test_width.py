"""The contract is wide enough for algorithms that are not there yet: three that need what the first four did not.

`Tiny` is an actor-critic whose critic judges actions, with an averaged target, a rate and a period of its own for the
policy, and noise in its loss (DDPG's line). `Burning` is recurrent Q-learning that warms its memory up before the
steps that it learns from (R2D2's). `Evolving` has no gradient to follow: actors perturb the parameters for whole
episodes, and the returns say which way to go (evolution strategies).
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest

from cavalcade import backends
from cavalcade.algorithms.contract import Acted, Algorithm, Loss, Target
from cavalcade.config import setting
from cavalcade.errors import UserError
from cavalcade.experience import Experience, NStep, Outcome, Queue, Replay, Unroll
from cavalcade.experiment import experiment, systems
from cavalcade.experiment.experiment import Experiment
from cavalcade.experiment.run_settings import Settings
from cavalcade.networks.layers import linear
from cavalcade.networks.model import build
from cavalcade.networks.torso import Torso, conditioned
from cavalcade.optimiser import Group, Optimiser
from tests.helpers.compilation import quick_compilation  # noqa: F401

TORSO = Torso((8,), "tanh", "nature", "orthogonal")


@dataclass(frozen=True)
class Tiny(Algorithm):
    batch: int = setting(8, "transitions of one update", "learning")

    def model(self, spec, network=None):
        size = spec.action.shape[0]
        heads = {
            "policy": lambda features: linear(features, size),
            "critic": lambda features: conditioned(features, {"action": size}, lambda n: linear(n, 1)),
        }
        return build(spec, TORSO, heads, shared=False, network=network, raw=("critic",))

    def experience(self):
        return Experience(NStep(1, 0.99), Replay(1_000, 16, self.batch / 2), self.batch)

    def optimiser(self, updates):
        return Optimiser("adam", 1e-2, groups={"policy": Group(rate=1e-3, clip=0.1, every=2)})

    def updates(self, steps, environments):
        return steps // 2

    def target(self):
        return Target(period=1, mix=0.01)

    def noise(self, spec, rng, count, clock):
        return {"action": rng.standard_normal((count, *spec.action.shape), np.float32)}

    def act(self, xp, spec, forward, obs, carry, first, noise):
        outputs, carry = forward(obs, carry, first, heads=("policy",))
        action = xp.tanh(outputs["policy"])
        return Acted(action if noise is None else action + 0.1 * noise["action"], {}, carry)

    def learning_noise(self, spec, rng, indices):
        return {"smoothing": rng.standard_normal((*indices.shape, *spec.action.shape), np.float32)}

    def loss(self, xp, spec, forward, target, samples, noise, coefficients):
        def judged(network, obs, action, freeze=()):
            return network(obs, heads=("critic",), inputs={"action": action}, freeze=freeze)[0]["critic"][..., 0]

        after = xp.tanh(target(samples["next_obs"], heads=("policy",))[0]["policy"]) + 0.1 * noise["smoothing"]
        goal = samples["reward"] + samples["discount"] * judged(target, samples["next_obs"], after)
        error = xp.stop_gradient(goal) - judged(forward, samples["obs"], samples["action"])
        action = xp.tanh(forward(samples["obs"], heads=("policy",))[0]["policy"])
        policy_loss = -xp.mean(judged(forward, samples["obs"], action, freeze=("critic",)))
        loss = xp.mean(xp.square(error)) + policy_loss
        return Loss(loss, {"loss": loss, "policy_loss": policy_loss})


@dataclass(frozen=True)
class Burning(Algorithm):
    unroll: int = setting(6, "steps, of which the first two only warm the memory up", "learning")

    def model(self, spec, network=None):
        heads = {"q": lambda features: linear(features, spec.action.logits)}
        return build(spec, TORSO, heads, memory=4, network=network)

    def experience(self):
        return Experience(Unroll(self.unroll, 0.99), Queue(2), 4)

    def optimiser(self, updates):
        return Optimiser("adam", 1e-3)

    def updates(self, steps, environments):
        return steps // (4 * self.unroll)

    def noise(self, spec, rng, count, clock):
        return {"preference": rng.random((count, spec.action.logits), np.float32)}

    def act(self, xp, spec, forward, obs, carry, first, noise):
        outputs, carry = forward(obs, carry, first)
        q = outputs["q"] if noise is None else noise["preference"]
        return Acted(xp.argmax(q, axis=-1), {}, carry)

    def loss(self, xp, spec, forward, target, samples, noise, coefficients):
        rows = {name: xp.swapaxes(samples[name], 0, 1) for name in ("obs", "first", "action", "reward", "discount")}
        _, carry = xp.no_gradient(forward, rows["obs"][:2], samples["carry"], rows["first"][:2])
        q = forward(rows["obs"][2:], carry, rows["first"][2:])[0]["q"]
        goal = rows["reward"][2:-1] + rows["discount"][2:-1] * xp.max(xp.stop_gradient(q[1:]), axis=-1)
        error = goal - xp.pick(q[:-1], rows["action"][2:-1])
        loss = xp.mean(xp.square(error))
        return Loss(loss, {"loss": loss})


NOISE = np.random.default_rng(5).standard_normal(2_000).astype(np.float32)  # known to actors and learners


@dataclass(frozen=True)
class Evolving(Algorithm):
    deviation: float = setting(0.1, "of the perturbation of each parameter", "exploration")

    def model(self, spec, network=None):
        heads = {"policy": lambda features: linear(features, spec.action.logits)}
        return build(spec, TORSO, heads, network=network)

    def experience(self):
        return Experience(Outcome(), Queue(2), 4)

    def optimiser(self, updates):
        return Optimiser("adam", 1e-2)

    def updates(self, steps, environments):
        return steps // 50

    def extras(self, spec):
        return {"offset": np.zeros((), np.int64)}

    def perturb(self, rng, params):
        offset = rng.integers(0, len(NOISE) - len(params))
        return params + self.deviation * NOISE[offset : offset + len(params)], {"offset": offset}

    def act(self, xp, spec, forward, obs, carry, first, noise):
        outputs, carry = forward(obs, carry, first)
        return Acted(xp.argmax(outputs["policy"], axis=-1), {}, carry)

    def learning_noise(self, spec, rng, indices):
        return {"known": np.broadcast_to(NOISE, (len(indices), len(NOISE)))}

    def gradient(self, xp, spec, params, samples, noise):
        better = samples["return"] - xp.mean(samples["return"])
        better = better / (xp.sqrt(xp.mean(xp.square(better))) + 1e-6)
        places = xp.expand_dims(samples["offset"], -1) + xp.arange(params.shape[0])
        directions = xp.reshape(xp.rows(noise["known"], xp.reshape(places, (-1,))), places.shape)
        gradient = -xp.mean(xp.expand_dims(better, -1) * directions, axis=0) / self.deviation
        return gradient, Loss(None, {"loss": -xp.mean(samples["return"])})


KINDS = {  # with the environment, and steps of a run
    "tiny": (Tiny, "Pendulum-v1", 200),
    "burning": (Burning, "cavalcade/CartPoleNoVelocity-v1", 200),
    "evolving": (Evolving, "CartPole-v1", 2_000),
}
ROWS = {
    "local": {},
    "central": {"acting": "central"},
    "all-reduce": {"updates": "allreduce", "learners": 2, "experience": "bundled"},
    "servers": {"updates": "parameter-server", "servers": 2, "learners": 2, "experience": "bundled"},
}


@pytest.fixture(autouse=True)
def known(monkeypatch):
    for name, (kind, *_) in KINDS.items():
        monkeypatch.setitem(experiment.ALGORITHMS, name, kind)
        monkeypatch.setitem(systems.SYSTEMS, name, systems.System(name, "sync", "", ""))


def launched(name: str, backend: str, **row) -> Experiment:
    settings = Settings(steps=2 * KINDS[name][2], envs=2, actors=2, backend=backend, evaluations=0, seed=3, **row)
    return Experiment.create(name, KINDS[name][1], settings, {})


def params_after(name: str, backend: str, row: str) -> np.ndarray:
    runtime = launched(name, backend, **ROWS[row]).launch()
    try:
        while runtime.steps() < KINDS[name][2]:
            runtime.round()
        version, vector, _ = runtime.call("learner", "latest", -1)
        assert version > 2 and np.isfinite(vector).all()
        return vector
    finally:
        runtime.close()


# `Tiny` is what DDPG is, which runs under all rows elsewhere; jax compiles each anew, so a local learner is enough
RUNS = [(name, row, "torch") for name in ("burning", "evolving") for row in ROWS]
RUNS += [(name, "local", "jax") for name in ("burning", "evolving")]


@pytest.mark.parametrize("name, row, backend", RUNS)
def test_a_tiny_algorithm_runs_under_a_row_and_repeats_itself(name, row, backend):
    if name == "evolving" and row == "central":
        with pytest.raises(UserError, match="perturbs them for each actor: use --acting local"):
            launched(name, backend, **ROWS[row]).program()
        return
    first, again = params_after(name, backend, row), params_after(name, backend, row)
    assert np.array_equal(first, again)


def test_backends_agree_on_what_a_tiny_algorithm_learns():
    rng, found = np.random.default_rng(0), {}
    for backend in backends.NAMES:
        learner = launched("tiny", backend).parts.learner()
        items = {"obs": rng.standard_normal((8, 3)), "next_obs": rng.standard_normal((8, 3))}
        items |= {"action": rng.standard_normal((8, 1)), "reward": rng.standard_normal(8), "discount": np.ones(8)}
        rng = np.random.default_rng(0)
        items = {key: value.astype(np.float32) for key, value in items.items()}
        before = learner.params()[0]
        vectors = []
        for _ in range(3):
            learner.update(items)
            vectors.append(learner.params()[0])
        policy = np.concatenate([_flat(learner, vector, "policy")[None] for vector in (before, *vectors)])
        moved = [not np.array_equal(a, b) for a, b in pairwise(policy)]
        assert moved == [False, True, False], "the policy is updated every second time"
        target = learner.state()["state"]["target"]
        assert 0 < np.abs(target - before).max() < 0.1 * np.abs(vectors[-1] - before).max() + 1e-9
        found[backend] = vectors[-1]
    np.testing.assert_allclose(found["jax"], found["torch"], atol=1e-5)
    np.testing.assert_allclose(found["numpy"], found["torch"], atol=1e-5)


def _flat(learner, vector: np.ndarray, part: str) -> np.ndarray:
    layout = learner.layout
    spans = zip(layout.paths, layout.offsets, layout.offsets[1:])
    return np.concatenate([vector[a:b] for path, a, b in spans if learner.model.part_of(path) == part])


def test_burning_in_changes_the_carry_and_no_gradient():
    """What the first two steps show reaches the loss through the memory alone: the torso learns nothing from them."""
    learner = launched("burning", "torch").parts.learner()
    rng = np.random.default_rng(1)
    items = {"obs": rng.standard_normal((4, 7, 2)), "first": np.zeros((4, 7), bool)}
    items |= {"action": rng.integers(0, 2, (4, 7)), "reward": np.ones((4, 7)), "discount": np.ones((4, 7))}
    items |= {"valid": np.ones((4, 7)), "carry": {name: np.zeros((4, 4), np.float32) for name in ("cell", "hidden")}}
    items = {
        k: v.astype(np.float32) if isinstance(v, np.ndarray) and v.dtype == np.float64 else v for k, v in items.items()
    }
    gradient, _ = learner.gradients(items)
    other = {**items, "obs": items["obs"].copy()}
    other["obs"][:, :2] += 1.0
    assert not np.array_equal(learner.gradients(other)[0], gradient), "the carry is another one"
    apart = {**items, "first": items["first"].copy()}
    apart["first"][:, 2] = True  # the memory begins afresh after the warm-up
    forgotten = {**other, "first": apart["first"]}
    assert np.array_equal(learner.gradients(forgotten)[0], learner.gradients(apart)[0])


def test_more_leading_axes_and_a_group_that_the_model_does_not_have():
    parts = launched("tiny", "numpy").parts
    params = parts.model.init(np.random.default_rng(0))
    obs, actions = np.ones((5, 3), np.float32), np.random.default_rng(1).random((4, 5, 1), np.float32)
    from cavalcade.backends.numpy_backend import acting

    together, _ = parts.model.apply(acting, params, {}, obs, {}, None, ("critic",), {"action": actions})
    for sampled, one in zip(actions, together["critic"]):
        alone, _ = parts.model.apply(acting, params, {}, obs, {}, None, ("critic",), {"action": sampled})
        np.testing.assert_allclose(one, alone["critic"], atol=1e-6)
    from cavalcade.errors import UserError
    from cavalcade.learning import groups
    from cavalcade.tree import Layout

    with pytest.raises(UserError, match="a group 'critc', but the model has only critic, policy"):
        groups.ranges(Layout.of(params), parts.model, Optimiser(groups={"critc": Group()}))


def test_outcomes_are_those_of_the_parameters_they_name():
    """An actor of two environments: each return is that of an episode which was played with one perturbation alone, and
    the gradient of the learner is the sum of the directions by how much better they did."""
    runtime = launched("evolving", "numpy").launch()
    try:
        table, found = runtime.objects["table"], []
        insert = table.insert
        table.insert = lambda items, *rest: found.append(items) or insert(items, *rest)
        actor = runtime.objects["actor/0"]
        held, base = [], actor.policy.vector.copy()
        for _ in range(400):
            runtime.round()
            held.append(int(actor.perturbation.extras["offset"][0]))
            assert np.array_equal(actor.policy.vector - actor.perturbation.base, _perturbed(actor, held[-1])), held[-1]
    finally:
        runtime.close()
    offsets = [int(each) for items in found for each in items.own["offset"]]
    assert len(set(held)) > 3 and len(offsets) > 8 and set(held) & set(offsets)
    assert not np.array_equal(actor.perturbation.base, base), "it was learned, and the actor heard of it"
    learner = launched("evolving", "numpy").parts.learner()
    size = learner.layout.size
    items = {"return": np.array([1.0, 3.0], np.float32), "offset": np.array([10, 700]), "obs": np.zeros((2, 1, 4))}
    gradient, metrics = learner.gradients(items, {"index": np.arange(2), "noise": {"known": NOISE}})
    expected = -(NOISE[700 : 700 + size] - NOISE[10 : 10 + size]) / 2 / 0.1
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-4)
    assert metrics["loss"] == -2.0


def _perturbed(actor, offset: int) -> np.ndarray:
    base = actor.perturbation.base
    return base + np.float32(0.1) * NOISE[offset : offset + len(base)] - base
