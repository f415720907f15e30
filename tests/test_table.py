"""Tables against plain lists: the limiter's inequalities, queues and replay, and exact continuation."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cavalcade import checkpoint
from cavalcade.errors import UserError
from cavalcade.table import Limiter, Table

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


def limiter(ratio, min_size, min_diff, max_diff, inserts=0, deletes=0, samples=0):
    made = Limiter(ratio, min_size, min_diff, max_diff)
    made.inserts, made.deletes, made.samples = inserts, deletes, samples
    return made


# --- the limiter --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "inserts, deletes, samples, count, may",
    [
        (9, 0, 0, 1, False),  # 9 items, and 10 are needed
        (10, 0, 0, 1, True),  # 10 * 2 - 0 - 1 = 19 >= 5
        (12, 3, 0, 1, False),  # 12 inserted, but 3 of them deleted: 9 items
        (13, 3, 0, 1, True),
        (10, 0, 0, 15, True),  # 20 - 0 - 15 = 5 >= 5, exactly the edge
        (10, 0, 0, 16, False),  # 20 - 0 - 16 = 4
        (10, 0, 14, 1, True),  # 20 - 14 - 1 = 5
        (10, 0, 15, 1, False),  # 20 - 15 - 1 = 4
    ],
)
def test_can_sample_is_reverbs_inequality(inserts, deletes, samples, count, may):
    assert limiter(2.0, 10, 5.0, 25.0, inserts, deletes, samples).can_sample(count) is may


@pytest.mark.parametrize(
    "inserts, deletes, samples, count, may",
    [
        (9, 0, 0, 1, True),  # 10 <= 10 items: below the minimum size nothing else is asked
        (0, 0, 0, 10, True),
        (0, 0, 0, 11, True),  # 11 > 10 items, but 11 * 2 - 0 = 22 <= 25
        (10, 0, 0, 2, True),  # 12 * 2 = 24
        (10, 0, 0, 3, False),  # 13 * 2 = 26 > 25, and 13 > 10 items
        (10, 0, 1, 3, True),  # 26 - 1 = 25, exactly the edge
        (100, 91, 0, 1, True),  # 100 + 1 - 91 = 10 items: the first half holds however far the balance is
        (100, 90, 0, 1, False),  # 11 items, 202 > 25
        (100, 90, 177, 1, True),  # 202 - 177 = 25
    ],
)
def test_can_insert_is_reverbs_inequality(inserts, deletes, samples, count, may):
    assert limiter(2.0, 10, 5.0, 25.0, inserts, deletes, samples).can_insert(count) is may


def test_a_ratio_is_a_window_around_the_minimum_size():
    made = Limiter.ratio(4.0, 100, 8.0)
    assert (made.samples_per_insert, made.min_size, made.min_diff, made.max_diff) == (4.0, 100, 392.0, 408.0)


def test_a_queue_is_a_window_as_wide_as_its_size():
    made = Limiter.queue(3)
    assert (made.samples_per_insert, made.min_size, made.min_diff, made.max_diff) == (1.0, 1, 0.0, 3.0)


def gets_stuck(ratio, min_size, low, high):
    """One draw or one insert at a time from the beginning, in plain arithmetic: is there an end to it?"""
    inserts, samples = 0, 0
    for _ in range(200):
        if inserts >= min_size and inserts * ratio - samples - 1 >= low:
            samples += 1
        elif inserts + 1 <= min_size or (inserts + 1) * ratio - samples <= high:
            inserts += 1
        else:
            return True
    return False


@pytest.mark.parametrize(
    "ratio, min_size, min_diff, max_diff",
    [
        (4.0, 1, 0.0, 3.0),  # an insert moves the balance by 4 and cannot land inside
        (2.0, 10, 20.0, 20.0),  # a window of no width
        (0.25, 4, 1.0, 1.0),
        (1.0, 1, 1.0, 1.0),  # as many draws as inserts are no exception
        (1.0, 5, 7.0, 3.0),  # upside down
    ],
)
def test_a_window_that_must_deadlock_is_refused(ratio, min_size, min_diff, max_diff):
    assert gets_stuck(ratio, min_size, min_diff, max_diff)
    with pytest.raises(UserError, match="deadlock"):
        Limiter(ratio, min_size, min_diff, max_diff)


def test_no_window_that_is_accepted_deadlocks():
    accepted = 0
    for ratio in (0.25, 0.5, 1.0, 1.5, 2.0, 4.0):
        for min_size in (1, 2, 5):
            for low in np.arange(-2.0, 9.0, 0.5):
                for width in np.arange(-1.0, 10.0, 0.5):
                    try:
                        Limiter(ratio, min_size, low, low + width)
                    except UserError:
                        continue
                    accepted += 1
                    assert not gets_stuck(ratio, min_size, low, low + width), (ratio, min_size, low, low + width)
    assert accepted > 1_000


def test_reverbs_narrowest_windows_and_the_shortest_queue_are_accepted():
    for ratio in (0.25, 1.0, 4.0):
        Limiter.ratio(ratio, 10, max(1.0, ratio))
        with pytest.raises(UserError, match="at least"):
            Limiter.ratio(ratio, 10, 0.49 * max(1.0, ratio))
    assert Table.queue(BLANK, 1).can_insert(1)


@pytest.mark.parametrize("ratio, min_size", [(0.0, 1), (-1.0, 1), (1.0, 0)])
def test_a_limiter_without_a_ratio_or_a_size_is_refused(ratio, min_size):
    with pytest.raises(UserError, match="samples_per_insert above 0 and min_size of at least 1"):
        Limiter(ratio, min_size, 0.0, 100.0)


def test_the_account_holds_every_number_of_the_window():
    text = limiter(2.0, 10, 5.0, 25.0, inserts=14, deletes=3, samples=8).account()
    for part in ("11 items", "needs 10", "14 inserted", "8 drawn", "balance 20", "[5, 25]"):
        assert part in text


# --- queues -------------------------------------------------------------------------------------------------------


def test_a_queue_gives_every_item_once_in_order():
    table = Table.queue(BLANK, 4)
    assert table.sample(1) is None
    drawn = []
    for start in range(0, 30, 3):  # sizes that wrap around the end of the store in every way
        assert table.insert(items(start, start + 1, start + 2), version=start)
        for count in (1, 2):
            sample = table.sample(count)
            drawn += numbers_of(sample)
            assert sample.keys.tolist() == drawn[-count:]
            assert sample.version.tolist() == [start] * count
            assert sample.probability.tolist() == [1.0] * count
    assert drawn == list(range(30))
    assert table.sample(1) is None and len(table) == 0


def test_a_queue_never_holds_more_than_its_size():
    table = Table.queue(BLANK, 3)
    assert table.can_insert(3) and not table.can_insert(4)
    assert table.insert(items(0, 1), 0)
    assert not table.can_insert(2) and not table.insert(items(2, 3), 0)
    assert len(table) == 2 and table.limiter.inserts == 2, "a refused insert leaves no trace"
    assert table.insert(items(2), 0) and not table.can_insert(1)
    assert not table.can_sample(4) and table.sample(4) is None
    assert numbers_of(table.sample(3)) == [0, 1, 2] and table.can_insert(3)


def test_a_queue_waits_for_a_whole_batch():
    table = Table.queue(BLANK, 8)
    table.insert(items(0, 1, 2), 0)
    assert table.sample(4) is None and len(table) == 3 and table.limiter.samples == 0
    table.insert(items(3), 0)
    assert numbers_of(table.sample(4)) == [0, 1, 2, 3]


# --- replay -------------------------------------------------------------------------------------------------------


def wide(size, ratio=1.0, min_size=1, seed=0):
    return Table.uniform(BLANK, size, limiter(ratio, min_size, -1e9, 1e9), seed)


@pytest.mark.parametrize("step", [1, 2, 3, 5, 7])
def test_replay_keeps_the_newest(step):
    table = wide(5)
    for start in range(0, 42, step):
        new = list(range(start, start + step))
        assert table.insert(items(*new), version=start)
        expected = list(range(new[-1] + 1))[-5:]
        sample = table.sample(200)
        assert set(numbers_of(sample)) == set(expected)
        assert sample.keys.tolist() == numbers_of(sample), "a key is the number of the item since the table began"
        assert np.array_equal(sample.version, sample.keys // step * step)
        np.testing.assert_allclose(sample.probability, 1.0 / len(expected))
        assert len(table) == len(expected)


def test_draws_from_replay_are_uniform():
    table = wide(20)
    table.insert(items(*range(33)), 0)  # some of them gone already
    counts = np.bincount(np.array(numbers_of(table.sample(40_000))) - 13, minlength=20)
    expected = 40_000 / 20
    chi_square = np.sum((counts - expected) ** 2) / expected
    assert 5.0 < chi_square < 43.8  # 19 degrees of freedom: one in a thousand beyond either


@pytest.mark.parametrize("count", [1, 100])
def test_consecutive_items_are_independent_between_draws_and_within_one(count):
    table = wide(4)
    table.insert(items(0, 1, 2, 3), 0)
    drawn = np.concatenate([numbers_of(table.sample(count)) for _ in range(8_000 // count)])
    pairs = np.bincount(4 * drawn[:-1] + drawn[1:], minlength=16)
    assert np.sum((pairs - 7_999 / 16) ** 2) / (7_999 / 16) < 39.3  # 15 degrees of freedom, one in a thousand


def test_the_seed_decides_the_draws():
    same, again, other = (wide(50, seed=seed) for seed in (3, 3, 4))
    for table in (same, again, other):
        table.insert(items(*range(50)), 0)
    first = numbers_of(same.sample(20))
    assert first == numbers_of(again.sample(20)) and first != numbers_of(other.sample(20))


def test_samples_are_copies():
    table = wide(2)
    table.insert(items(0, 1), 0)
    sample = table.sample(8)
    before = numbers_of(sample)
    table.insert(items(2, 3), 0)
    assert numbers_of(sample) == before


def test_a_minimum_that_does_not_fit_is_refused():
    with pytest.raises(UserError, match=r"101 items .* size is 100"):
        Table.uniform(BLANK, 100, Limiter.ratio(1.0, 101, 10.0))


def test_bytes_are_those_of_the_store():
    assert Table.queue(BLANK, 10).bytes == 10 * (2 * 4 + 8)


# --- against a plain list -----------------------------------------------------------------------------------------


class AgainstAList(RuleBasedStateMachine):
    """Any sequence of inserts, draws, saves and restores leaves the table equal to a list with three counters."""

    def begin(self, table, ratio, min_size, low, high, size, fifo):
        self.make = table
        self.table = table()
        self.ratio, self.min_size, self.low, self.high, self.size, self.fifo = ratio, min_size, low, high, size, fifo
        self.held, self.inserts, self.deletes, self.samples = [], 0, 0, 0  # held: (number, version), oldest first

    def may_insert(self, count):
        if self.fifo and len(self.held) + count > self.size:
            return False
        after = self.inserts + count
        return after - self.deletes <= self.min_size or after * self.ratio - self.samples <= self.high

    def may_sample(self, count):
        if self.inserts - self.deletes < self.min_size or (self.fifo and len(self.held) < count):
            return False
        return self.inserts * self.ratio - self.samples - count >= self.low

    @rule(count=st.integers(1, 9), version=st.integers(0, 5))
    def insert(self, count, version):
        new = list(range(self.inserts, self.inserts + count))
        may = self.may_insert(count)
        assert self.table.insert(items(*new), version) is may
        if may:
            self.held += [(number, version) for number in new]
            self.inserts += count
            gone = max(0, len(self.held) - self.size)
            self.held = self.held[gone:]
            self.deletes += gone

    @rule(count=st.integers(1, 9))
    def sample(self, count):
        may = self.may_sample(count)
        sample = self.table.sample(count)
        assert (sample is not None) is may
        if not may:
            return
        self.samples += count
        drawn = list(zip(numbers_of(sample), sample.version.tolist()))
        assert sample.keys.tolist() == [number for number, _ in drawn]
        if self.fifo:
            assert drawn == self.held[:count]
            self.held = self.held[count:]
            self.deletes += count
        else:
            assert set(drawn) <= set(self.held)
            np.testing.assert_allclose(sample.probability, 1.0 / len(self.held))

    @rule()
    def save_and_restore_elsewhere(self):
        state = self.table.state()
        self.table = self.make()
        self.table.restore(state)

    @precondition(lambda self: self.held)
    @rule()
    def contents(self):
        kept = self.table.state()
        assert list(zip(kept["items"]["nest"]["n"].tolist(), kept["version"].tolist())) == self.held

    @invariant()
    def counters_and_limits_are_those_of_the_list(self):
        if not hasattr(self, "table"):
            return
        limits = self.table.limiter
        assert (limits.inserts, limits.deletes, limits.samples) == (self.inserts, self.deletes, self.samples)
        assert len(self.table) == len(self.held) == self.inserts - self.deletes <= self.size
        assert self.table.report() == {"table_size": len(self.held), "table_capacity": self.size}
        for count in range(1, 10):
            assert self.table.can_insert(count) is self.may_insert(count)
            assert self.table.can_sample(count) is self.may_sample(count)


class Queue(AgainstAList):
    @initialize(size=st.integers(1, 8))
    def start(self, size):
        self.begin(lambda: Table.queue(BLANK, size), 1.0, 1, 0.0, float(size), size, True)


class Replay(AgainstAList):
    @initialize(
        size=st.integers(1, 8),
        ratio=st.sampled_from([0.25, 0.5, 1.0, 1.5, 4.0]),
        share=st.floats(0.0, 1.0),
        slack=st.sampled_from([1.0, 1.5, 4.0, 20.0]),
    )
    def start(self, size, ratio, share, slack):
        min_size = 1 + int(share * (size - 1))
        slack *= max(1.0, ratio)

        def make():
            return Table.uniform(BLANK, size, Limiter.ratio(ratio, min_size, slack), seed=size)

        self.begin(make, ratio, min_size, ratio * min_size - slack, ratio * min_size + slack, size, False)


for machine in (Queue, Replay):
    machine.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestQueue, TestReplay = Queue.TestCase, Replay.TestCase


# --- exact continuation -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("through_a_file", [False, True])
def test_a_restored_table_gives_the_same_next_samples(tmp_path, through_a_file):
    def make(seed):
        return Table.uniform(BLANK, 10, Limiter.ratio(4.0, 5, 40.0), seed)

    table = make(0)
    table.insert(items(*range(8)), 1)
    table.sample(6)
    table.insert(items(*range(8, 14)), 2)
    state = table.state()
    if through_a_file:
        checkpoint.save(tmp_path, {"table": state}, 1)
        state = checkpoint.load_latest(tmp_path)[0]["table"]
    other = make(99)
    other.restore(state)
    for number in range(14, 18):
        mine, its = table.sample(5), other.sample(5)
        for a, b in zip((mine.keys, mine.probability, mine.version), (its.keys, its.probability, its.version)):
            assert np.array_equal(a, b)
        assert numbers_of(mine) == numbers_of(its)
        assert table.insert(items(number), 3) and other.insert(items(number), 3)
    assert table.account() == other.account()


def test_a_kept_state_does_not_change_with_the_table():
    table = wide(4)
    table.insert(items(0, 1, 2, 3), 0)
    kept = table.state()
    table.insert(items(4, 5, 6, 7), 9)
    assert kept["items"]["nest"]["n"].tolist() == [0, 1, 2, 3] and kept["version"].tolist() == [0] * 4


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
            number += insert * table.insert(items(*range(number, number + insert)), 0)
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
