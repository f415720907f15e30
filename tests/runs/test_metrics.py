"""Metrics people steer by: the same numbers on every backend; they reach the rows; each has a group and a sentence."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import cavalcade
from cavalcade import backends
from cavalcade.algorithms.contract import Clock
from cavalcade.algorithms.dqn import DQN
from cavalcade.algorithms.ppo import PPO
from cavalcade.experiment.experiment import Experiment, Settings
from cavalcade.optimiser import Optimiser
from cavalcade.records.folder import Run
from cavalcade.records.metric_names import METRICS, explained, guide, tag, tagged
from cavalcade.specs import EnvSpec, Leaf

ROOT = Path(__file__).parents[2]
SMALL = {"backend": "numpy", "hidden": (8,), "envs": 4, "display": False, "rows": 5, "evaluation_episodes": 2}
OF_REPLAY = {"replay_start": 64, "batch": 16, "update_every": 8, "updates_per_draw": 1}
RUNS = {
    "dqn": ("dqn", {**OF_REPLAY, "steps": 400, "epsilon_share": 1.0}),
    "ppo": ("ppo", {"unroll": 8, "epochs": 1, "steps": 320}),
    "ppo, penalty": ("ppo", {"unroll": 8, "epochs": 1, "steps": 200, "surrogate": "penalty", "evaluations": 0}),
    "impala": ("impala", {"unroll": 5, "batch": 4, "steps": 400}),
    "by all-reduce": ("dppo", {"unroll": 8, "epochs": 1, "steps": 300, "actors": 2, "evaluations": 0}),
    "by servers": ("gorila-dqn", {**OF_REPLAY, "steps": 400, "actors": 2, "evaluations": 0}),
    "lock-free": ("a3c", {"unroll": 5, "steps": 300, "actors": 2, "evaluations": 0}),
    "asked centrally": ("seed-impala", {"unroll": 5, "batch": 4, "steps": 400, "actors": 2, "evaluations": 0}),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A short run of each kind, made once."""
    runs: dict[str, Run] = {}

    def get(name: str) -> Run:
        if name not in runs:
            system, settings = RUNS[name]
            out = tmp_path_factory.mktemp("made") / "run"
            runs[name] = cavalcade.train(system, "CartPole-v1", out=out, **{**SMALL, "evaluations": 2, **settings})
        return runs[name]

    return get


def last(run: Run) -> dict:
    """The newest value of everything."""
    known: dict = {}
    for row in run.rows():
        known |= row
    return known


# --- their numbers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", backends.NAMES)
def test_how_far_a_policy_moved(backend):
    """pi_old = 1/2 of each action, pi = (4/5, 1/5): ratios 1.6 and 0.4; and one sample whose ratio is 1."""
    library = backends.load(backend)
    spec = EnvSpec("", Leaf("box", (1,), "float32"), Leaf("discrete", (), "int64", counts=(2,)))
    array = partial(np.array, dtype=np.float32)
    samples = {
        "obs": array(np.zeros((4, 1))),
        "action": np.array([0, 1, 0, 1]),
        "valid": array([1, 1, 1, 0]),
        "log_prob": array(np.log([0.5, 0.5, 0.8, 1e-6])),
        "advantage": array([1, 2, 3, 4]),
        "goal": array([0, 0, 0, 0]),
    }
    outputs = {"policy": library.vector(np.tile(np.log([4.0, 1.0]), (4, 1))), "value": library.vector(np.zeros((4, 1)))}
    given = library.from_numpy(samples)

    def metrics_of(algorithm: PPO) -> dict:
        return algorithm.loss(library.xp, spec, lambda *_, **__: (outputs, {}), None, given, {}, {}).metrics

    metrics = metrics_of(PPO(clip=0.2))
    # (0.6 - ln 1.6) + (-0.6 - ln 0.4) + 0, over the three that are steps
    assert float(metrics["approx_kl"]) == pytest.approx((0.1299964 + 0.3162907) / 3, rel=1e-5)
    assert float(metrics["clip_fraction"]) == pytest.approx(2 / 3)
    assert float(metrics_of(PPO(clip=0.7))["clip_fraction"]) == 0.0


