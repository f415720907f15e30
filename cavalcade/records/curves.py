"""What a picture of runs shows, as numbers: means over equal stretches of environment steps or of time.

A row of metrics covers the stretch since the row before it, and its `return` is the mean over the episodes that ended
there. A bin is the mean of the rows whose stretches have their middle in it, weighted by those episodes: it is the mean
return of the episodes that ended there, and of none from before.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cavalcade.records.figures import is_number

BINS = 50  # of a picture, at most: no more than the rows of its longest run
OF_EPISODES = ("return", "episode_length")  # means over the episodes that ended since the row before


@dataclass(frozen=True)
class Points:
    """One metric of a run, from the N rows that have it, in order. x, value and weight are [N] float64."""

    x: np.ndarray  # the middle of the row's stretch, in steps or seconds
    value: np.ndarray
    weight: np.ndarray  # episodes behind the value, or 1 if it is no mean over episodes
    rows: int  # of the run, with and without the metric
    end: float  # steps or seconds of the last row

    @classmethod
    def of(cls, rows: Iterable[dict[str, Any]], by: str = "step", metric: str = "return") -> "Points":
        """One metric out of the rows of a run; `by` is what x counts, 'step' or 'time'."""
        ordered = sorted((row for row in rows if by in row), key=lambda row: row[by])
        found, before, episodes_before = [], 0.0, 0
        for row in ordered:
            episodes = row.get("episodes", episodes_before)
            if is_number(row.get(metric)):
                weight = max(episodes - episodes_before, 1) if metric in OF_EPISODES else 1
                found.append(((before + row[by]) / 2, row[metric], weight))
            before, episodes_before = row[by], episodes
        x, value, weight = np.array(found, np.float64).reshape(-1, 3).T
        return cls(x, value, weight, len(ordered), float(before))


def bins(points: Sequence[Points]) -> np.ndarray:
    """The edges [bins + 1] of the bins of one picture, the same for all its runs, so that runs can be compared."""
    count = min(BINS, max((run.rows for run in points), default=1))
    return np.linspace(0.0, max((run.end for run in points), default=0.0) or 1.0, max(count, 1) + 1)


@dataclass(frozen=True)
class Curve:
    """A line of a picture: in each bin the mean of its runs' values, and the lowest and the highest of them.

    All are [bins], NaN where no run has a value. A bin in which a run has no row is interpolated if there are rows
    before and after it.
    """

    x: np.ndarray  # the middle of each bin
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    whole: np.ndarray  # bool: every run has a value there

    @classmethod
    def of(cls, runs: Sequence[Points], edges: np.ndarray) -> "Curve":
        """The line of these runs in bins with these edges [bins + 1]."""
        x = (edges[:-1] + edges[1:]) / 2
        means = np.array([_means(run, edges, x) for run in runs if run.x.size]).reshape(-1, x.size)
        there = ~np.isnan(means)
        count = there.sum(axis=0)
        mean = np.where(count, np.where(there, means, 0.0).sum(axis=0) / np.maximum(count, 1), np.nan)
        low, high = np.fmin.reduce(means, initial=np.nan), np.fmax.reduce(means, initial=np.nan)
        return cls(x, mean, low, high, (count == len(means)) & (count > 0))


def _means(run: Points, edges: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The weighted mean [bins] of a run's points in each bin; NaN before the first and after the last."""
    place = np.clip(np.searchsorted(edges, run.x, side="right") - 1, 0, x.size - 1)
    weight = np.bincount(place, run.weight, x.size)
    total = np.bincount(place, run.weight * run.value, x.size)
    filled = weight > 0
    return np.interp(x, x[filled], total[filled] / weight[filled], left=np.nan, right=np.nan)


def evaluations(rows: Iterable[dict[str, Any]], by: str = "step") -> tuple[list[float], list[float]]:
    """When evaluations were made (steps or seconds), and the mean return of each."""
    at = "evaluation_step" if by == "step" else by
    known = {row.get(at, row.get(by)): row["evaluation"] for row in rows if is_number(row.get("evaluation"))}
    places = sorted(place for place in known if place is not None)
    return places, [known[place] for place in places]
