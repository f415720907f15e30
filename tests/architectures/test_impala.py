"""IMPALA: V-trace without lag is A2C, the queue bounds the lag, what is too old counts for nothing, and replay beside
the queue holds the same rows."""

import numpy as np
import pytest

from cavalcade import backends, tree
from cavalcade.algorithms.impala import Impala
from cavalcade.assembly.table_plan import TablePlan
from cavalcade.backends.numpy_backend import acting as xp
from cavalcade.errors import UserError
from cavalcade.experiment.experiment import ARCHITECTURES, Experiment, Settings
from cavalcade.runtimes.inprocess import InProcess

SMALL = {"hidden": (8,), "unroll": 5, "normalise_rewards": False}
IMPALA = {**SMALL, "batch": 4, "queue_batches": 1}
REPLAY = {"replay_share": 0.5, "replay_size": 20}


def experiment(system="impala", actors=2, envs=2, backend="numpy", **overrides):
    settings = Settings(steps=5_000, backend=backend, actors=actors, envs=envs, evaluations=0, seed=1)
    usual = IMPALA if system == "impala" else SMALL
    return Experiment.create(system, "CartPole-v1", settings, {**usual, **overrides})


def launch(**overrides):
    return InProcess(experiment(**overrides).program())


def rounds(runtime, count):
    for _ in range(count):
        runtime.round()
    return runtime


def draws_of(runtime):
    """The draws of a program, as the learner makes them: (sample, version of the learner)."""
    learner, found = runtime.objects["learner"], []
    source = learner.source
    sample = source.sample

    def watched(count, importance=0.0):
        drawn = sample(count, importance)
        if drawn is not None:
            found.append((drawn, learner.version))
        return drawn

    source.sample = watched
    return found


def fill(runtime):
    """All actors act until none can; the learner does nothing."""
    actors = [node for name, node in runtime.objects.items() if name.startswith("actor")]
    moved = True
    while moved:
        moved = sum(actor.step() for actor in actors) > 0


def some_unrolls(parts, learner, count=4, seed=0):
    """Unrolls [B, T + 1, ...] with every row a step, acted by the learner's own policy."""
    rng, length = np.random.default_rng(seed), parts.experience.item.length + 1
    obs = rng.standard_normal((count, length, 4)).astype(np.float32)
    policy = parts.model.apply(xp, learner.layout.unflatten(learner.params()[0]), {}, obs, {}, None)[0]["policy"]
    valid = np.ones((count, length), np.float32)
    valid[:, -1] = 0.0
    return {
        "obs": obs,
        "first": rng.random((count, length)) < 0.1,
        "action": rng.integers(0, 2, (count, length)),
        "reward": rng.standard_normal((count, length)).astype(np.float32),
        "discount": np.where(rng.random((count, length)) < 0.1, 0.0, 0.99).astype(np.float32),
        "valid": valid,
        "behaviour": policy,
    }


# --- the loss -----------------------------------------------------------------------------------------------------


def test_without_lag_the_gradient_is_that_of_a2c():
    impala, a2c = (experiment(system, entropy_cost=0.02).parts for system in ("impala", "a2c"))
    learner = impala.learner()
    items = some_unrolls(impala, learner)
    found, metrics = learner.gradients(items)
    expected, _ = a2c.learner().gradients(items)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert np.abs(expected).max() > 0.01 and abs(metrics["rho"] - 1.0) < 1e-6
    items["behaviour"] = items["behaviour"] + np.float32([1.0, -1.0])  # and with lag it is another
    lagging, metrics = learner.gradients(items)
    assert np.abs(lagging - expected).max() > 0.01 and metrics["rho"] < 0.9


