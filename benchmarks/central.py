"""Central acting as a share of the bare forward pass: what a service with two workers of eight environments answers in
a second, against `policy.act` alone on batches of sixteen.

    python benchmarks/central.py            both networks
    python benchmarks/central.py mlp        one of them
    python benchmarks/central.py --repeats 7

Prints `name value unit` for each figure and `name_share value x` for each comparison. The service does all that it does
in a run: it joins requests, acts, answers, writes rows and inserts unrolls. `service` counts all of its own time, with
workers that answer at once; `processes` is a whole program by the clock, with workers in processes of their own whose
environments cost next to nothing, on however many cores there are. Of both, `acting` leaves out rows and inserts, which
an actor beside its environments has to write as well: it is the way from requests to replies.
"""

import argparse
import statistics
import time

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from cavalcade.central import CentralActor
from cavalcade.env_worker import EnvWorker
from cavalcade.experiment import Experiment, Settings
from cavalcade.program import Placement, Program
from cavalcade.runtimes.processes import Processes

WORKERS, ENVS, UNROLL = 2, 8, 20
SECONDS = 1.0  # of each measurement


class Still(VectorEnv):
    """Environments that cost nothing: always the same observation, episodes of 500 steps."""

    def __init__(self, num_envs: int, space: gym.Space, actions: int):
        self.num_envs, self.metadata = num_envs, {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_observation_space, self.single_action_space = space, gym.spaces.Discrete(actions)
        self.observation_space = gym.vector.utils.batch_space(space, num_envs)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, num_envs)
        self.obs, self.reward = self.observation_space.sample(), np.ones(num_envs)
        self.no = np.zeros(num_envs, bool)

    def reset(self, *, seed=None, options=None):
        return self.obs, {}

    def step(self, actions):
        return self.obs, self.reward, self.no, self.no, {}


def mlp(num_envs: int) -> Still:
    return Still(num_envs, gym.spaces.Box(-1.0, 1.0, (4,), np.float32), 2)


def cnn(num_envs: int) -> Still:
    return Still(num_envs, gym.spaces.Box(0, 255, (4, 84, 84), np.uint8), 6)


NETWORKS = {  # environment, backend, settings
    "mlp": (mlp, "numpy", {"hidden": (64, 64)}),
    "cnn": (cnn, "torch", {"convolution": "nature"}),
}


class Drain:
    """In the place of a learner: draws what waits, learns nothing."""

    def __init__(self, table, batch: int):
        self.table, self.batch = table, batch

    def latest(self, known: int) -> None:
        return None

    def step(self) -> bool:
        return self.table.sample(self.batch) is not None


def parts(network: str, runtime: str):
    environment, backend, more = NETWORKS[network]
    settings = Settings(backend=backend, actors=WORKERS, envs=ENVS, runtime=runtime, evaluations=0, threads=1)
    return Experiment.create("impala", environment, settings, {"unroll": UNROLL, **more}).parts


def bare(network: str) -> float:
    """Environment steps a second of the forward pass alone."""
    x = parts(network, "inprocess")
    policy, count, rng = x.policy(), WORKERS * ENVS, np.random.default_rng(0)
    noise = x.algorithm.noise(x.spec, rng, count, (0, 0, 1))
    obs, first = x.spec.zeros(count), np.zeros(count, np.bool_)
    done, end = 0, time.perf_counter() + SECONDS
    began = time.perf_counter()
    while time.perf_counter() < end:
        policy.act(obs, {}, first, noise)
        done += count
    return done / (time.perf_counter() - began)


def service(network: str) -> tuple[float, float]:
    """The same of a service, by all of its own time and by what it books as acting."""
    x = parts(network, "inprocess")
    table = x.table()
    learner = Drain(table, x.experience.batch)
    central = CentralActor(x.policy, x.experience, table, learner, ENVS)
    workers = [EnvWorker(x.environments, x.algorithm, x.spec, central, 0, i, WORKERS) for i in range(WORKERS)]
    spent, end = 0.0, time.perf_counter() + 2 * SECONDS
    while time.perf_counter() < end:
        began = time.perf_counter()
        central.step()
        spent += time.perf_counter() - began
        for worker in workers:
            worker.step()
        learner.step()
    done = sum(worker.steps for worker in workers)
    acting = central.report()["seconds"]["acting"]
    for worker in workers:
        worker.close()
    central.close()
    table.close()
    return done / spent, done / acting


def processes(network: str) -> tuple[float, float]:
    """The same of a whole program: by the clock, and by what the service books as acting."""
    x = parts(network, "process")
    program = Program("central")
    with program.group("learner"):
        table = program.add("table", x.table)
        drain = program.add("learner", Drain, table, x.experience.batch)
        central = program.add("central", CentralActor, x.policy, x.experience, table, drain, ENVS)
    for i in range(WORKERS):
        numbers = {"seed": 0, "actor": i, "actors": WORKERS, "placement": Placement(restart="alone")}
        program.add("actor", EnvWorker, x.environments, x.algorithm, x.spec, central, **numbers)
    running = Processes(program)
    try:
        while running.steps("actor") < 2_000:
            running.round()
        running.reports()
        before, began = running.steps("actor"), time.perf_counter()
        while time.perf_counter() < began + 2 * SECONDS:
            running.round()
        seconds, acting = time.perf_counter() - began, running.reports()["central"]["seconds"]["acting"]
        done = running.steps("actor") - before
        return done / seconds, done / acting
    finally:
        running.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", nargs="?", choices=NETWORKS, help="only this one")
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    names = ("service", "service_acting", "processes", "processes_acting")
    for network in [given.network] if given.network else NETWORKS:
        found: dict[str, list[float]] = {name: [] for name in ("bare", *names)}
        for _ in range(given.repeats):
            for name, value in zip(found, (bare(network), *service(network), *processes(network))):
                found[name].append(value)
        medians = {name: statistics.median(values) for name, values in found.items()}
        for name, value in medians.items():
            print(f"central_{network}_{name} {value:.4g} steps/s", flush=True)
        for name in names:
            print(f"central_{network}_{name}_share {medians[name] / medians['bare']:.2f} x", flush=True)


if __name__ == "__main__":
    main()
