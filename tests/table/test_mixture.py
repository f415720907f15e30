"""Mixtures and shards of real tables: exact shares, global probabilities, keys that find their table, and waiting."""

import threading
import time
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from cavalcade.checkpoints import checkpoint
from cavalcade.errors import UserError
from cavalcade.table import Items, Limiter, RowSpec, Signature, Stopped, Table
from cavalcade.table.mixture import Mixture, Shards

BLANK = {"nest": {"n": np.zeros((), np.int64)}, "x": np.zeros(2, np.float32)}
UNLIKELY = 1e-4  # seeds are fixed, so a test that passes does so for ever


def items(numbers):
    n = np.asarray(numbers, np.int64)
    return {"nest": {"n": n}, "x": np.stack([n, -n], axis=1).astype(np.float32)}


def numbers_of(sample):
    """Which items were drawn; every leaf has to belong to the same one."""
    n = sample.items["nest"]["n"]
    assert np.array_equal(sample.items["x"], np.stack([n, -n], axis=1).astype(np.float32))
    return n.tolist()


def uniform(numbers, min_size=1, seed=0, size=1_000):
    table = Table.uniform(BLANK, size, Limiter.at_least(min_size), seed=seed)
    if len(numbers):
        assert table.insert(items(numbers))
    return table


def queue(numbers, size=1_000):
    table = Table.queue(BLANK, size)
    if len(numbers):
        assert table.insert(items(numbers))
    return table


def prioritised(numbers, priority, exponent=0.6, seed=0):
    table = Table.prioritised(BLANK, 1_000, exponent=exponent, seed=seed)
    assert table.insert(items(numbers), priority=np.asarray(priority))
    return table


def drawn_from(*tables):
    return [table.limiter.samples for table in tables]


def in_thread(function):
    """Start it; gives what waits for its result."""
    answers: list = []

    def run():
        try:
            answers.append(function())
        except BaseException as error:
            answers.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def result():
        thread.join(5)
        assert answers, "still waiting"
        return answers[0]

    return result


# --- mixtures -----------------------------------------------------------------------------------------------------


def test_half_queue_half_replay():
    fresh, replay = queue(range(4)), uniform(range(100, 110))
    mixture = Mixture({"queue": (fresh, 0.5), "replay": (replay, 0.5)})
    assert len(mixture) == 14 and mixture.can_sample(8)
    sample = mixture.sample(8)
    numbers = numbers_of(sample)
    assert numbers[:4] == [0, 1, 2, 3], "the queue comes first, in its order"
    assert all(100 <= number < 110 for number in numbers[4:])
    assert sample.probability.tolist() == [0.5] * 4 + [0.5 * 0.1] * 4
    assert sample.weight.tolist() == [1.0] * 8
    assert sample.keys.dtype == np.int64 and (sample.keys % 2).tolist() == [0] * 4 + [1] * 4
    assert sample.age[:4].tolist() == [4, 3, 2, 1] and sample.version.tolist() == [0] * 8
    assert drawn_from(fresh, replay) == [4, 4] and len(mixture) == 10
    assert mixture.report() == {"table_size": 10, "table_capacity": 2_000}


def test_a_draw_is_all_or_nothing():
    fresh, replay = queue([0]), uniform(range(10))
    for parts in ([(fresh, 0.5), (replay, 0.5)], [(replay, 0.5), (fresh, 0.5)]):
        mixture = Mixture(parts)
        assert not mixture.can_sample(4) and mixture.sample(4) is None
        assert drawn_from(fresh, replay) == [0, 0] and mixture.state() == {"given": []}
    fresh.insert(items([1]))
    assert mixture.can_sample(4) and len(mixture.sample(4).keys) == 4
    assert drawn_from(fresh, replay) == [2, 2]


