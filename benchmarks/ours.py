"""Cavalcade's side of a comparison, in a process of its own: steps/s of training after a warm-up.

    python benchmarks/ours.py ppo torch
    python benchmarks/ours.py dqn jax --profile
    python benchmarks/ours.py start torch

The settings are those of the peer's script: eight CartPoles, MLP 64x64, one thread, no evaluations.
"""

import os
import sys
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the command line does

SETTINGS = {
    # 128 steps of 8 environments, 4 epochs of 4 minibatches of 256
    "ppo": {"unroll": 128, "anneal": False, "normalise_rewards": False, "learning_rate": 1e-3},
    # plain DQN: batch 64, one update every four steps, made in groups of eight
    "dqn": {
        "n_step": 1,
        "double": False,
        "dueling": False,
        "update_every": 4,
        "updates_per_draw": 8,
        "target_period": 125,
        "hidden": (64, 64),
        "anneal": False,
        "epsilon_end": 0.05,
    },
}
WARM_UP = {"ppo": 5 * 1024, "dqn": 4_000}  # compilation and, for DQN, the steps before learning
MEASURED = {"ppo": 60_000, "dqn": 30_000}


def speed(algorithm: str, backend: str, profile: bool = False) -> float:
    """Steps/s; with `profile` also the microseconds of each role per step of the eight environments."""
    from cavalcade.experiment.experiment import Experiment, Settings

    settings = Settings(steps=200_000, backend=backend, evaluations=0, envs=8)
    runtime = Experiment.create(algorithm, "CartPole-v1", settings, SETTINGS[algorithm]).launch()
    actor = runtime.objects["actor/0"]
    while actor.steps < WARM_UP[algorithm]:
        runtime.round()
    runtime.reports()
    before, began = actor.steps, time.perf_counter()
    while actor.steps < before + MEASURED[algorithm]:
        runtime.round()
    seconds = time.perf_counter() - began
    if profile:
        turns = (actor.steps - before) / 8
        for report in runtime.reports().values():
            for role, amount in report.get("seconds", {}).items():
                print(f"{algorithm}_cartpole_{backend}_{role} {amount / turns * 1e6:.0f} us")
    return (actor.steps - before) / seconds


def first_update(backend: str) -> None:
    """Train until the first update is done; the caller times the whole process."""
    import tempfile

    import cavalcade

    with tempfile.TemporaryDirectory() as folder:
        cavalcade.train(
            "ppo", "CartPole-v1", steps=1_024, unroll=128, backend=backend, evaluations=0, out=f"{folder}/run"
        )


if __name__ == "__main__":
    if sys.argv[1] == "start":
        first_update(sys.argv[2])
    else:
        print(speed(sys.argv[1], sys.argv[2], profile="--profile" in sys.argv))
