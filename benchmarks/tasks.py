"""Every system on the tasks that it can learn: with presets on three seeds, with the defaults on one or three.

    make tasks                                     everything that is not done, on two cores, in at most 8 hours
    python benchmarks/tasks.py --only LunarLander  jobs whose name contains the word
    python benchmarks/tasks.py --list              what is done, cut off and left, and how long it may take
    python benchmarks/tasks.py --table             write table and picture from what is there, run nothing

Writes the table of tasks in docs/results.md and docs/tasks.png. Runs are in runs/tasks; a run whose settings have
changed since is made anew. Ctrl-C ends the queue after checkpoints, and the same command goes on.
"""

import sys
from dataclasses import dataclass
from functools import cached_property

import tasks_picture
import tasks_table
from document import write_part
from job import ROOT, Job
from job_queue import main

from cavalcade.config import described
from cavalcade.experiment import Settings

RUNS = ROOT / "runs" / "tasks"
SEEDS = (10, 11, 12)  # settings are chosen on seeds 0 to 4
PRESET, DEFAULT = "preset", "default"
FAST = ("dqn", "apex-dqn", "gorila-dqn", "a2c", "a3c", "ga3c", "paac", "ppo", "dppo", "impala", "seed-impala")
SLOW = ("ddpg", "td3", "d4pg", "sac", "mpo", "dmpo", "apex-dpg", "seed-sac")  # they make an update for each step
FEW = ("c51", "qr-dqn", "pg")  # on one task; `learn.py` has more
SYSTEMS = FAST + SLOW + FEW
DQNS = ("dqn", "apex-dqn", "gorila-dqn")
ALONE = ("dqn", "a2c", "ppo", *SLOW[:6], *FEW)  # in one process; the others with two actors in processes of their own

# fmt: off
# thousands of environment steps of each fast system; 0: not run
OF_FAST: dict[str, tuple[int, ...]] = {
    #                                    dqn  apex gorila  a2c   a3c  ga3c  paac   ppo  dppo impala  seed
    "CartPole-v1":                     ( 100,   80,   60,  300,  200,  150,  200,  100,  100,  200,  150),
    "Acrobot-v1":                      ( 100,  100,  100,  500,  500,  500,  500,  500,  500,  500,  500),
    "LunarLander-v3":                  ( 300,  120,   40, 2000,  400,  300,  400, 1000,  300, 2000,  300),
    "MountainCar-v0":                  ( 120,  100,   40,  300,  200,  200,  200,  400,  150,  200,  150),
    "MountainCarContinuous-v0":        (   0,    0,    0,    0,    0,    0,    0,  100,    0,    0,    0),
    "LunarLanderContinuous-v3":        (   0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    0),
    "Pendulum-v1":                     (   0,    0,    0,  400,  200,  200,  200,  400,  150,  200,  150),
    "MinAtar/Breakout-v1":             (1000,   80,   30,  400,  150,  100,  100, 1000,   80,  200,  150),
    "MinAtar/SpaceInvaders-v1":        (1000,    0,    0,    0,    0,    0,    0, 1000,    0,    0,    0),
    "HalfCheetah-v5":                  (   0,    0,    0,    0,    0,    0,    0,  500,    0,    0,    0),
    "cavalcade/CartPoleNoVelocity-v1": (   0,    0,    0,    0,    0,    0,    0,  500,    0, 1000,    0),
}
# environment steps a second of a run that has the machine for itself, about: from these `--list` estimates hours
SPEEDS_OF_FAST: dict[str, tuple[int, ...]] = {
    #            dqn  apex gorila  a2c   a3c  ga3c  paac   ppo  dppo impala  seed
    "vectors": (1200,  900,  500, 6000, 9000, 4500, 6500, 7000, 3000,10000, 4500),
    "images":  ( 700,  600,  300, 2000, 2000, 1500, 2000, 2500, 1200, 2500, 1500),
}
# fmt: on
OF_SLOW: dict[str, dict[str, int]] = {
    "CartPole-v1": {"sac": 20},
    "Acrobot-v1": {"sac": 20},
    "MountainCarContinuous-v0": {"ddpg": 20, "td3": 20, "sac": 30},
    "LunarLanderContinuous-v3": {"ddpg": 20, "td3": 40, "sac": 40},
    "Pendulum-v1": dict.fromkeys(SLOW, 20),
    "HalfCheetah-v5": {"td3": 40, "sac": 40},
}
SPEEDS_OF_SLOW = {**dict.fromkeys(SLOW, 100), "mpo": 60, "dmpo": 60}
OF_FEW = {"CartPole-v1": {"c51": 30, "qr-dqn": 15, "pg": 200}}
SPEEDS_OF_FEW = {"c51": 400, "qr-dqn": 200, "pg": 6000}
BUDGETS: dict[str, dict[str, int]] = {  # by task and system, those that are run
    task: {
        name: n for name, n in {**dict(zip(FAST, row)), **OF_SLOW.get(task, {}), **OF_FEW.get(task, {})}.items() if n
    }
    for task, row in OF_FAST.items()
}
START = 15.0  # seconds until a run begins to learn, and of judging it
ONLY = {  # tasks that are run with one kind of settings only
    "HalfCheetah-v5": DEFAULT,
    "LunarLanderContinuous-v3": PRESET,
    "MinAtar/SpaceInvaders-v1": PRESET,
    "cavalcade/CartPoleNoVelocity-v1": PRESET,
}
MORE = {"cavalcade/CartPoleNoVelocity-v1": "--memory 64"}  # options of a task: without memory it cannot be solved