def test_the_values_of_a_draw_are_judged_before_it_is_learned_from():
    """Once for each draw; the same on every backend, and whether it is learned from in one call or by minibatches."""
    found = {}
    for backend in backends.NAMES:
        settings = {"unroll": 6, "hidden": (8,), "epochs": 2, "normalise_rewards": False}
        parts = Experiment.create("ppo", "CartPole-v1", Settings(backend=backend, envs=4), settings).parts
        items, learner = drawn(parts), parts.learner()
        if backend == "numpy":
            list(learner.minibatches(items))  # no gradient is taken, no parameter changes
            found["by minibatches"] = learner.seen["explained_variance"]
        learner.update(items)
        found[backend] = learner.seen["explained_variance"]
        learner.update(items)
        assert set(learner.seen) == {"explained_variance"} and learner.seen["explained_variance"] != found[backend]
    assert list(found.values()) == pytest.approx([found["numpy"]] * 4, rel=1e-4) and -1.0 < found["numpy"] < 1.0


def drawn(parts) -> dict:
    """A draw of made-up unrolls."""
    rng, count, length = np.random.default_rng(0), parts.experience.batch, parts.algorithm.unroll + 1
    shape = (count, length)
    return {
        "obs": rng.standard_normal((*shape, 4)).astype(np.float32),
        "action": rng.integers(0, 2, shape),
        "reward": rng.standard_normal(shape).astype(np.float32),
        "discount": np.full(shape, 0.99, np.float32),
        "first": np.zeros(shape, np.bool_),
        "valid": np.ones(shape, np.float32) * (np.arange(length) < length - 1).astype(np.float32),
        "behaviour": np.zeros((*shape, 2), np.float32),
    }


def test_the_learning_rate_is_that_of_the_next_update():
    falling, constant = Optimiser(learning_rate=0.5, horizon=8), Optimiser(learning_rate=0.5)
    assert [falling.rate(n) for n in (0, 2, 8, 9)] == [0.5, 0.375, 0.0, 0.0] and constant.rate(100) == 0.5


@pytest.mark.parametrize("backend", backends.NAMES)
def test_the_learning_rate_is_what_the_optimiser_does(backend):
    """Plain descent with a gradient of 1 moves by it."""
    library, settings = backends.load(backend), Optimiser("sgd", learning_rate=0.5, horizon=4)
    optimiser, vector = library.optimiser(settings), library.vector(np.zeros(1))
    state, update, at = optimiser.init(vector), library.compile(optimiser.update), 0.0
    for updates in range(6):
        vector, state = update(library.vector(np.ones(1)), state, vector)
        at -= settings.rate(updates)
        assert float(library.to_numpy(vector)[0]) == pytest.approx(at)


def test_the_exploration_rate_is_the_mean_over_environments():
    falling = DQN(epsilon_start=1.0, epsilon_end=0.2, epsilon_steps=1000)
    assert [falling.exploration(4, Clock(steps)) for steps in (0, 500, 5000)] == pytest.approx([1.0, 0.6, 0.2])
    # 0.4 ** (1, 1 + 7/3, 1 + 14/3, 8): two actors with two environments each
    ladder = DQN(epsilon_ladder=True)
    assert ladder.exploration(2, Clock(0, 0, 2)) == pytest.approx((0.4 + 0.0471556) / 2, rel=1e-5)
    assert ladder.exploration(2, Clock(0, 1, 2)) == pytest.approx((0.00555913 + 0.00065536) / 2, rel=1e-5)
    assert PPO().exploration(4, Clock(0)) is None


# --- they reach the rows ------------------------------------------------------------------------------------------

