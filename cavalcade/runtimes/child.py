"""One process of a program: builds its group's nodes, gives them their turns, and answers the driver.

A node that others reach from their own processes offers `share(consumer) -> service`: the service has an `address` to
be sent to the consumer's process, where `address.connect()` takes the node's place, a `step()` that gets a turn here, a
`reclaim()` for when the consumer has died, and a `close()`. Of a node without it, others see its counted steps.
"""

import ctypes
import os
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from cavalcade import checkpoint
from cavalcade.errors import Stopped, UserError
from cavalcade.program import Node, resolve
from cavalcade.saving import Saver

BEAT, STEPS = 0, 1  # words of each process: when it was last seen alive, environment steps it has counted
SHORTEST, LONGEST = 50e-6, 1e-3  # seconds of rest when nobody can move, doubled from one to the other
ASK = 2e-3  # seconds between two looks at the driver's messages


@dataclass(frozen=True)
class Job:
    """What a process is started with; plain data."""

    group: str
    index: int  # of its words
    nodes: list[Node]
    remote: dict[str, Any]  # addresses of nodes in other processes
    consumers: list[tuple[str, str]]  # (node here, node elsewhere that refers to it)
    words: Any  # address of the words of all processes
    incarnation: int = 0  # how often it was started before
    steps: int = 0  # counted by those before it
    restore: tuple[str, int] | None = None  # folder and step of a checkpoint


@dataclass(frozen=True)
class Counter:
    """A node in another process, seen from here: what it has counted."""

    words: Any
    index: int

    def connect(self) -> "Counted":
        return Counted(self.words.connect(), self.index)


class Counted:
    def __init__(self, words: np.ndarray, index: int):
        self.words, self.index = words, index

    @property
    def steps(self) -> int:
        return int(self.words[self.index, STEPS])


class Child:
    def __init__(self, job: Job, connection: Connection):
        self.job, self.connection = job, connection
        self.words: np.ndarray = job.words.connect()
        self.objects: dict[str, Any] = {name: address.connect() for name, address in job.remote.items()}
        self.mine: dict[str, Any] = {}
        for node in job.nodes:
            self._build(node)
        self.saver: Saver | None = None
        if job.restore:
            self._restore(*job.restore)
        self.services = {(name, consumer): self._share(name, consumer) for name, consumer in job.consumers}
        self.turns = [node.step for node in self.mine.values() if hasattr(node, "step")]
        self.turns += [service.step for service in set(self.services.values())]
        self.idle = 0.0
        self.stopping = False

    def _build(self, node: Node) -> None:
        args, kwargs = resolve((node.args, node.kwargs), self.objects)
        if node.placement.restart == "alone" and self.job.incarnation:
            kwargs = {**kwargs, "incarnation": self.job.incarnation}
        made = node.make(*args, **kwargs)
        if hasattr(made, "steps"):
            made.steps = self.job.steps
        self.objects[node.name] = self.mine[node.name] = made

    def _share(self, name: str, consumer: str) -> Any:
        return self.mine[name].share(consumer)

    def _restore(self, folder: str, step: int) -> None:
        for name, kept in checkpoint.load_step(Path(folder), step).items():
            self.mine[name].restore(kept)

    def run(self) -> None:
        addresses = {key: service.address for key, service in self.services.items()}
        self.connection.send(("ready", addresses))
        counting = [node for node in self.mine.values() if hasattr(node, "steps")]
        words, here = self.words, self.job.index
        rest, asked = SHORTEST, 0.0
        while not self.stopping:
            moved = False
            for turn in self.turns:
                moved |= bool(turn())
            now = time.monotonic()
            words[here, BEAT] = int(now * 1e6)
            for node in counting:
                words[here, STEPS] = node.steps
            if now - asked > ASK:
                asked = now
                while self.connection.poll(0):
                    self._answer(*self.connection.recv())
                self._tell_when_saved()
            if moved:
                rest = SHORTEST
            else:
                time.sleep(rest)
                self.idle += rest
                rest = min(LONGEST, 2 * rest)

    def _answer(self, what: str, *given: Any) -> None:
        if what == "stop":
            self.stopping = True
        elif what == "report":
            reports = {name: node.report() for name, node in self.mine.items() if hasattr(node, "report")}
            idle, self.idle = self.idle, 0.0
            self.connection.send(("report", reports, idle))
        elif what == "call":
            name, method, arguments = given
            self.connection.send(("reply", getattr(self.mine[name], method)(*arguments)))
        elif what == "reclaim":
            (consumer,) = given
            for (_, whose), service in self.services.items():
                if whose == consumer:
                    service.reclaim()
            self.connection.send(("reply", None))
        elif what == "save":
            folder, step = given
            self.saver = Saver(Path(folder))
            state = {name: node.state() for name, node in self.mine.items() if hasattr(node, "state")}
            self.saver.save(state, step)
            if not all(getattr(node, "copied", True) for node in self.mine.values()):
                self.saver.wait()

    def _tell_when_saved(self) -> None:
        if self.saver is not None and self.saver.finished():
            self.saver = None
            self.connection.send(("saved",))

    def close(self) -> None:
        for service in set(self.services.values()):
            service.close()
        for node in self.mine.values():
            if hasattr(node, "close"):
                node.close()


def main(payload: bytes, connection: Connection) -> None:
    """Where a process begins."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the driver decides
    import cloudpickle

    job: Job = cloudpickle.loads(payload)
    child: Child | None = None
    try:
        child = Child(job, connection)
        child.run()
    except (BrokenPipeError, EOFError, ConnectionResetError):
        pass  # the driver has gone, and so do we
    except Stopped:
        pass  # what we write to was closed: the program ends
    except BaseException as error:
        said = str(error) if isinstance(error, UserError) else traceback.format_exc()
        try:
            connection.send(("failed", said, f"{type(error).__name__}: {error}", isinstance(error, UserError)))
        finally:
            sys.exit(1)
    finally:
        if child is not None:
            child.close()


def die_with_parent() -> None:
    """Whatever kills the driver ends its processes too, even one that is stuck in an environment (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
