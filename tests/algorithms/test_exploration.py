"""How actions are varied: deviation and colour of Gaussian noise, cost of the entropy, ladders, epsilon; in numbers."""

import numpy as np
import pytest

from cavalcade import backends
from cavalcade.acting.evaluation import END
from cavalcade.acting.noise import NoiseStream
from cavalcade.algorithms.a2c import A2C
from cavalcade.algorithms.contract import Clock
from cavalcade.algorithms.dqn import DQN
from cavalcade.algorithms.impala import Impala
from cavalcade.algorithms.ppo import PPO
from cavalcade.errors import UserError
from cavalcade.experiment.experiment import Experiment, Settings
from cavalcade.specs import EnvSpec, Leaf
from tests.helpers.compilation import quick_compilation  # noqa: F401
from tests.learning.test_updates import drawn

SMALL = {"hidden": (8,), "unroll": 8, "normalise_rewards": False}
CHOICE = EnvSpec("", Leaf("box", (1,), "float32"), Leaf("discrete", (), "int64", counts=(2,)))
BOX = EnvSpec("", Leaf("box", (1,), "float32"), Leaf("box", (2,), "float32", low=(-1.0,) * 2, high=(1.0,) * 2))


def experiment(system="ppo", environment="CartPole-v1", actors=1, backend="numpy", steps=1_000, row=None, **settings):
    run = Settings(
        steps=steps, seed=3, backend=backend, envs=4, actors=actors, evaluations=0, preset="none", **(row or {})
    )
    return Experiment.create(system, environment, run, {**SMALL, **settings})


# --- Gaussian policies --------------------------------------------------------------------------------------------


def test_the_first_actions_deviate_by_the_initial_deviation():
    policy = experiment(environment="Pendulum-v1", initial_deviation=0.25).parts.policy()
    noise = {"action": np.array([[2.0], [-1.0]], np.float32)}
    obs, first = np.zeros((2, 3), np.float32), np.ones(2, np.bool_)
    varied, best = policy.act(obs, {}, first, noise)[0], policy.act(obs, {}, first, None)[0]
    np.testing.assert_allclose(varied - best, [[0.5], [-0.25]], rtol=1e-6)


@pytest.mark.parametrize("setting", [{"initial_deviation": 0.5}, {"noise_correlation": 0.5}])
def test_what_only_gaussian_policies_have_is_refused_for_choices(setting):
    name = next(iter(setting)).replace("_", "-")
    with pytest.raises(UserError, match=f"--{name} is for Gaussian policies, but CartPole-v1 has discrete actions"):
        experiment(**setting)


def test_the_noise_of_a_step_remembers_the_step_before_until_the_episode_ends():
    a2c = A2C(noise_correlation=0.6)
    drawn, last = {"action": np.full((2, 2), 1.0, np.float32)}, {"action": np.full((2, 2), -2.0, np.float32)}
    mixed = a2c.correlated(drawn, last, np.array([False, True]))["action"]
    np.testing.assert_allclose(mixed, [[0.6 * -2.0 + 0.8 * 1.0] * 2, [1.0] * 2], rtol=1e-6)
    assert A2C().correlated(drawn, last, np.zeros(2, np.bool_)) is drawn


@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_correlated_noise_is_standard_normal_at_every_step(correlation):
    stream = NoiseStream(PPO(noise_correlation=correlation), BOX, np.random.default_rng(0), 4_000)
    steps = []
    for number in range(12):  # episodes of six steps
        steps.append(stream.draw(Clock(0), np.full(4_000, number % 6 == 0))["action"][:, 0])
    z = np.stack(steps)
    assert z.dtype == np.float32
    np.testing.assert_allclose(z.mean(axis=1), 0.0, atol=0.06)
    np.testing.assert_allclose(z.std(axis=1), 1.0, atol=0.04)
    for lag in (1, 3):
        assert np.mean(z[1] * z[1 + lag]) == pytest.approx(correlation**lag, abs=0.06)
    assert np.mean(z[5] * z[6]) == pytest.approx(0.0, abs=0.06), "a new episode"


# --- the cost of the entropy --------------------------------------------------------------------------------------

FALLING = {"epochs": 2, "minibatches_per_epoch": 2, "surrogate": "penalty"}
FALLING |= {"entropy_cost": 0.28, "entropy_cost_end": 0.0}


