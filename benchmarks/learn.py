"""Learning runs with seeds: trains, judges each policy on 100 fresh episodes, writes the table in docs/results.md.

    make learn                                 everything, about 2 hours on two cores
    python benchmarks/learn.py --only dqn      rows whose name contains the word; the others keep their figures
    python benchmarks/learn.py --seeds 3

Each row is a plain command; the score of a seed is what `cavalcade evaluate` says of the policy the run saved.
"""

import argparse
import datetime
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results.md"
PONG, PONG_END = "<!-- Pong: written by make learn -->", "<!-- end of Pong -->"
BEGIN, END = "<!-- learning table: written by make learn -->", "<!-- end of learning table -->"
HEAD = ("run", "wanted", "seeds that reach it", "median (range) over seeds", "seconds", "date", "command")


@dataclass(frozen=True)
class Row:
    name: str
    command: str  # of one seed, after `cavalcade train`
    wanted: float
    at_least: bool = True  # or: below
    seeds: int = 5


ROWS = [
    Row("dqn CartPole", "dqn CartPole-v1 --steps 100000", 475),
    Row("dqn prioritised CartPole", "dqn CartPole-v1 --steps 100000 --priority-exponent 0.6", 475),
    Row("ppo CartPole", "ppo CartPole-v1 --steps 100000", 475),
    Row("ppo CartPole jax", "ppo CartPole-v1 --steps 100000 --backend jax", 475),
    Row("a2c CartPole", "a2c CartPole-v1 --steps 500000", 475),
    Row("dqn Acrobot", "dqn Acrobot-v1 --steps 100000", -90),
    Row(
        "ppo with memory, no velocities",
        "ppo cavalcade/CartPoleNoVelocity-v1 --steps 500000 --memory 64 --backend jax",
        400,
    ),
    Row("ppo without memory, no velocities", "ppo cavalcade/CartPoleNoVelocity-v1 --steps 500000", 200, at_least=False),
    Row("apex-dqn, processes", "apex-dqn CartPole-v1 --steps 100000 --runtime process --actors 2", 475, seeds=3),
    Row("impala, processes", "impala CartPole-v1 --steps 300000 --runtime process --actors 2", 450, seeds=3),
    Row("apex-dqn, Ray", "apex-dqn CartPole-v1 --steps 100000 --runtime ray --actors 2", 475, seeds=3),
    *(
        Row(f"{name}, processes", f"{name} CartPole-v1 --steps {steps} --runtime process --actors 2", wanted, seeds=3)
        for name, steps, wanted in (
            ("seed-impala", 300_000, 450),
            ("paac", 400_000, 475),
            ("dppo", 150_000, 475),
            ("ga3c", 400_000, 450),
            ("a3c", 400_000, 450),
            ("gorila-dqn", 150_000, 475),
        )
    ),
    Row("impala, Ray", "impala CartPole-v1 --steps 300000 --runtime ray --actors 2", 450, seeds=3),
]


def place(row: Row, seed: int, folder: Path) -> Path:
    return folder / f"{row.name.replace(' ', '-').replace(',', '')}-{seed}"


def run(row: Row, seed: int, folder: Path) -> tuple[float, float]:
    """(score, seconds) of one seed."""
    out = place(row, seed, folder)
    began = time.perf_counter()
    train = [sys.executable, "-m", "cavalcade", "train", *row.command.split(), "--seed", str(seed), "--out", str(out)]
    done = subprocess.run(train, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(train)} failed:\n{done.stderr[-2000:]}")
    seconds = time.perf_counter() - began
    judge = [sys.executable, "-m", "cavalcade", "evaluate", str(out), "--episodes", "100", "--seed", "12345", "--json"]
    score = json.loads(subprocess.run(judge, capture_output=True, text=True, check=True).stdout)["mean"]
    print(f"{row.name} seed {seed}: {score:.1f} in {seconds:.0f} s", flush=True)
    return score, seconds


