"""What a picture shows, as numbers: what was earned in each stretch, with nothing from before and nothing made up."""

import numpy as np
import pytest

from cavalcade.records.curves import BINS, Curve, Points, bins, evaluations


def curve(*runs: list[dict], by: str = "step", metric: str = "return") -> Curve:
    points = [Points.of(rows, by, metric) for rows in runs]
    return Curve.of(points, bins(points))


def test_a_bin_is_the_mean_over_the_episodes_that_ended_in_it():
    # 100 rows, two to a bin: three episodes of 10, then one of 50
    rows = [
        {"step": 10 * n, "return": 10.0 if n % 2 else 50.0, "episodes": 4 * (n // 2) + 3 * (n % 2)} for n in range(101)
    ]
    found = curve(rows[1:])
    assert len(found.x) == BINS and found.x[0] == 10 and found.x[-1] == 990
    np.testing.assert_allclose(found.mean, (3 * 10 + 50) / 4)
    assert curve(rows[1:], metric="episodes").mean[0] == 3.5, "what is no mean over episodes: each row as much"


def test_rows_in_which_no_episode_ended_say_nothing_and_are_bridged():
    rows = [
        {"step": n + 1, "episodes": n // 4 + 1, "time": (n + 1) / 2} | ({"return": float(n)} if n % 4 == 0 else {})
        for n in range(20)
    ]
    for by in ("step", "time"):
        found = curve(rows, by=by)
        first, last = np.flatnonzero(np.isfinite(found.mean))[[0, -1]]
        assert np.isfinite(found.mean[first : last + 1]).all() and found.whole[first : last + 1].all()
        np.testing.assert_allclose(found.mean[first : last + 1], np.linspace(0, 16, last - first + 1), atol=1e-9)
        assert not found.whole[last + 1 :].any(), "after its last episode a run shows nothing"


def test_fewer_rows_are_fewer_bins_and_one_row_is_one():
    rows = [{"step": 100 * (n + 1), "return": float(n), "episodes": n + 1} for n in range(7)]
    assert curve(rows).mean.tolist() == [0, 1, 2, 3, 4, 5, 6] and curve(rows).x[0] == 50
    assert curve(rows[:1]).mean.tolist() == [0.0]
    for nothing in ([], [{"step": 5}], [{"return": 3.0}]):
        assert np.isnan(curve(nothing).mean).all() and not curve(nothing).whole.any()


def test_rows_may_lie_unevenly_and_without_order():
    rows = [{"step": step, "return": step / 10, "episodes": n + 1} for n, step in enumerate((1, 2, 3, 400, 401, 1000))]
    found = curve(rows[::-1])
    assert len(found.x) == 6 and found.mean[0] == pytest.approx((0.1 + 0.2 + 0.3) / 3)
    assert (np.diff(found.mean[np.isfinite(found.mean)]) > 0).all()


def test_runs_of_one_setting_are_a_mean_between_the_lowest_and_the_highest():
    runs = [
        [{"step": n + 1, "return": bonus + n, "episodes": n + 1} for n in range(length)]
        for bonus, length in ((0.0, 20), (6.0, 20), (30.0, 10))
    ]
    found = curve(*runs)
    np.testing.assert_allclose(found.mean[:10], np.arange(10) + 12.0)
    np.testing.assert_allclose(found.mean[10:], np.arange(10, 20) + 3.0), "of those that are left"
    np.testing.assert_allclose(found.low, np.arange(20))
    np.testing.assert_allclose(found.high, np.arange(20) + np.where(np.arange(20) < 10, 30.0, 6.0))
    assert found.whole.tolist() == [True] * 10 + [False] * 10


def test_an_evaluation_stands_where_it_was_made():
    rows = [{"step": 110, "time": 3.0, "evaluation": 5.0, "evaluation_step": 100}, {"step": 120, "time": 4.0}]
    rows += [{"step": 210, "time": 6.0, "evaluation": 7.0, "evaluation_step": 200}]
    assert evaluations(rows) == ([100, 200], [5.0, 7.0]) and evaluations(rows, "time") == ([3.0, 6.0], [5.0, 7.0])
