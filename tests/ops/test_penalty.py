"""PPO's penalty and the rules that change its coefficient, in numbers done by hand, on every backend."""

import numpy as np
import pytest

from cavalcade import backends, tree
from cavalcade.errors import UserError
from cavalcade.experiment.experiment import Experiment, Settings
from cavalcade.learning.updates.allreduce import Meeting, Reduced
from cavalcade.ops.penalty import KL_RULES, adapted, kl_penalty
from cavalcade.specs import EnvSpec, Leaf
from tests.learning.test_updates import drawn, finish_together

SMALL = {"hidden": (8,), "unroll": 6, "epochs": 2, "minibatches_per_epoch": 2, "normalise_rewards": False}


def ppo_of(backend="numpy", seed=3, **settings):
    run = Settings(steps=10_000, seed=seed, backend=backend, envs=4)
    return Experiment.create("ppo", "CartPole-v1", run, {**SMALL, "surrogate": "penalty", **settings}).parts


@pytest.mark.parametrize("backend", backends.NAMES)
def test_the_three_rules(backend):
    library = backends.load(backend)

    def after(rule, coefficient, *kls):  # at a target of 0.01
        for kl in kls:
            given = library.vector(np.float32(coefficient)), library.vector(np.float32(kl))
            coefficient = float(library.to_numpy(adapted(library.xp, KL_RULES[rule], *given, 0.01)))
        return pytest.approx(coefficient, rel=1e-6)

    # PPO paper: doubled above 1.5 targets, halved below two thirds of one
    assert [after("ppo", 1.0, kl) for kl in (0.016, 0.014, 0.0067, 0.0066)] == [2.0, 1.0, 1.0, 0.5]
    # RLlib: times 1.5 above two targets, times 0.5 below half of one
    assert [after("rllib", 0.2, kl) for kl in (0.021, 0.019, 0.0051, 0.0049)] == [0.3, 0.2, 0.2, 0.1]
    # Heess: times 1.5 above two, divided by 1.5 below half, between 1/35 and 35
    assert [after("heess", 1.0, kl) for kl in (0.021, 0.019, 0.0051, 0.0049)] == [1.5, 1.0, 1.0, 2.0 / 3.0]
    assert after("heess", 30.0, 0.1) == 35.0 and after("heess", 0.03, 0.0) == 1.0 / 35.0
    # the others too come back from however long a stay at zero
    assert after("ppo", 1e-6, 0.0) == 1e-6 and after("ppo", 1e-6, 0.0, 0.1) == 2e-6
    assert [KL_RULES[rule].initial for rule in ("ppo", "rllib", "heess")] == [1.0, 0.2, 1.0]


@pytest.mark.parametrize("backend", backends.NAMES)
def test_what_a_divergence_adds(backend):
    library = backends.load(backend)

    def added(rule, kl):
        return float(library.to_numpy(kl_penalty(library.xp, KL_RULES[rule], *map(one, (3.0, kl)), 0.01)))

    def one(x):
        return library.vector(np.float32(x))

    assert added("ppo", 0.05) == pytest.approx(0.15, rel=1e-6)
    assert added("heess", 0.02) == pytest.approx(0.06, rel=1e-6)
    assert added("heess", 0.05) == pytest.approx(0.15 + 50.0 * 0.03**2, rel=1e-5)


@pytest.mark.parametrize("backend", backends.NAMES)
@pytest.mark.parametrize(
    "rule, going, policy_loss", [("ppo", 1.0, -0.5305693), ("heess", 1.0, -0.5037881), ("heess", 0.0, -0.5037881)]
)
def test_the_penalised_loss(backend, rule, going, policy_loss):
    """pi_old = (1/2, 1/2), pi = (4/5, 1/5): KL(pi_old || pi) = ln(5/4); action 0 has ratio 1.6, action 1 has 0.4."""
    library = backends.load(backend)
    spec = EnvSpec("", Leaf("box", (1,), "float32"), Leaf("discrete", (), "int64", counts=(2,)))
    parts = ppo_of(kl_rule=rule, kl_target=0.1, normalise_advantages=False, value_cost=2.0)
    xp, array = library.xp, lambda *numbers: library.vector(np.array(numbers, np.float32))
    samples = {
        "obs": library.vector(np.zeros((3, 1), np.float32)),
        "action": library.from_numpy(np.array([0, 1, 0])),
        "valid": array(1, 1, 0),
        "log_prob": array(np.log(0.5), np.log(0.5), 7.0),
        "behaviour": library.vector(np.array([[1, 1], [2, 2], [5, -5]], np.float32)),
        "advantage": array(1.0, 2.0, 9.0),
        "goal": array(1.0, 0.0, 9.0),
    }
    logits = np.tile(np.log(np.float32([4.0, 1.0])), (3, 1))
    outputs = {"policy": library.vector(logits), "value": library.vector(np.zeros((3, 1), np.float32))}
    coefficients = {"kl_coefficient": array(3.0)[0], "draw": {"made": array(0)[0], "going": array(going)[0]}}
    forward = lambda *_: (outputs, {})  # noqa: E731
    loss, metrics, _ = parts.algorithm.loss(xp, spec, forward, None, samples, {}, coefficients)
    # -(1.6 * 1 + 0.4 * 2) / 2 + 3 * 0.2231436, and Heess's 50 * (0.2231436 - 0.2)^2
    assert float(metrics["kl"]) == pytest.approx(0.2231436, rel=1e-5)
    assert float(metrics["policy_loss"]) == pytest.approx(policy_loss, rel=1e-5)
    assert float(metrics["value_loss"]) == 0.25 and float(metrics["kl_coefficient"]) == 3.0
    assert float(loss) == pytest.approx(going * policy_loss + 2.0 * 0.25, abs=1e-6)


