"""Draws from shards: in one process by exact numbers, from tables in processes of their own by chance and weight."""

import multiprocessing
import time

import numpy as np
from scipy import stats

from cavalcade.table import Limiter, Table
from cavalcade.table.drawer import Drawer, Draws, QueueDraws
from tests.helpers.leftovers import nothing_is_left  # noqa: F401

BLANK = {"n": np.zeros((), np.int64)}
SPAWN = multiprocessing.get_context("spawn")
PRIORITY = np.concatenate([np.linspace(0.1, 5, 7), np.full(20, 0.3), [40.0], np.zeros(3)])
SHARDS = [slice(0, 7), slice(7, 31)]
CHANCES = PRIORITY**0.6 / np.sum(PRIORITY**0.6)
UNLIKELY = 1e-4  # seeds are fixed


def prioritised(shard):
    numbers = np.arange(len(PRIORITY))[SHARDS[shard]]
    table = Table.prioritised(BLANK, 100, seed=shard)
    assert table.insert({"n": numbers}, priority=PRIORITY[numbers])
    return table


def queue(numbers, size=100):
    table = Table.queue(BLANK, size)
    assert not len(numbers) or table.insert({"n": np.asarray(numbers)})
    return table


def drawn(tables, kind=Draws, quotas=(), batch=64, seed=0, **more):
    return kind([Drawer(table, table, batch, **more) for table in tables], "draws", quotas, seed)


def numbers_of(sample):
    return sample.items["n"].tolist()


def run_shard(connection, shard):
    table = prioritised(shard)
    drawer = Drawer(table, table, 256)
    connection.send(drawer.share("draws").address)
    while not connection.poll(0):
        rung = drawer.exchange.bell.rung()
        if not drawer.step():
            drawer.exchange.bell.rest(rung, 0.01)
    drawer.close()


def test_shards_in_other_processes_are_one_table_in_distribution():
    pipes = [SPAWN.Pipe() for _ in SHARDS]
    processes = [SPAWN.Process(target=run_shard, args=(theirs, k), daemon=True) for k, (_, theirs) in enumerate(pipes)]
    for process in processes:
        process.start()
    draws = Draws([ours.recv().connect() for ours, _ in pipes], "draws", seed=1)
    samples = []
    while len(samples) < 60:
        if (sample := draws.sample(256, importance=0.4)) is not None:
            samples.append(sample)
        time.sleep(1e-4)  # it is theirs to move
    for ours, _ in pipes:
        ours.send("stop")
    for process in processes:
        process.join(30)
    for sample in samples:
        chances = CHANCES[numbers_of(sample)]
        np.testing.assert_allclose(sample.probability, chances, rtol=1e-6)
        np.testing.assert_allclose(sample.weight, (chances / chances.min()) ** -0.4, rtol=1e-5)
    counts = np.bincount(np.concatenate([numbers_of(sample) for sample in samples]), minlength=len(CHANCES))
    there = CHANCES > 0
    assert counts[~there].sum() == 0
    assert stats.chisquare(counts[there], CHANCES[there] * counts.sum()).pvalue > UNLIKELY


def test_probabilities_are_those_of_what_was_really_done():
    """The sums of the shards are one draw old, their priorities are not; weights know both."""
    tables = [Table.prioritised(BLANK, 10, exponent=1.0) for _ in range(2)]
    tables[0].insert({"n": np.array([0, 1])}, priority=np.array([1.0, 1.0]))
    tables[1].insert({"n": np.array([2])}, priority=np.array([2.0]))
    draws = drawn(tables)
    first = draws.sample(64, 1.0)
    np.testing.assert_allclose(first.probability, np.array([0.25, 0.25, 0.5])[numbers_of(first)])
    at = numbers_of(first).index(0)
    draws.update_priorities(first.keys[at : at + 1], np.array([5.0], np.float32))
    second = draws.sample(64, 1.0)
    expected = np.array([0.5 * 5 / 6, 0.5 * 1 / 6, 0.5])  # shares of the sums 2 and 2, within shards 5:1
    np.testing.assert_allclose(second.probability, expected[numbers_of(second)])
    np.testing.assert_allclose(second.weight, (expected.min() / expected)[numbers_of(second)], rtol=1e-6)
    assert min(expected[numbers_of(second)]) == expected.min()
    third = draws.sample(64, 1.0)
    np.testing.assert_allclose(third.probability, np.array([5 / 8, 1 / 8, 2 / 8])[numbers_of(third)])


