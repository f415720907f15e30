"""Runs of the value line: each repeats itself to the bit and goes on exactly, on processes too; first priorities are
those that the learner would compute, whatever describes the returns; what contradicts itself is refused."""

import numpy as np
import pytest

import cavalcade
from cavalcade import tree
from cavalcade.backends.numpy_backend import acting as xp
from cavalcade.errors import UserError
from cavalcade.experiment.experiment import Experiment, Settings
from cavalcade.networks import forward_of
from cavalcade.runtimes.inprocess import InProcess
from tests.helpers.leftovers import nothing_is_left  # noqa: F401

SMALL = {"hidden": (8,), "batch": 8, "replay_start": 50, "updates_per_draw": 1}
SYSTEMS = {
    "c51": {"atoms": 11, "value_low": 0.0, "value_high": 30.0},
    "qr-dqn": {"quantiles": 5, "priority_exponent": 0.6},
    "dqn": {"squared": True},
}


def experiment(system, actors=1, **overrides):
    settings = Settings(steps=600, backend="torch", envs=2, actors=actors, evaluations=0, seed=1)
    return Experiment.create(system, "CartPole-v1", settings, {**SMALL, **overrides})


def rounds(runtime, count):
    for _ in range(count):
        runtime.round()
    return runtime


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_run_repeats_itself_and_goes_on_exactly(system):
    run = experiment(system, actors=2, **SYSTEMS[system])
    first = rounds(InProcess(run.program()), 60)
    kept = first.state()
    rounds(first, 40)
    again, restored = rounds(InProcess(run.program()), 100), InProcess(run.program())
    restored.restore(kept)
    rounds(restored, 40)
    for other in (again, restored):
        assert other.objects["learner"].version == first.objects["learner"].version > 20
        states = [one.objects["learner"].learner.state()["state"] for one in (first, other)]
        for (path, mine), (_, its) in zip(*map(tree.named, states), strict=True):
            assert np.array_equal(mine, its), path


@pytest.mark.parametrize("system", ["c51", "qr-dqn"])
def test_a_run_on_processes(system, tmp_path):
    settings = {**SMALL, **SYSTEMS[system], "steps": 400, "actors": 2, "backend": "numpy", "display": False}
    run = cavalcade.train(system, "CartPole-v1", out=tmp_path, runtime="process", evaluations=0, **settings)
    last = run.rows()[-1]
    assert last["step"] >= 400 and last["updates"] > 100 and np.isfinite(last["loss"])


@pytest.mark.parametrize("value", ["scalar", "c51", "quantiles"])
def test_actors_give_the_priorities_that_the_learner_would(value):
    """With the params of the learner as target's, too, and the actions that were taken."""
    sizes = {"atoms": 11, "value_low": -5.0, "value_high": 5.0, "quantiles": 5}
    run = experiment("apex-dqn", value=value, **sizes)
    algorithm, parts, rng = run.algorithm, run.parts, np.random.default_rng(0)
    params = tree.map(lambda leaf: 3.0 * leaf, parts.model.init(rng))
    forward = forward_of(parts.model, xp, params, {})
    obs, next_obs = rng.standard_normal((2, 16, 4)).astype(np.float32)
    noise = {"explore": np.arange(16) % 2 == 0, "preference": rng.random((16, 2), np.float32)}
    now, after = (algorithm.act(xp, run.spec, forward, each, {}, None, noise) for each in (obs, next_obs))
    samples = {"obs": obs, "next_obs": next_obs, "action": now.action, "weight": np.ones(16, np.float32)}
    samples |= {"reward": rng.standard_normal(16).astype(np.float32), "discount": np.full(16, 0.9, np.float32)}
    seen = algorithm.priority({**samples, "extras": now.extras, "next_extras": after.extras})
    wanted = algorithm.loss(xp, run.spec, forward, forward, samples, {}, {}).priority
    assert np.ptp(wanted) > 0.1
    np.testing.assert_allclose(seen, wanted, rtol=1e-5, atol=1e-5)


def test_contradictions_are_refused_in_one_sentence():
    with pytest.raises(UserError, match=r"^--squared needs --value scalar: the loss of --value c51 is its own\.$"):
        experiment("c51", squared=True)
    with pytest.raises(UserError, match=r"^--value-low has to be below --value-high\.$"):
        experiment("c51", value_low=3.0, value_high=3.0)
