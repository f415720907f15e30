"""SAC on Pendulum, an update of 256 transitions through networks of 256x256 for each step, everybody on one core.

    python benchmarks/sac.py                  interleaved repeats, medians, ratios
    python benchmarks/sac.py --repeats 5

Beside Stable-Baselines3 (torch) and SBX (jax), which live in .peers/sb3 and .peers/sbx and are left out where these are
missing, stands the limit: the matrix products of one update and nothing else. Every contestant is a process that is
confined to one core; steps a second are counted after 200 updates.
"""

import argparse
import os
import statistics
import sys
import time
from pathlib import Path

from run import PEERS, output, show

START, WARM_UP, MEASURED = 1_000, 200, 2_000  # random steps, updates that do not count, steps that do
WIDTH = BATCH = 256


class Meter:
    """Steps a second after the warm-up; `tick` is told the steps so far and says whether it was enough."""

    def __init__(self) -> None:
        self.began, self.first, self.speed = 0.0, 0, 0.0

    def tick(self, steps: int) -> bool:
        if not self.began and steps >= START + WARM_UP:
            self.began, self.first = time.perf_counter(), steps
        if steps < START + WARM_UP + MEASURED:
            return False
        self.speed = (steps - self.first) / (time.perf_counter() - self.began)
        return True


def ours(backend: str) -> float:
    import tempfile

    import cavalcade
    from cavalcade.runs.callbacks import Callback

    meter = Meter()

    class Watch(Callback):
        def on_metrics(self, run: object, row: dict) -> None:
            meter.tick(row["step"])

    steps = START + WARM_UP + MEASURED + 100
    settings = {
        "preset": "none",
        "envs": 1,
        "threads": 1,
        "evaluations": 0,
        "replay_size": 100_000,
        "rows": steps // 50,
    }
    with tempfile.TemporaryDirectory() as out:
        cavalcade.train(
            "sac",
            "Pendulum-v1",
            steps=steps,
            backend=backend,
            out=f"{out}/run",
            display=False,
            callbacks=[Watch()],
            **settings,
        )
    return meter.speed


def peer(name: str) -> float:
    import torch

    torch.set_num_threads(1)
    from stable_baselines3.common.callbacks import BaseCallback

    if name == "sb3":
        from stable_baselines3 import SAC
    else:
        from sbx import SAC

    meter = Meter()

    class Watch(BaseCallback):
        def _on_step(self) -> bool:
            return not meter.tick(self.num_timesteps)

    given = {"learning_rate": 3e-4, "buffer_size": 100_000, "learning_starts": START, "batch_size": BATCH, "seed": 0}
    network = {"net_arch": [WIDTH, WIDTH]}
    model = SAC("MlpPolicy", "Pendulum-v1", train_freq=1, gradient_steps=1, policy_kwargs=network, **given)
    model.learn(1_000_000, callback=Watch())
    return meter.speed


def products() -> float:
    """Updates a second if an update were its matrix products alone, in torch."""
    import torch

    torch.set_num_threads(1)
    rows, units = torch.randn(BATCH, WIDTH), torch.randn(WIDTH, WIDTH)
    seen, judged = torch.randn(BATCH, 3), torch.randn(BATCH, 4)  # of the policy, of a critic
    policy = torch.randn(3, WIDTH), torch.randn(WIDTH, 2), torch.randn(BATCH, 2)
    critic = torch.randn(4, WIDTH), torch.randn(WIDTH, 1), torch.randn(BATCH, 1)

    def forward(x: torch.Tensor, first: torch.Tensor, last: torch.Tensor, _: torch.Tensor) -> None:
        x @ first, rows @ units, rows @ last

    def backward(
        x: torch.Tensor, first: torch.Tensor, last: torch.Tensor, error: torch.Tensor, of_params: bool
    ) -> None:
        error @ last.T, rows @ units.T
        if of_params:
            rows.T @ error, rows.T @ rows, x.T @ rows
        else:
            rows @ first.T

    def update() -> None:
        for x, network, times in ((seen, policy, 2), (judged, critic, 6)):  # critics: targets, taken, the policy's
            for _ in range(times):
                forward(x, *network)
        for x, network, of_params in ((judged, critic, True), (judged, critic, False)):
            for _ in range(2):
                backward(x, *network, of_params)
        backward(seen, *policy, True)

    with torch.inference_mode():
        for _ in range(50):
            update()
        began = time.perf_counter()
        for _ in range(300):
            update()
    return 300 / (time.perf_counter() - began)


def main(repeats: int) -> None:
    here = Path(sys.executable)
    found = {"products": here, "torch": here, "jax": here}
    found |= {name: path for name in ("sb3", "sbx") if (path := PEERS / name / "bin" / "python").exists()}
    speeds: dict[str, list[float]] = {name: [] for name in found}
    for _ in range(repeats):
        for name, python in found.items():
            speeds[name].append(output(python, __file__, "--only", name))
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    for name, values in speeds.items():
        show(f"sac_{name}", values, "steps/s")
    best = max(medians["torch"], medians["jax"])
    for name, goal in (("sbx", 1.2), ("sb3", 1.9), ("products", 0.8)):
        if name in medians:
            print(f"sac_to_{name}_ratio {best / medians[name]:.2f} x  # goal {goal}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", help="measure this contestant here and print its steps a second")
    given = parser.parse_args()
    if not given.only:
        main(given.repeats)
    else:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        measures = {"products": products, "torch": lambda: ours("torch"), "jax": lambda: ours("jax")}
        print(measures[given.only]() if given.only in measures else peer(given.only))
