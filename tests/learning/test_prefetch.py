"""The next batch drawn beside an update: each once, none lost, and never where it would change what a run means."""

import dataclasses
import threading
import time

import numpy as np
import pytest

from cavalcade import tree
from cavalcade.algorithms.impala import Impala
from cavalcade.checkpoints import checkpoint
from cavalcade.errors import Stopped, UserError
from cavalcade.experiment.experiment import Experiment, Settings
from cavalcade.learning import prefetch
from cavalcade.learning.learner import Learner
from cavalcade.learning.loop import LearnerLoop
from cavalcade.learning.prefetch import Prefetch
from cavalcade.learning.updates import Own
from cavalcade.runtimes.inprocess import InProcess
from cavalcade.table import Limiter, Table
from tests.helpers.items import blank
from tests.learning.test_learner import parts_of, random_items, vector

BATCH = 4


@pytest.fixture
def always(monkeypatch):
    """Every update is long enough."""
    monkeypatch.setattr(prefetch, "LONG", 0.0)


def workers():
    return [thread for thread in threading.enumerate() if thread.name.startswith("prefetch")]


# --- the thread ---------------------------------------------------------------------------------------------------


def test_a_batch_is_drawn_beside_the_update_and_one_at_most(always):
    drawn, where = iter(range(100)), []

    def draw():
        where.append(threading.current_thread().name.split("_")[0])
        return next(drawn)

    batches = Prefetch(draw, ahead=True)
    taken = []
    for _ in range(4):
        taken.append(batches.take())
        with batches.beside():
            assert batches.held is None
        assert batches.held == taken[-1] + 1
    batches.close()
    assert taken == [0, 1, 2, 3] and where == ["MainThread", *["prefetch"] * 4]
    assert not workers()


def test_without_leave_there_is_no_thread(always):
    batches = Prefetch(iter(range(100)).__next__, ahead=False)
    for number in range(3):
        assert batches.take() == number
        with batches.beside():
            assert not workers()
        assert batches.held is None


def test_the_thread_is_used_as_long_as_updates_are_long(monkeypatch):
    monkeypatch.setattr(prefetch, "LONG", 10.0)
    batches = Prefetch(iter(range(100)).__next__, ahead=True)
    found = []
    for before in (0.0, 11.0, 9.0):  # seconds of the update before
        batches.seconds = before
        with batches.beside():
            pass
        found.append(batches.held)
        batches.held = None
        assert 0.0 < batches.seconds < 10.0, "measured"
    batches.close()
    assert found == [None, 0, None]


@pytest.mark.parametrize("error", [UserError("The table broke."), Stopped("The table was stopped.")])
def test_an_error_of_the_thread_is_raised_in_the_worker(error, always):
    def draw():
        raise error

    batches = Prefetch(draw, ahead=True)
    with pytest.raises(type(error), match=str(error)), batches.beside():
        pass
    assert batches.held is None
    batches.close()


def test_a_failed_update_leaves_the_thread_at_rest(always):
    ended = []

    def draw():
        time.sleep(0.05)
        ended.append(True)

    batches = Prefetch(draw, ahead=True)
    with pytest.raises(ZeroDivisionError), batches.beside():
        raise ZeroDivisionError
    assert ended == [True], "waited for"
    batches.close()


# --- with a table and a learner -----------------------------------------------------------------------------------


class Noting(Learner):
    """Notes which items it learned from, by their reward; `pause` is how much longer an update takes."""

    pause = 0.0

    def update(self, items):
        reward = self.backend.to_numpy(items["reward"])
        self.noted = [*getattr(self, "noted", []), reward.reshape(len(reward), -1)[:, 0].copy()]
        time.sleep(self.pause)
        return super().update(items)


def noting(parts):
    made = parts.learner()
    return Noting(made.algorithm, made.model, made.backend, made.rule.settings.horizon or 1, parts.seed)


def numbered(parts, start, count):
    """Items that are told apart by their reward."""
    items = tree.map(lambda leaf: leaf[:count], random_items(parts, seed=start))
    assert len(items["reward"]) == count
    items["reward"][:] = np.arange(start, start + count).reshape(-1, *(1,) * (items["reward"].ndim - 1))
    return items


