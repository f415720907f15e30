"""What each edge costs here, for scale.py: real actors, ports, tables and learners, in turns in one process.

Costs are processor time of all threads, so other work on the machine changes them little.
"""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import psutil
from run import HERE
from runtimes_ours import ALL, training, window
from scale import Place, Work, predict

from cavalcade.experiment.experiment import Experiment, Settings
from cavalcade.programs.program import resolve
from cavalcade.transport.broadcast import Broadcast

# name -> (system, environment, environments of an actor, settings, updates before measuring, seconds measured)
TASKS: dict[str, tuple[str, str, int, dict[str, Any], int, float]] = {
    "impala CartPole, MLP 64x64": ("impala", "CartPole-v1", 32, {"unroll": 32, "batch": 32}, 80, 6.0),
    "impala Pong, Nature CNN": ("impala", "ALE/Pong-v5", 8, {"unroll": 32, "batch": 16}, 2, 12.0),
    "apex-dqn CartPole, MLP 64x64": ("apex-dqn", "CartPole-v1", 8, {}, 200, 6.0),
}
SIZES = (1, 8, 32, 128)  # observations acted on at once
CHECKED = "impala CartPole-v1 --envs 32 --unroll 32 --batch 32 --rows 5000"


class Rig:
    """An actor that writes through a port, the table and the learner behind it, all in this process."""

    def __init__(self, system: str, environment: str, envs: int, settings: dict[str, Any]):
        run = Settings(steps=20_000_000, runtime="process", envs=envs, evaluations=0)
        self.experiment = Experiment.create(system, environment, run, settings)
        self.parts = self.experiment.parts
        self.objects: dict[str, Any] = {}
        for name, node in self.experiment.program().nodes.items():
            seen, is_actor = dict(self.objects), name.startswith("actor")
            if is_actor:
                self.services = {edge: self.objects[edge].share(name) for edge in dict.fromkeys(node.edges())}
                seen |= {edge: service.address.connect() for edge, service in self.services.items()}
            args, kwargs = resolve((node.args, node.kwargs), seen)
            self.objects["actor" if is_actor else name] = node.make(*args, **kwargs)
        self.actor, self.learner, self.port = self.objects["actor"], self.objects["learner"], self.services["table"]

    def close(self) -> None:
        for service in self.services.values():
            service.close()
        for node in self.objects.values():
            if hasattr(node, "close"):
                node.close()

    def costs(self, updates_before: int, seconds: float) -> dict[str, float]:
        """Processor seconds of every turn that moved, how many there were, and the actor's and learner's roles."""
        while self.learner.version < updates_before:
            self._turns({})
        self.actor.report(), self.learner.report()
        found: dict[str, float] = {}
        frames, version, end = self.actor.steps, self.learner.version, time.process_time() + seconds
        while time.process_time() < end:
            self._turns(found)
        found |= {"frames": self.actor.steps - frames, "updates": self.learner.version - version}
        for who, node in (("actor", self.actor), ("learner", self.learner)):
            laps = {role: spent for role, spent in node.report()["seconds"].items() if role not in ("wall", "waiting")}
            processor = found[who] / sum(laps.values())  # of a second on the clock
            found |= {f"{who}/{role}": spent * processor for role, spent in laps.items()}
        return found

    def _turns(self, found: dict[str, float]) -> None:
        for name, turn in (("actor", self.actor.step), ("port", self.port.step), ("learner", self.learner.step)):
            began = time.process_time()
            if turn():
                found[name] = found.get(name, 0.0) + time.process_time() - began
                found[f"{name} turns"] = found.get(f"{name} turns", 0.0) + 1


