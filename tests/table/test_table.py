"""Tables as users see them: queues and replay, exact continuation, the window at any pace, and bad input."""

import os
import pickle
import subprocess
import sys
import time

import numpy as np
import pytest

import cavalcade.table.table
from cavalcade import tree
from cavalcade.checkpoints import checkpoint
from cavalcade.errors import UserError
from cavalcade.table import Limiter, Rows, RowSpec, Selector, Table, prioritised

BLANK = {"x": np.zeros(2, np.float32), "nest": {"n": np.zeros((), np.int64)}}


def items(*numbers):
    """Items that say who they are."""
    n = np.array(numbers, np.int64)
    return {"x": np.stack([n, -n], axis=1).astype(np.float32), "nest": {"n": n}}


def numbers_of(sample):
    """Which items were drawn; every leaf has to belong to the same one."""
    n = sample.items["nest"]["n"]
    assert np.array_equal(sample.items["x"], np.stack([n, -n], axis=1).astype(np.float32))
    return n.tolist()


# --- queues and stacks --------------------------------------------------------------------------------------------


def test_a_queue_gives_every_item_once_in_order():
    table = Table.queue(BLANK, 4)
    assert table.sample(1) is None
    drawn = []
    for start in range(0, 30, 3):  # sizes that wrap around the end of the store in every way
        assert table.insert(items(start, start + 1, start + 2), version=start)
        for count in (1, 2):
            sample = table.sample(count)
            drawn += numbers_of(sample)
            assert (sample.keys >> table.bits).tolist() == drawn[-count:]
            assert sample.version.tolist() == [start] * count
            assert sample.probability.tolist() == [1.0] * count
            assert sample.times_sampled.tolist() == [1] * count
    assert drawn == list(range(30))
    assert table.sample(1) is None and len(table) == 0


def test_a_queue_never_holds_more_than_its_size():
    table = Table.queue(BLANK, 3)
    assert table.can_insert(3) and not table.can_insert(4)
    assert table.insert(items(0, 1))
    assert not table.can_insert(2) and not table.insert(items(2, 3))
    assert len(table) == 2 and table.limiter.inserts == 2, "a refused insert leaves no trace"
    assert table.insert(items(2)) and not table.can_insert(1)
    assert not table.can_sample(4) and table.sample(4) is None
    assert numbers_of(table.sample(3)) == [0, 1, 2] and table.can_insert(3)


def test_a_queue_waits_for_a_whole_batch():
    table = Table.queue(BLANK, 8)
    table.insert(items(0, 1, 2))
    assert table.sample(4) is None and len(table) == 3 and table.limiter.samples == 0
    table.insert(items(3))
    assert numbers_of(table.sample(4)) == [0, 1, 2, 3]


def test_who_would_wait_for_ever_is_told():
    table = Table.queue(BLANK, 4)
    with pytest.raises(UserError, match="never has 5 items to draw at once: draw 4 or fewer"):
        table.sample(5, timeout=None)
    assert table.sample(5) is None, "who does not wait is told nothing but no"
    with pytest.raises(UserError, match="never room for 5 items at once: insert 4 or fewer"):
        table.insert(items(*range(5)), timeout=None)
    assert not table.insert(items(*range(5))) and len(table) == 0
    assert table.insert(items(*range(4)), timeout=None)


def test_a_stack_gives_the_newest_first_and_each_once():
    table = Table.stack(BLANK, 4)
    table.insert(items(0, 1, 2))
    assert numbers_of(table.sample(2)) == [2, 1]
    table.insert(items(3, 4, 5))
    assert not table.can_insert(1)
    assert numbers_of(table.sample(4)) == [5, 4, 3, 0] and len(table) == 0


def test_first_in_gives_the_oldest_again_and_again_where_nothing_makes_it_go():
    table = Table(BLANK, 3, "fifo")
    table.insert(items(0, 1, 2))
    sample = table.sample(4)
    assert numbers_of(sample) == [0, 0, 0, 0] and sample.times_sampled.tolist() == [1, 2, 3, 4]
    table.insert(items(3))
    assert numbers_of(table.sample(1)) == [1]


