"""DDPG, TD3, D4PG, SAC, MPO and DMPO: one loss in three libraries, and each of its terms changes its own part alone."""

import numpy as np
import pytest

from cavalcade import backends
from cavalcade.backends import torch_backend
from tests.helpers.compilation import quick_compilation  # noqa: F401
from tests.helpers.continuous import CASES, by_part, drawn, first_row, moved, parts_of

# --- one result in three libraries --------------------------------------------------------------------------------


# compiling for jax takes seconds: not for those that are a part of others
NOT_COMPILED = ("d4pg", "sac, masked", "sac, atoms and n steps")


@pytest.mark.parametrize("case", [case for case in CASES if case != "sac, image"])
def test_losses_metrics_and_gradients_agree(case):
    found = {}
    for backend in backends.NAMES if case not in NOT_COMPILED else ("torch", "numpy"):
        made = parts_of(case, backend)
        learner = moved(made.learner())
        gradient, metrics = learner.gradients(*first_row(learner, drawn(made)))
        found[backend] = gradient, metrics, learner.judged
    gradient, metrics, priorities = found["torch"]
    assert np.abs(gradient).max() > 1e-3 and all(map(np.isfinite, metrics.values()))
    assert (priorities is not None) == (case == "apex-dpg")
    for backend, (other, its, judged) in found.items():
        np.testing.assert_allclose(other, gradient, atol=1e-5 * max(1.0, np.abs(gradient).max()), err_msg=backend)
        assert set(its) == set(metrics)
        for name, value in metrics.items():
            np.testing.assert_allclose(its[name], value, rtol=1e-5, atol=1e-5, err_msg=f"{name} {backend}")
        if priorities is not None:
            np.testing.assert_allclose(judged, priorities, rtol=1e-5, atol=1e-5)


# --- each term changes its own part -------------------------------------------------------------------------------

CRITIC, TWO = {"critic": ("loss", 1.0)}, {"second_critic": ("loss", 1.0)}
OWN = {  # part -> the metric that it descends, and the sign
    "ddpg": {**CRITIC, "policy": ("policy_value", -1.0)},
    "twin d4pg": {**CRITIC, **TWO, "policy": ("policy_value", -1.0)},
    "sac": {**CRITIC, **TWO, "policy": ("policy_loss", 1.0)},
    "sac, discrete": {**CRITIC, **TWO, "policy": ("policy_loss", 1.0)},
}


def descended(learner, samples, row, part, metric, step=0.02):
    """How fast a metric rises along the gradient of a part, by differences: in units of what the gradient says."""
    gradient, _ = learner.gradients(samples, row)
    places = by_part(learner, np.arange(len(gradient)))[part]
    length, kept, sides = np.linalg.norm(gradient[places]), learner.state(), []
    for side in (step, -step):
        params = kept["state"]["params"].copy()
        params[places] += np.float32(side / length) * gradient[places]
        learner.restore({**kept, "state": {**kept["state"], "params": params}})
        sides.append(learner.gradients(samples, row)[1][metric])
    learner.restore(kept)
    return (sides[0] - sides[1]) / (2 * step * length)


@pytest.mark.parametrize("case", OWN)
def test_the_gradient_of_a_part_is_that_of_its_own_term(case):
    made = parts_of(case, activation="tanh")
    learner = moved(made.learner(), size=0.5)
    samples, row = first_row(learner, drawn(made))
    for part, (metric, sign) in OWN[case].items():
        assert descended(learner, samples, row, part, metric) == pytest.approx(sign, abs=0.02), (part, metric)
    gradient, metrics = learner.gradients(samples, row)
    if "temperature" in metrics:
        temperature = by_part(learner, gradient)["temperature"]
        assert temperature == pytest.approx(metrics["entropy"] - made.algorithm.entropy_goal(made.spec), abs=1e-5)


@pytest.mark.parametrize("case", ["td3", "d4pg", "sac", "sac, discrete"])
def test_rewards_reach_the_critics_alone(case):
    made = parts_of(case)
    learner = moved(made.learner())
    items = drawn(made)
    samples, row = first_row(learner, items)
    one = by_part(learner, learner.gradients(samples, row)[0])
    other = by_part(learner, learner.gradients({**samples, "reward": samples["reward"] + 1.0}, row)[0])
    for name in one:
        assert np.array_equal(one[name], other[name]) == ("critic" not in name), name


def test_only_critics_change_the_torso_that_images_share():
    """At ends of episodes, where targets are rewards alone, the loss of the critics is all that the torso descends."""
    made = parts_of("sac, image")
    learner = moved(made.learner(), size=0.02)
    samples, row = first_row(learner, {**drawn(made), "discount": np.zeros(16, np.float32)})
    gradient, _ = learner.gradients(samples, row)
    assert descended(learner, samples, row, "shared", "loss", 0.005) == pytest.approx(1.0, abs=0.02)
    assert np.abs(by_part(learner, gradient)["policy"]).max() > 0


# --- torch: recorded programs are the eager calls -----------------------------------------------------------------


class Watched(torch_backend.Recorded):
    """The same, and it can be found."""

    made: list = []

    def __init__(self, function):
        super().__init__(function)
        self.made.append(self)


@pytest.mark.parametrize("case", ["td3", "twin d4pg", "apex-dpg", "sac", "sac, discrete", "mpo", "dmpo"])
def test_updates_are_recorded_and_give_the_bits_of_eager_ones(case, monkeypatch):
    monkeypatch.setattr(torch_backend, "Recorded", Watched)
    made, paths = parts_of(case), []
    for warm_up in (10**9, 3):
        monkeypatch.setattr(Watched, "WARM_UP", warm_up)
        Watched.made = []
        learner = made.learner()
        paths.append([(learner.update(drawn(made, seed)), learner.params()[0]) for seed in range(8)])
    programs = [program for one in Watched.made for program in one.programs.values()]
    assert len(programs) == 1 and None not in programs, "the update was recorded"
    for (metrics, params), (other, its) in zip(*paths):
        assert metrics == other and np.array_equal(params, its)
