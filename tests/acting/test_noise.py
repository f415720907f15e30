"""Noise that remembers: the same beside the environments and asked centrally, and kept by checkpoints to the bit."""

import numpy as np
import pytest

from cavalcade import tree
from cavalcade.checkpoints import checkpoint
from cavalcade.experiment.experiment import Experiment, Settings
from cavalcade.runtimes.inprocess import InProcess
from tests.acting.test_central import Inserts, program_of, ran

EXPLORING = {"noise_correlation": 0.8, "initial_deviation": 2.0, "entropy_cost": 0.01, "entropy_ladder": 4.0}


@pytest.fixture(scope="module")
def parts():
    settings = Settings(steps=4_000, backend="numpy", actors=2, envs=2, evaluations=0, seed=3)
    small = {"hidden": (8,), "unroll": 8, "epochs": 1}
    return Experiment.create("ppo", "Pendulum-v1", settings, {**small, **EXPLORING}, {"max_episode_steps": 20}).parts


def noise_of(items) -> np.ndarray:
    """The noise [B, T] that made the actions of unrolls: how many deviations they lie from the mean."""
    mean, log_std = items["behaviour"][:, :-1, 0], items["behaviour"][:, :-1, 1]
    return (items["action"][:, :-1, 0] - mean) / np.exp(log_std)


def test_local_and_central_acting_draw_the_same_noise(parts):
    kept = []
    for acting in ("local", "central"):
        runtime = InProcess(program_of(parts, acting))
        inserts = Inserts(runtime.objects["table"])
        ran(runtime, 800).close()
        kept.append(inserts.found)
    assert len(kept[1]) > 20
    products = []  # of the noise of two steps in a row of one episode
    for (version, origin, items, _), (version2, origin2, items2, _) in zip(*kept):
        assert version == version2 and np.array_equal(origin, origin2)
        np.testing.assert_allclose(items["action"], items2["action"], rtol=0, atol=1e-5)
        assert np.array_equal(items["entropy_factor"], items2["entropy_factor"])
        factors = [[4.0, 4.0 ** (1 / 3)], [4.0 ** (-1 / 3), 0.25]][int(origin[0, 0]) // 2]
        np.testing.assert_allclose(items["entropy_factor"][:, 0], factors, rtol=1e-6)
        z, first, valid = noise_of(items), items["first"][:, 1:-1], items["valid"][:, :-1] > 0
        products += (z[:, 1:] * z[:, :-1])[valid[:, 1:] & valid[:, :-1] & ~first].tolist()
    assert np.mean(products) == pytest.approx(0.8, abs=0.2)


@pytest.mark.parametrize("acting", ["local", "central"])
def test_a_run_with_coloured_noise_goes_on_exactly_from_its_checkpoint(parts, acting, tmp_path):
    runtime = ran(InProcess(program_of(parts, acting)), 300)
    checkpoint.save(tmp_path, {"nodes": runtime.state()}, 300)
    resumed = InProcess(program_of(parts, acting), (tmp_path, 300, checkpoint.load_step(tmp_path, 300)))
    found = []
    for running in (runtime, resumed):
        inserts = Inserts(running.objects["table"])
        for _ in range(60):
            running.round()
        found.append((inserts.found, running.call("learner", "latest", -1)))
        running.close()
    (one, params), (other, params2) = found
    assert len(one) == len(other) > 5 and params[0] == params2[0] and np.array_equal(params[1], params2[1])
    for (_, _, items, _), (_, _, items2, _) in zip(one, other):
        assert all(np.array_equal(a, b) for a, b in zip(tree.leaves(items), tree.leaves(items2)))