@pytest.mark.parametrize(
    "shares",
    [
        (1 / 3, 1 / 3, 1 / 3),
        (0.1, 0.2, 0.7),
        (0.1,) * 10,
        (0.5, 0.0, 0.5),
        (1.0,),
        (Fraction(2, 7), Fraction(5, 7)),
        tuple(Fraction(share, 26) for share in (8, 8, 1, 8, 1)),  # the largest remainder first fails here
    ],
)
@pytest.mark.parametrize("counts", [[1], [2], [7], [1, 5, 2, 11, 3]])
def test_totals_are_never_a_whole_item_from_their_shares(shares, counts):
    tables = [uniform([i]) for i in range(len(shares))]
    mixture = Mixture(list(zip(tables, shares)))
    exact = np.array([Fraction(share).limit_denominator(1_000) for share in shares])
    total, before = 0, np.zeros(len(shares), np.int64)
    for turn in range(200):
        count = counts[turn % len(counts)]
        total += count
        sample = mixture.sample(count)
        given = np.bincount(numbers_of(sample), minlength=len(shares))
        assert given.sum() == count and np.array_equal(drawn_from(*tables), before + given)
        before += given
        assert max(abs(before - exact * total)) < 1
        np.testing.assert_allclose(sample.probability, given[numbers_of(sample)] / count)


def test_thirds_take_turns():
    tables = [uniform([i]) for i in range(3)]
    mixture = Mixture([(table, 1 / 3) for table in tables])
    assert [numbers_of(mixture.sample(1)) for _ in range(6)] == [[0], [1], [2], [0], [1], [2]]
    assert [numbers_of(mixture.sample(4)) for _ in range(3)] == [[0, 0, 1, 2], [0, 1, 1, 2], [0, 1, 2, 2]]
    for _ in range(1_000):
        mixture.sample(1)
    assert drawn_from(*tables) == [340, 339, 339]


def test_a_draw_that_could_not_be_served_is_not_counted():
    fresh, replay = queue([]), uniform(range(5))
    mixture = Mixture([(fresh, 1 / 3), (replay, 2 / 3)])
    for number in range(300):
        for _ in range(3):
            assert mixture.sample(3) is None
        fresh.insert(items([number]))
        assert numbers_of(mixture.sample(3))[0] == number
    assert drawn_from(fresh, replay) == [300, 600]


def test_a_part_of_no_share_is_never_asked():
    fresh, replay = queue(range(6)), uniform([], min_size=50)
    mixture = Mixture({"queue": (fresh, 1.0), "replay": (replay, 0.0)})
    assert numbers_of(mixture.sample(6)) == list(range(6))


def test_weights_are_those_of_each_part():
    even, uneven = uniform(range(10)), prioritised(range(10, 14), [1.0, 2.0, 4.0, 8.0], exponent=1.0)
    sample = Mixture([(even, 0.25), (uneven, 0.75)]).sample(400, importance=0.5)
    numbers = np.array(numbers_of(sample))
    assert np.all(sample.weight[:100] == 1.0) and sample.weight.max() == 1.0
    chances = np.array([1, 2, 4, 8]) / 15
    np.testing.assert_allclose(sample.probability[100:], 0.75 * chances[numbers[100:] - 10])
    np.testing.assert_allclose(sample.weight[100:], 2.0 ** (-0.5 * (numbers[100:] - 10)), rtol=1e-6)


def test_a_mixture_waits_for_replay_unless_it_may_start_alone():
    """Actors put every item in both; the queue is shorter than the replay's minimum."""

    def run(start_alone):
        fresh, replay = queue([], size=4), uniform([], min_size=10)
        mixture = Mixture({"queue": (fresh, 0.5), "replay": (replay, 0.5)}, start_alone)
        draws = []
        for number in range(30):
            if fresh.can_insert(1):
                fresh.insert(items([number]))
                replay.insert(items([1_000 + number]))
            if (sample := mixture.sample(4)) is not None:
                draws.append(sum(n < 1_000 for n in numbers_of(sample)))
        return draws, drawn_from(fresh, replay)

    assert run(False) == ([], [0, 0])
    draws, totals = run(True)
    assert draws == [4, 4] + [2] * 11 and totals == [30, 22], "what the replay missed is not made up for"


