"""The table against other libraries' replay buffers, in one run: interleaved repeats, medians, ratios.

    python benchmarks/table.py                  everything
    python benchmarks/table.py frames           only tasks whose name contains the word
    python benchmarks/table.py --repeats 5

Prints `name value unit` for each figure, and for each figure of ours the ratio to the fastest peer (for memory: to the
smallest). The peers live in .peers/replay, made on first use. Between processes there is no peer; the goals stand
beside the figures.
"""

import argparse
import statistics
import subprocess
import sys
from collections import defaultdict

from run import HERE, PEERS

PEER = PEERS / "replay" / "bin" / "python"
LIBRARIES = {"small": ("cpprb", "tianshou"), "frames": ("cpprb", "tianshou", "sb3")}
GOALS = {
    ("small", "cycle"): "at least 2.5 times the fastest",
    ("small", "insert"): "at least 2 times the fastest prioritised",
    ("frames", "sample"): "at least 2.5 times the fastest",
    ("frames", "insert"): "at least 10 times cpprb, the fastest prioritised that stores frames once",
    ("frames", "bytes"): "at most 7,500",
    ("processes-small", "insert"): "at least 3,000,000",
    ("processes-frames", "insert"): "at least 500,000",
}


def prepare() -> None:
    if PEER.exists():
        return
    print("# making .peers/replay", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", PEER.parent.parent], check=True)
    install = [PEER, "-m", "pip", "install", "--quiet"]
    subprocess.run([*install, "-c", HERE.parent / "constraints.txt", "torch"], check=True)
    subprocess.run([*install, "cpprb==11.0.*", "tianshou==2.0.*", "stable-baselines3==2.9.*"], check=True)


def figures(*command) -> dict[str, float]:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} failed:\n{done.stderr[-2000:]}")
    return {line.split()[0]: float(line.split()[1]) for line in done.stdout.splitlines() if len(line.split()) == 3}


def compare(task: str, repeats: int) -> None:
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for _ in range(repeats):
        for name, value in figures(sys.executable, HERE / "table_ours.py", task).items():
            found[name, "ours"].append(value)
        for library in LIBRARIES.get(task, ()):
            for name, value in figures(PEER, HERE / "peer_replay.py", library, task).items():
                found[name, library].append(value)
    medians = {key: statistics.median(values) for key, values in found.items()}
    for (name, who), value in medians.items():
        unit = "B" if name == "bytes" else "items/s"
        low, high = min(found[name, who]), max(found[name, who])
        print(f"{task}_{name}_{who} {value:.4g} {unit} # {low:.4g} to {high:.4g}", flush=True)
    for name in dict.fromkeys(name for name, _ in medians):
        others = {who: value for (what, who), value in medians.items() if what == name and who != "ours"}
        goal = GOALS.get((task, name))
        if others and name == "bytes":
            print(f"{task}_{name}_ratio {min(others.values()) / medians[name, 'ours']:.2f} x # {goal or ''}")
        elif others:
            if (task, name) == ("frames", "insert"):
                others = {"cpprb": others["cpprb"]}
            print(f"{task}_{name}_ratio {medians[name, 'ours'] / max(others.values()):.2f} x # {goal or ''}")
        elif goal:
            print(f"# {task} {name}: the goal is {goal}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", default="", help="only tasks whose name contains this")
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    chosen = [task for task in ("small", "frames", "processes-small", "processes-frames") if given.name in task]
    if not chosen:
        raise SystemExit(f"no task is called '{given.name}'")
    prepare()
    for task in chosen:
        compare(task, given.repeats)
