"""Every sampler with every remover against a plain list, over any sequence of operations."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from cavalcade.table import Selector, Table, prioritised
from cavalcade.table.selectors import selector

BLANK = {"n": np.zeros((), np.int64), "nest": {"large": np.zeros(40), "small": np.zeros(2, np.float32)}}
PRIORITIES = [0.0, 1e-3, 0.5, 1.0, 3.0, 1e3]
CHOICES = {
    "uniform": "uniform",
    **{f"prioritised({exponent})": prioritised(exponent) for exponent in (0.6, 1.0, 0.0, -0.4)},
    **{kind: kind for kind in ("fifo", "lifo", "min_heap", "max_heap")},
}


def items(numbers):
    """Items that say who they are, in every leaf."""
    n = np.array(numbers, np.int64)
    small = np.stack([n, -n], axis=1).astype(np.float32)
    return {"n": n, "nest": {"large": np.repeat(n[:, None], 40, axis=1) * 0.5, "small": small}}


def assert_are(found, numbers):
    assert found["n"].tolist() == numbers
    large, small = items(numbers)["nest"].values()
    assert np.array_equal(found["nest"]["large"], large) and np.array_equal(found["nest"]["small"], small)


def at_random(how: Selector) -> bool:
    return how.kind in ("uniform", "prioritised")


def shares(how, held):
    if how.kind == "uniform":
        return [1.0] * len(held)
    given = [item["priority"] for item in held]
    if how.exponent < 0:
        return [max(priority, 1e-8) ** how.exponent for priority in given]
    found = [priority**how.exponent if priority else 0.0 for priority in given]  # 0 ** 0 would be 1
    return found if sum(found) else [1.0] * len(held)


def first(how, held):
    """What a selector without chance chooses of items that are in order of insertion."""
    if how.kind == "fifo":
        return held[0]
    if how.kind == "lifo":
        return held[-1]
    sign = 1 if how.kind == "min_heap" else -1
    return min(held, key=lambda item: (sign * item["priority"], item["touched"]))  # of equals the longest untouched


class AgainstAList(RuleBasedStateMachine):
    def __init__(self, sampler, remover):
        super().__init__()
        self.sampler, self.remover = selector(sampler), selector(remover)

    @initialize(
        size=st.sampled_from([1, 2, 5, 9]),
        overflow=st.sampled_from([0, 0, 3]),
        trim_every=st.sampled_from([0, 1, 3]),
        most=st.sampled_from([0, 1, 3]),
        first=st.lists(st.sampled_from(PRIORITIES), min_size=5, max_size=5),
    )
    def begin(self, size, overflow, trim_every, most, first):
        self.size, self.capacity, self.trim_every, self.most = size, size + overflow, trim_every, most
        self.more = {"max_times_sampled": most, "overflow": overflow, "trim_every": trim_every}
        self.table = Table(BLANK, size, self.sampler, self.remover, seed=size, **self.more)
        self.held: list[dict] = []  # oldest first
        self.keys: list[int] = []  # of all items there ever were
        self.inserts, self.deletes, self.samples, self.draws, self.peak = 0, 0, 0, 0, 1.0
        self.touches = 0  # inserts and updates so far
        self.insert(first, 0, 1)

    # --- what the list does ---------------------------------------------------------------------------------------

    def touch(self, item, priority):
        item["priority"], item["touched"] = priority, self.touches
        self.touches += 1
        self.peak = max(self.peak, priority)

    def leave(self, item):
        self.held.remove(item)
        self.deletes += 1

    def remove(self, count):
        """As the remover chooses; where it chooses at random, see what it chose."""
        if not at_random(self.remover):
            for _ in range(count):
                self.leave(first(self.remover, self.held))
            return
        there = set((self.table.key[self.table.key >= 0]).tolist())
        gone = [item for item in self.held if item["key"] not in there]
        assert len(gone) == count
        if any(share == 0 for share, item in zip(shares(self.remover, self.held), self.held) if item in gone):
            left = [item for item in self.held if item not in gone]
            assert not any(item["priority"] for item in left), "no share goes before those with one"
        for item in gone:
            self.leave(item)

    def trim(self):
        self.remove(max(0, len(self.held) - self.size))

    # --- operations -----------------------------------------------------------------------------------------------

    @rule(
        priority=st.one_of(st.integers(1, 7), st.lists(st.sampled_from(PRIORITIES), min_size=1, max_size=7)),
        version=st.integers(0, 5),
        times=st.sampled_from([1, 1, 1, 3]),
    )
    def insert(self, priority, version, times):
        """`priority` is given, or how many items come without one; `times` makes batches larger than the table. An item
        is inserted before the remover chooses, so it may go at once."""
        given = None if isinstance(priority, int) else np.array(priority * times)
        count = priority * times if given is None else len(given)
        numbers = list(range(self.inserts, self.inserts + count))
        assert self.table.insert(items(numbers), version, given)
        by_number = {key >> self.table.bits: key for key in self.table.key[self.table.key >= 0].tolist()}
        for i, number in enumerate(numbers):
            self.held.append({"number": number, "key": by_number.get(number), "times": 0, "version": version})
            self.touch(self.held[-1], self.peak if given is None else float(np.float32(given[i])))
            self.inserts += 1
            if len(self.held) > self.capacity and not at_random(self.remover):
                self.leave(first(self.remover, self.held))
        excess = len(self.held) - self.capacity
        if excess == 1 == count:
            self.remove(1)
        elif excess > 0:  # who was there when each of them was chosen is not known
            gone = [item for item in self.held if item["number"] not in by_number]
            assert len(gone) == excess
            for item in gone:
                self.leave(item)
        self.keys += [item["key"] for item in self.held if item["number"] in numbers]

    @rule(count=st.integers(1, 7), importance=st.sampled_from([0.0, 0.4, 1.0]))
    def sample(self, count, importance):
        may = self.may_sample(count)
        assert self.table.can_sample(count) is may
        drawn = self.table.sample(count, importance)
        assert (drawn is not None) is may
        if drawn:
            self.follow(drawn, importance)

    def may_sample(self, count):
        left = sum(self.most - item["times"] for item in self.held) if self.most else count
        return len(self.held) > 0 and left >= count

    def follow(self, drawn, importance):
        """Every field of a sample, item by item."""
        live = len(self.held)
        numbers = drawn.items["n"].tolist()
        assert_are(drawn.items, numbers)
        for i, number in enumerate(numbers):
            (item,) = [item for item in self.held if item["number"] == number]
            if at_random(self.sampler):
                parts = shares(self.sampler, self.held)
                probability = parts[self.held.index(item)] / sum(parts)
                assert probability > 0
            else:
                assert item is first(self.sampler, self.held)
                probability = 1.0
            item["times"] += 1
            self.samples += 1
            assert drawn.keys[i] == item["key"] and drawn.version[i] == item["version"]
            assert drawn.times_sampled[i] == item["times"]
            assert drawn.age[i] == self.inserts - number  # its own insert counts
            np.testing.assert_allclose(drawn.probability[i], probability, rtol=1e-5)
            if item["times"] == self.most:
                self.leave(item)
        weight = (live * drawn.probability) ** -importance
        np.testing.assert_allclose(drawn.weight, weight / weight.max(), rtol=1e-5)
        self.draws += 1
        if self.trim_every and self.draws % self.trim_every == 0:
            self.trim()

    def some_keys(self, which):
        """Of items that are there, of some that have gone, and of none."""
        live = [item["key"] for item in self.held]
        known = [*live, *[key for key in self.keys[-12:] if key not in live][-2:], -1, 2**62]
        return [known[i % len(known)] for i in which]

    @rule(changes=st.lists(st.tuples(st.integers(0, 30), st.sampled_from(PRIORITIES)), min_size=1, max_size=6))
    def update_priorities(self, changes):
        keys = self.some_keys(which for which, _ in changes)
        found = 0
        for key, (_, priority) in zip(keys, changes):
            for item in self.held:
                if item["key"] == key:
                    self.touch(item, float(np.float32(priority)))
                    found += 1
        given = np.array([priority for _, priority in changes])
        assert self.table.update_priorities(np.array(keys, np.int64), given) == found

    @rule(which=st.lists(st.integers(0, 30), min_size=1, max_size=3))
    def delete(self, which):
        keys = self.some_keys(which)
        gone = [item for item in self.held if item["key"] in keys]
        assert self.table.delete(np.array(keys, np.int64)) == len(gone)
        for item in gone:
            self.leave(item)

    @rule()
    def trim_now(self):
        self.table.trim()
        self.trim()

    @rule(count=st.integers(1, 7))
    def go_on_in_another_table(self, count):
        before = self.table
        self.table = Table(BLANK, self.size, self.sampler, self.remover, seed=99, **self.more)
        self.table.restore(before.state())
        if self.may_sample(count):
            one, other = before.sample(count, 0.4), self.table.sample(count, 0.4)
            assert_are(one.items, other.items["n"].tolist())
            assert all(np.array_equal(a, b) for a, b in zip(one[1:-1], other[1:-1])), "all but when they were made"
            assert sorted(before.key) == sorted(self.table.key)
            self.follow(other, 0.4)

    # --- and the two are equal ------------------------------------------------------------------------------------

    @invariant()
    def table_is_the_list(self):
        if not hasattr(self, "table"):
            return
        table, limits = self.table, self.table.limiter
        table.check()
        there = np.flatnonzero(table.key >= 0).astype(np.int32)
        there = there[np.argsort(table.key[there])]
        assert len(table) == len(self.held) <= self.capacity
        for name in ("key", "priority", "times", "version"):
            assert getattr(table, name)[there].tolist() == [item[name] for item in self.held]
        numbers = [item["number"] for item in self.held]
        assert (table.key[there] >> table.bits).tolist() == numbers
        assert_are(table.signature.build(table.rows, table.slots[there], table.own.read(there)), numbers)
        assert (limits.inserts, limits.deletes, limits.samples) == (self.inserts, self.deletes, self.samples)
        assert table.draws == self.draws and table.peak[0] == self.peak


@pytest.mark.parametrize("remover", CHOICES)
@pytest.mark.parametrize("sampler", CHOICES)
def test_any_sequence_of_operations_leaves_the_table_equal_to_a_list(sampler, remover):
    run_state_machine_as_test(
        lambda: AgainstAList(CHOICES[sampler], CHOICES[remover]),
        settings=settings(max_examples=8, stateful_step_count=30, deadline=None),
    )