def test_a_policy_gradient_by_hand():
    """One step, two actions equally likely; the actor took the first with probability 0.8."""
    parts = experiment(unroll=1, batch=1, hidden=(), entropy_cost=0.0, value_cost=0.0).parts
    learner = parts.learner()
    items = some_unrolls(parts, learner, 1)
    kept = learner.state()
    kept["state"]["params"][:] = 0.0  # so that values are 0 and the policy is uniform
    learner.restore(kept)
    items |= {"behaviour": np.log(np.float32([[[0.8, 0.2]] * 2])), "action": np.zeros((1, 2), np.int64)}
    items |= {"reward": np.float32([[2.0, 0.0]]), "discount": np.float32([[0.0, 0.0]])}
    gradient = learner.layout.unflatten(learner.gradients(items)[0])
    # rho = 0.5 / 0.8, the advantage is the reward of 2, and d log pi(0) / d logits is (0.5, -0.5)
    np.testing.assert_allclose(gradient["head"]["policy"]["bias"], [-0.625, 0.625], rtol=1e-5)
    # a rarer action is not weighed by more than rho_bar
    items["action"][:] = 1
    gradient = learner.layout.unflatten(learner.gradients(items)[0])
    np.testing.assert_allclose(gradient["head"]["policy"]["bias"], [1.0, -1.0], rtol=1e-5)
    wider = experiment(unroll=1, batch=1, hidden=(), entropy_cost=0.0, value_cost=0.0, rho_bar=2.0).parts.learner()
    wider.restore(kept)
    gradient = wider.layout.unflatten(wider.gradients(items)[0])
    np.testing.assert_allclose(gradient["head"]["policy"]["bias"], [2.0, -2.0], rtol=1e-5)


@pytest.mark.parametrize("backend", backends.NAMES)
def test_corrections_by_hand(backend):
    """Two steps, two actions equally likely, all values 0; the actor took the first action twice, with probability 0.8.
    The rewards are 0 and 2, the discount between them 0.5: returns of 1 and 2, and by V-trace with rho = 0.5 / 0.8
    targets of 0.625 * 0.5 * 0.625 * 2 and 0.625 * 2."""
    plain = {"unroll": 2, "batch": 1, "hidden": (), "entropy_cost": 0.0, "value_cost": 1.0, "shared": False}
    # mean of advantage times weight, d log pi / d logits is (0.5, -0.5); mean of minus the targets
    expected = {
        "vtrace": (-0.5 * (0.625 * 0.5 * 1.25 + 0.625 * 2.0) / 2, -(0.390625 + 1.25) / 2),
        "one-step": (-0.5 * 0.625 * (1.0 + 2.0) / 2, -1.5),
        "epsilon": (-0.5 * (1.0 + 2.0) / 2 / (1.0 + 2e-6), -1.5),
        "none": (-0.5 * (1.0 + 2.0) / 2, -1.5),
    }
    for correction, (policy, value) in expected.items():
        parts = experiment(correction=correction, backend=backend, **plain).parts
        learner = parts.learner()
        items = some_unrolls(parts, learner, 1)
        kept = learner.state()
        kept["state"]["params"][:] = 0.0
        learner.restore(kept)
        items |= {"behaviour": np.log(np.float32([[[0.8, 0.2]] * 3])), "action": np.zeros((1, 3), np.int64)}
        items |= {"reward": np.float32([[0.0, 2.0, 0.0]]), "discount": np.float32([[0.5, 0.0, 0.0]])}
        gradient, metrics = learner.gradients(items)
        heads = learner.layout.unflatten(gradient)["head"]
        np.testing.assert_allclose(heads["policy"]["bias"], [policy, -policy], rtol=1e-5, err_msg=correction)
        np.testing.assert_allclose(heads["value"]["bias"], [value], rtol=1e-5, err_msg=correction)
        assert abs(metrics["rho"] - 0.625) < 1e-6, "how far the policies are apart is told whatever is done about it"


def test_epsilon_bounds_the_gradient_of_what_has_become_impossible():
    """The logit of the action taken is 30 below the other: log pi has a slope of 1 there, log(pi + 1e-6) one of
    pi / (pi + 1e-6), almost none."""
    found = {}
    for correction in ("epsilon", "none"):
        parts = experiment(unroll=1, batch=1, hidden=(), value_cost=0.0, entropy_cost=0.0, correction=correction).parts
        learner = parts.learner()
        items = some_unrolls(parts, learner, 1)
        kept = learner.state()
        tree_of = learner.layout.unflatten(kept["state"]["params"])
        tree_of["head"]["policy"]["bias"][:] = [0.0, 30.0]
        tree_of["head"]["policy"]["weight"][:] = 0.0
        kept["state"]["params"] = learner.layout.flatten(tree_of)
        learner.restore(kept)
        items |= {"action": np.zeros((1, 2), np.int64), "discount": np.zeros((1, 2), np.float32)}
        items |= {"reward": np.float32([[1.0, 0.0]])}
        found[correction] = learner.layout.unflatten(learner.gradients(items)[0])["head"]["policy"]["bias"]
    assert abs(found["none"][0]) > 1e5 * abs(found["epsilon"][0])


