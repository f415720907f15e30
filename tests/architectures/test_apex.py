"""Ape-X: a ladder of epsilons, priorities from the actors, local buffers, and a replay with slack and a soft size."""

import numpy as np
import pytest

from cavalcade import tree
from cavalcade.algorithms.contract import Clock
from cavalcade.algorithms.dqn import DQN
from cavalcade.backends.numpy_backend import acting as xp
from cavalcade.envs.adapter import VectorAdapter
from cavalcade.errors import UserError
from cavalcade.experience import NStep
from cavalcade.experiment.experiment import ARCHITECTURES, Experiment, Settings
from cavalcade.runtimes.inprocess import InProcess
from cavalcade.table import Rows, Table
from cavalcade.table.rows import ORIGIN
from tests.helpers.items import materialise, table_rows
from tests.helpers.streams import MODES, Streams, value_of

SMALL = {"hidden": (8,), "batch": 16, "update_every": 4, "updates_per_draw": 2, "replay_size": 600, "replay_start": 100}


def experiment(system="apex-dqn", actors=2, envs=4, options=None, **overrides):
    settings = Settings(steps=5_000, backend="numpy", actors=actors, envs=envs, evaluations=0, seed=1)
    return Experiment.create(system, "CartPole-v1", settings, {**SMALL, **overrides}, options)


def launch(run):
    return InProcess(run.program())


def rounds(runtime, count):
    for _ in range(count):
        runtime.round()
    return runtime


# --- exploration --------------------------------------------------------------------------------------------------


def test_every_environment_has_its_step_of_the_ladder():
    dqn = DQN(epsilon_ladder=True)
    first, second = (dqn.epsilon(2, Clock(0, actor, 2)) for actor in (0, 1))
    np.testing.assert_allclose([*first, *second], [0.4, 0.0471556, 0.00555913, 0.00065536], rtol=1e-5)
    assert dqn.epsilon(1, Clock(10**9)) == 0.4, "alone, and for ever"


def test_random_actions_are_as_frequent_as_the_ladder_says():
    run = experiment(envs=3)
    rng, explored = np.random.default_rng(0), np.zeros(3)
    for _ in range(4_000):
        explored += run.algorithm.noise(run.spec, rng, 3, Clock(0, 0, 1))["explore"]
    np.testing.assert_allclose(explored / 4_000, [0.4, 0.4**4.5, 0.4**8], atol=0.03)


# --- priorities ---------------------------------------------------------------------------------------------------


def prioritised(n, mode, endings=(0, 1, 2)):
    """Items of a stream whose values are a known function of the observation, with the priorities they came with."""
    item, count = NStep(n, 0.9, prioritised=True), 5
    environments = VectorAdapter(Streams(count, mode, 7, endings), "streams", 0)
    signature = item.signature(environments.spec, {}, {})
    table = Table.queue(signature, 1, rows=Rows(signature.rows, table_rows(item, signature.rows, 1, count)))
    adder = item.adder(table, count, priority=DQN().priority)
    obs, found = environments.reset(), []
    for _ in range(120):
        action = np.zeros(count, np.int64)
        step = environments.step(action)
        values = {"q_best": value_of(obs).astype(np.float32), "q_taken": (0.5 * value_of(obs)).astype(np.float32)}
        items = adder.add(obs, action, values, {}, step)
        if items is not None:
            found.append({**materialise(table, items), "priority": items.priority})
        obs = step.observation
    return tree.map(lambda *parts: np.concatenate(parts), *found)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("n", [1, 3])
def test_a_priority_is_the_error_of_the_actors_own_values(mode, n):
    items = prioritised(n, mode)
    assert len(items["priority"]) > 400
    truncated = 0
    for obs, after, reward, discount, priority in zip(
        items["obs"], items["next_obs"], items["reward"], items["discount"], items["priority"]
    ):
        cut = after[1] == after[3] and after[2] == 1
        known = after - [0, 1, 0, 0] if cut else after  # nobody acts on the last observation: the one before stands in
        error = reward + discount * value_of(known) - 0.5 * value_of(obs)
        np.testing.assert_allclose(priority, abs(error) + 1e-6, rtol=1e-4, atol=1e-5)
        truncated += cut
    assert truncated > 30


def test_priorities_of_a_run_are_the_errors_of_its_network():
    runtime = launch(experiment(flush=7, n_step=3))
    actor, table = runtime.objects["actor/1"], runtime.objects["table"]
    found, insert = [], table.insert
    table.insert = lambda items, version, priority: (
        found.append((materialise(table, items), priority)) or insert(items, version, priority)
    )
    for _ in range(60):
        actor.step()  # alone, so with the parameters it was born with
    assert len(found) > 10
    for items, priority in found:
        q, q_after = (
            actor.policy.model.apply(xp, actor.policy.params, {}, items[name], {}, None)[0]["q"]
            for name in ("obs", "next_obs")
        )
        goal = items["reward"] + items["discount"] * q_after.max(axis=-1)
        error = goal - q[np.arange(len(q)), items["action"]]
        np.testing.assert_allclose(priority, np.abs(error) + 1e-6, rtol=1e-4, atol=1e-5)


def test_the_learner_changes_the_priorities_that_actors_gave():
    runtime = rounds(launch(experiment()), 200)
    table = runtime.objects["table"]
    there = table.key >= 0
    never, drawn = (table.priority[there & (table.times == 0)], table.priority[there & (table.times > 0)])
    assert len(never) > 10 and len(drawn) > 100
    assert len(np.unique(table.priority[there])) > 0.9 * there.sum(), "every item has its own"


