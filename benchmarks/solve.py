"""Seconds to a solved CartPole-v1 and frames/s, every system of ours against other libraries, in one run.

    python benchmarks/solve.py                        everything: five seeds of each, taken in turns; half an hour
    python benchmarks/solve.py --only impala          contestants whose name contains the word
    python benchmarks/solve.py --only ppo,sb3-ppo --seeds 3
    python benchmarks/solve.py --table                as a table for docs/results.md too

Solved means the same for all: ten greedy episodes with a mean return of 475, judged while it learns about every
quarter second. So it was chosen because the usual other rule, the mean of the last 100 training episodes, cannot be
met before 47,500 steps after everything is learned (which rewards frames/s, ours), nor ever by a learner that explores
(apex-dqn). The judge's time counts for all: ours in the process itself or, where there are several, in one of them;
the peers' in their driver. Ours judge at steps, chosen below to be about as far apart; the peers ask the clock.

Seconds are taken twice by this script, never by the contestants: from the moment its environments and processes are
made (`train`), and from the command (`command`: imports, start-up and compilation before the first step are in it).
Frames/s are environment steps until solved by `train` seconds. A seed that needs more than --limit seconds counts as
infinite and is printed so. The peers (peer_solve.py) have the settings their authors publish for CartPole; where an
environment under .peers is missing, its figures are left out.
"""

import argparse
import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
from run import HERE, PEERS, prepare_sb3, show

from cavalcade.experiment.systems import SYSTEMS, example

TARGET = 475
# The best that was found for seconds on two cores; every other setting is the system's own.
DQN = "--backend jax --steps 100000 --evaluations 50"
UNROLLS = "--steps 500000 --evaluations 100"
TWO = "--runtime process --actors 2"
# numpy learns without importing or compiling anything; draws of 512 steps from 16 environments, dppo's from 2 x 8
PPO = "--steps 50000 --evaluations 25 --unroll 32 --epochs 10 --minibatches-per-epoch 1 --learning-rate 0.003"
PPO += " --discount 0.98 --gae-lambda 0.9 --shared --backend numpy"
OURS = {
    "ppo": f"{PPO} --envs 16",
    "a2c": f"--backend numpy {UNROLLS}",
    "dqn": DQN,
    "apex-dqn": f"{DQN} {TWO}",
    "gorila-dqn": f"{DQN} {TWO}",
    "impala": f"{UNROLLS} {TWO}",
    "seed-impala": f"{UNROLLS} {TWO}",
    "a3c": f"{UNROLLS} {TWO}",
    "ga3c": f"{UNROLLS} {TWO}",
    "paac": f"{UNROLLS} {TWO}",
    "dppo": f"{PPO} --envs 8 {TWO}",
}
ALL = f"--target {TARGET} --evaluation-episodes 10 --rows 100 --checkpoint-seconds 100000"
THEIRS = {"sb3-ppo": "sb3", "rllib-ppo": "ray", "rllib-impala": "ray", "rllib-appo": "ray", "sf-appo": "sf"}


@dataclass(frozen=True)
class Solved:
    train: float  # seconds
    command: float
    steps: float

    @property
    def frames(self) -> float:
        return self.steps / self.train if math.isfinite(self.train) else math.nan


NOT = Solved(math.inf, math.inf, math.nan)


