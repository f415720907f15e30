"""Speed against the peers, in one run: interleaved repeats, medians, ratios.

    make bench                          everything
    python benchmarks/run.py dqn        only comparisons whose name contains the word
    python benchmarks/run.py --repeats 5

Prints `name value unit` for each figure and `name_ratio value x` for each comparison. Peers live in virtual
environments of their own under .peers/, made on first use. Machines are noisy: repeats take turns and medians are
compared.
"""

import argparse
import math
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
PEERS = HERE.parent / ".peers"
SB3 = PEERS / "sb3" / "bin" / "python"


def prepare_sb3() -> None:
    if SB3.exists():
        return
    print("# making .peers/sb3", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", SB3.parent.parent], check=True)
    install = [SB3, "-m", "pip", "install", "--quiet", "-c", HERE.parent / "constraints.txt"]
    subprocess.run([*install, "torch"], check=True)
    subprocess.run([*install, "torch", "stable-baselines3>=2.9", "gymnasium"], check=True)


def output(*command: str | Path) -> float:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} failed:\n{done.stderr[-2000:]}")
    return float(done.stdout.split()[-1]) if done.stdout.split() else 0.0


def seconds(*command: str | Path) -> float:
    began = time.perf_counter()
    output_of = subprocess.run(command, capture_output=True, text=True)
    if output_of.returncode:
        raise SystemExit(output_of.stderr[-2000:])
    return time.perf_counter() - began


def show(name: str, values: list[float], unit: str, scale: float = 1.0) -> None:
    """The median and the range. Infinite ones count, unknown ones do not."""
    known = [scale * value for value in values if not math.isnan(value)] or [math.nan]
    three = (statistics.median(known), min(known), max(known))
    middle, low, high = (f"{value:.0f}" if 1_000 <= value < math.inf else f"{value:.3g}" for value in three)
    print(f"{name} {middle} {unit} # {low} to {high}", flush=True)


def ours(*arguments: str) -> tuple[str | Path, ...]:
    return (sys.executable, HERE / "ours.py", *arguments)


def sb3(*arguments: str) -> tuple[str | Path, ...]:
    return (SB3, HERE / "peer_sb3.py", *arguments)


# name -> (unit, measure, {contestant: command}); ratios are taken against "sb3"
COMPARISONS = {
    "ppo_cartpole": (
        "steps/s",
        output,
        {"sb3": sb3("ppo"), "torch": ours("ppo", "torch"), "jax": ours("ppo", "jax")},
    ),
    "dqn_cartpole": (
        "steps/s",
        output,
        {"sb3": sb3("dqn"), "torch": ours("dqn", "torch"), "jax": ours("dqn", "jax")},
    ),
    "start_to_first_update": (
        "s",
        seconds,
        {
            "sb3": sb3("start"),
            "torch": ours("start", "torch"),
            "jax": ours("start", "jax"),
            "numpy": ours("start", "numpy"),
        },
    ),
}


def compare(name: str, repeats: int) -> None:
    unit, measure, contestants = COMPARISONS[name]
    found: dict[str, list[float]] = {contestant: [] for contestant in contestants}
    for _ in range(repeats):
        for contestant, command in contestants.items():
            found[contestant].append(measure(*command))
    medians = {contestant: statistics.median(values) for contestant, values in found.items()}
    for contestant, value in medians.items():
        print(f"{name}_{contestant} {value:.4g} {unit}", flush=True)
    for contestant, value in medians.items():
        if contestant != "sb3":
            better = medians["sb3"] / value if unit == "s" else value / medians["sb3"]
            print(f"{name}_{contestant}_ratio {better:.2f} x", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", default="", help="only comparisons whose name contains this")
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    chosen = [name for name in COMPARISONS if given.name in name]
    if not chosen:
        raise SystemExit(f"no comparison is called '{given.name}'; there are {', '.join(COMPARISONS)}")
    prepare_sb3()
    for name in chosen:
        compare(name, given.repeats)
