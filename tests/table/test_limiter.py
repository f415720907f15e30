"""The limiter's two inequalities against literal numbers, and what follows from them for any sequence of calls."""

from math import inf, nan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cavalcade.errors import UserError
from cavalcade.table import Limiter, Table

BLANK = {"n": np.zeros((), np.int64)}


def limiter(ratio, min_size, min_diff, max_diff, inserts=0, deletes=0, samples=0):
    made = Limiter(ratio, min_size, min_diff, max_diff)
    made.inserts, made.deletes, made.samples = inserts, deletes, samples
    return made


def window(made):
    return made.samples_per_insert, made.min_size, made.min_diff, made.max_diff


# --- the inequalities ---------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    "made, most",
    [
        (Limiter.queue(3), 3),
        (Limiter.at_least(3), inf),
        (Limiter(2.0, 10, 5.0, 25.0), 10),  # draws leave a balance of 5: 20 more are 10 inserts
        (Limiter(2.0, 15, 5.0, 25.0), 15),  # and an empty table takes its minimum size
        (Limiter(0.5, 1, 0.0, 2.0), 4),
    ],
)
def test_how_many_items_can_ever_be_inserted_at_once(made, most):
    assert made.most_at_once == most
    if most < inf:
        made.inserts = made.deletes = 10
        made.samples = int(10 * made.samples_per_insert - made.min_diff)
        assert made.can_insert(most) and not made.can_insert(most + 1)
    assert Limiter(0.1, 1, 0.0, 2.9).most_at_once == 29, "though 2.9 / 0.1 is a little less in floats"


def test_the_account_holds_every_number_of_the_window():
    text = limiter(2.0, 10, 5.0, 25.0, inserts=14, deletes=3, samples=8).account()
    for part in ("11 items", "needs 10", "14 inserted", "8 drawn", "balance 20", "[5, 25]"):
        assert part in text


# --- the three settings -------------------------------------------------------------------------------------------


def test_at_least_never_makes_inserts_wait_and_draws_only_for_the_minimum():
    made = Limiter.at_least(3)
    assert window(made) == (1.0, 3, -inf, inf)
    assert made.can_insert(10**9)
    made.inserts = 2
    assert not made.can_sample(1)
    made.inserts = 3
    assert made.can_sample(10**9)
    made.deletes = 1
    assert not made.can_sample(1)


def test_a_queue_is_a_window_as_wide_as_its_size():
    made = Limiter.queue(3)
    assert window(made) == (1.0, 1, 0.0, 3.0)
    assert made.can_insert(3) and not made.can_insert(4) and not made.can_sample(1)
    made.inserts = 3
    assert not made.can_insert(1) and made.can_sample(3) and not made.can_sample(4)
    made.samples = made.deletes = 2
    assert made.can_insert(2) and not made.can_insert(3) and made.can_sample(1) and not made.can_sample(2)


def test_a_ratio_is_a_window_around_the_minimum_size():
    made = Limiter.ratio(4.0, 100, 8.0)
    assert window(made) == (4.0, 100, 392.0, 408.0)
    made.inserts = 99
    assert made.can_insert(3) and not made.can_insert(4) and not made.can_sample(1)  # 102 * 4 = 408
    made.inserts = 100
    assert made.can_sample(8) and not made.can_sample(9)


# --- any sequence of calls ----------------------------------------------------------------------------------------

RATIOS = st.sampled_from([0.25, 0.5, 1.0, 1.5, 4.0, 16.0])
CALLS = st.lists(st.tuples(st.sampled_from(["insert", "sample"]), st.integers(1, 9)), max_size=80)


@settings(deadline=None)
@given(RATIOS, st.integers(1, 8), st.floats(1.0, 4.0), st.integers(0, 5), CALLS)
def test_the_window_is_never_left_by_calls_that_were_accepted(ratio, min_size, slack, room, calls):
    """Replay of min_size + room items: what no longer fits is deleted."""
    made = Limiter.ratio(ratio, min_size, slack * max(1.0, ratio))
    for call, count in calls:
        if call == "insert" and made.can_insert(count):
            made.inserts += count
            made.deletes = max(0, made.inserts - min_size - room)
        elif call == "sample" and made.can_sample(count):
            made.samples += count
        balance = made.inserts * ratio - made.samples
        assert balance <= made.max_diff
        assert not made.samples or (balance >= made.min_diff and made.inserts >= min_size)
        assert made.can_insert(1) or made.can_sample(1), "neither side could ever move again"


