"""Central acting as a share of the bare forward pass: what a service with two workers answers in a second, against
`policy.act` alone on prepared batches of the same size, for several sizes.

    python benchmarks/central.py            both networks
    python benchmarks/central.py mlp        one of them
    python benchmarks/central.py --repeats 7

Prints `name value unit` for each figure and `name_share value x` for each comparison, and from which batch the service
does half of what the forward pass alone does. Small networks act in NumPy, and `bare` is that forward pass; `torch` is
the same network in torch, which takes two to three times as long for small batches. Shares of both are printed.

The service does all that it does in a run: it joins requests, acts, answers, writes rows and inserts unrolls. `service`
counts all of its own processor time, with clients that ask again at once; `processes` is a whole program by the clock,
with workers in processes of their own whose environments cost next to nothing, on however many cores there are. Of
both, `acting` leaves out rows and inserts, which an actor beside its environments has to write as well: it is the way
from requests to replies.
"""

import argparse
import math
import os
import statistics
import time

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # as in a run's processes, before NumPy is there

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from cavalcade.acting.central import CentralActor
from cavalcade.acting.env_worker import EnvWorker
from cavalcade.experiment.experiment import Experiment, Settings
from cavalcade.programs.program import Placement, Program
from cavalcade.programs.stopwatch import Stopwatch
from cavalcade.runtimes.processes import Processes

WORKERS, UNROLL = 2, 20
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


NETWORKS = {  # environment, backend, settings, batches: environments of all workers
    "mlp": (mlp, "numpy", {"hidden": (64, 64)}, (16, 64, 128, 256, 1024)),
    "cnn": (cnn, "torch", {"convolution": "nature"}, (16, 64)),
}


class Drain:
    """In the place of a learner: draws what waits, learns nothing."""

    def __init__(self, table, batch: int):
        self.table, self.batch = table, batch

    def latest(self, known: int) -> None:
        return None

    def step(self) -> bool:
        return self.table.sample(self.batch) is not None


class Echo:
    """In the place of a worker: asks again as soon as it is answered."""

    def __init__(self, central: CentralActor, number: int):
        self.layout, self.answers = central.layout, 0
        self.desk = central.desk(f"actor/{number}")
        self.rows = central.layout.blank(central.envs)["rows"]
        self._send(first=True, stepped=False)

    def _send(self, first: bool, stepped: bool) -> None:
        told = self.layout.fields(self.rows)
        told["first"][:], told["valid"][:] = first, stepped
        self.desk.send({"rows": self.rows, "about": (0, stepped, False, False)})

    def step(self) -> None:
        if self.desk.take() is None:
            return
        self.answers += 1
        if self.answers == 1:
            self._send(first=False, stepped=True)
        else:
            self.desk.send({})  # the same as before


class ProcessorTime(Stopwatch):
    def start(self) -> None:
        self.last = time.thread_time()

    def lap(self, role: str) -> None:
        now = time.thread_time()
        self.seconds[role] = self.seconds.get(role, 0.0) + now - self.last
        self.last = now


def parts(network: str, batch: int, runtime: str, acts_in: str = "auto"):
    environment, backend, more, _ = NETWORKS[network]
    settings = Settings(
        backend="torch" if acts_in == "backend" else backend,
        actors=WORKERS,
        envs=batch // WORKERS,
        runtime=runtime,
        evaluations=0,
        threads=1,
        acts_in=acts_in,
    )
    return Experiment.create("impala", environment, settings, {"unroll": UNROLL, "batch": batch, **more}).parts