def test_priorities_find_their_table():
    tables = [prioritised(0), prioritised(1)]
    draws = drawn(tables, quotas=[32, 32])
    sample = draws.sample(64)
    draws.update_priorities(sample.keys, sample.items["n"] + 100.0)
    draws.sample(64)
    for table, span in zip(tables, SHARDS):
        there = np.arange(len(PRIORITY))[span]
        seen = np.isin(there, numbers_of(sample))
        np.testing.assert_allclose(table.priority[: len(there)], np.where(seen, there + 100.0, PRIORITY[span]))


def test_nothing_is_chosen_before_every_shard_has_its_minimum_and_a_choice_stands():
    tables = [Table.uniform(BLANK, 10, Limiter.at_least(2)), Table.uniform(BLANK, 10, Limiter(1.0, 2, 1.0, 1e9))]
    tables[0].insert({"n": np.array([0, 1])})
    draws = drawn(tables, seed=3)
    assert draws.sample(8) is None and tables[0].limiter.samples == 0 and "shard 1" in draws.account()
    tables[1].insert({"n": np.array([2, 3])})
    assert draws.sample(8) is None, "the second gives one item before there is more"
    chosen = draws.chosen.copy()
    assert [len(part["keys"]) for part in draws.parts] == [np.count_nonzero(chosen == 0)]
    draws, kept = drawn(tables, seed=4), draws.state()
    draws.restore(kept)
    tables[1].insert({"n": np.array([4, 5, 6, 7, 8, 9])})
    sample = draws.sample(8)
    assert np.array_equal(sample.keys % 2, chosen) and np.array_equal(np.array(numbers_of(sample)) > 1, chosen == 1)
    np.testing.assert_allclose(sample.probability, np.where(chosen == 0, 0.5 / 2, 0.5 / 8))


def test_queues_are_drawn_from_as_they_fill_and_every_item_once():
    tables, given = [queue([]), queue([]), queue([])], []
    draws = drawn(tables, QueueDraws, batch=8)
    rng = np.random.default_rng(0)
    for turn in range(200):
        shard = int(rng.integers(3)) if turn < 150 else 0  # at last, only one of them gets anything
        if tables[shard].can_insert(4):
            tables[shard].insert({"n": np.arange(4) + 4 * turn})
        while (sample := draws.sample(8)) is not None:
            assert len(sample.keys) == 8 and set(sample.weight) == {1.0}
            given += numbers_of(sample)
    held = [n for part in draws.parts for n in part["items"]["n"]]
    assert sorted(given + held) == list(range(800)) and len(held) < 8


def test_full_queues_give_alike():
    tables = [queue(np.arange(100) + 100 * k) for k in range(3)]
    draws = drawn(tables, QueueDraws, batch=8)
    given = np.concatenate([numbers_of(draws.sample(8)) for _ in range(24)])
    assert np.bincount(given // 100).tolist() == [64, 64, 64]
    assert all(np.array_equal(given[given // 100 == k], 100 * k + np.arange(64)) for k in range(3)), "in their order"


def test_in_lock_step_there_is_room_again_when_the_learner_asks_anew():
    tables = [queue(range(4), size=4), queue(range(10, 12), size=2)]
    draws = drawn(tables, quotas=[4, 2], batch=6, lock_step=True)
    assert numbers_of(draws.sample(6)) == [0, 1, 2, 3, 10, 11]
    assert not any(table.can_insert(1) for table in tables), "what was drawn has not been learned from"
    assert draws.sample(6) is None
    assert tables[0].can_insert(4) and not tables[0].can_insert(5) and tables[1].can_insert(2)
    tables[0].insert({"n": np.arange(4)})
    assert draws.sample(6) is None, "shard 1 has nothing"
    assert not tables[0].can_insert(1), "its part has been drawn"