@pytest.mark.parametrize("backend", backends.NAMES)
def test_the_cost_moves_linearly_over_the_updates_and_stays_at_its_end(backend):
    """Three draws of 2 x 2 minibatches in a run of 250 steps: 7 draws of 32 steps, 28 updates."""
    run = experiment(backend=backend, steps=250, **FALLING)
    learner = run.parts.learner()
    told = [learner.update(drawn(run.parts, seed)) for seed in range(3)]
    means = [0.28 - 0.01 * (4 * draw + 1.5) for draw in range(3)]  # over the updates 0 .. 3, 4 .. 7, 8 .. 11
    assert [one["entropy_cost"] for one in told] == pytest.approx(means, rel=1e-5)
    assert [one["kl_coefficient"] for one in told] == [1.0, 2.0, 4.0], "the penalty's rule goes on beside it"
    for _ in range(20):
        learner.adapt({"kl": 0.0})
    assert float(learner.state()["state"]["coefficients"]["entropy_cost"]) == pytest.approx(0.0, abs=1e-7)


def test_a_restored_schedule_goes_on_and_is_laid_out_anew_over_another_total():
    run, longer = (experiment(steps=steps, **FALLING) for steps in (250, 500))
    learner, same, extended = run.parts.learner(), run.parts.learner(), longer.parts.learner()
    learner.update(drawn(run.parts, 0))
    for other in (same, extended):
        other.restore(learner.state())
    assert same.update(drawn(run.parts, 9)) == learner.update(drawn(run.parts, 9))
    extended.adapt({"kl": 0.0})  # the fifth update of 60 instead of 28
    cost = float(extended.state()["state"]["coefficients"]["entropy_cost"])
    assert cost == pytest.approx(0.28 * (1 - 5 / 60), rel=1e-5)


ROWS = {
    "alone": ("a2c", 1, {}),
    "all-reduce": ("a2c", 2, {"updates": "allreduce", "learners": 2, "experience": "bundled"}),
    "servers": ("a2c", 2, {"updates": "parameter-server", "learners": 2, "experience": "bundled"}),
    "hogwild": ("a3c", 2, {}),
}


@pytest.mark.parametrize("row", ROWS)
def test_the_cost_reaches_its_end_with_the_run_however_many_learn(row):
    system, actors, wiring = ROWS[row]
    made = experiment(system, actors=actors, steps=1_920, row=wiring, entropy_cost=1.0, entropy_cost_end=0.0)
    runtime = made.launch()
    costs = []
    try:
        for steps in (960, 1_920):
            while runtime.steps() < steps:
                runtime.round()
            runtime.round()
            learners = [node for name, node in runtime.objects.items() if name.startswith("learner")]
            costs.append([float(one.learner.state()["state"]["coefficients"]["entropy_cost"]) for one in learners])
    finally:
        runtime.close()
    assert len(costs[0]) == made.wiring.learners
    np.testing.assert_allclose(costs, np.broadcast_to([[0.5], [0.0]], np.shape(costs)), atol=0.1)


def test_environments_stand_on_a_ladder_over_all_actors():
    ppo = PPO(entropy_cost=0.01, entropy_ladder=8.0)
    rng = np.random.default_rng(0)
    found = [ppo.noise(CHOICE, rng, 2, Clock(0, actor, 2))["entropy_factor"] for actor in (0, 1)]
    np.testing.assert_allclose(np.ravel(found), [8.0, 2.0, 0.5, 0.125], rtol=1e-6)
    assert ppo.noise(CHOICE, rng, 1, Clock(0))["entropy_factor"] == [1.0], "alone, the cost itself"
    assert list(PPO(entropy_cost=0.01).noise(CHOICE, rng, 2, Clock(0))) == ["action"]


def test_a_ladder_of_nothing_is_refused():
    with pytest.raises(UserError, match="--entropy-ladder multiplies --entropy-cost, which is 0; give one above 0"):
        PPO(entropy_ladder=2.0)
    PPO(entropy_ladder=2.0, entropy_cost_end=0.01)


