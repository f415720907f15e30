"""What must be true of a table between any two operations; property tests check it after each one."""

import numpy as np

from cavalcade.table.selectors import Selector
from cavalcade.table.store import REMOVER, SAMPLER
from cavalcade.table.table import Table


def check(*tables: Table) -> None:
    """Raise AssertionError with a sentence if a table is inconsistent. Tables that share rows are checked together."""
    references = np.zeros(tables[0].rows.count, np.int64)
    for table in tables:
        _check_items(table)
        _check_selector(table, table.sampler, table.chosen[0], SAMPLER)
        _check_selector(table, table.remover, table.chosen[1], REMOVER)
        references += _references(table)
    tables[0].rows.check(references)


def _check_items(table: Table) -> None:
    live, following, high, spent = table.counters[:4].tolist()
    there = np.flatnonzero(table.key >= 0)
    limits = table.limiter
    assert len(there) == live <= table.capacity, "the count of items is wrong"
    assert (there < high).all(), "an item lies above the highest place"
    assert np.array_equal(table.key[there] & ((1 << table.bits) - 1), there), "a key points elsewhere"
    assert (table.key[there] >> table.bits < following).all(), "an item comes from the future"
    assert len(np.unique(table.key[there])) == live, "two items have one key"
    places = table.capacity + 1
    assert sorted(table.free[: places - live].tolist()) == sorted(set(range(places)) - set(there.tolist())), (
        "free places are not those without an item"
    )
    assert table.times[there].sum() == spent, "draws are miscounted"
    if table.max_times_sampled:
        assert (table.times[there] < table.max_times_sampled).all(), "an item was drawn too often"
    assert limits.inserts - limits.deletes == live, "the limiter counts other items"
    assert limits.inserts == following, "the limiter counts other inserts"
    assert (table.priority[there] >= 0).all() and (table.priority[there] <= table.peak[0]).all(), "a bad priority"


def _check_selector(table: Table, chooser: Selector, arrays: tuple, at: int) -> None:
    there = np.flatnonzero(table.key >= 0)
    if chooser.kind in ("fifo", "lifo"):
        first, _ = arrays
        place, order = int(table.counters[at]), []
        while place >= 0:
            order.append(place)
            place = int(first[place])
        by_age = there[np.argsort(table.key[there] >> table.bits)]
        assert order == by_age.tolist(), "the list is not in the order of insertion"
        assert int(table.counters[at + 1]) == (order[-1] if order else -1), "the end of the list is wrong"
    elif chooser.kind in ("min_heap", "max_heap"):
        first, second, touched = arrays
        count = int(table.counters[at])
        heap = first[:count]
        assert sorted(heap.tolist()) == there.tolist(), "the heap holds other items"
        assert np.array_equal(second[heap], np.arange(count)), "the heap has lost an item"
        sign = 1 if chooser.kind == "min_heap" else -1
        rank = [(sign * float(table.priority[place]), int(touched[place])) for place in heap]
        assert all(rank[(i - 1) // 2] < rank[i] for i in range(1, count)), "the heap is out of order"
        assert (touched[heap] < table.counters[at + 1]).all(), "a change comes from the future"
    elif chooser.kind == "prioritised":
        first, second = arrays
        expected = np.zeros(len(first))
        base = table.priority[there].astype(np.float64)
        base = np.maximum(base, 1e-8) if chooser.exponent < 0 else base
        expected[there] = np.where(base > 0, np.minimum(base**chooser.exponent, 1e30), 0)
        np.testing.assert_allclose(first, expected, rtol=1e-5, err_msg="a share is wrong")
        _check_sums(first, second)


def _check_sums(leaves: np.ndarray, inner: np.ndarray) -> None:
    """Every node of the tree is the sum of its 16 children. `inner`: the levels above the leaves, the lowest first."""
    below, offset = leaves.astype(np.float64), 0
    while len(below) > 16:
        sums = below.reshape(-1, 16).sum(axis=1)
        padded = -(-len(sums) // 16) * 16
        here = inner[offset : offset + padded]
        np.testing.assert_allclose(here[: len(sums)], sums, rtol=1e-12, err_msg="a sum is wrong")
        assert not here[len(sums) :].any(), "a sum of nothing"
        below, offset = here, offset + padded


def _references(table: Table) -> np.ndarray:
    """[rows]: how often the items of a table refer to each row, older frames of stacks included."""
    count = np.zeros(table.rows.count, np.int64)
    slots = table.slots[table.key >= 0].reshape(-1)
    for _ in range(table.rows.spec.stack):
        slots = slots[slots > 0]
        np.add.at(count, slots, 1)
        slots = table.rows.previous[slots]
    return count
