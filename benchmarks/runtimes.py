"""The runtimes against other libraries', in one run: interleaved repeats, medians, ratios and goals.

    python benchmarks/runtimes.py                     everything, a quarter of an hour
    python benchmarks/runtimes.py --only pong         only rows whose name contains the word
    python benchmarks/runtimes.py --repeats 5 --seconds 30 --before 10

Prints `name value unit` for each figure and `name_ratio value x # goal` for each comparison. The peers are RLlib (in
.peers/ray) and Sample Factory (in .peers/sf); where an environment is missing, its figures are left out. What is
measured stands in runtimes_ours.py and peer_async.py. Wants an otherwise idle machine: it prints how idle it was.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import psutil
from run import HERE, PEERS, show
from runtimes_ours import rows

RAY, SF = PEERS / "ray" / "bin" / "python", PEERS / "sf" / "bin" / "python"
Figures = dict[str, float]
AFTER = 5.0  # seconds for which memory is watched after the first update


def figures(*command: str | Path) -> Figures:
    """What a script printed as `name value unit`."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} failed:\n{done.stderr[-2000:]}")
    lines = [line.split() for line in done.stdout.splitlines()]
    return {line[0]: float(line[1]) for line in lines if len(line) == 3 and _number(line[1])}


def _number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def ours(*arguments: str) -> Callable[[], Figures]:
    return lambda: figures(sys.executable, HERE / "runtimes_ours.py", *arguments)


def peer(python: Path, script: str, *arguments: str) -> Callable[[], Figures] | None:
    """None, with a sentence, where the peer's environment is missing."""
    if not python.exists():
        print(f"# {python.parent.parent} is missing: {script} {' '.join(arguments)} is left out", file=sys.stderr)
        return None
    return lambda: figures(python, HERE / script, *arguments)


# --- rows -------------------------------------------------------------------------------------------------------------