@pytest.mark.parametrize("backend", backends.NAMES)
@pytest.mark.parametrize("kind", [A2C, PPO, Impala])
def test_each_row_counts_by_its_own_cost(kind, backend):
    """Two environments, one step each, policies (4/5, 1/5) and (1/2, 1/2), whose entropies are 0.5004024 and 0.6931472.
    Rewards and values are zero, so the entropy is all of the loss."""
    library = backends.load(backend)
    algorithm = kind(entropy_cost=0.1, entropy_ladder=2.0, normalise_advantages=False)
    logits = np.log(np.array([[4.0, 1.0], [1.0, 1.0]], np.float32))

    def array(numbers, dtype=np.float32):
        return library.from_numpy(np.array(numbers, dtype))

    steps = {"obs": array(np.zeros((2, 2, 1))), "action": array([[0, 0], [1, 0]], np.int64)}
    steps |= {name: array(np.zeros((2, 2))) for name in ("reward", "discount")}
    steps |= {"first": array(np.zeros((2, 2)), np.bool_), "valid": array([[1, 0], [1, 0]])}
    steps |= {"behaviour": array(np.stack([logits, logits], 1)), "entropy_factor": array([[2.0, 9.0], [0.5, 9.0]])}
    outputs = {"policy": np.stack([logits, logits]), "value": np.zeros((2, 2, 1))}  # [T + 1, B, ...]

    def forward(obs, *_, **__):
        cut = (0,) if obs.ndim == 2 else slice(None)  # the samples of PPO are rows, without time
        return {name: array(value[cut]) for name, value in outputs.items()}, {}

    samples, _ = algorithm.prepare(library.xp, CHOICE, forward, None, steps)
    loss, metrics, _ = algorithm.loss(library.xp, CHOICE, forward, None, samples, {}, {})
    assert float(loss) == pytest.approx(-0.1 * (2.0 * 0.5004024 + 0.5 * 0.6931472) / 2, rel=1e-5)
    assert float(metrics["entropy"]) == pytest.approx((0.5004024 + 0.6931472) / 2, rel=1e-5), "as it is, unweighted"
    other = kind(entropy_cost=7.0, entropy_cost_end=1.0, entropy_ladder=2.0, normalise_advantages=False)
    scheduled = other.loss(library.xp, CHOICE, forward, None, samples, {}, {"entropy_cost": array(0.2)})
    assert float(scheduled[0]) == pytest.approx(2.0 * float(loss), rel=1e-5)
    assert float(scheduled[1]["entropy_cost"]) == pytest.approx(0.2)


# --- epsilon ------------------------------------------------------------------------------------------------------


def test_epsilon_falls_over_a_share_of_the_run_or_over_steps():
    def at(dqn, *steps, budget=100_000):
        return [dqn.epsilon(1, Clock(step, budget=budget)) for step in steps]

    assert at(DQN(), 0, 5_000, 10_000, 90_000) == pytest.approx([1.0, 0.52, 0.04, 0.04]), "a tenth of 100,000"
    assert at(DQN(), 0, 500, 1_000, budget=10_000) == pytest.approx([1.0, 0.52, 0.04])
    assert at(DQN(epsilon_share=0.5), 5_000, 25_000, 50_000) == pytest.approx([0.904, 0.52, 0.04])
    assert at(DQN(epsilon_steps=1_000), 500, 1_000, budget=10) == pytest.approx([0.52, 0.04]), "steps win"
    assert at(DQN(epsilon_share=0.0), 0) == pytest.approx([0.04]), "at once"
    ratios = DQN(epsilon_start=1.0, epsilon_end=0.01, epsilon_decay="multiplicative")
    assert at(ratios, 0, 2_500, 5_000, 10_000, 20_000) == pytest.approx([1.0, 0.316228, 0.1, 0.01, 0.01], rel=1e-5)
    assert DQN().epsilon(1, END) == pytest.approx(0.04), "as it is judged"


def test_ratios_need_numbers_above_zero():
    with pytest.raises(
        UserError, match="multiplicative needs --epsilon-start and --epsilon-end above 0; or use linear"
    ):
        DQN(epsilon_decay="multiplicative", epsilon_end=0.0)


@pytest.mark.parametrize("acting", ["local", "central"])
def test_actors_know_the_steps_of_the_whole_run(acting):
    small = {"hidden": (8,), "replay_start": 100}
    run = Settings(steps=1_000, backend="numpy", envs=2, actors=2, evaluations=0, acting=acting, preset="none")
    runtime = Experiment.create("dqn", "CartPole-v1", run, small).launch()
    try:
        while runtime.steps() < 48:
            runtime.round()
        reports = [runtime.objects[f"actor/{number}"].report() for number in range(2)]
    finally:
        runtime.close()
    for told in reports:  # 100 steps are the share; each takes the other to be as fast
        assert told["exploration_rate"] == pytest.approx(1.0 - 0.96 * 2 * told["steps"] / 100)