def test_starting_alone_leaves_out_nothing_but_replay_below_its_minimum():
    fresh, replay = queue([]), uniform(range(20), min_size=10)
    mixture = Mixture([(fresh, 0.5), (replay, 0.5)], start_alone=True)
    assert not mixture.can_sample(4), "the queue is empty, but it is no replay"
    held_up = Table.uniform(BLANK, 100, Limiter(1.0, 1, 5.0, 100.0))
    held_up.insert(items(range(5)))
    mixture = Mixture([(held_up, 0.5), (replay, 0.5)], start_alone=True)
    assert not mixture.can_sample(2), "it has its minimum, and waits for inserts"
    assert not Mixture([(uniform([]), 0.5), (uniform([]), 0.5)], start_alone=True).can_sample(1)
    assert drawn_from(replay) == [0]


def test_while_one_is_left_out_the_others_keep_their_proportion():
    one, two, missing = uniform([0]), uniform([1]), uniform([2], min_size=2)
    mixture = Mixture([(one, 0.1), (two, 0.3), (missing, 0.6)], start_alone=True)
    for _ in range(50):
        mixture.sample(2)
    assert drawn_from(one, two, missing) == [25, 75, 0]
    missing.insert(items([2]))
    for _ in range(50):
        mixture.sample(2)
    assert drawn_from(one, two, missing) == [35, 105, 60]


def test_a_restored_mixture_goes_on_where_it_was(tmp_path):
    def make():
        return Mixture([(uniform([i], seed=i), share) for i, share in enumerate((0.15, 0.25, 0.6))])

    mixture, other = make(), make()
    for _ in range(7):
        mixture.sample(3)
    checkpoint.save(tmp_path, {"mixture": mixture.state()}, 1)
    other.restore(checkpoint.load_latest(tmp_path)[0]["mixture"])
    for _ in range(20):
        assert numbers_of(mixture.sample(3)) == numbers_of(other.sample(3))


def test_queue_and_replay_over_the_same_rows():
    spec = RowSpec(np.zeros(3, np.float32))
    signature = Signature.transition(spec, {"n": np.zeros((), np.int64)})
    fresh = Table(signature, 20, "fifo", limiter=Limiter.queue(20), max_times_sampled=1)
    replay = Table(signature, 20, rows=fresh.rows)
    assert fresh.lock is replay.lock
    slots = fresh.take_rows(11)
    obs = np.arange(33, dtype=np.float32).reshape(11, 3)
    fresh.rows.seen.write(slots, {"obs": obs})
    pairs = Items(np.stack([slots[:-1], slots[1:]], axis=1), {"n": np.arange(10)})
    fresh.insert(pairs)
    replay.insert(pairs)
    sample = Mixture([(fresh, 0.4), (replay, 0.6)]).sample(20)
    n = sample.items["n"]
    assert n[:8].tolist() == list(range(8))
    assert np.array_equal(sample.items["obs"], obs[n]) and np.array_equal(sample.items["next_obs"], obs[n + 1])


@pytest.mark.parametrize("shares", [(0.5, 0.4), (0.5, 0.6), (1.5, -0.5), (0.5, float("nan")), (float("inf"), 0.0)])
def test_shares_that_are_none_are_refused(shares):
    with pytest.raises(UserError, match=r"shares of a mixture are .*sum has to be 1"):
        Mixture([(uniform([0]), share) for share in shares])


# --- what both refuse ---------------------------------------------------------------------------------------------


def test_tables_that_do_not_belong_together_are_refused():
    table, other = uniform([0]), Table.uniform({"x": np.zeros(2, np.float32)}, 10)
    for make in (lambda tables: Mixture([(t, 1 / len(tables)) for t in tables] if tables else []), Shards):
        with pytest.raises(UserError, match="At least one table"):
            make([])
        with pytest.raises(UserError, match="given twice"):
            make([table, table])
        with pytest.raises(UserError, match=r"items of .* 1 and .* 0 differ"):
            make([table, other])
        with pytest.raises(UserError, match="at least 1 item, not 0"):
            make([table]).sample(0)


def test_tables_that_are_no_shards_are_refused():
    with pytest.raises(UserError, match="shard 1 draws 'fifo'; shards have to draw uniformly or prioritised"):
        Shards([uniform([0]), Table(BLANK, 10, "fifo")])
    with pytest.raises(UserError, match="shard 0 drops items after 3 draws"):
        Shards([Table(BLANK, 10, max_times_sampled=3)])
    with pytest.raises(UserError, match=r"draw prioritised \(0.6\), prioritised \(0.7\), uniform: all have"):
        Shards([prioritised([0], [1.0], 0.6), prioritised([0], [1.0], 0.7), uniform([0])])
    with pytest.raises(UserError, match="alike"):  # of priorities of zero, only one of them draws any
        Shards([prioritised([0], [1.0], 0.0), uniform([0])])