def service(network: str, batch: int) -> tuple[float, float, float, float]:
    """Environment steps a second of the forward pass alone, of the same in torch, of a service, and of what it books as
    acting: medians over whole unrolls, forward passes and the service in turn, so that all meet the same neighbours."""
    x = parts(network, batch, "inprocess")
    envs, table = batch // WORKERS, x.table()
    learner = Drain(table, x.experience.batch)
    central = CentralActor(x.policy, x.experience, [table], learner, envs)
    central.watch = watch = ProcessorTime()
    clients = [Echo(central, number) for number in range(WORKERS)]
    policies = (x.policy(), parts(network, batch, "inprocess", "backend").policy())
    noise = x.algorithm.noise(x.spec, np.random.default_rng(0), batch, (0, 0, 1))
    obs, first = x.spec.zeros(batch), np.zeros(batch, np.bool_)
    spent: list[tuple[float, ...]] = []
    end = time.perf_counter() + 2 * SECONDS
    while time.perf_counter() < end or len(spent) < 5:
        seconds, batches = 0.0, central.batches
        watch.seconds = {}
        while central.batches < batches + UNROLL:
            began = time.thread_time()
            central.step()
            seconds += time.thread_time() - began
            for client in clients:
                client.step()
            learner.step()
        alone = []
        for policy in policies:
            policy.act(obs, {}, first, noise)  # the caches are its own again
            began = time.thread_time()
            for _ in range(UNROLL):
                policy.act(obs, {}, first, noise)
            alone.append(time.thread_time() - began)
        spent.append((*alone, seconds, watch.seconds["acting"]))
    central.close()
    table.close()
    bare, in_torch, whole, acting = (batch * UNROLL / statistics.median(column) for column in zip(*spent))
    return bare, in_torch, whole, acting


def processes(network: str, batch: int) -> tuple[float, float]:
    """The same of a whole program: by the clock, and by what the service books as acting."""
    x = parts(network, batch, "process")
    program = Program("central")
    with program.group("learner"):
        table = program.add("table", x.table)
        drain = program.add("learner", Drain, table, x.experience.batch)
        central = program.add("central", CentralActor, x.policy, x.experience, [table], drain, x.envs)
    for i in range(WORKERS):
        numbers = {"seed": 0, "actor": i, "actors": WORKERS, "placement": Placement(restart="alone")}
        program.add("actor", EnvWorker, x.environments, x.algorithm, x.spec, central, **numbers)
    running = Processes(program)
    try:
        while running.steps() < 20 * batch:
            running.round()
        running.reports()
        before, began = running.steps(), time.perf_counter()
        while time.perf_counter() < began + 2 * SECONDS:
            running.round()
        seconds, acting = time.perf_counter() - began, running.reports()["central"]["seconds"]["acting"]
        done = running.steps() - before
        return done / seconds, done / acting
    finally:
        running.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", nargs="?", choices=NETWORKS, help="only this one")
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    names = ("bare", "torch", "service", "service_acting", "processes", "processes_acting")
    for network in [given.network] if given.network else NETWORKS:
        shares = {}
        for batch in NETWORKS[network][-1]:
            runs = [(*service(network, batch), *processes(network, batch)) for _ in range(given.repeats)]
            medians = dict(zip(names, map(statistics.median, zip(*runs))))
            for name, value in medians.items():
                print(f"central_{network}_{batch}_{name} {value:.4g} steps/s", flush=True)
            for name in names[2:]:
                shares_of = (
                    f"{medians[name] / medians['bare']:.2f} x # of torch's {medians[name] / medians['torch']:.2f}"
                )
                print(f"central_{network}_{batch}_{name}_share {shares_of}", flush=True)
            shares[batch] = medians["service"] / medians["bare"]
        print(f"central_{network}_half_at {half_at(shares)}", flush=True)


def half_at(shares: dict[int, float]) -> str:
    """From which batch the service does half of the forward pass alone, between two that were measured."""
    smaller: tuple[int, float] | None = None
    for batch, share in shares.items():
        if share >= 0.5:
            if smaller is None:
                return f"{batch} environments or fewer"
            part = (0.5 - smaller[1]) / (share - smaller[1])
            return f"{math.exp(math.log(smaller[0]) + part * math.log(batch / smaller[0])):.0f} environments"
        smaller = batch, share
    return f"more than {max(shares)} environments"


if __name__ == "__main__":
    main()