def unrolls(**overrides):
    return parts_of("impala", batch=BATCH, **overrides)


def learned(loop):
    return np.concatenate(loop.learner.noted).astype(int).tolist()


def test_each_item_of_a_queue_is_learned_from_once_while_others_write():
    parts = unrolls()
    table = Table.queue(blank(parts.signature), 3 * BATCH)
    loop = LearnerLoop(lambda: noting(parts), table, BATCH, prefetch=True)
    loop.learner.pause = 2 * prefetch.LONG
    count = 30 * BATCH

    def write():
        for start in range(0, count, 2):
            assert table.insert(numbered(parts, start, 2), timeout=None)

    writer = threading.Thread(target=write)
    writer.start()
    held = 0
    while loop.version < 30:
        if not loop.step():
            time.sleep(1e-3)
        held += loop.batches.held is not None
    writer.join()
    loop.close()
    assert learned(loop) == list(range(count)), "in order, none twice, none left out"
    assert held > 5, "the thread has drawn"
    assert len(table) == 0 and table.limiter.samples == table.limiter.inserts == count
    table.check()
    assert not workers()


def saved(tmp_path, table, loop):
    """As a checkpoint on disk has it."""
    checkpoint.save(tmp_path, {"table": table.state(), "learner": loop.state()}, 1)
    return checkpoint.load_step(tmp_path, 1)


def test_what_is_held_is_saved_and_learned_from_first(tmp_path, always):
    parts = unrolls()

    def made():
        table = Table.queue(blank(parts.signature), 20)
        return table, LearnerLoop(lambda: noting(parts), table, BATCH, prefetch=True)

    table, loop = made()
    table.insert(numbered(parts, 0, 4))
    table.insert(numbered(parts, 4, 4))
    table.insert(numbered(parts, 8, 4))
    assert loop.step()
    assert len(table) == 4 and loop.batches.held is not None, "four learned from, four held, four in the table"
    state = saved(tmp_path, table, loop)
    other_table, other = made()
    other_table.restore(state["table"])
    other.restore(state["learner"])
    assert other.version == 1 and len(other_table) == 4
    for one in (loop, other):
        while one.step():
            pass
        one.close()
    assert learned(loop) == list(range(12)) and learned(other) == list(range(4, 12))
    assert np.array_equal(vector(loop.learner), vector(other.learner))
    assert other.batches.held is None and saved(tmp_path, other_table, other)["learner"]["held"] == {}


class InTwoTurns(Own):
    """Updates for which others have to move first, as those by all-reduce."""

    def update(self, items):
        yield True
        return self.learner.update(items)


def test_a_batch_that_is_being_learned_from_is_saved_beside_the_held_one(tmp_path, always):
    parts = unrolls()

    def made():
        table = Table.queue(blank(parts.signature), 20)
        updates = {"updates": lambda learner, partners: InTwoTurns(learner)}
        return table, LearnerLoop(lambda: noting(parts), table, BATCH, prefetch=True, **updates)

    table, loop = made()
    for start in (0, 4, 8):
        table.insert(numbered(parts, start, 4))
    assert loop.step() and loop.drawn is not None and loop.batches.held is not None and loop.version == 0
    state = saved(tmp_path, table, loop)
    other_table, other = made()
    other_table.restore(state["table"])
    other.restore(state["learner"])
    for one in (loop, other):
        while one.step():
            pass
        one.close()
    assert learned(loop) == learned(other) == list(range(12)), "in order, none twice, none left out"
    assert np.array_equal(vector(loop.learner), vector(other.learner))


def replay(parts):
    """A prioritised replay of 64 items, and a learner."""
    table = Table.prioritised(blank(parts.signature), 64, Limiter.at_least(32), seed=3)
    loop = LearnerLoop(lambda: noting(parts), table, parts.experience.batch, importance=0.4, prefetch=True)
    return table, loop


def transitions():
    return parts_of("dqn", batch=16, updates_per_draw=1, priority_exponent=0.6)


