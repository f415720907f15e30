"""PPO on 2,048 CartPoles that are vectorised by themselves, against a bare loop of the same arithmetic.

    python benchmarks/vector.py
    python benchmarks/vector.py --unroll 32 --threads 1 --repeats 5

Acting is cheap there and learning takes nearly all of the time: 4 epochs of 4 minibatches, two networks of 64x64.
Prints `name value unit` for each figure, the ratio of ours to the bare loop (`vector_bare.py`), and in microseconds per
environment step where ours goes. Repeats take turns, each in a process of its own, and medians are compared.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the command line does

from vector_bare import ENVIRONMENTS, EPOCHS, MINIBATCHES, environment

HERE = Path(__file__).parent
BACKENDS = ("torch", "jax")
ROLES = ("acting", "environment", "storing", "learning")


def ours(backend: str, threads: int, unroll: int, batches: int) -> dict[str, float]:
    """Steps/s after two batches that are not counted, and the microseconds of each role per environment step."""
    from cavalcade.experiment import Experiment, Settings

    settings = Settings(steps=100_000_000, backend=backend, evaluations=0, envs=ENVIRONMENTS, threads=threads)
    algorithm = {"unroll": unroll, "epochs": EPOCHS, "minibatches_per_epoch": MINIBATCHES}
    runtime = Experiment.create("ppo", environment(), settings, algorithm).launch()
    learner, actor = runtime.objects["learner"].learner, runtime.objects["actor/0"]

    def learn(batches: int) -> None:
        goal = learner.updates + batches * EPOCHS * MINIBATCHES
        while learner.updates < goal:
            runtime.round()

    learn(2)
    runtime.reports()
    before, began = actor.steps, time.perf_counter()
    learn(batches)
    steps, seconds = actor.steps - before, time.perf_counter() - began
    spent = dict.fromkeys(ROLES, 0.0)
    for report in runtime.reports().values():
        for role in ROLES:
            spent[role] += report.get("seconds", {}).get(role, 0.0) / steps * 1e6
    return {"rate": steps / seconds, **spent}


def measured(script: str, *arguments: object) -> list[float]:
    command = [sys.executable, HERE / script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} failed:\n{done.stderr[-2000:]}")
    return [float(word) for word in done.stdout.split()]


def compare(backend: str, given: argparse.Namespace) -> None:
    mine, bare = [], []
    for _ in range(given.repeats):
        mine.append(measured("vector.py", "--ours", backend, *about(given)))
        bare.append(measured("vector_bare.py", backend, given.threads or os.cpu_count(), given.unroll, given.batches))
    rate, *spent = (statistics.median(values) for values in zip(*mine))
    (reached,) = (statistics.median(values) for values in zip(*bare))
    name = f"ppo_vector_{backend}"
    print(f"{name} {rate:.0f} steps/s\n{name}_bare {reached:.0f} steps/s\n{name}_ratio {rate / reached:.2f} x")
    for role, amount in zip(ROLES, spent):
        print(f"{name}_{role} {amount:.2f} us", flush=True)


def about(given: argparse.Namespace) -> list[str]:
    return ["--threads", given.threads, "--unroll", given.unroll, "--batches", given.batches]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=BACKENDS, help="only this one")
    parser.add_argument("--threads", type=int, default=0, help="0 is our own choice, and all cores for the bare loop")
    parser.add_argument("--unroll", type=int, default=16, help="steps of each environment per batch")
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--ours", choices=BACKENDS, help="measure only this, in this process")
    given = parser.parse_args()
    if given.ours:
        print(*ours(given.ours, given.threads, given.unroll, given.batches).values())
    else:
        for backend in [given.backend] if given.backend else BACKENDS:
            compare(backend, given)