def compare(
    contestants: dict[str, Callable[[], Figures] | None], repeats: int
) -> tuple[dict[str, Figures], dict[str, dict[str, list[float]]]]:
    """Medians of every figure, by contestant, taken in turns; and the figures themselves."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for _ in range(repeats):
        for who, measure in contestants.items():
            for name, value in (measure() if measure else {}).items():
                found[who][name].append(value)
    medians = {who: {name: statistics.median(values) for name, values in named.items()} for who, named in found.items()}
    return medians, found


def ratio(name: str, value: float, goal: str) -> None:
    print(f"{name}_ratio {value:.2f} x # goal: {goal}", flush=True)


def broadcast(given: argparse.Namespace) -> None:
    medians, found = compare({"ours": ours("broadcast")}, given.repeats)
    for name, values in found["ours"].items():
        show(f"broadcast_4mb_{name}", values, "ms", 1e3)
    print("# goal: publish and fetch below 0.7 ms each")
    ratio("broadcast_publish_to_memcpy", medians["ours"]["publish"] / medians["ours"]["memcpy"], "near 1")


def request(given: argparse.Namespace) -> None:
    contestants = {"ours": ours("request"), "ray": peer(RAY, "peer_ray_call.py")}
    medians, found = compare(contestants, given.repeats)
    for who, named in found.items():
        for name, values in named.items():
            show(f"request_{name}_{who}", values, "us", 1e6)
    if "ray" in medians:
        ratio("request_call", medians["ray"]["call"] / medians["ours"]["call"], "at least 5 times faster")


def frames(
    task: str, peers: dict[str, Path], goal: str, given: argparse.Namespace, others: tuple[str, ...] = ()
) -> None:
    """Ours, other shapes of ours, and the peers; the ratio is ours to the fastest peer."""
    span = (str(given.seconds), str(given.before))
    contestants: dict[str, Callable[[], Figures] | None] = {"ours": ours(task, *span)}
    contestants |= {name: ours(name, *span) for name in others}
    contestants |= {name: peer(python, "peer_async.py", name, task, *span) for name, python in peers.items()}
    medians, found = compare(contestants, given.repeats)
    for who, named in found.items():
        show(f"{task}_frames_{who}", named["frames"], "frames/s")
    show(f"{task}_learned_ours", found["ours"]["learned"], "frames/s")
    for who in ("actor", "learner"):
        begin = f"time_{who}_"
        roles = [f"{n.removeprefix(begin)} {share:.0%}" for n, share in medians["ours"].items() if n.startswith(begin)]
        print(f"# {who}: {', '.join(roles)}")
    speeds = [medians[name]["frames"] for name in peers if name in medians]
    if speeds:
        ratio(f"{task}_frames", medians["ours"]["frames"] / max(speeds), f"at least {goal} times the fastest")


def cartpole(given: argparse.Namespace) -> None:
    frames("cartpole", {"rllib": RAY, "sf": SF}, "4", given, ("cartpole-wide",))


def pong(given: argparse.Namespace) -> None:
    frames("pong", {"sf": SF, "rllib": RAY} if given.all else {"sf": SF}, "1.3", given)


def start(given: argparse.Namespace) -> None:
    """From the command to the first update, and the most memory of all its processes together until some seconds
    later. Both run IMPALA on CartPole with two actors in processes of their own; ours with its evaluator."""
    contestants: dict[str, Callable[[], Figures] | None] = {"ours": start_ours}
    contestants["rllib"] = start_rllib if peer(RAY, "peer_async.py", "rllib", "start") else None
    medians, found = compare(contestants, given.repeats)
    for name, unit in (("first_update", "s"), ("memory", "MB"), ("processes", "processes")):
        for who, named in found.items():
            show(f"start_{name}_{who}", named[name], unit)
    if "rllib" in medians:
        for name in ("first_update", "memory"):
            ratio(f"start_{name}", medians["ours"][name] / medians["rllib"][name], "at most 0.5")


# --- watching a program from outside ----------------------------------------------------------------------------------


class Watch:
    """The most memory that a process and all below it had together: proportional set size, so shared pages count
    once."""

    def __init__(self, pid: int):
        self.top, self.bytes, self.count = psutil.Process(pid), 0, 0
        self.on = True
        self.thread = threading.Thread(target=self._look)
        self.thread.start()

    def _look(self) -> None:
        while self.on:
            together = count = 0
            for process in self._all():
                try:
                    together += process.memory_full_info().pss
                    count += 1
                except psutil.Error:
                    continue  # it has just ended
            self.bytes, self.count = max(self.bytes, together), max(self.count, count)
            time.sleep(0.2)

    def _all(self) -> list[psutil.Process]:
        try:
            return [self.top, *self.top.children(recursive=True)]
        except psutil.Error:
            return []

    def stop(self) -> Figures:
        self.on = False
        self.thread.join()
        return {"memory": self.bytes / 1e6, "processes": float(self.count)}


def start_ours() -> Figures:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "cavalcade", "train", "impala", "CartPole-v1"]
        command += ["--runtime", "process", "--actors", "2", "--steps", "5000000", "--rows", "10000"]
        began = time.perf_counter()
        process = subprocess.Popen(
            [*command, "--out", f"{folder}/run"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        watch = Watch(process.pid)
        try:
            next(row for row in rows(process, Path(folder) / "run" / "metrics.jsonl") if row.get("updates"))
            first = time.perf_counter() - began
            time.sleep(AFTER)
        finally:
            found = watch.stop()
            process.terminate()
            process.communicate(timeout=60)
    return {"first_update": first, **found}


def start_rllib() -> Figures:
    began = time.perf_counter()
    command = [str(RAY), str(HERE / "peer_async.py"), "rllib", "start", str(AFTER)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout
    watch = Watch(process.pid)
    try:
        next((line for line in process.stdout if line.startswith("FIRST")), None)
        first = time.perf_counter() - began
        process.wait(timeout=120)
    finally:
        found = watch.stop()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed")
    return {"first_update": first, **found}


ROWS: dict[str, Callable[[argparse.Namespace], None]] = {
    "broadcast": broadcast,
    "request": request,
    "cartpole": cartpole,
    "pong": pong,
    "start": start,
}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="measured of each run")
    parser.add_argument("--before", type=float, default=8.0, help="seconds after the first update that do not count")
    parser.add_argument("--all", action="store_true", help="on Pong RLlib too, which is the slower one")
    given = parser.parse_args()
    chosen = [name for name in ROWS if given.only in name]
    if not chosen:
        raise SystemExit(f"no row is called '{given.only}'; there are {', '.join(ROWS)}")
    for name in chosen:
        print(f"# {name}: load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
        ROWS[name](given)
