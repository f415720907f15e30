"""Learning runs with a fault in them: a stale worker, absurd rewards, a straggler, deliberate policy lag.

    make learn                                   after the plain runs
    python benchmarks/hindered.py --only dppo    rows whose name contains the word; the others keep their figures

Rows are plain commands as in `learn.py`; what was dropped, and how old unrolls were, is read from the run's folder.
"""

import json
import statistics
import sys
from dataclasses import dataclass

import learn
from document import write_table
from job import ROOT, Job, Result
from job_queue import main

from cavalcade.records import Run

HEAD = ("run", "wanted", "seeds that reach it", "scores of the seeds", "counted, median", "seconds", "date", "command")
COUNTED = ("dropped_stale", "dropped_outlying", "dropped_late")
POLE = "benchmarks.hindrance:HinderedCartPole-v1"
GORILA = f"gorila-dqn {POLE} --steps 150000 --runtime process --actors 3 --max-staleness 20"
GORILA += " --target 490 --evaluation-episodes 20"
ABSURD = "--option spike=1e6 --option chance=0.002"
DPPO = f"dppo {POLE} --steps 150000 --runtime process --actors 3 --option worker=worker/2"
# without evaluations the last policy is saved, not the best: an uncorrected run may touch 500 before it breaks down
IMPALA = "impala CartPole-v1 --steps 500000 --runtime process --actors 2 --learning-rate 0.002 --entropy-cost 0.05"
IMPALA += " --evaluations 0"
LAG = f"{IMPALA} --envs 192 --queue-batches 48"


@dataclass(frozen=True)
class Row(learn.Row):
    above_zero: str = ""  # what has to be counted
    seeds: int = 3

    @property
    def condition(self) -> str:
        return super().condition + (f", {self.above_zero} > 0" if self.above_zero else "")

    def met(self, job: Job, result: Result) -> bool:
        return super().met(job, result) and (not self.above_zero or counted(job.run)[self.above_zero] > 0)


ROWS = [
    Row("gorila-dqn, unhindered", GORILA, 475),
    Row("gorila-dqn, stale worker", f"{GORILA} --option pause=0.025", 475, above_zero="dropped_stale"),
    Row("gorila-dqn, absurd rewards", f"{GORILA} {ABSURD}", 475, above_zero="dropped_outlying"),
    Row("dppo, unhindered", DPPO, 475),
    Row("dppo, straggler waited for", f"{DPPO} --option pause=0.002", 475),
    Row("dppo, straggler left out", f"{DPPO} --option pause=0.002 --stragglers 1", 475, above_zero="dropped_late"),
    Row("impala, lag, V-trace", f"{LAG} --correction vtrace", 450, above_zero="policy_lag"),
    Row("impala, lag, uncorrected", f"{LAG} --correction none", 450, at_least=False, above_zero="policy_lag"),
    Row("impala, hardly any lag, uncorrected", f"{IMPALA} --queue-batches 1 --correction none", 450),
]


def counted(run: Run) -> dict[str, float]:
    """Totals of what a run dropped, and how many updates old its data was in the mean: drawn once, or replayed."""
    rows = run.rows()
    found = {name: sum(row.get(name, 0.0) for row in rows) for name in COUNTED if any(name in row for row in rows)}
    report = json.loads(run.report_file.read_text())
    return found | {name: report[name] for name in ("policy_lag", "replay_age") if report[name] is not None}


def line(row: Row) -> tuple[str, ...] | None:
    """With every seed's score, and what was counted; None if the row is not done, or was done elsewhere."""
    if (results := row.results) is None or not all(job.begun for job in row.jobs):  # what was counted is in the folders
        return None
    counts = [counted(job.run) for job in row.jobs]
    medians = {name: statistics.median(count[name] for count in counts) for name in counts[0]}
    scores = ", ".join(f"{result.mean:.1f}" for result in results)
    said = ", ".join(f"{name} {value:.4g}" for name, value in medians.items() if value)
    return learn.cells(row, results, scores, said)


def write() -> None:
    write_table("hindered table", HEAD, [((row.name,), line(row)) for row in ROWS])


if __name__ == "__main__":
    sys.path.append(str(ROOT))  # where Python finds the hindered environment
    sys.exit(main(__doc__, [job for row in ROWS for job in row.jobs], write))
