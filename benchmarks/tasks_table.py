"""The table of tasks: every seed's score, and the interquartile mean over their episodes with an interval."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from document import RESULTS, write_table
from job import Job, Result
from published import PUBLISHED

from cavalcade.records import score

if TYPE_CHECKING:
    from tasks import Row

NAME = "tasks table"
HEAD = ("task", "system", "settings", "steps", "score of each seed", "interquartile mean (95 % interval)", "goal")
HEAD += ("published", "date", "command")
RESAMPLES = 2_000


def interquartile_mean(values: np.ndarray) -> np.ndarray:
    """The mean of the middle half of the values along the last axis: a quarter, rounded down, is cut at each end."""
    cut = values.shape[-1] // 4
    return np.sort(values, axis=-1)[..., cut : values.shape[-1] - cut].mean(axis=-1)


def interval(strata: Sequence[Sequence[float]]) -> tuple[float, float]:
    """A 95 % bootstrap interval of the interquartile mean over all values. Each resample draws as many values from each
    stratum (the episodes of one seed) as it has: seeds are not exchanged for each other."""
    rng = np.random.default_rng(0)
    drawn = [rng.choice(np.asarray(one, np.float64), (RESAMPLES, len(one))) for one in strata]
    low, high = np.percentile(interquartile_mean(np.concatenate(drawn, axis=1)), [2.5, 97.5])
    return float(low), float(high)


@dataclass(frozen=True)
class Line:
    """A line of the table: rows of a task and system with equal settings, which are the same runs."""

    rows: list["Row"]

    @property
    def jobs(self) -> list[Job]:
        """One for each seed."""
        return list({job.seed: job for row in self.rows for job in row.jobs}.values())

    @property
    def results(self) -> list[Result]:
        return [result for job in self.jobs if (result := job.result)]

    @property
    def first(self) -> tuple[str, ...]:
        """The cells by which the line is known; with other settings it is another line."""
        settings = " and ".join(row.settings for row in self.rows)
        row = self.rows[0]
        return row.task, row.system, f"{settings}, {self.jobs[0].fingerprint}", f"{row.steps:,}"

    def others(self) -> tuple[str, ...] | None:
        """The other cells; None if no seed is done, or if the episodes of one were not kept."""
        results = self.results
        if not results or not all(result.returns for result in results):
            return None
        row, returns = self.rows[0], [result.returns for result in results]
        low, high = interval(returns)
        middle = float(interquartile_mean(np.concatenate(returns)))
        return (
            ", ".join(score(result.mean) for result in results),
            f"{score(middle)} ({score(low)} to {score(high)})",
            self._goal([result.mean for result in results]),
            "; ".join(map(str, PUBLISHED.get((row.task, row.system), ()))),
            max(result.date for result in results),
            f"`cavalcade train {row.command} --seed S`",
        )

    def _goal(self, means: list[float]) -> str:
        """The goal and whether the median over seeds reaches it."""
        goal = next((row.goal for row in self.rows if row.goal), None)
        if goal is None:
            return ""
        if len(means) < len(self.jobs):
            return f"≥ {goal.score:g}: {len(means)} of {len(self.jobs)} seeds so far"
        return f"≥ {goal.score:g}: {'reached' if statistics.median(means) >= goal.score else 'missed'}"


def merged(rows: Iterable["Row"]) -> list[Line]:
    """Lines in the order of the rows, without those that cannot be run here."""
    lines: dict[tuple[str, ...], Line] = {}
    for row in rows:
        if not row.jobs[0].refusal:
            key = (row.task, row.system, row.jobs[0].fingerprint)
            lines.setdefault(key, Line([])).rows.append(row)
    return list(lines.values())


def write(lines: Iterable[Line], file: Path = RESULTS) -> None:
    write_table(NAME, HEAD, [(line.first, line.others()) for line in lines], file)