def test_rewards_are_clipped_before_they_are_summed():
    environments = VectorAdapter(Streams(2, MODES[1], 7, (0,)), "streams", 0)  # every reward is above 1
    for n, total in ((1, 1.0), (3, 2.71)):
        item = NStep(n, 0.9, clip_rewards=True)
        signature = item.signature(environments.spec, {}, {})
        adder = item.adder(Table.queue(signature, 200), 2)
        obs, sums = environments.reset(), []
        for _ in range(30):
            step = environments.step(np.zeros(2, np.int64))
            items = adder.add(obs, np.zeros(2, np.int64), {}, {}, step)
            sums += [] if items is None else items.own["reward"].tolist()
            obs = step.observation
        np.testing.assert_allclose(max(sums), total, rtol=1e-6)


# --- actors -------------------------------------------------------------------------------------------------------


def test_items_are_sent_many_at_a_time_and_their_rows_are_still_theirs():
    runtime = launch(experiment(envs=4, flush=50, n_step=3))
    table, sizes = runtime.objects["table"], []
    insert = table.insert

    def watched(items, version, priority):
        origin = table.rows.seen.read(items.rows, names=(ORIGIN,))[ORIGIN].reshape(-1, 2, 3)
        moved = origin[:, 1] - origin[:, 0]
        assert not moved[:, :2].any() and ((moved[:, 2] >= 1) & (moved[:, 2] <= 3)).all(), "one episode, n steps"
        sizes.append(len(items.rows))
        return insert(items, version, priority)

    table.insert = watched
    rounds(runtime, 300)
    steps = sum(runtime.objects[name].steps for name in ("actor/0", "actor/1"))
    assert min(sizes) > 30 and 45 < np.mean(sizes) < 60 and sum(sizes) > steps - 2 * (4 * 4 + 60)
    table.check()


def test_parameters_are_asked_for_every_so_many_steps():
    runtime = launch(experiment(pull_every=25))
    learner, actor, asked = runtime.objects["learner"], runtime.objects["actor/0"], []
    latest = learner.latest
    learner.latest = lambda known: asked.append(actor.steps // actor.count) or latest(known)
    while actor.steps < 101 * actor.count:
        learner.step()
        actor.step()
    assert asked == [0, 25, 50, 75, 100]


# --- replay -------------------------------------------------------------------------------------------------------


def test_the_window_has_the_slack_that_is_asked_for():
    def window(**overrides):
        limits = launch(experiment(**overrides)).objects["table"].limiter
        return limits.samples_per_insert, limits.min_size, limits.min_diff, limits.max_diff

    assert window(flush=1, tolerance=0.0) == (4.0, 100, 400 - 48, 400 + 48), "an actor may send 3 * 4 items at once"
    assert window(flush=50, tolerance=0.0) == (4.0, 100, 400 - 244, 400 + 244)
    assert window(flush=1, tolerance=0.5) == (4.0, 100, 400 - 200, 400 + 200)


def test_replay_may_exceed_its_size_until_it_is_trimmed():
    runtime = launch(experiment(trim_every=10, tolerance=0.5))
    table, sizes = runtime.objects["table"], {}
    for _ in range(500):
        runtime.round()
        sizes.setdefault(table.draws, []).append(len(table))
    assert max(map(max, sizes.values())) > 620 and table.limiter.deletes > 1_000
    assert max(map(max, sizes.values())) < table.capacity, "nothing was pushed out before its time"
    after_trimming = [sizes[draws][0] for draws in sizes if draws % 10 == 0 and draws > 100]
    assert len(after_trimming) > 3 and max(after_trimming) <= 600 + 2 * (3 * 4 + 49), "what came in the same turn"
    table.check()


def test_the_oldest_items_are_trimmed():
    runtime = rounds(launch(experiment(trim_every=10)), 400)
    table = runtime.objects["table"]
    numbers = table.key[table.key >= 0] >> table.bits
    assert sorted(numbers) == list(range(int(numbers.min()), int(numbers.min()) + len(table)))


# --- runs ---------------------------------------------------------------------------------------------------------


def test_two_runs_of_one_seed_are_one_run():
    vectors = [rounds(launch(experiment()), 150).objects["learner"].published[0] for _ in range(2)]
    assert np.array_equal(*vectors)


@pytest.mark.parametrize("at, longest", [(85, 500), (87, 500), (40, 5)])
def test_a_restored_run_goes_on_exactly(at, longest):
    run = experiment(flush=50, pull_every=9, options={"max_episode_steps": longest})
    runtime = rounds(launch(run), at)
    kept = runtime.state()
    assert longest == 500 or runtime.objects["actor/0"].adder.cut.all(), "just when all episodes are cut short"
    rounds(runtime, 80)
    other = launch(run)
    other.restore(kept)
    rounds(other, 80)
    assert other.objects["learner"].version == runtime.objects["learner"].version > 50
    assert np.array_equal(other.objects["learner"].published[0], runtime.objects["learner"].published[0])
    for (path, mine), (_, its) in zip(*(tree.named(one.objects["table"].state()) for one in (runtime, other))):
        assert np.array_equal(mine, its), path


def test_the_state_in_between_holds_gathered_and_waiting_items():
    """Or the test above would show nothing."""
    actor = rounds(launch(experiment(flush=50)), 85).objects["actor/0"]
    kept = actor.state()
    assert len(kept["outbox"]["rows"]) > 0 and len(kept["outbox"]["priority"]) > 0 and kept["adder"]["waiting"]


def test_an_algorithm_without_replay_is_refused():
    settings = Settings(steps=1_000, backend="numpy")
    with pytest.raises(UserError, match="apex replays experience"):
        ARCHITECTURES["apex"][1](Experiment.create("ppo", "CartPole-v1", settings, {}).parts)