@pytest.mark.parametrize(
    "remover, kept",
    [("min_heap", [0, 1, 3]), ("max_heap", [2, 3, 4]), ("lifo", [0, 1, 2]), ("fifo", [2, 3, 4])],
)
def test_a_new_item_is_inserted_before_the_remover_chooses_and_may_be_the_one_that_goes(remover, kept):
    for together in (True, False):
        table, priority = Table(BLANK, 3, "uniform", remover), np.array([2.0, 3.0, 1.0, 2.0, 0.5])
        for numbers in [range(5)] if together else [[number] for number in range(5)]:
            assert table.insert(items(*numbers), priority=priority[list(numbers)])
        assert set(numbers_of(table.sample(100))) == set(kept)
        assert (table.limiter.inserts, table.limiter.deletes) == (5, 2), "it counts as inserted and as removed"
        table.check()


def test_where_chance_removes_the_new_item_goes_as_often_as_any_other():
    gone = [0, 0, 0]
    for seed in range(600):
        table = Table(BLANK, 2, "uniform", "uniform", seed=seed)
        table.insert(items(0, 1, 2))
        gone[3 - sum(set(numbers_of(table.sample(50))))] += 1
    assert all(150 < count < 250 for count in gone)


def test_heaps_give_the_lowest_or_highest_and_of_equal_ones_the_oldest():
    for kind, expected in (("min_heap", [1, 4, 0, 3, 2]), ("max_heap", [2, 0, 3, 1, 4])):
        table = Table(BLANK, 5, kind, max_times_sampled=1)
        table.insert(items(0, 1, 2, 3, 4), priority=np.array([2.0, 1.0, 3.0, 2.0, 1.0]))
        assert numbers_of(table.sample(5)) == expected


@pytest.mark.parametrize("kind, sign", [("min_heap", 1), ("max_heap", -1)])
def test_heaps_follow_priorities_that_change(kind, sign):
    chance = np.random.default_rng(0)
    table = Table(BLANK, 200, kind, max_times_sampled=1)
    table.insert(items(*range(200)), priority=chance.integers(0, 50, 200))
    touched = dict.fromkeys(range(200), 0)  # and of equals those that were updated longest ago come first
    for now in range(1, 21):
        some = np.sort(chance.permutation(200)[:10])
        touched |= dict.fromkeys(some.tolist(), now)
        table.update_priorities(table.key[some], chance.integers(0, 50, 10))
        table.check()
    expected = sorted(range(200), key=lambda number: (sign * table.priority[number], touched[number]))
    assert numbers_of(table.sample(200)) == expected