class Costs:
    def __init__(self) -> None:
        self.lines: list[str] = []  # to be printed
        block = np.random.default_rng(0).random(1 << 20, np.float32)
        target = np.zeros_like(block)
        self.copy = block.nbytes / _each(lambda: np.copyto(target, block))
        self._say("memcpy of 4 MB", block.nbytes / self.copy)
        sender = Broadcast({"vector": block})
        reader = sender.address.connect()
        self._say("publish 4 MB", _each(lambda: sender.publish(sender.count + 1, {"vector": block})))
        self._say("pull 4 MB", _each(lambda: reader.latest(-1)))
        sender.close()
        self._say("request and reply, on the clock", _printed("runtimes_ours.py", "request")["call"])
        ray = _printed("peer_ray_call.py")
        self.call, self.call_of_many = ray["call"], ray["call_of_many"]
        self._say("Ray call, on the clock", self.call)
        self._say("Ray call of many", self.call_of_many)

    def _say(self, what: str, seconds: float) -> None:
        self.lines.append(f"{what:48}{seconds * 1e6:12,.1f}")

    def works(self) -> list[Work]:
        found = [self._work(name, *task) for name, task in TASKS.items()]
        return [*found, replace(found[-1], name=f"{found[-1].name}, at its own rate", own_rate=True)]

    def _work(
        self, name: str, system: str, environment: str, envs: int, settings: dict, before: int, seconds: float
    ) -> Work:
        rig = Rig(system, environment, envs, settings)
        try:
            found = rig.costs(before, seconds)
            steps, messages, updates = found["frames"] / envs, found["port turns"], found["updates"]
            draws = found["learner turns"]
            for role in ("environment", "acting", "pulling", "storing"):
                if f"actor/{role}" in found:
                    self._say(f"{name}: {role}, step of {envs}", found[f"actor/{role}"] / steps)
            self._say(f"{name}: insert through the port", found["port"] / messages)
            self._say(f"{name}: draw", found.get("learner/storing", 0.0) / draws)
            self._say(f"{name}: update and publish ({updates / draws:g} a draw)", found["learner/learning"] / draws)
            for size in SIZES:
                self._say(f"{name}: acting on {size}", self._acting(rig, size))
            bytes_of = found["frames"] / messages * rig.parts.signature.rows.bytes
            params = 4.0 * rig.actor.policy.layout.size
        finally:
            rig.close()
        return Work(
            name,
            frames=found["frames"] / messages,
            making=found["actor"] / messages,
            table=found["port"] / messages,
            updates=updates / messages,
            learning=found["learner"] / updates,
            bytes=bytes_of,
            params=params,
        )

    def _acting(self, rig: Rig, size: int) -> float:
        policy = rig.parts.policy()
        model, algorithm = policy.model, policy.algorithm
        obs = np.resize(rig.actor.obs, (size, *rig.actor.obs.shape[1:]))
        from cavalcade.algorithms.contract import Clock

        noise = algorithm.noise(model.spec, np.random.default_rng(0), size, Clock(0, 0, 1))
        carry, first = model.carry(size), np.zeros(size, np.bool_)
        return _each(lambda: policy.act(obs, carry, first, noise))


def check(work: Work, copy: float, seconds: float = 10.0, before: float = 6.0) -> None:
    """Predicted against measured, on this machine: the queue as the model has it, the cores that others left us."""
    print(f"\n{work.name} on {os.cpu_count()} cores, predicted and measured (local processes):")
    print("| actors | cores left to us | frames/s predicted | measured | ratio | lag predicted | measured |")
    print("| --- " * 7 + "|")
    for actors in (1, 2, 4):
        queue = round(work.room(actors) * work.updates - 1.0)
        command = f"{CHECKED} {ALL.replace('--actors 2', f'--actors {actors}')} --queue-batches {queue}"
        with training(command) as (process, metrics):
            usage = Usage(process.pid)
            start, end = window(process, metrics, seconds, before, usage.begin)
            cores = usage.left()
        spent = end["time"] - start["time"]
        measured, lag = (end["step"] - start["step"]) / spent, end.get("policy_lag", float("nan"))
        expected = predict(work, actors, Place(1, cores, copy))
        print(
            f"| {actors} | {cores:.2f} | {expected.frames:,.0f} | {measured:,.0f} | {measured / expected.frames:.2f} | "
            f"{expected.lag:.1f} | {lag:.1f} |",
            flush=True,
        )


class Usage:
    """Cores of this machine that were not used by others than a process and all below it."""

    def __init__(self, pid: int):
        self.top = psutil.Process(pid)

    def begin(self) -> None:
        self.clock, self.all, self.own = self._now()

    def _now(self) -> tuple[float, float, float]:
        own = 0.0
        for process in (self.top, *self.top.children(recursive=True)):
            times = process.cpu_times()
            own += times.user + times.system
        whole = psutil.cpu_times()
        return time.perf_counter(), whole.user + whole.nice + whole.system + whole.softirq + whole.steal, own

    def left(self) -> float:
        clock, busy, own = (now - then for now, then in zip(self._now(), (self.clock, self.all, self.own)))
        return max(0.1, (os.cpu_count() or 1) - max(0.0, busy - own) / clock)


def _each(call: Callable[[], Any], seconds: float = 0.5) -> float:
    """The median processor time of a call, of nine pieces."""
    call()
    began, count = time.process_time(), 0
    while time.process_time() - began < seconds / 10:
        call()
        count += 1
    pieces = []
    for _ in range(9):
        began = time.process_time()
        for _ in range(count):
            call()
        pieces.append((time.process_time() - began) / count)
    return statistics.median(pieces)


def _printed(script: str, *arguments: str) -> dict[str, float]:
    done = subprocess.run([sys.executable, str(HERE / script), *arguments], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{script} failed:\n{done.stderr[-2000:]}")
    lines = [line.split() for line in done.stdout.splitlines()]
    return {line[0]: float(line[1]) for line in lines if len(line) == 3 and line[2] == "s"}