def test_replay_goes_on_exactly_from_a_state_with_a_held_batch(tmp_path, always):
    parts = transitions()
    table, loop = replay(parts)
    for start in range(0, 64, 16):
        table.insert(numbered(parts, start, 16))
    for _ in range(5):
        assert loop.step()
    assert loop.batches.held is not None
    state = saved(tmp_path, table, loop)
    other_table, other = replay(parts)
    other_table.restore(state["table"])
    other.restore(state["learner"])
    for one in (loop, other):
        for _ in range(5):
            assert one.step()
        one.close()
    assert np.array_equal(vector(loop.learner), vector(other.learner))
    assert loop.report()["metrics"] == other.report()["metrics"]
    for (path, mine), (_, its) in zip(tree.named(table.state()), tree.named(other_table.state())):
        assert np.array_equal(mine, its), path


def test_priorities_reach_the_items_they_were_computed_from(always):
    parts = transitions()
    table, loop = replay(parts)
    for start in range(0, 64, 16):
        table.insert(numbered(parts, start, 16))
    expected = {}
    for _ in range(20):
        assert loop.step() and loop.batches.held is not None
        expected |= dict(zip(loop.learner.noted[-1].astype(int).tolist(), loop.learner.priorities.tolist()))
        found = dict(zip(table.numbers(table.key).tolist(), table.priority.tolist()))
        assert {number: found[number] for number in expected} == expected
    loop.close()
    assert len(expected) > 40 and len(set(expected.values())) > 40


def test_priorities_of_what_has_gone_meanwhile_touch_nothing_else(always):
    parts = transitions()
    table, loop = replay(parts)
    for start in range(0, 64, 16):
        table.insert(numbered(parts, start, 16))
    assert loop.step()
    for start in range(64, 128, 16):  # all that is held goes
        table.insert(numbered(parts, start, 16), priority=np.full(16, 7.0))
    assert loop.step() and loop.learner.noted[-1].max() < 64
    loop.close()
    there = table.key >= 0
    assert set(table.numbers(table.key[there]).tolist()) == set(range(64, 128))
    assert (table.priority[there] == 7.0).all()


def test_lag_is_that_of_the_moment_of_learning(always):
    parts = unrolls(max_policy_lag=1, queue_batches=4)
    table = Table.queue(blank(parts.signature), 4 * BATCH)
    loop = LearnerLoop(lambda: noting(parts), table, BATCH, max_lag=1, prefetch=True)
    for start in range(0, 4 * BATCH, BATCH):
        table.insert(numbered(parts, start, BATCH), version=0)
    dropped, lags = [], []
    while loop.step():
        report = loop.report()
        dropped.append(report["metrics"]["dropped_stale"])
        lags.append(report["policy_lag"])
    loop.close()
    # the third batch was drawn when the version was 1, and would have been young enough then
    assert lags == [0.0, 1.0, 2.0, 3.0] and dropped == [0.0, 0.0, 4.0, 4.0]


# --- where it is off ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "system, settings, ahead",
    [
        ("impala", {}, True),
        ("impala", {"replay_share": 0.5}, True),
        ("apex-dqn", {}, True),
        ("impala", {"queue_batches": 1}, False),  # as little lag as can be was asked for
        ("dqn", {}, False),
        ("a2c", {}, False),
        ("ppo", {}, False),
    ],
)
def test_it_is_off_in_lock_step_and_in_one_process(system, settings, ahead):
    between = Experiment.create(system, "CartPole-v1", Settings(runtime="process"), settings)
    node = between.program().nodes["learner"]
    assert between.parts.prefetch is ahead
    assert node.kwargs.get("prefetch", node.args[-1]) is ahead, "and the learner is told"
    alone = Experiment.create(system, "CartPole-v1", Settings(evaluations=0), settings)
    runtime = InProcess(alone.program())
    assert not alone.parts.prefetch and not runtime.objects["learner"].batches.ahead
    runtime.close()


class Once(Impala):
    """Bears no lag, whatever room the queue has."""

    max_lag = 0


def test_it_is_off_where_no_lag_is_borne():
    parts = Experiment.create("impala", "CartPole-v1", Settings(runtime="process"), {"queue_batches": 2}).parts
    assert parts.prefetch and not dataclasses.replace(parts, algorithm=Once(queue_batches=2)).prefetch
