"""Draws and removals follow their distributions: chi-square with fixed seeds, exact answers where chance is set."""

import math

import numpy as np
import pytest

from cavalcade.table import Limiter, Table, _core, prioritised

stats = pytest.importorskip("scipy.stats")

BLANK = {"n": np.zeros((), np.int64)}
UNLIKELY = 1e-4


def filled(size, sampler="uniform", remover="fifo", priority=None, **more):
    """Items 0, 1, 2 and so on lie at places 0, 1, 2 and so on; the last place is free."""
    table = Table(BLANK, size, sampler, remover, **more)
    assert table.insert({"n": np.arange(size)}, priority=priority)
    assert np.array_equal(table.key[:-1] >> table.bits, np.arange(size)) and table.key[-1] == -1
    return table


def assert_fits(drawn, probability):
    """`drawn` are indices into `probability`. Rare ones count together, impossible ones must be missing."""
    counts, expected = np.bincount(drawn, minlength=len(probability)), probability * len(drawn)
    assert not counts[probability == 0].any()
    rare, common = (probability > 0) & (expected < 10), expected >= 10
    counts, expected = np.append(counts[common], counts[rare].sum()), np.append(expected[common], expected[rare].sum())
    if expected[-1] < 10:
        assert counts[-1] <= 40, "the rare ones come too often"  # then nothing else would show it
        counts, expected = counts[:-1], expected[:-1]
    assert len(counts) > 2
    statistic = np.sum((counts - expected) ** 2 / expected)
    fits = stats.chi2.sf(statistic, len(counts) - 1), stats.chi2.cdf(statistic, len(counts) - 1)
    assert min(fits) > UNLIKELY, f"chi-square of {statistic:.0f} with {len(counts) - 1} degrees of freedom"


def normal(shares):
    return shares / shares.sum()


# --- by priority --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exponent", [0.6, 1.0, 2.0, -0.4])
@pytest.mark.parametrize("size", [9, 250, 5_000])  # trees of one, two and four levels
def test_draws_are_in_proportion_to_a_power_of_priorities_of_any_magnitude(size, exponent):
    chance = np.random.default_rng(size)
    priority = 10 ** chance.uniform(-3, 3, size)
    priority[chance.random(size) < 0.3] = 0.0
    shares = np.maximum(priority, 1e-8 if exponent < 0 else 0.0) ** exponent
    table = filled(size, prioritised(exponent), priority=priority, seed=1)
    sample = table.sample(200_000)
    assert_fits(sample.items["n"], normal(shares))
    np.testing.assert_allclose(sample.probability, normal(shares)[sample.items["n"]], rtol=1e-5)


def test_priorities_that_change_change_the_draws():
    table = filled(500, prioritised(0.6), seed=2)
    priority = 10 ** np.random.default_rng(2).uniform(-2, 2, 500)
    order = np.random.default_rng(3).permutation(500)
    assert table.update_priorities(table.key[order], priority[order]) == 500
    assert_fits(table.sample(200_000).items["n"], normal(priority**0.6))


def test_a_few_changes_at_a_time_keep_every_sum_of_a_large_tree():
    table = filled(5_000, prioritised(1.0), prioritised(-0.4), seed=6)
    chance, number = np.random.default_rng(6), 5_000
    for _ in range(150):
        some = chance.permutation(5_000)[: chance.integers(1, 40)]
        table.update_priorities(table.key[some], 10 ** chance.uniform(-3, 3, len(some)))
        table.delete(chance.permutation(table.key)[: chance.integers(1, 20)])
        table.insert({"n": np.arange(number, number + 20)}, priority=chance.random(20))
        number += 20
        table.check()
    live = np.flatnonzero(table.key >= 0)
    order = live[np.argsort(table.key[live])]
    drawn = np.searchsorted(table.key[order], table.sample(200_000).keys)
    assert_fits(drawn, normal(table.priority[order].astype(np.float64)))