@settings(deadline=None)
@given(st.integers(1, 8), CALLS)
def test_a_queue_holds_what_was_inserted_and_not_drawn_and_never_more_than_its_size(size, calls):
    made = Limiter.queue(size)
    for call, count in calls:
        if call == "insert" and made.can_insert(count):
            made.inserts += count
        elif call == "sample" and made.can_sample(count):
            made.samples, made.deletes = made.samples + count, made.deletes + count
        assert 0 <= made.inserts - made.samples <= size
        assert made.can_insert(1) or made.can_sample(1)


DELETES = st.lists(st.tuples(st.sampled_from(["insert", "sample", "delete"]), st.integers(1, 9)), max_size=80)


@settings(deadline=None)
@given(RATIOS, st.integers(1, 8), st.floats(1.0, 4.0), DELETES)
def test_with_deletes_the_upper_edge_is_passed_only_to_reach_the_minimum_size(ratio, min_size, slack, calls):
    made = Limiter.ratio(ratio, min_size, slack * max(1.0, ratio))
    for call, count in calls:
        live = made.inserts - made.deletes
        if call == "insert" and made.can_insert(count):
            made.inserts += count
            inside = made.inserts * ratio - made.samples <= made.max_diff
            assert inside or made.inserts - made.deletes <= min_size
        elif call == "sample" and made.can_sample(count):
            made.samples += count
            assert live >= min_size and made.inserts * ratio - made.samples >= made.min_diff
        elif call == "delete":
            made.deletes += min(count, live)


# --- what is refused ----------------------------------------------------------------------------------------------


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


def test_a_refusal_says_how_wide_the_window_has_to_be():
    with pytest.raises(UserError, match=r"window of 7 must deadlock: with 4 samples per insert .* at least 8 wide"):
        Limiter.ratio(4.0, 10, 3.5)
    with pytest.raises(UserError, match=r"window of 1\.9 must deadlock: with 0\.25 samples .* at least 2 wide"):
        Limiter.ratio(0.25, 10, 0.95)
    for ratio in (0.25, 1.0, 4.0):
        Limiter.ratio(ratio, 10, max(1.0, ratio))
    assert Table.queue(BLANK, 1).can_insert(1), "a queue counts whole items: its window may be one wide"


@pytest.mark.parametrize("ratio, min_size", [(0.0, 1), (-1.0, 1), (1.0, 0), (nan, 1)])
def test_a_limiter_without_a_ratio_or_a_size_is_refused(ratio, min_size):
    with pytest.raises(UserError, match="samples_per_insert above 0 and min_size of at least 1"):
        Limiter(ratio, min_size, 0.0, 100.0)


@pytest.mark.parametrize("min_diff, max_diff", [(nan, 100.0), (0.0, nan)])
def test_a_window_without_an_edge_is_refused(min_diff, max_diff):
    with pytest.raises(UserError):
        Limiter(1.0, 1, min_diff, max_diff)


def test_a_minimum_that_does_not_fit_in_the_table_is_refused():
    with pytest.raises(UserError, match=r"101 items .* size is 100"):
        Table.uniform(BLANK, 100, Limiter.ratio(1.0, 101, 10.0))
    Table.uniform(BLANK, 100, Limiter.ratio(1.0, 100, 10.0))


def test_more_samples_per_insert_than_an_item_gives_are_refused():
    with pytest.raises(UserError, match=r"deadlock: 4 samples per insert .* goes after 3"):
        Table(BLANK, 100, limiter=Limiter.ratio(4.0, 10, 8.0), max_times_sampled=3)
    Table(BLANK, 100, limiter=Limiter.ratio(4.0, 10, 8.0), max_times_sampled=4)
    Table(BLANK, 100, limiter=Limiter(4.0, 10, -inf, inf), max_times_sampled=3)  # nobody ever waits


@pytest.mark.parametrize("more", [{"size": 0}, {"size": 4, "overflow": -1}, {"size": 4, "max_times_sampled": -1}])
def test_sizes_below_one_are_refused(more):
    with pytest.raises(UserError, match="size of at least 1"):
        Table(BLANK, **more)
