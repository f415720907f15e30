"""Learning runs with a fault in them: a stale worker, absurd rewards, a straggler, deliberate policy lag.

    make learn                                   after the plain runs
    python benchmarks/hindered.py --only dppo    rows whose name contains the word; the others keep their figures

Rows are plain commands as in `learn.py`; what was dropped, and how old unrolls were, is read from the run's folder.
"""

import json
import os
import statistics
from dataclasses import dataclass
from pathlib import Path

import learn

BEGIN, END = "<!-- hindered table: written by make learn -->", "<!-- end of hindered table -->"
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


def counted(out: Path) -> dict[str, float]:
    """Totals of what a run dropped, and how many updates old its data was in the mean: drawn once, or replayed."""
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    found = {name: sum(row.get(name, 0.0) for row in rows) for name in COUNTED if any(name in row for row in rows)}
    report = json.loads((out / "report.json").read_text())
    return found | {name: report[name] for name in ("policy_lag", "replay_age") if report[name] is not None}


def middle(row: Row, results: list[tuple[float, float]], counts: list[dict[str, float]]) -> tuple[str, str]:
    """Every seed's score, and what was counted."""
    if row.above_zero and not all(count[row.above_zero] > 0 for count in counts):
        raise SystemExit(f"{row.name}: {row.above_zero} is zero: {counts}")
    medians = {name: statistics.median(count[name] for count in counts) for name in counts[0]}
    scores = ", ".join(f"{score:.1f}" for score, _ in results)
    return scores, ", ".join(f"{name} {value:.4g}" for name, value in medians.items() if value)


if __name__ == "__main__":
    given = learn.asked(__doc__, workers=1)  # seconds are those of a run alone
    os.chdir(learn.ROOT)  # where Python finds the hindered environment
    for row, results, folders in learn.runs(ROWS, given):
        counts = [counted(folder) for folder in folders]
        print(f"{row.name}: {counts}", flush=True)
        learn.write({row.name: learn.line(row, results, *middle(row, results, counts))}, ROWS, BEGIN, END, HEAD)