# --- shards -------------------------------------------------------------------------------------------------------


def uneven_shards(exponent=0.6, seed=0):
    """Sizes and priorities that differ a lot, one shard empty and one with nothing but zeros; and the exact chances."""
    priority = np.concatenate([np.linspace(0.1, 5, 7), np.full(20, 0.3), [40.0], np.zeros(3)])
    shards, start = [], 0
    for size in (7, 20, 1, 3):
        span = slice(start, start + size)
        shards.append(prioritised(np.arange(*span.indices(99)), priority[span], exponent, seed + 10 * start))
        start += size
    empty = Table.prioritised(BLANK, 10, exponent=exponent)
    chances = priority**exponent / np.sum(priority**exponent)
    return Shards([*shards[:2], empty, *shards[2:]], seed=seed), chances


def chi_square(counts, chances):
    """How likely counts at least this odd are; impossible ones must not have occurred."""
    assert counts[chances == 0].sum() == 0
    return stats.chisquare(counts[chances > 0], chances[chances > 0] * counts.sum()).pvalue


@pytest.mark.parametrize("count, turns", [(1, 6_000), (64, 1_000)])
def test_items_are_drawn_with_global_probabilities(count, turns):
    shards, chances = uneven_shards()
    counts = np.zeros(len(chances), np.int64)
    for _ in range(turns):
        sample = shards.sample(count)
        np.testing.assert_allclose(sample.probability, chances[numbers_of(sample)], rtol=1e-6)
        counts += np.bincount(numbers_of(sample), minlength=len(chances))
    assert chi_square(counts, chances) > UNLIKELY


def test_numbers_from_each_shard_are_multinomial():
    shards = Shards([uniform([0]), uniform([1, 1, 1])], seed=3)
    first = [numbers_of(shards.sample(8)).count(0) for _ in range(3_000)]
    assert chi_square(np.bincount(first, minlength=9), stats.binom.pmf(np.arange(9), 8, 0.25)) > UNLIKELY


def test_probabilities_of_all_items_sum_to_one():
    shards, chances = uneven_shards()
    sample = shards.sample(20_000)
    _, one_of_each = np.unique(sample.keys, return_index=True)
    assert len(one_of_each) == np.count_nonzero(chances)
    assert sample.probability[one_of_each].sum() == pytest.approx(1.0)


def test_shards_are_one_table_in_distribution():
    shards, chances = uneven_shards(seed=5)
    priority = np.concatenate([table.priority[: len(table)] for table in shards.tables])
    whole = prioritised(range(len(priority)), priority, seed=6)
    samples = [shards.sample(30_000, importance=0.4), whole.sample(30_000, importance=0.4)]
    seen = np.array([np.bincount(numbers_of(sample), minlength=len(chances)) for sample in samples])
    assert stats.chi2_contingency(seen[:, chances > 0]).pvalue > UNLIKELY
    for field in ("probability", "weight"):
        known = dict(zip(numbers_of(samples[1]), getattr(samples[1], field).tolist()))
        of_shards = getattr(samples[0], field)
        expected = [known[number] for number in numbers_of(samples[0])]
        np.testing.assert_allclose(of_shards, expected, rtol=1e-5)
    assert samples[0].weight.max() == 1.0 and samples[0].weight.dtype == np.float32


def test_weights_are_normalised_over_the_whole_draw():
    """Two items of chance 1/5 and 4/5, each alone in its shard: by themselves both would weigh 1."""
    shards = Shards([prioritised([0], [1.0], 1.0), prioritised([1], [4.0], 1.0)])
    sample = shards.sample(100, importance=0.5)
    numbers = np.array(numbers_of(sample))
    np.testing.assert_allclose(sample.probability, np.where(numbers == 0, 0.2, 0.8))
    np.testing.assert_allclose(sample.weight, np.where(numbers == 0, 1.0, 0.5))


