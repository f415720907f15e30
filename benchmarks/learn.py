"""Learning runs with seeds: trains, judges each policy on 100 fresh episodes, writes the table in docs/results.md.

    make learn                                 everything that is not done, two to three hours on two cores
    python benchmarks/learn.py --only dqn      rows whose name contains the word; the others keep their figures
    python benchmarks/learn.py --list          what is done, cut off and left

Each row is a plain command; the score of a seed is what `cavalcade evaluate` says of the policy the run saved. Runs are
in runs/learn (`job_queue.py` says how they are gone on with). Seconds are those of training, without the start.
"""

import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from document import write_table
from job import ROOT, Job, Result
from job_queue import main

RUNS = ROOT / "runs" / "learn"
HEAD = ("run", "wanted", "seeds that reach it", "median (range) over seeds", "seconds", "date", "command")

TOGETHER = "--runtime process --actors 2 --learners 2 --experience bundled"


@dataclass(frozen=True)
class Row:
    name: str
    command: str  # of one seed, after `cavalcade train`
    wanted: float
    at_least: bool = True  # or: below
    seeds: int = 5
    first: int = 0  # seed; 10 where settings were chosen on seeds 0 to 4

    @cached_property
    def jobs(self) -> list[Job]:
        return [Job(self.name, self.command, seed, RUNS) for seed in range(self.first, self.first + self.seeds)]

    @property
    def results(self) -> list[Result] | None:
        """Of all seeds; None until all are done."""
        found = [result for job in self.jobs if (result := job.result)]
        return found if len(found) == self.seeds else None

    @property
    def condition(self) -> str:
        return f"{'≥' if self.at_least else '<'} {self.wanted:g}"

    def met(self, job: Job, result: Result) -> bool:
        """Whether a seed did what is wanted."""
        return result.mean >= self.wanted if self.at_least else result.mean < self.wanted


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
    *(
        Row(f"{name} Pendulum", f"{name} Pendulum-v1 --steps {steps}", -160, first=10)
        for steps, names in ((20_000, ("ddpg", "td3", "sac")), (50_000, ("d4pg", "mpo", "dmpo")))
        for name in names
    ),
    *(
        Row(
            f"{name}, processes",
            f"{name} Pendulum-v1 --steps 60000 --runtime process --actors 2",
            -160,
            seeds=3,
            first=10,
        )
        for name in ("apex-dpg", "seed-sac")
    ),
    *(
        Row(
            f"d4pg, {updates}",
            f"d4pg Pendulum-v1 --steps 60000 {TOGETHER} --updates {updates}",
            -160,
            seeds=1,
            first=10,
        )
        for updates in ("allreduce", "parameter-server")
    ),
    *(
        Row(f"{name} {task.split('-')[0]}", f"{name} {task} --steps 100000", wanted, first=10)
        for name in ("c51", "qr-dqn")
        for task, wanted in (("CartPole-v1", 475), ("Acrobot-v1", -90))
    ),
    Row("pg CartPole", "pg CartPole-v1 --steps 500000", 450, first=10),
    Row("sac MountainCarContinuous", "sac MountainCarContinuous-v0 --steps 100000", 90, seeds=3, first=10),
    Row("td3 MountainCarContinuous", "td3 MountainCarContinuous-v0 --steps 300000", 90, seeds=1, first=10),
    Row("sac LunarLanderContinuous", "sac LunarLanderContinuous-v3 --steps 200000", 200, seeds=3, first=10),
    Row("dmpo, control suite", "dmpo dm_control/cartpole-swingup-v0 --steps 100000", 700, seeds=3, first=10),
]


def over_seeds(scores: Sequence[float]) -> str:
    return f"{statistics.median(scores):.1f} ({min(scores):.1f} to {max(scores):.1f})"


def cells(row: Row, results: Sequence[Result], *middle: str) -> tuple[str, ...]:
    """Of a line of the table after its name; `middle` are the cells that say what was scored."""
    return (
        row.condition,
        f"{sum(map(row.met, row.jobs, results))} of {len(results)}",
        *middle,
        f"{statistics.median(result.seconds for result in results):.0f}",
        max(result.date for result in results),
        f"`cavalcade train {row.command} --seed S`",
    )


def line(row: Row) -> tuple[str, ...] | None:
    """None if the row is not done."""
    results = row.results
    return results and cells(row, results, over_seeds([result.mean for result in results]))


def write() -> None:
    write_table("learning table", HEAD, [((row.name,), line(row)) for row in ROWS])


if __name__ == "__main__":
    sys.exit(main(__doc__, [job for row in ROWS for job in row.jobs], write))
