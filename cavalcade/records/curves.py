"""What a picture of runs shows, as numbers: means over equal stretches of environment steps or of time.

A row of metrics speaks for the stretch since the row before it, and its `return` is the mean over the episodes that
ended there. A bin gathers the rows of its stretch, weighted by those episodes: it is what was earned there, however
many episodes that took, and nothing from before.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cavalcade.records.figures import is_number

BINS = 50  # over the whole picture; fewer where runs have fewer rows
OF_EPISODES = ("return", "episode_length")  # means over the episodes that ended since the row before


@dataclass(frozen=True)
class Points:
    """One metric of the rows that have it, in order. x, value and weight are [N] float64."""

    x: np.ndarray  # the middle of the stretch that the row speaks for
    value: np.ndarray
    weight: np.ndarray  # episodes, or 1 where it is no mean over episodes
    rows: int  # with and without the metric
    end: float  # steps or seconds of the last row

    @classmethod
    def of(cls, rows: Iterable[dict[str, Any]], by: str = "step", metric: str = "return") -> "Points":
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
    """The edges of the bins of one picture, [bins + 1]: the same for all its runs, so that they can be compared."""
    count = min(BINS, max((run.rows for run in points), default=1))
    return np.linspace(0.0, max((run.end for run in points), default=0.0) or 1.0, max(count, 1) + 1)


@dataclass(frozen=True)
class Curve:
    """A line of a picture: the mean over runs of their means in each bin, and the lowest and highest of them.

    All are [bins], NaN where no run has anything. Inside a run, a bin in which nothing ended is bridged.
    """

    x: np.ndarray  # the middle of each bin
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    whole: np.ndarray  # bool: every run has a part in it

    @classmethod
    def of(cls, runs: Sequence[Points], edges: np.ndarray) -> "Curve":
        x = (edges[:-1] + edges[1:]) / 2
        means = np.array([_means(run, edges, x) for run in runs if run.x.size]).reshape(-1, x.size)
        there = ~np.isnan(means)
        count = there.sum(axis=0)
        mean = np.where(count, np.where(there, means, 0.0).sum(axis=0) / np.maximum(count, 1), np.nan)
        low, high = np.fmin.reduce(means, initial=np.nan), np.fmax.reduce(means, initial=np.nan)
        return cls(x, mean, low, high, (count == len(means)) & (count > 0))


def _means(run: Points, edges: np.ndarray, x: np.ndarray) -> np.ndarray:
    place = np.clip(np.searchsorted(edges, run.x, side="right") - 1, 0, x.size - 1)
    weight = np.bincount(place, run.weight, x.size)
    total = np.bincount(place, run.weight * run.value, x.size)
    filled = weight > 0
    return np.interp(x, x[filled], total[filled] / weight[filled], left=np.nan, right=np.nan)


def evaluations(rows: Iterable[dict[str, Any]], by: str = "step") -> tuple[list[float], list[float]]:
    """Where evaluations were made, in steps or seconds, and what they found."""
    at = "evaluation_step" if by == "step" else by
    known = {row.get(at, row.get(by)): row["evaluation"] for row in rows if is_number(row.get("evaluation"))}
    places = sorted(place for place in known if place is not None)
    return places, [known[place] for place in places]