# --- replay -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [1, 2, 3, 5, 7])
def test_replay_keeps_the_newest(step):
    table = Table.uniform(BLANK, 5)
    for start in range(0, 42, step):
        new = list(range(start, start + step))
        assert table.insert(items(*new), version=start)
        expected = list(range(new[-1] + 1))[-5:]
        sample = table.sample(200)
        numbers = np.array(numbers_of(sample))
        assert set(numbers.tolist()) == set(expected)
        assert np.array_equal(sample.keys >> table.bits, numbers), "a key holds the number of the insert"
        assert np.array_equal(sample.version, numbers // step * step)
        np.testing.assert_allclose(sample.probability, 1.0 / len(expected))
        assert len(table) == len(expected) and table.report() == {"table_size": len(table), "table_capacity": 5}


def test_the_seed_decides_the_draws():
    same, again, other = (Table.uniform(BLANK, 50, seed=seed) for seed in (3, 3, 4))
    for table in (same, again, other):
        table.insert(items(*range(50)))
    first = numbers_of(same.sample(20))
    assert first == numbers_of(again.sample(20)) and first != numbers_of(other.sample(20))


def test_samples_are_copies():
    table = Table.uniform(BLANK, 2)
    table.insert(items(0, 1))
    sample = table.sample(8)
    before = numbers_of(sample)
    table.insert(items(2, 3))
    assert numbers_of(sample) == before


def test_what_was_inserted_may_be_changed_by_its_owner():
    table, mine = Table.queue(BLANK, 2), items(0, 1)
    table.insert(mine)
    mine["x"][:], mine["nest"]["n"][:] = 9.0, 9
    assert numbers_of(table.sample(2)) == [0, 1]


def test_an_item_without_a_priority_gets_the_highest_there_ever_was_and_at_first_one():
    table = Table.prioritised(BLANK, 2, exponent=1.0)
    table.insert(items(0, 1), priority=np.array([0.5, 0.25]))
    table.insert(items(2))  # 1 of 1.25
    assert set(np.round(table.sample(100).probability, 6)) == {0.8, 0.2}
    table.insert(items(3), priority=np.array([4.0]))
    table.insert(items(4, 5))  # the 4 has gone, but they have it
    table.update_priorities(table.key[table.key >> table.bits == 4], np.array([1.0]))
    assert set(np.round(table.sample(100).probability, 6)) == {0.8, 0.2}


def test_a_priority_of_zero_has_no_share_under_any_exponent_unless_all_are_zero():
    for exponent in (0.0, 0.6, 1.0):
        table = Table.prioritised(BLANK, 4, exponent=exponent)
        table.insert(items(0, 1, 2, 3), priority=np.array([0.0, 5.0, 0.0, 5.0]))
        sample = table.sample(100)
        assert set(numbers_of(sample)) == {1, 3} and set(sample.probability) == {0.5}
        table.update_priorities(sample.keys, np.zeros(100))
        sample = table.sample(100)
        assert set(numbers_of(sample)) == {0, 1, 2, 3} and set(sample.probability) == {0.25}


def test_importance_weights_are_schauls():
    table = Table.prioritised(BLANK, 2, exponent=1.0)
    table.insert(items(0, 1), priority=np.array([1.0, 3.0]))
    sample = table.sample(100, importance=0.5)
    assert set(numbers_of(sample)) == {0, 1}
    expected = np.where(np.array(numbers_of(sample)) == 0, 1.0, (1 / 3) ** 0.5)  # (2 * 1/4, 2 * 3/4) ** -0.5, scaled
    np.testing.assert_allclose(sample.weight, expected, rtol=1e-6)
    assert (table.sample(100).weight == 1).all()


def test_a_soft_size_is_exceeded_until_the_table_is_trimmed():
    table = Table(BLANK, 3, "fifo", overflow=4, trim_every=2)
    table.insert(items(*range(6)))
    assert len(table) == 6 and numbers_of(table.sample(1)) == [0] and len(table) == 6
    assert numbers_of(table.sample(1)) == [0] and len(table) == 3, "trimmed after the second draw"
    assert numbers_of(table.sample(1)) == [3]
    table.insert(items(*range(6, 12)))
    assert len(table) == 7, "and never by more than the overflow"
    table.trim()
    assert len(table) == 3 and numbers_of(table.sample(1)) == [9]


# --- trees of any shape -------------------------------------------------------------------------------------------


def test_an_item_may_be_one_array():
    table = Table(np.zeros(3, np.float32), 4, "fifo")
    assert table.insert(np.arange(6.0).reshape(2, 3))
    assert table.sample(1).items.tolist() == [[0.0, 1.0, 2.0]]


def test_an_item_may_have_many_leaves():
    blank = {f"leaf {i}": np.zeros((), np.float32) for i in range(100)}
    table = Table(blank, 4, "fifo")
    table.insert({name: np.full(2, i) for i, name in enumerate(blank)})
    assert all(table.sample(1).items[name] == i for i, name in enumerate(blank))
    table.check()


@pytest.mark.parametrize(
    "dtype", [np.bool_, np.int8, np.uint8, np.int16, np.float16, np.int32, np.float64, np.complex128]
)
@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 0), (5, 7), (300,)])
def test_leaves_of_any_type_and_shape_come_back(dtype, shape):
    table = Table({"a": np.zeros((), np.int8), "b": np.zeros(shape, dtype), "c": np.zeros((), np.float64)}, 5, "fifo")
    given = np.random.default_rng(0).integers(0, 100, (5, *shape)).astype(dtype)
    table.insert({"a": np.arange(5), "b": given, "c": np.arange(5) * 0.5})
    for i in range(5):
        found = table.sample(1)
        assert found.items["b"].dtype == dtype and np.array_equal(found.items["b"], given[i : i + 1])
        assert found.items["a"] == i and found.items["c"] == i * 0.5
        table.delete(found.keys)


