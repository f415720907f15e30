"""What it costs to hold environments against what they declare: processor time per step with the checks and without.

    python benchmarks/checks.py                      with the checks switched off in this checkout
    python benchmarks/checks.py --before FOLDER      against another checkout, such as one from before the checks
    python benchmarks/checks.py loop vector          some of the workloads only

Each pair is two processes, one after the other, in an order that alternates from pair to pair. Prints the median of
the ratios of ten pairs, with the smallest and the largest: 1.02 is two per cent more processor time with the checks.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
PAIRS = 10


def stepped(environment, count: int, steps: int) -> float:
    """Microseconds of processor time for one step of `count` environments, from the first on."""
    import numpy as np

    from cavalcade import envs

    pool = envs.make(environment, count, seed=0)
    pool.reset()
    random = np.random.default_rng(0)
    actions = [random.integers(0, pool.spec.action.counts[0], count) for _ in range(100)]
    began = time.process_time()
    for number in range(steps):
        pool.step(actions[number % 100])
    spent = time.process_time() - began
    pool.close()
    return spent / steps * 1e6


def loop() -> float:
    return stepped("CartPole-v1", 8, 5_000)


def single() -> float:
    return stepped("CartPole-v1", 1, 20_000)


def infos() -> float:
    return stepped("FrozenLake-v1", 8, 5_000)


def vector() -> float:
    import gymnasium as gym

    return stepped(lambda num_envs: gym.make_vec("CartPole-v1", num_envs=num_envs), 8, 10_000)


def images() -> float:
    import gymnasium as gym
    import numpy as np

    class Images(gym.Env):
        observation_space, action_space = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8), gym.spaces.Discrete(2)

        def __init__(self):
            self.image, self.steps = self.observation_space.sample(), 0

        def reset(self, *, seed=None, options=None):
            return self.image, {}

        def step(self, action):
            self.steps += 1
            return self.image, 1.0, self.steps % 200 == 0, False, {}

    return stepped(Images, 8, 5_000)


def run() -> float:
    """A whole run, per environment step."""
    import cavalcade

    steps = 20_480
    with tempfile.TemporaryDirectory() as folder:
        began = time.process_time()
        given = {"backend": "numpy", "seed": 1, "evaluations": 0, "epochs": 1, "display": False}
        cavalcade.train("ppo", "CartPole-v1", steps=steps, out=Path(folder) / "run", **given)
        return (time.process_time() - began) / steps * 1e6


WORKLOADS = {made.__name__: made for made in (loop, single, infos, vector, images, run)}


def switch_off() -> None:
    from cavalcade.envs.inspector import Inspector

    Inspector.due = lambda self: False  # type: ignore[method-assign]
    Inspector.check_reset = lambda self, result, row, episode: None  # type: ignore[method-assign]


def measured(workload: str, folder: Path, off: bool) -> float:
    """In a process of its own, from that checkout."""
    command = [sys.executable, str(Path(__file__).resolve()), "--child", workload, *(["--off"] if off else [])]
    environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", help=f"some of {', '.join(WORKLOADS)}; else all")
    parser.add_argument("--before", type=Path, help="another checkout, with its compiled core")
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--child", choices=WORKLOADS, help=argparse.SUPPRESS)
    parser.add_argument("--off", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        if given.off:
            switch_off()
        print(WORKLOADS[given.child]())
        return
    other = (given.before.resolve(), False) if given.before else (HERE, True)
    for workload in given.workloads or WORKLOADS:
        ratios = []
        for pair in range(given.pairs):
            sides = [(HERE, False), other]
            spent = {side: measured(workload, *side) for side in (sides if pair % 2 else sides[::-1])}
            ratios.append(spent[sides[0]] / spent[sides[1]])
        low, median, high = min(ratios), statistics.median(ratios), max(ratios)
        print(f"{workload}_checked {median:.3f} x (from {low:.3f} to {high:.3f}, {given.pairs} pairs)", flush=True)


if __name__ == "__main__":
    main()