def test_any_part_of_a_batch_is_as_good_as_another():
    shards = Shards([uniform([0]), uniform([1, 1]), uniform([2])], seed=2)
    batches = np.array([numbers_of(shards.sample(6)) for _ in range(2_000)])
    by_place = [np.bincount(column, minlength=3) for column in batches.T]
    assert stats.chi2_contingency(by_place).pvalue > UNLIKELY
    pairs = np.bincount((3 * batches[:, :-1] + batches[:, 1:]).ravel(), minlength=9)
    assert chi_square(pairs, np.outer([0.25, 0.5, 0.25], [0.25, 0.5, 0.25]).ravel()) > UNLIKELY


def test_priorities_of_zero_alone_are_drawn_uniformly():
    shards = Shards([prioritised([0], [0.0]), prioritised([1, 2, 3], [0.0] * 3)])
    sample = shards.sample(8_000)
    assert np.all(sample.probability == 0.25)
    assert chi_square(np.bincount(numbers_of(sample)), np.full(4, 0.25)) > UNLIKELY


def test_chances_follow_what_happens_to_the_shards():
    shards = Shards([uniform(range(4)), uniform([], size=4)])
    assert set(numbers_of(shards.sample(50))) == set(range(4))
    shards.tables[1].insert(items(range(10, 22)))
    sample = shards.sample(400)
    assert set(numbers_of(sample)) == {0, 1, 2, 3, 18, 19, 20, 21} and np.all(sample.probability == 1 / 8)
    assert len(shards) == 8


# --- waiting ------------------------------------------------------------------------------------------------------


def test_a_choice_stands_until_it_is_served():
    """The second shard gives one item for each insert. Choosing again while it waits would favour the first."""
    open_one, held_up = uniform([0]), Table.uniform(BLANK, 1, Limiter(1.0, 1, 1.0, 1e9))
    held_up.insert(items([1]))
    shards, drawn, waited = Shards([open_one, held_up], seed=4), [], 0
    while len(drawn) < 3_000:
        for _ in range(5):
            may = shards.can_sample(1)
        state = shards.state()
        if (sample := shards.sample(1)) is None:
            assert not may and shards.state()["rng"] == state["rng"]
            waited += 1
            held_up.insert(items([1]))
        else:
            assert may
            drawn += numbers_of(sample)
    assert waited > 500
    assert chi_square(np.bincount(drawn), np.array([0.5, 0.5])) > UNLIKELY


def test_a_choice_keeps_the_probability_it_was_made_with():
    grows, held_up = uniform([0]), Table.uniform(BLANK, 10, Limiter(1.0, 1, 1.0, 1e9))
    held_up.insert(items([1]))
    shards = Shards([grows, held_up])
    assert not shards.can_sample(8)
    assert "to be drawn next: [" in shards.account()
    grows.insert(items([0, 0]))
    held_up.insert(items([1] * 9))
    sample = shards.sample(8)
    assert np.allclose(sample.probability, np.where(np.array(numbers_of(sample)) == 0, 0.5 / 3, 0.5 / 10))
    np.testing.assert_allclose(shards.sample(4).probability, 1 / 13)


def test_shards_are_not_chosen_before_they_have_their_minimum():
    early, late, empty = uniform(range(3), min_size=3), uniform([7], min_size=3), uniform([], min_size=3)
    shards = Shards([early, late, empty])
    assert not shards.can_sample(50) and shards.sample(50) is None
    late.insert(items([8, 9]))
    sample = shards.sample(50)
    assert set(numbers_of(sample)) == {0, 1, 2, 7, 8, 9} and np.allclose(sample.probability, 1 / 6)


def test_a_draw_of_shards_is_all_or_nothing():
    held_up = Table.uniform(BLANK, 10, Limiter(1.0, 1, 1.0, 1e9))
    held_up.insert(items([1]))
    shards = Shards([uniform([0]), held_up])
    assert shards.sample(20) is None and drawn_from(*shards.tables) == [0, 0]