def test_runs_of_zero_among_a_hundred_thousand_are_never_drawn_and_the_rest_in_proportion():
    chance = np.random.default_rng(0)
    priority = 10 ** chance.uniform(-2, 2, 100_000)
    for start in range(0, 100_000, 8_192):  # whole nodes of the tree, and parts of nodes
        priority[start + chance.integers(16) : start + chance.integers(100, 7_000)] = 0.0
    priority[-5_000:] = 0.0
    table = filled(100_000, prioritised(1.0), priority=priority)
    drawn = np.concatenate([table.sample(50_000).items["n"] for _ in range(8)])
    assert (priority[drawn] > 0).all()
    assert_fits(drawn // 250, normal(np.add.reduceat(priority, np.arange(0, 100_000, 250))))
    table.check()


def test_with_no_priority_above_zero_draws_are_uniform():
    table = filled(50, prioritised(0.6), priority=np.zeros(50))
    sample = table.sample(50_000)
    assert_fits(sample.items["n"], np.full(50, 1 / 50))
    assert (sample.probability == 1 / 50).all()


def test_items_that_go_when_drawn_are_drawn_in_proportion_to_what_is_left():
    shares, pairs = np.array([1.0, 2.0, 3.0, 10.0]), []
    table = Table(BLANK, 4, prioritised(1.0), max_times_sampled=1, seed=5)
    for _ in range(10_000):
        table.insert({"n": np.arange(4)}, priority=shares)
        first, second, *_ = table.sample(4).items["n"].tolist()
        pairs.append(4 * first + second)
    expected = np.array([[p * q / (16 - p) for q in shares] for p in shares]) / 16
    np.fill_diagonal(expected, 0.0)
    assert_fits(np.array(pairs), expected.reshape(-1))


# --- uniform ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size, kept", [(64, 64), (2_000, 100), (6_400, 100), (6_500, 100), (4_000, 7)])
def test_draws_are_uniform_however_few_places_are_taken(size, kept):
    """Down to one place in 64 it throws again where there is no item; below that it counts items."""
    table = filled(size, seed=7)
    stay = np.sort(np.random.default_rng(size).permutation(size)[:kept])
    assert table.delete(np.delete(table.key, stay)) == size - kept
    sample = table.sample(20_000)
    assert_fits(np.searchsorted(stay, sample.items["n"]), np.full(kept, 1 / kept))
    assert np.isin(sample.items["n"], stay).all() and (sample.probability == 1 / kept).all()


def test_places_that_were_deleted_and_taken_again_are_drawn_as_often():
    table = filled(100, seed=8)
    table.delete(table.key[10:60])
    table.insert({"n": np.arange(100, 140)})
    drawn = table.sample(40_000).items["n"]
    live = [*range(10), *range(60, 140)]
    assert_fits(np.searchsorted(live, drawn), np.full(90, 1 / 90))


@pytest.mark.parametrize("count", [1, 100])
@pytest.mark.parametrize("sampler", ["uniform", prioritised(1.0)])
def test_consecutive_draws_are_independent_within_a_batch_and_between_batches(sampler, count):
    table = filled(4, sampler, seed=3)
    drawn = np.concatenate([table.sample(count).items["n"] for _ in range(8_000 // count)])
    assert_fits(4 * drawn[:-1] + drawn[1:], np.full(16, 1 / 16))


# --- removal ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("remover", ["uniform", prioritised(-0.4), prioritised(1.0)])
def test_the_remover_chooses_by_its_own_distribution(remover):
    """One item comes, one goes, perhaps itself; if not, it takes the priority of the one that went. So there are always
    as many of each priority, and one more of that with which items come."""
    values = np.tile([0.0, 1e-9, 1e-3, 0.1, 1.0, 50.0], 5)
    table = filled(30, "uniform", remover, priority=values, seed=4)
    priority, gone, itself = dict(zip(table.key.tolist(), values.tolist())), [], 0
    for number in range(30, 15_030):
        table.insert({"n": np.zeros(1, np.int64)}, priority=np.ones(1))
        there = set(table.key[table.key >= 0].tolist())
        (new,) = there - priority.keys() or {-1}
        (old,) = priority.keys() - there or {-1}
        assert (new < 0) == (old < 0) and (new < 0 or new >> table.bits == number)
        gone.append(priority.pop(old, 1.0))
        if new >= 0:
            priority[new] = gone[-1]
            table.update_priorities(np.array([new]), np.array(gone[-1:]))
        itself += new < 0
    exponent = 0.0 if remover == "uniform" else remover.exponent
    shares = np.maximum(values[:6], 1e-8) ** exponent * (values[:6] > 0 if exponent > 0 else 1.0)
    often = np.array([5, 5, 5, 5, 6, 5]) * shares
    assert_fits(np.searchsorted(values[:6], gone), normal(often))
    expected = 15_000 * shares[4] / often.sum()
    assert abs(itself - expected) < 5 * math.sqrt(expected) + 5


def test_with_all_shares_zero_the_remover_chooses_uniformly():
    removed = []
    for seed in range(2_000):
        table = Table(BLANK, 5, "fifo", prioritised(1.0), overflow=1, seed=seed)
        table.insert({"n": np.arange(6)}, priority=np.zeros(6))
        table.trim()
        (gone,) = set(range(6)) - set((table.key[table.key >= 0] >> table.bits).tolist())
        removed.append(gone)
    assert_fits(np.array(removed), np.full(6, 1 / 6))


# --- where chance is set ------------------------------------------------------------------------------------------

MASK, GAMMA = 2**64 - 1, 0x9E3779B97F4A7C15


def throw(table, number):
    """Set the table's SplitMix64 so that its next random number is number / 2 ** 53: the generator backwards."""
    z = number << 11
    for shift, factor in ((31, 0x94D049BB133111EB), (27, 0xBF58476D1CE4E5B9), (30, 1)):
        back = z
        for _ in range(64 // shift):
            back = z ^ (back >> shift)
        z = back * pow(factor, -1, 2**64) & MASK
    table.counters[4] = np.array([(z - GAMMA) & MASK], np.uint64).view(np.int64)[0]


def test_each_item_is_drawn_exactly_on_its_own_stretch_of_the_sum():
    chance = np.random.default_rng(0)
    priority = chance.integers(0, 4, 1_000) * (chance.random(1_000) < 0.7)
    priority[300:600] = 0
    priority[0] = 0
    priority[999] += 2048 - priority.sum()  # then all sums are exact, and so are the edges between items
    table = filled(1_000, prioritised(1.0), priority=priority)
    expected = np.repeat(np.arange(1_000), priority)
    for u in range(2048):
        for number in (u << 42, (u + 1 << 42) - 1):  # the first and the last number of the stretch
            throw(table, number)
            assert table.sample(1).items["n"] == expected[u]


@pytest.mark.parametrize("size", [13, 200, 3_000])
def test_no_rounding_error_leads_to_an_item_without_a_share(size):
    """The highest random number times a rounded sum can point past the last item that has a share, the lowest before
    the first: nothing but items with one may come."""
    chance = np.random.default_rng(size)
    for _ in range(300):
        priority = np.zeros(size)
        some = chance.choice(size, chance.integers(1, 12), replace=False)
        priority[some] = 10 ** chance.uniform(-6, 6, len(some))
        table = Table(BLANK, 2 * size, prioritised(1.0))  # so that there are places without an item behind it
        table.insert({"n": np.arange(size)}, priority=priority)
        for number in (0, 1, 2**53 - 2, 2**53 - 1):
            throw(table, number)
            sample = table.sample(1)
            assert sample.items["n"][0] in some and sample.probability[0] > 0
            if number == 0:
                assert sample.items["n"] == some.min()


def test_a_million_changes_leave_no_error_in_the_sum():
    table = filled(1_000, prioritised(1.0))
    chance = np.random.default_rng(0)
    for _ in range(1_000):
        table.update_priorities(chance.permutation(table.key[:-1]), 10 ** chance.uniform(-6, 6, 1_000))
    table.check()
    small = chance.random(1_000) * 1e-9  # beside what was there, a drift would be larger than these
    table.update_priorities(table.key[:-1], small)
    assert math.isclose(_core.total(table.core), math.fsum(small.astype(np.float32)), rel_tol=1e-12)
    table.update_priorities(table.key[:-1], np.zeros(1_000))
    assert _core.total(table.core) == 0.0


def test_shares_too_large_for_a_float_still_sum_to_a_number():
    table = filled(20, prioritised(2.0), priority=np.full(20, 3e38), limiter=Limiter.at_least(1))
    sample = table.sample(100, 1.0)
    np.testing.assert_allclose(sample.probability, 1 / 20)
    assert (sample.weight == 1).all()