def walked(rule, kls):
    """Coefficient and whether the policy may move, after each update with these divergences; the target is 0.01."""
    adaptation = ppo_of(kl_rule=rule).algorithm.adaptation(100)  # two epochs of two minibatches
    xp, now, path = backends.load("numpy").xp, tree.map(np.float32, adaptation.initial), []
    for kl in kls:
        now = adaptation.rule(xp, now, {"kl": np.float32(kl)})
        path.append((float(now["kl_coefficient"]), float(now["draw"]["going"])))
    return path


def test_the_coefficient_changes_after_a_draw_by_the_divergence_of_its_last_epoch():
    still = (1.0, 1.0)
    # a first epoch far off is forgotten; the last has a mean of 0.016, then of 0.005
    assert walked("ppo", [9, 9, 0.002, 0.03, 0, 0, 0.01, 0.0]) == [still] * 3 + [(2.0, 1.0)] * 4 + [(1.0, 1.0)]
    # Heess: a first epoch above 0.04 ends the policy's part of this draw, one just below does not
    assert walked("heess", [0.0, 0.09, 0.03, 0.03]) == [still, (1.0, 0.0), (1.0, 0.0), (1.5, 1.0)]
    assert walked("heess", [0.0, 0.07, 0.01, 0.01]) == [still] * 4


@pytest.mark.parametrize("backend", ["torch", "numpy"])
def test_learners_that_update_together_decide_by_their_mean(backend):
    """One sees a divergence far above the target, two see none at all: the mean of the three is above it too."""
    parts = ppo_of(backend, kl_target=0.05, learning_rate=1e-6, max_gradient_norm=0.0)
    meeting, learners = Meeting(parts.learner, 3), [parts.learner() for _ in range(3)]
    updates = [Reduced(one, f"learner/{n}", meeting) for n, one in enumerate(learners)]
    far, near = drawn(parts, 0), drawn(parts, 1)
    near["behaviour"][:], far["behaviour"][:] = 0.0, [1.5, -1.5]  # the policy of a new learner is nearly uniform
    finish_together([one.update(items) for one, items in zip(updates, (far, near, near))], meeting)
    kl = np.log(2.0) - 0.19098  # entropy of the softmax of (1.5, -1.5): a third of this is 0.167 > 1.5 * 0.05
    for learner in learners:
        now = learner.state()["state"]["coefficients"]
        assert float(now["kl_coefficient"]) == 2.0 and float(now["draw"]["made"]) == 0.0
        assert float(now["draw"]["kl"]) == pytest.approx(kl / 3, rel=0.02)
    meeting.close()


def test_a_coefficient_is_kept_and_a_draw_that_was_interrupted_begins_anew():
    parts = ppo_of("torch")
    learner, other = parts.learner(), ppo_of("torch", seed=9).learner()
    for seed in range(3):
        metrics = learner.update(drawn(parts, seed))
    kept = learner.state()
    assert metrics["kl_coefficient"] == 4.0 and float(kept["state"]["coefficients"]["kl_coefficient"]) == 8.0
    learner.adapt({"kl": 0.5})  # in the middle of a draw
    interrupted = learner.state()
    assert float(interrupted["state"]["coefficients"]["draw"]["made"]) == 1.0
    other.restore(interrupted)
    found = other.state()["state"]["coefficients"]
    assert float(found["kl_coefficient"]) == 8.0 and float(found["draw"]["made"]) == 0.0
    learner.restore(kept)
    assert learner.update(drawn(parts, 5)) == other.update(drawn(parts, 5))


def test_words_and_numbers_that_mean_nothing_are_refused():
    for wrong, says in (
        ({"surrogate": "penality"}, "--surrogate 'penality' is not one of clip, penalty. Did you mean 'penalty'"),
        ({"kl_rule": "heese"}, "--kl-rule 'heese' is not one of ppo, rllib, heess. Did you mean 'heess'"),
        ({"kl_target": 0.0}, "--kl-target is 0.0; it has to be a number above 0"),
    ):
        with pytest.raises(UserError, match=says):
            ppo_of(**wrong)