@dataclass(frozen=True)
class Goal:
    """The median over seeds is at least `score` within `steps` environment steps."""

    score: float
    steps: int


GOALS = {  # (task, system, settings)
    ("LunarLander-v3", "ppo", DEFAULT): Goal(200, 1_000_000),
    ("LunarLander-v3", "dqn", DEFAULT): Goal(200, 300_000),
    ("LunarLander-v3", "impala", DEFAULT): Goal(150, 2_000_000),
    ("LunarLander-v3", "a2c", DEFAULT): Goal(150, 2_000_000),
    **{("Acrobot-v1", name, DEFAULT): Goal(-90, 100_000 if name in DQNS else 500_000) for name in FAST},
    ("Pendulum-v1", "ppo", DEFAULT): Goal(-200, 400_000),
    ("HalfCheetah-v5", "ppo", DEFAULT): Goal(1_400, 500_000),
    ("MountainCar-v0", "dqn", PRESET): Goal(-115, 120_000),
    ("MountainCarContinuous-v0", "ppo", PRESET): Goal(90, 100_000),
    ("MinAtar/Breakout-v1", "dqn", PRESET): Goal(8, 1_000_000),
    ("MinAtar/SpaceInvaders-v1", "dqn", PRESET): Goal(30, 1_000_000),
    ("cavalcade/CartPoleNoVelocity-v1", "impala", PRESET): Goal(450, 1_000_000),
}


@dataclass(frozen=True)
class Row:
    """One task, system and kind of settings, on several seeds."""

    task: str
    system: str
    settings: str  # PRESET or DEFAULT

    @property
    def goal(self) -> Goal | None:
        return GOALS.get((self.task, self.system, self.settings))

    @property
    def steps(self) -> int:
        return BUDGETS[self.task][self.system] * 1000

    @property
    def command(self) -> str:
        """Of one seed, after `cavalcade train`."""
        words = [self.system, self.task, f"--steps {self.steps}"]
        words += [] if self.system in ALONE else ["--runtime process --actors 2"]
        words += [MORE[self.task]] if self.task in MORE else []
        words += ["--preset none"] if self.settings == DEFAULT and "preset" in described(Settings) else []
        return " ".join(words)

    @property
    def expected(self) -> float:
        """Seconds of one seed: training at the system's speed, start and judging."""
        fast = SPEEDS_OF_FAST["images" if "MinAtar" in self.task else "vectors"]
        return START + self.steps / {**dict(zip(FAST, fast)), **SPEEDS_OF_SLOW, **SPEEDS_OF_FEW}[self.system]

    @cached_property
    def jobs(self) -> list[Job]:
        """One for each seed; `learn.py` has more seeds of those that have one here."""
        many = self.goal or (self.settings == PRESET and self.system in FAST)
        seeds = SEEDS if many else SEEDS[:1]
        label = f"{self.task} {self.system} {self.settings}"
        return [Job(label, self.command, seed, RUNS, expected=self.expected) for seed in seeds]


ROWS = [
    Row(task, system, settings)
    for task, budgets in BUDGETS.items()
    for system in budgets
    for settings in (PRESET, DEFAULT)
    if ONLY.get(task, settings) == settings
]
# what has a goal comes first
JOBS = [job for row in sorted(ROWS, key=lambda row: row.goal is None) for job in row.jobs]


def write() -> None:
    """The table and the picture, from what is done."""
    lines = tasks_table.merged(ROWS)
    tasks_table.write(lines)
    if tasks_picture.draw(lines, ROOT / "docs" / "tasks.png"):
        write_part("tasks picture", "![curves of all systems on all tasks](tasks.png)")


if __name__ == "__main__":
    sys.exit(main(__doc__, JOBS, write))