def make_waiting(kind):
    """A source that waits for an item of its second table."""
    first, second = uniform([0]), Table.uniform(BLANK, 10, Limiter(1.0, 1, 1.0, 1e9))
    second.insert(items([1]))
    return Shards([first, second]) if kind is Shards else Mixture([(first, 0.5), (second, 0.5)])


@pytest.mark.parametrize("kind", [Mixture, Shards])
def test_waiting_ends_with_an_insert_a_timeout_or_a_stop(kind):
    source = make_waiting(kind)
    start = time.monotonic()
    assert source.sample(8, timeout=0.1) is None
    assert 0.1 <= time.monotonic() - start < 1.0
    for timeout in (None, 5.0):
        result = in_thread(lambda timeout=timeout: source.sample(8, timeout=timeout))
        time.sleep(0.05)
        source.tables[1].insert(items([1] * 8))
        assert len(result().keys) == 8
    source = make_waiting(kind)
    result = in_thread(lambda: source.sample(8, timeout=None))
    time.sleep(0.05)
    source.stop()
    assert isinstance(result(), Stopped)
    assert source.sample(8) is None
    with pytest.raises(Stopped):
        source.sample(8, timeout=1.0)


@pytest.mark.parametrize("make", [lambda t: Mixture([(t, 1.0)], start_alone=True), lambda t: Shards([t])])
def test_waiting_for_the_first_item(make):
    table = uniform([])
    result = in_thread(lambda: make(table).sample(2, timeout=None))
    time.sleep(0.05)
    table.insert(items([3]))
    assert numbers_of(result()) == [3, 3]


def test_items_that_vanish_in_the_middle_of_a_draw_lose_nothing():
    """As if the replay had been emptied after it was asked: the draw waits for it with the queue's items in hand."""
    fresh, replay = queue(range(2)), uniform([])
    mixture = Mixture([(fresh, 0.5), (replay, 0.5)])
    mixture.giving = (0, 1)
    result = in_thread(lambda: mixture._draw([2, 2], 0.0))
    time.sleep(0.05)
    replay.insert(items([9]))
    assert numbers_of(result()) == [0, 1, 9, 9]


def test_a_mixture_among_threads_gives_every_item_of_its_queue_once():
    fresh, replay = queue([], size=16), uniform([], size=50, min_size=20)
    mixture = Mixture({"queue": (fresh, 0.5), "replay": (replay, 0.5)}, start_alone=True)
    total, drawn = 4_000, []

    def act():
        for start in range(0, total, 4):
            new = items(range(start, start + 4))
            replay.insert(new)
            fresh.insert(new, timeout=None)

    def learn():
        while True:
            sample = mixture.sample(6, timeout=None)
            drawn.append(np.array(numbers_of(sample))[sample.keys % 2 == 0])
            mixture.update_priorities(sample.keys, np.ones(6))

    results = [in_thread(act), in_thread(learn), in_thread(learn)]
    assert results[0]() is None
    while mixture.can_sample(6):
        time.sleep(0.01)
    mixture.stop()
    assert all(isinstance(result(), Stopped) for result in results[1:])
    left = numbers_of(fresh.sample(len(fresh))) if len(fresh) else []
    assert sorted([*np.concatenate(drawn).tolist(), *left]) == list(range(total))


def test_shards_among_threads_stay_consistent():
    shards = Shards([Table.prioritised(BLANK, 60, seed=i) for i in range(3)])
    for table in shards.tables:
        table.insert(items(range(60)))
    stopped = threading.Event()

    def act(table):
        while not stopped.is_set():
            table.insert(items(range(5)))
            time.sleep(0)

    actors = [in_thread(lambda table=table: act(table)) for table in shards.tables]
    rng = np.random.default_rng(0)
    for _ in range(300):
        sample = shards.sample(32, importance=0.5)
        assert np.all((sample.probability > 0) & (sample.probability <= 1)) and sample.weight.max() == 1.0
        assert 0 <= shards.update_priorities(sample.keys, rng.random(32)) <= 32
    stopped.set()
    assert [actor() for actor in actors] == [None] * 3
    for table in shards.tables:
        table.check()