ACTOR_CRITIC = {"loss", "policy_loss", "value_loss", "entropy", "explained_variance"}
Q_LEARNING = {"loss", "q", "error", "exploration_rate"}
NAMES = {
    "dqn": Q_LEARNING,
    "ppo": ACTOR_CRITIC | {"approx_kl", "clip_fraction"},
    "ppo, penalty": ACTOR_CRITIC | {"kl", "kl_coefficient"},
    "impala": ACTOR_CRITIC | {"rho"},
    "by all-reduce": ACTOR_CRITIC | {"approx_kl", "clip_fraction"},
    "by servers": Q_LEARNING,
    "lock-free": ACTOR_CRITIC,
    "asked centrally": ACTOR_CRITIC | {"rho"},
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_has_the_metrics_people_steer_by_however_updates_are_made(name, made):
    found = last(made(name))
    assert NAMES[name] | {"learning_rate", "gradient_norm", "updates"} <= set(found)
    assert found["updates"] > 0 and found["gradient_norm"] > 0.0


def test_rates_fall_as_the_run_goes_on(made):
    rows = made("dqn").rows()
    for name in ("learning_rate", "exploration_rate"):
        values = [row[name] for row in rows]
        assert values == sorted(set(values), reverse=True) and values[0] < 1.0, name
    algorithm = DQN(**{k: tuple(v) if isinstance(v, list) else v for k, v in made("dqn").config["algorithm"].items()})
    assert rows[-1]["learning_rate"] == algorithm.optimiser(algorithm.updates(400, 4)).rate(rows[-1]["updates"])
    assert rows[-1]["exploration_rate"] == algorithm.exploration(4, Clock(400, budget=400))
    assert all("exploration_rate" not in row for row in made("ppo").rows())


# --- each has a group and is explained ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", RUNS)
def test_every_metric_that_a_run_writes_is_explained(name, made):
    assert [key for key in last(made(name)) if not explained(key)] == []


def test_a_support_that_is_too_narrow_is_said_in_the_run_and_in_its_report(tmp_path, capfd):
    """Returns of Pendulum reach -1,500 and more."""
    small = {"hidden": (8,), "critic_hidden": (8,), "batch": 8, "replay_start": 100, "update_every": 4, "rows": 5}
    settings = {"preset": "none", "steps": 300, "envs": 1, "evaluations": 0, "backend": "numpy", **small}
    for name, low, said in (("narrow", -15.0, 1), ("wide", -2_500.0, 0)):
        run = cavalcade.train("d4pg", "Pendulum-v1", out=tmp_path / name, value_low=low, value_high=5.0, **settings)
        remarks = json.loads((run.path / "report.json").read_text())["remarks"]
        assert len(remarks) == said and all("lower --value-low or a higher --value-high" in each for each in remarks)
        assert ("outside their atoms" in "".join(capfd.readouterr())) == bool(said)


def test_the_guide_explains_every_metric():
    text = (ROOT / "docs" / "guide.md").read_text()
    table = text.partition("| metric | TensorBoard | what it is |\n| --- | --- | --- |\n")[2].partition("\n\n")[0]
    assert table.splitlines() == guide()
    assert len({metric.tag for metric in METRICS.values()}) == len(METRICS)


def test_tags_stand_in_groups():
    assert (
        tag("return") == "return/mean"
        and tag("policy_loss") == "loss/policy"
        and tag("evaluation") == "evaluation/mean"
    )
    assert tag("time_acting") == "time/acting" and tag("time_learner_waiting") == "time/learner_waiting"
    assert tag("time_in_table_seconds") == "table/seconds" and tag("env/lines") == "env/lines"
    assert tag("active_predictors") == "active/predictors" and tag("temperature") == "learning/temperature"
    row = {"step": 3, "adjusted": ["a sentence"], "updates": 2, "env/lines": 0.5}
    assert tagged(row) == {"learning/updates": 2.0, "env/lines": 0.5}


def test_tensorboard_shows_the_groups(made):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = made("ppo")
    events = EventAccumulator(str(run.path))
    events.Reload()
    assert set(events.Tags()["scalars"]) == {tag for row in run.rows() for tag in tagged(row)}
    assert {name.partition("/")[0] for name in events.Tags()["scalars"]} == {
        *("return", "evaluation", "loss", "learning", "table", "speed", "time")
    }
    values = [(row["step"], pytest.approx(row["approx_kl"])) for row in run.rows() if "approx_kl" in row]
    assert [(event.step, event.value) for event in events.Scalars("learning/approx_kl")] == values
    for line in run.metrics_file.read_text().splitlines():
        assert all("/" not in name for name in json.loads(line))  # flat, as they always were