def test_summed_losses_are_means_times_the_number_of_steps():
    parts = experiment().parts
    items = some_unrolls(parts, parts.learner())
    items["valid"][0, 2:] = 0.0  # 4 * 5 - 3 steps are left
    mean, _ = parts.learner().gradients(items)
    total, _ = experiment(summed=True).parts.learner().gradients(items)
    np.testing.assert_allclose(total, 17 * mean, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "wrong, says",
    [
        ({"replay_share": 1.0}, "--replay-share is 1.0; it has to be a number of at least 0 and below 1"),
        ({"replay_share": -0.5}, "--replay-share is -0.5"),
        ({"rho_bar": 0.0}, "--rho-bar is 0.0; it has to be a number above 0"),
        ({"batch": 32, "replay_size": 16}, "--replay-size is 16; it has to be at least 32"),
        ({"queue_batches": 0}, "--queue-batches is 0"),
        ({"correction": "v-trace"}, "--correction 'v-trace' is not one of .* Did you mean 'vtrace'"),
    ],
)
def test_settings_that_cannot_be_are_refused(wrong, says):
    with pytest.raises(UserError, match=says):
        Impala(**wrong)


def test_updates_are_counted_by_what_is_new():
    assert Impala(unroll=20, batch=32).updates(64_000, 16) == 100
    assert Impala(unroll=20, batch=32, replay_share=0.5).updates(64_000, 16) == 200


# --- the queue ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batches", [1, 3])
def test_the_queue_holds_so_many_batches_and_lag_is_bounded_by_it(batches):
    runtime = launch(queue_batches=batches)  # a batch is 4 unrolls, one of each environment
    table, learner, draws = runtime.objects["table"], runtime.objects["learner"], draws_of(runtime)
    assert table.size == 4 * batches
    for _ in range(10):
        fill(runtime)
        assert len(table) == 4 * batches, "nobody acts for what would not fit"
        while learner.step():
            pass
        assert len(table) == 0
    lags = np.array([version - sample.version for sample, version in draws])
    assert len(draws) == 10 * batches
    assert lags[0].max() == 0 and lags.max() == batches - 1
    np.testing.assert_allclose(learner.report()["policy_lag"], (batches - 1) / 2)


def test_in_process_batches_are_of_the_newest_policy():
    runtime = launch(queue_batches=3)
    draws = draws_of(runtime)
    rounds(runtime, 60)
    assert len(draws) > 10 and all((sample.version == version).all() for sample, version in draws)


@pytest.mark.parametrize("envs, batch", [(3, 4), (5, 4), (4, 6), (2, 16), (2, 4)])
@pytest.mark.parametrize("replay", [{}, REPLAY, {**REPLAY, "replay_share": 0.2}], ids=["queue", "half", "fifth"])
def test_no_number_of_environments_gets_stuck(envs, batch, replay):
    runtime = rounds(launch(envs=envs, batch=batch, **replay), 120)
    assert runtime.objects["learner"].version > 120 // 5 * envs // batch


# --- stale unrolls ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("summed", [False, True])
def test_stale_unrolls_give_nothing_to_the_gradient(summed):
    run = experiment(max_policy_lag=2, summed=summed)
    runtime = InProcess(run.program())
    loop = runtime.objects["learner"]
    items = some_unrolls(run.parts, loop.learner)
    stale = np.array([False, True, True, False])
    kept = loop._without_stale(items, stale)
    gradient, _ = loop.learner.gradients(kept)
    fresh, _ = loop.learner.gradients(tree.take(items, ~stale))
    np.testing.assert_allclose(gradient, fresh, atol=1e-6)
    nonsense = {**kept, **{name: np.where(stale[:, None], 1e6, kept[name]) for name in ("reward", "discount")}}
    assert np.array_equal(loop.learner.gradients(nonsense)[0], gradient), "not even the last bit"
    nothing, _ = loop.learner.gradients(loop._without_stale(items, np.ones(4, bool)))
    assert not nothing.any()