# --- keys ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Mixture, Shards])
def test_priorities_find_their_table(kind):
    tables = [prioritised(range(10 * i, 10 * i + 5), np.ones(5), seed=i) for i in range(3)]
    source = Shards(tables) if kind is Shards else Mixture([(table, 1 / 3) for table in tables])
    sample = source.sample(300)
    _, one_of_each = np.unique(sample.keys, return_index=True)
    assert len(one_of_each) == 15, "keys of different tables differ"
    keys, numbers = sample.keys[one_of_each], np.array(numbers_of(sample))[one_of_each]
    assert source.update_priorities(keys, numbers + 0.5) == 15
    for i, table in enumerate(tables):
        assert sorted(table.priority[:5].tolist()) == [10 * i + n + 0.5 for n in range(5)]
        table.check()


def test_keys_that_have_gone_are_ignored():
    fresh, replay = queue([0]), prioritised(range(3), np.ones(3))
    mixture = Mixture([(fresh, 0.25), (replay, 0.75)])
    sample = mixture.sample(4)
    assert mixture.update_priorities(sample.keys, np.full(4, 2.0)) == 3, "a queue forgets what it gave"
    replay.delete(sample.keys[1:] // 2)
    assert mixture.update_priorities(sample.keys, np.full(4, 2.0)) == 0
    assert mixture.update_priorities(np.array([-1, -2, 10**17]), np.ones(3)) == 0
    assert mixture.update_priorities(np.zeros(0, np.int64), np.zeros(0)) == 0
    with pytest.raises(ValueError, match="one priority for each key"):
        mixture.update_priorities(sample.keys, np.ones(3))


def test_new_priorities_change_the_chances_of_all_shards():
    shards = Shards([prioritised([0, 1], [1.0, 1.0], 1.0), prioritised([2], [1.0], 1.0)], seed=1)
    sample = shards.sample(100)
    at = numbers_of(sample).index(2)
    assert shards.update_priorities(sample.keys[at : at + 1], np.array([6.0])) == 1
    sample = shards.sample(8_000)
    chances = np.array([1, 1, 6]) / 8
    np.testing.assert_allclose(sample.probability, chances[numbers_of(sample)])
    assert chi_square(np.bincount(numbers_of(sample)), chances) > UNLIKELY


def test_keys_that_would_not_fit_are_an_error():
    table = uniform([0])
    table.counters[1] = 2**51  # inserts so far; places take 10 bits
    table.insert(items([1]))
    table.delete(np.array([0]))
    assert Mixture([(table, 1.0)]).sample(1).keys.tolist() == [2**61 + 1]
    others = [uniform([0]) for _ in range(3)]
    with pytest.raises(OverflowError, match="no longer fit"):
        Mixture([(table, 1.0), *((other, 0.0) for other in others)]).sample(1)


# --- exact continuation -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("through_a_file", [False, True])
def test_restored_shards_draw_the_same(tmp_path, through_a_file):
    shards, _ = uneven_shards(seed=1)
    other, _ = uneven_shards(seed=2)
    shards.sample(10)
    with shards.mutex:
        assert shards._plan(7), "chosen and not served, as while a shard waits"
    state = {"source": shards.state(), "tables": [table.state() for table in shards.tables]}
    if through_a_file:
        checkpoint.save(tmp_path, state, 1)
        state = checkpoint.load_latest(tmp_path)[0]
    other.restore(state["source"])
    for table, kept in zip(other.tables, state["tables"]):
        table.restore(kept)
    for _ in range(10):
        mine, its = shards.sample(12, 0.4), other.sample(12, 0.4)
        assert numbers_of(mine) == numbers_of(its)
        for a, b in zip(mine[1:-1], its[1:-1]):  # all but when they were made
            assert np.array_equal(a, b)


def test_the_seed_decides_the_choices():
    def first(seed):
        return numbers_of(Shards([uniform([i]) for i in range(4)], seed=seed).sample(30))

    assert first(1) == first(1) != first(2)


def test_accounts_name_every_part():
    mixture = Mixture({"queue": (queue([0]), 0.5), "replay": (uniform([], min_size=9), 0.5)})
    assert mixture.account().startswith("queue: 1 items (needs 1)")
    assert "; replay: 0 items (needs 9)" in mixture.account()
    assert "shard 1: 1 items" in Shards([uniform([0]), uniform([1])]).account()
