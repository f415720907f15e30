"""How many threads learn: by what a minibatch costs, and whether others of the run want the cores at the same time."""

import os
import subprocess
import sys

import pytest

from cavalcade.experiment import Experiment, Settings
from cavalcade.experiment.experiment import multiply_adds

LARGE = {"unroll": 16, "epochs": 1}


def threads(monkeypatch, system="ppo", algorithm=LARGE, **settings):
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    run = Settings(**{"steps": 1_000_000, "evaluations": 0, "envs": 2_048, **settings})
    return Experiment.create(system, "CartPole-v1", run, algorithm).parts.threads


@pytest.mark.parametrize(
    "expected, case",
    [
        (4, {}),
        (1, {"envs": 8}),
        (1, {"runtime": "process"}),  # actors have the other cores
        (3, {"threads": 3}),
        (4, {"system": "a2c", "algorithm": {"unroll": 16}}),  # one update from all unrolls
        (1, {"system": "dqn", "algorithm": {}}),
        (4, {"system": "dqn", "algorithm": {"batch": 1_024, "hidden": (256, 256), "replay_start": 5_000}}),
    ],
)
def test_minibatches_that_are_worth_it_are_shared_among_all_cores(monkeypatch, expected, case):
    assert threads(monkeypatch, **case) == expected


@pytest.mark.parametrize("memory", [0, 8])
def test_what_a_minibatch_costs(memory):
    """4 unrolls of 6 steps in 2 minibatches: 12 steps in each, cut by steps or, with memory, by unrolls."""
    settings = {"unroll": 6, "minibatches_per_epoch": 2, "memory": memory}
    parts = Experiment.create("ppo", "CartPole-v1", Settings(steps=1_000, envs=4), settings).parts
    assert multiply_adds(parts) == 12 * parts.policy().layout.size


@pytest.mark.parametrize("chosen, expected", [("", "1000"), ("7", "7")])
def test_threads_of_torch_do_not_wait_awake_for_long(chosen, expected):
    script = "import os; from cavalcade import backends; backends.load('numpy'); print(os.environ['GOMP_SPINCOUNT'])"
    own = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
    environment = {**own, **({"GOMP_SPINCOUNT": chosen} if chosen else {})}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert done.stdout.strip() == expected, done.stderr[-2000:]


def test_threads_reach_xla():
    script = """
import os
from cavalcade import backends
xp = backends.load("jax", 3).xp
(xp.ones((600, 600)) @ xp.ones((600, 600))).block_until_ready()
names = [open(f"/proc/self/task/{number}/comm").read() for number in os.listdir("/proc/self/task")]
print(sum("XLA" in name for name in names))
"""
    own = {name: value for name, value in os.environ.items() if name not in ("NPROC", "PJRT_NPROC")}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=own)
    assert done.stdout.strip() == "3", done.stderr[-2000:]