def test_stale_unrolls_are_counted():
    runtime = launch(queue_batches=4, max_policy_lag=1)
    learner, draws = runtime.objects["learner"], draws_of(runtime)
    fill(runtime)
    while learner.step():
        pass
    assert [(version - sample.version).tolist() for sample, version in draws] == [[0] * 4, [1] * 4, [2] * 4, [3] * 4]
    assert learner.report()["metrics"]["dropped_stale"] == 8.0
    fill(runtime)
    learner.step()
    assert learner.report()["metrics"]["dropped_stale"] == 0.0, "since the last report"
    assert "dropped_stale" not in rounds(launch(), 20).objects["learner"].report()["metrics"]


# --- replay beside the queue --------------------------------------------------------------------------------------


def test_a_share_of_each_batch_is_replayed():
    runtime = launch(**REPLAY)
    table, draws = runtime.objects["table"], draws_of(runtime)
    for _ in range(60):
        before = table.limiter.samples, table.replay.limiter.samples
        made = len(draws)
        runtime.round()
        if len(draws) > made:
            taken = (table.limiter.samples - before[0], table.replay.limiter.samples - before[1])
            assert taken == (2, 2) and len(draws[-1][0].keys) == 4
        table.check()
    assert len(draws) > 20 and len(table.replay) == 20, "the newest 20"
    ages = np.concatenate([version - sample.version for sample, version in draws])
    assert ages[ages > 0].mean() > 2


def test_both_hold_the_same_rows():
    runtime = launch(**REPLAY)
    table = runtime.objects["table"]
    fill(runtime)
    queue, replay = (one.slots[one.key >= 0] for one in (table, table.replay))
    assert len(queue) == 4 and np.array_equal(queue, replay) and table.rows is table.replay.rows
    used = np.unique(queue[queue > 0])
    assert (table.rows.refs[used] >= 2).all()
    table.check()


def test_an_insert_is_all_or_nothing():
    runtime = launch(**REPLAY)
    table, slow, fast = (runtime.objects[name] for name in ("table", "actor/0", "actor/1"))
    fill(runtime)
    table.sample(2)
    slow.step()  # there is room, and it begins
    for actor in (fast, slow):  # but the other is there first
        for _ in range(5):
            actor.step()
    assert not slow.step() and len(slow.outbox.rows) == 2, "it has to wait"
    assert (len(table), len(table.replay)) == (4, 6)
    table.sample(2)
    assert slow.step() and slow.outbox is None
    assert (len(table), len(table.replay)) == (4, 8)


def test_rows_that_run_out_are_taken_from_replay(monkeypatch):
    """As where episodes are shorter than usual; what waits in the queue is not lost, and learning goes on."""
    monkeypatch.setattr(TablePlan, "rows", 64)  # 4 environments have up to 60 under way
    runtime = launch(**REPLAY)
    table, draws, fewest = runtime.objects["table"], draws_of(runtime), 20
    for _ in range(200):
        runtime.round()
        fewest = min(fewest, len(table.replay)) if len(draws) > 5 else 20
        table.check()
    assert fewest < 12 and table.replay.limiter.deletes > 100
    assert runtime.objects["learner"].version > 60 and table.limiter.deletes == table.limiter.samples


# --- runs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{"memory": 4}, {**REPLAY, "max_policy_lag": 3}], ids=["memory", "replay"])
def test_runs_are_exact_twice_and_resumed(settings):
    one, two = (rounds(launch(**settings), 73) for _ in range(2))
    assert np.array_equal(one.objects["learner"].published[0], two.objects["learner"].published[0])
    kept = one.state()
    other = launch(**settings)
    other.restore(kept)
    for runtime in (one, other):
        rounds(runtime, 60)
    assert one.objects["learner"].version == other.objects["learner"].version > 20
    assert np.array_equal(one.objects["learner"].published[0], other.objects["learner"].published[0])
    assert one.objects["learner"].report()["metrics"] == other.objects["learner"].report()["metrics"]
    for (path, mine), (_, its) in zip(*(tree.named(run.objects["table"].state()) for run in (one, other))):
        assert np.array_equal(mine, its), path
    other.objects["table"].check()


@pytest.mark.parametrize("system", ["a2c", "dqn"])
def test_algorithms_that_bear_no_lag_or_replay_transitions_are_refused(system):
    parts = Experiment.create(system, "CartPole-v1", Settings(steps=1_000, backend="numpy"), {}).parts
    with pytest.raises(UserError, match="use it with the architecture sync"):
        ARCHITECTURES["impala"][1](parts)