@contextlib.contextmanager
def running(command: list[str], limit: float) -> Iterator[subprocess.Popen]:
    """Ended after `limit` seconds or with the block, and all its processes with it."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    clock = threading.Timer(limit, process.terminate)
    clock.start()
    try:
        yield process
    finally:
        clock.cancel()
        below = [] if process.poll() is not None else psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
        for child in below:
            with contextlib.suppress(psutil.Error):
                child.kill()
        process.communicate()


def ours(system: str, settings: str) -> Callable[[int, float], Solved]:
    def solve(seed: int, limit: float) -> Solved:
        with tempfile.TemporaryDirectory() as folder:
            words = [sys.executable, "-m", "cavalcade", "train", system, "CartPole-v1", *settings.split(), *ALL.split()]
            start = time.perf_counter()
            with running([*words, "--seed", str(seed), "--out", f"{folder}/run"], limit + 30) as process:
                threading.Thread(target=lambda: process.stdout and process.stdout.read(), daemon=True).start()
                return watch(process, Path(folder) / "run" / "metrics.jsonl", start, limit)

    return solve


def watch(process: subprocess.Popen, metrics: Path, start: float, limit: float) -> Solved:
    """The file is made when all processes are ready, and every judgement is a row of it."""
    while not metrics.exists():
        if process.poll() is not None:
            raise SystemExit(f"{' '.join(map(str, process.args))} failed")
        time.sleep(0.005)
    began, part = time.perf_counter(), ""
    with open(metrics) as file:
        while time.perf_counter() - began < limit:
            part += file.readline()
            if not part.endswith("\n"):
                if process.poll() is not None:
                    return NOT
                time.sleep(0.005)
                continue
            row, part = json.loads(part), ""
            if row.get("evaluation", 0.0) >= TARGET:
                now = time.perf_counter()
                return Solved(now - began, now - start, row["step"])
    return NOT


def peer(name: str, environment: str) -> Callable[[int, float], Solved] | None:
    """None, with a sentence, where the peer's environment is missing."""
    python = PEERS / environment / "bin" / "python"
    if not python.exists():
        print(f"# .peers/{environment} is missing: {name} is left out", file=sys.stderr)
        return None

    def solve(seed: int, limit: float) -> Solved:
        command = [str(python), str(HERE / "peer_solve.py"), name, str(seed), str(limit)]
        start = time.perf_counter()
        began: float | None = None
        with running(command, limit + 60) as process:
            for line in process.stdout or ():
                word, *steps = line.split() or [""]
                now = time.perf_counter()
                if word == "begin":
                    began = now
                elif word == "solved" and began:
                    return Solved(now - began, now - start, float(steps[0]))
        if began is None:
            raise SystemExit(f"{' '.join(command)} failed")
        return NOT

    return solve


def ratio(name: str, found: dict[str, list[Solved]], seconds: Callable[[Solved], float], goal: str = "") -> None:
    """The fastest of theirs to the fastest of ours."""
    medians = {who: statistics.median(map(seconds, solved)) for who, solved in found.items()}
    groups = ([who for who in medians if who in group] for group in (OURS, THEIRS))
    best, rival = (min(group, key=medians.__getitem__, default="") for group in groups)
    if best and rival and math.isfinite(medians[best]):
        print(f"{name} {medians[rival] / medians[best]:.2f} x # {goal}{best} against {rival}", flush=True)


def table(found: dict[str, list[Solved]]) -> None:
    print("\n| system | solved | seconds of training (range) | from the command | steps | frames/s |")
    print("| --- | --- | --- | --- | --- | --- |")
    for who, solved in sorted(found.items(), key=lambda one: statistics.median(s.train for s in one[1])):
        train, command = [s.train for s in solved], [s.command for s in solved]
        done = [s for s in solved if math.isfinite(s.train)] or [NOT]
        print(
            f"| {who} | {sum(map(math.isfinite, train))} of {len(solved)} "
            f"| {statistics.median(train):.2f} ({min(train):.2f} to {max(train):.2f}) "
            f"| {statistics.median(command):.2f} "
            f"| {statistics.median(s.steps for s in done):,.0f} | {statistics.median(s.frames for s in done):,.0f} |"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="contestants whose name contains this; or names with commas")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=10, help="seed; our settings were chosen on seeds 0 to 4")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds after which a seed is not solved")
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    if missing := {name for name in SYSTEMS if example(name) == "CartPole-v1"} - set(OURS):
        raise SystemExit(f"give settings for {', '.join(missing)} in OURS")
    names = [*OURS, *THEIRS]
    words = given.only.split(",")
    chosen = [n for n in names if n in words] if len(words) > 1 else [n for n in names if given.only in n]
    if "sb3-ppo" in chosen:
        prepare_sb3()
    contestants = {name: ours(name, OURS[name]) if name in OURS else peer(name, THEIRS[name]) for name in chosen}
    if not contestants:
        raise SystemExit(f"nobody is called '{given.only}'; there are {', '.join(names)}")
    print(f"# load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
    found: dict[str, list[Solved]] = defaultdict(list)
    for seed in range(given.first, given.first + given.seeds):
        for who, solve in contestants.items():
            if solve is None:
                continue
            found[who].append(solve(seed, given.limit))
            last = found[who][-1]
            print(f"# {who} seed {seed}: {last.train:.2f} s, {last.command:.2f} s, {last.steps:.0f} steps", flush=True)
    for who, solved in found.items():
        show(f"solve_train_{who}", [s.train for s in solved], "s")
        show(f"solve_command_{who}", [s.command for s in solved], "s")
        show(f"solve_frames_{who}", [s.frames for s in solved], "frames/s")
    ratio("solve_command_ratio", found, lambda s: s.command)
    ratio("solve_ratio", found, lambda s: s.train, "goal: at least 2; ")
    if given.table:
        table(found)