@pytest.mark.parametrize("shape", [(64, 64), (63, 65), (4_097,), (128, 128)])  # around a page, and above
def test_large_leaves_come_back(shape):
    chance = np.random.default_rng(0)
    given = chance.integers(0, 256, (20, *shape), dtype=np.uint8)
    table = Table({"n": np.zeros((), np.int64), "x": np.zeros(shape, np.uint8)}, 20)
    table.insert({"n": np.arange(20), "x": given})
    for count in (1, 20, 5_000_000 // given[0].size):  # 5 MB are more than a cache holds
        found = table.sample(count).items
        assert np.array_equal(found["x"], given[found["n"]])
    for number in (0, 16):  # at its place a new one, which must not reach into its neighbour's
        table.delete(table.key[number : number + 1])
        new = chance.integers(0, 256, (2, *shape), dtype=np.uint8)[:1]
        table.insert({"n": np.array([number]), "x": new})
        given[number] = new[0]
    found = table.sample(500).items
    assert np.array_equal(found["x"], given[found["n"]])


LOOKS = {
    "as it is": lambda a: a,
    "a slice": lambda a: np.stack([a, a + 1, a], axis=1)[:, 0],
    "every second": lambda a: np.repeat(a, 2, axis=0)[::2],
    "backwards": lambda a: a[::-1].copy()[::-1],
    "columns first": np.asfortranarray,
    "broadcast": lambda a: np.broadcast_to(a[:1], a.shape),
    "another type": lambda a: a.astype(np.float64),
    "another order of bytes": lambda a: a.astype(">i4"),
    "read only": lambda a: np.frombuffer(a.tobytes(), a.dtype).reshape(a.shape),
    "lists": lambda a: a.tolist(),
}


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("shape", [(3,), (20, 7), (40, 40), (100,)])
def test_what_is_inserted_may_lie_in_memory_in_any_way(shape, look):
    plain = np.random.default_rng(0).integers(0, 1_000, (6, *shape), dtype=np.int32)
    given = LOOKS[look](plain)
    table = Table({"a": np.zeros((), np.int8), "x": np.zeros(shape, np.int32)}, 6, "fifo", max_times_sampled=1)
    table.insert({"a": np.arange(6), "x": given})
    assert np.array_equal(table.sample(6).items["x"], np.asarray(given))
    table.check()


def test_items_know_when_they_were_made():
    table = Table.queue(BLANK, 10)
    before = time.time()
    table.insert(items(0, 1))
    table.insert(items(2), made=12.5)
    made = table.sample(3).made
    assert made.dtype == np.float64 and made[2] == 12.5
    assert before <= made[0] == made[1] <= time.time()


# --- exact continuation -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("through_a_file", [False, True])
@pytest.mark.parametrize("sampler", ["uniform", prioritised(0.6), "max_heap", "lifo"])
def test_a_restored_table_gives_the_same_next_samples(tmp_path, sampler, through_a_file):
    def make(seed):
        return Table(BLANK, 10, sampler, "uniform", limiter=Limiter.ratio(4.0, 5, 40.0), seed=seed)

    table = make(0)
    table.insert(items(*range(8)), 1, np.arange(8.0))
    table.sample(6)
    table.insert(items(*range(8, 14)), 2)
    state = table.state()
    if through_a_file:
        checkpoint.save(tmp_path, {"table": state}, 1)
        state = checkpoint.load_latest(tmp_path)[0]["table"]
    other = make(99)
    other.restore(state)
    for number in range(14, 18):
        mine, its = table.sample(5, 0.4), other.sample(5, 0.4)
        assert numbers_of(mine) == numbers_of(its)
        assert all(np.array_equal(a, b) for a, b in zip(mine[1:-1], its[1:-1])), "all but when they were made"
        assert table.insert(items(number), 3) and other.insert(items(number), 3)
    assert table.account() == other.account()
    other.check()


SAVE = """
import pickle, sys
import numpy as np
from cavalcade.table import Table

table = Table({name: np.zeros(50) for name in ("left", "mid", "right")}, 4)
table.insert({"left": np.full((1, 50), 1), "mid": np.full((1, 50), 2), "right": np.full((1, 50), 3)})
sys.stdout.buffer.write(pickle.dumps(table.state()))
"""


@pytest.mark.parametrize("seed", ["0", "3", "6", "9"])
def test_a_state_is_restored_in_another_process(seed):
    """Where the order of a set of strings is another: nothing may depend on it."""
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    saved = subprocess.run([sys.executable, "-c", SAVE], env=environment, capture_output=True, check=True)
    table = Table({name: np.zeros(50) for name in ("left", "mid", "right")}, 4)
    table.restore(pickle.loads(saved.stdout))
    assert {name: leaf.max() for name, leaf in table.sample(1).items.items()} == {"left": 1, "mid": 2, "right": 3}


def test_a_kept_state_does_not_change_with_the_table():
    table, other = (Table(BLANK, 4, "fifo", max_times_sampled=1) for _ in range(2))
    table.insert(items(0, 1, 2, 3), 5)
    kept = table.state()
    table.sample(2)
    table.insert(items(4, 5, 6, 7), 9)
    other.restore(kept)
    sample = other.sample(4)
    assert numbers_of(sample) == [0, 1, 2, 3] and sample.version.tolist() == [5] * 4


def test_a_restored_table_holds_nothing_of_what_it_held_before():
    table, used = Table(BLANK, 8), Table(BLANK, 8)
    table.insert(items(0, 1))
    used.insert(items(*range(10, 15)))
    used.restore(table.state())
    used.check()
    assert set(numbers_of(used.sample(50))) == {0, 1}


OTHERS = {
    "a larger table": lambda: Table(BLANK, 8),
    "another sampler": lambda: Table(BLANK, 4, prioritised()),
    "larger items": lambda: Table({**BLANK, "x": np.zeros(3, np.float32)}, 4),
    "smaller items": lambda: Table({"x": BLANK["x"]}, 4),
    "another large leaf": lambda: Table({**BLANK, "y": np.zeros(100)}, 4),
    "more rows": lambda: Table(BLANK, 4, rows=Rows(RowSpec(np.zeros((), np.uint8)), 9)),
    "other rows": lambda: Table(BLANK, 4, rows=Rows(RowSpec(np.zeros(5)), 1)),
}


@pytest.mark.parametrize("other", OTHERS)
def test_the_state_of_another_table_is_refused_and_changes_nothing(other):
    table, its = Table(BLANK, 4), OTHERS[other]()
    table.insert(items(0, 1))
    its.insert(tree.map(lambda leaf: np.ones((3, *leaf.shape), leaf.dtype), its.signature.own))
    before = kept(table)
    with pytest.raises(UserError):
        table.restore(its.state())
    assert kept(table) == before
    assert set(numbers_of(table.sample(50))) == {0, 1}


def test_a_table_that_leaves_no_room_for_a_copy_gives_itself(monkeypatch):
    table, other = Table(BLANK, 4, "fifo"), Table(BLANK, 4, "fifo")
    table.insert(items(0, 1))
    table.state()
    assert table.copied
    monkeypatch.setattr(cavalcade.table.table, "available", lambda: 0)
    state = table.state()
    assert not table.copied and np.shares_memory(state["own"]["0"]["bytes"], table.key)
    other.restore(state)
    other.check()
    assert numbers_of(other.sample(1)) == [0]


# --- the window ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ratio, insert, draw, min_size", [(16.0, 8, 128, 100), (0.25, 8, 1, 20), (1.0, 3, 5, 10)])
@pytest.mark.parametrize("pace", [(1, 1), (20, 1), (1, 20)])
def test_the_window_is_never_left_however_fast_either_side_runs(ratio, insert, draw, min_size, pace):
    """`pace` is how often actors and learner try in a round; the ratio comes out the same."""
    slack = max(draw, ratio * insert, 1.0)
    table = Table.uniform(BLANK, 200, Limiter.ratio(ratio, min_size, slack))
    limits, number, moved = table.limiter, 0, 0
    for _ in range(400):
        before = limits.inserts + limits.samples
        for _ in range(pace[0]):
            number += insert * table.insert(items(*range(number, number + insert)))
        for _ in range(pace[1]):
            table.sample(draw)
        balance = limits.inserts * ratio - limits.samples
        moved += limits.inserts + limits.samples > before
        if limits.inserts > min_size:
            assert ratio * min_size - slack <= balance <= ratio * min_size + slack
    assert moved == 400, "and it never gets stuck"
    assert limits.samples > 0
    learned, acted = limits.samples, limits.inserts - min_size
    assert abs(learned - ratio * acted) <= slack


# --- bad input ----------------------------------------------------------------------------------------------------


def kept(table):
    """All there is to know about a table's items."""
    table.check()
    return table.account(), table.key.tolist(), table.priority.tolist(), table.peak.tolist(), table.counters.tolist()


@pytest.mark.parametrize("bad", [np.nan, -1.0, -1e-30, np.inf, -np.inf, 1e39])  # the last is infinite as float32
def test_bad_priorities_are_refused_with_their_position_and_change_nothing(bad):
    table = Table.prioritised(BLANK, 4)
    table.insert(items(0, 1, 2), priority=np.array([1.0, 2.0, 3.0]))
    before = kept(table)
    with np.errstate(over="ignore"):
        with pytest.raises(ValueError, match="number 2 is"):
            table.insert(items(3, 4, 5), priority=np.array([1.0, 9.0, bad]))
        with pytest.raises(ValueError, match="number 1 is"):
            table.update_priorities(table.key[:3], np.array([7.0, bad, 7.0]))
    assert kept(table) == before


@pytest.mark.parametrize("count", [0, 2, 4])
def test_as_many_priorities_as_items_are_needed(count):
    table = Table.prioritised(BLANK, 4)
    table.insert(items(0, 1, 2))
    before = kept(table)
    with pytest.raises(ValueError):
        table.insert(items(3, 4, 5), priority=np.ones(count))
    with pytest.raises(ValueError):
        table.update_priorities(table.key[:3], np.ones(count))
    assert kept(table) == before


WRONG = {
    "too few of one leaf": {"a": np.ones((3, 2)), "b": np.ones((2, 20, 20))},
    "too many of one leaf": {"a": np.ones((3, 2)), "b": np.ones((4, 20, 20))},
    "too narrow": {"a": np.ones((3, 1)), "b": np.ones((3, 20, 20))},
    "too wide": {"a": np.ones((3, 2)), "b": np.ones((3, 20, 21))},
    "another shape of the same size": {"a": np.ones((3, 2)), "b": np.ones((3, 10, 40))},
    "no items but one": {"a": np.ones(2), "b": np.ones((20, 20))},
    "a leaf too few": {"a": np.ones((3, 2))},
    "a leaf too many": {"a": np.ones((3, 2)), "b": np.ones((3, 20, 20)), "c": np.ones(3)},
    "a leaf with another name": {"a": np.ones((3, 2)), "c": np.ones((3, 20, 20))},
    "no numbers in a small leaf": {"a": np.full((3, 2), "x"), "b": np.ones((3, 20, 20))},
    "no numbers in a large leaf": {"a": np.ones((3, 2)), "b": np.full((3, 20, 20), "x")},
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("compressed", [False, True])
def test_items_that_do_not_fit_are_refused_and_change_nothing(wrong, compressed):
    if compressed:
        pytest.importorskip("lz4")
    table = Table({"a": np.zeros(2), "b": np.zeros((20, 20), np.uint8)}, 4, "fifo", compressed=compressed)
    table.insert({"a": np.full((3, 2), 5.0), "b": np.full((3, 20, 20), 7)})
    before = kept(table)
    with pytest.raises((ValueError, TypeError)):
        table.insert(WRONG[wrong])
    assert kept(table) == before
    items = table.sample(1).items
    assert (items["a"] == 5).all() and (items["b"] == 7).all()


def test_the_names_of_selectors_are_checked():
    with pytest.raises(UserError, match=r"no selector 'unifrom'.*uniform"):
        Table(BLANK, 4, "unifrom")
    with pytest.raises(UserError, match="no selector"):
        Table(BLANK, 4, remover="oldest")
    for exponent in (np.nan, np.inf):
        with pytest.raises(UserError, match="exponent"):
            Selector("prioritised", exponent)