def over_seeds(scores: list[float]) -> str:
    return f"{statistics.median(scores):.1f} ({min(scores):.1f} to {max(scores):.1f})"


def line(row: Row, results: list[tuple[float, float]], *middle: str) -> str:
    """Of the table; `middle` are the cells that say what was scored."""
    scores, seconds = zip(*results)
    met = sum(score >= row.wanted if row.at_least else score < row.wanted for score in scores)
    cells = (
        row.name,
        f"{'≥' if row.at_least else '<'} {row.wanted:g}",
        f"{met} of {len(scores)}",
        *middle,
        f"{statistics.median(seconds):.0f}",
        datetime.date.today().isoformat(),
        f"`cavalcade train {row.command} --seed S`",
    )
    return f"| {' | '.join(cells)} |"


def pong() -> None:
    """Pong for a bounded time: no score is asked for; its curve, its last returns and its speed are kept."""
    command = "impala ALE/Pong-v5 --steps 120000 --runtime process --actors 2 --unroll 32 --batch 16 --evaluations 0"
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "pong"
        train = [sys.executable, "-m", "cavalcade", "train", *command.split(), "--out", str(out)]
        subprocess.run(train, check=True, stdout=subprocess.DEVNULL)
        rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        shutil.copy(out / "curve.png", ROOT / "docs" / "pong.png")
    last, seen = rows[-1], [row["return"] for row in rows if "return" in row]
    tenth = max(1, len(seen) // 10)
    said = (
        f"{datetime.date.today().isoformat()}, `cavalcade train {command}`: {last['step']:,} steps "
        f"({4 * last['step']:,} frames) in {last['time'] / 60:.0f} minutes, {4 * last['step'] / last['time']:,.0f} "
        f"frames/s with learning on every one of them; mean training return {statistics.mean(seen[:tenth]):.1f} in the "
        f"first tenth of the run, {statistics.mean(seen[-tenth:]):.1f} in the last.\n\n![Pong](pong.png)"
    )
    text = RESULTS.read_text()
    before, rest = text.split(PONG)
    RESULTS.write_text(f"{before}{PONG}\n\n{said}\n\n{PONG_END}{rest.split(PONG_END)[1]}")
    print(said, flush=True)


def write(
    lines: dict[str, str], rows: list = ROWS, begin: str = BEGIN, end: str = END, head: tuple[str, ...] = HEAD
) -> None:
    """Put new lines into the table between `begin` and `end`, keep the others, in the order of `rows`."""
    text = RESULTS.read_text()
    before, rest = text.split(begin)
    old, after = rest.split(end)
    kept = {known.split("|")[1].strip(): known for known in old.splitlines() if known.startswith("| ")} | lines
    titles = f"| {' | '.join(head)} |\n|{' --- |' * len(head)}\n"
    table = "\n".join(kept[row.name] for row in rows if row.name in kept)
    RESULTS.write_text(f"{before}{begin}\n\n{titles}{table}\n\n{end}{after}")


def asked(about: str, workers: int) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--seeds", type=int, default=0, help="of each row; 0 is what the row says")
    parser.add_argument("--workers", type=int, default=workers, help="runs at a time")
    return parser.parse_args()


def runs(rows: list[Any], given: argparse.Namespace) -> Iterator[tuple[Any, list[tuple[float, float]], list[Path]]]:
    """Each row that was asked for, what its seeds reached in how many seconds, and where the runs are."""
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(given.workers) as pool:
        for row in [row for row in rows if given.only in row.name]:
            seeds, folder = range(given.seeds or row.seeds), Path(name)
            futures = [pool.submit(run, row, seed, folder) for seed in seeds]
            yield row, [future.result() for future in futures], [place(row, seed, folder) for seed in seeds]


if __name__ == "__main__":
    given = asked(__doc__, workers=2)
    for row, results, _ in runs(ROWS, given):
        write({row.name: line(row, results, over_seeds([score for score, _ in results]))})
    if given.only in "pong":
        pong()
