"""One process of a program: builds its group's nodes, gives them their turns, and answers the driver.

A node that others reach from their own processes offers `share(consumer) -> service`: the service has an `address` to
be sent to the consumer's process, where `address.connect()` takes the node's place, a `step()` that gets a turn here, a
`reclaim()` for when the consumer has died, and a `close()`. Of a node without it, others see its counted steps.

A process in which nobody can move rests until a neighbour rings: an end of an edge has an attribute `ring`, set here,
to be called when the other end has something to do.
"""

import atexit
import contextlib
import ctypes
import importlib
import os
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from cavalcade.checkpoints import Saver, checkpoint
from cavalcade.errors import Stopped
from cavalcade.failures import Failure
from cavalcade.programs import Node
from cavalcade.runtimes.group import Group
from cavalcade.transport import Bell

WORDS = 8  # of each process, a cache line of its own
# when it was last seen alive; environment steps it has counted; by what it can be woken; when anybody last moved
BEAT, STEPS, BELL, MOVED = 0, 1, 2, 3
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
    places: dict[str, int]  # of all nodes of the program: the index of their process's words
    incarnation: int = 0  # how often it was started before
    steps: int = 0  # counted by those before it
    budget: int = 0  # steps that all processes may count together; 0: no end
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
        self.bell = self._bell(job.index)
        others = {name: self._connected(name, to) for name, to in job.remote.items()}
        self.group = Group(job.nodes, others, job.incarnation, job.steps)
        self.saver: Saver | None = None
        if job.restore:
            folder, step = job.restore
            self.group.restore(checkpoint.load_step(Path(folder), step))
        for (_, consumer), service in self.group.offer(job.consumers).items():
            service.ring = self._bell(job.places[consumer])
        self.stopping = False

    def _bell(self, index: int) -> Bell:
        return Bell(self.words.reshape(-1), index * WORDS + BELL)

    def _connected(self, name: str, address: Any) -> Any:
        made = address.connect()
        made.ring = self._bell(self.job.places[name])
        return made

    def run(self) -> None:
        addresses = {key: service.address for key, service in self.group.services.items()}
        self.connection.send(("ready", addresses))
        words, here, group, asked = self.words, self.job.index, self.group, 0.0
        counted, budget = words[:, STEPS], self.job.budget if group.counting else 0
        while not self.stopping:
            rung, began = self.bell.rung(), time.monotonic()
            moved = group.take_turns(not budget or sum(counted.tolist()) < budget)
            now = time.monotonic()
            words[here, BEAT] = beat = int(now * 1e6)
            if moved:
                words[here, MOVED] = beat
            if group.counting:
                words[here, STEPS] = group.steps
            if now - asked > ASK:
                asked = now
                while self.connection.poll(0):
                    self._answer(*self.connection.recv())
                self._tell_when_saved()
            group.rest(moved, began, partial(self._rung, rung))

    def _rung(self, before: int, seconds: float) -> bool:
        self.bell.rest(before, seconds)
        return self.bell.rung() > before

    def _answer(self, what: str, *given: Any) -> None:
        if what == "stop":
            self.stopping = True
        elif what == "report":
            self.connection.send(("report", *self.group.reports()))
        elif what == "call":
            self.connection.send(("reply", self.group.call(*given)))
        elif what == "reclaim":
            self.group.reclaim(*given)
            self.connection.send(("reply", None))
        elif what == "save":
            folder, step = given
            self.saver = Saver(Path(folder))
            self.saver.save(self.group.state(), step)
            if not self.group.copied:
                self.saver.wait()

    def _tell_when_saved(self) -> None:
        if self.saver is not None and self.saver.finished():
            self.saver = None
            self.connection.send(("saved",))

    def close(self) -> None:
        if self.saver is not None:
            self.saver.wait()
        self.group.close()


def main(connection: Connection, imports: list[str]) -> None:
    """Where a process begins. What it is to do it is told when those it refers to are there; in the meantime it imports
    what will be needed."""
    die_with_parent()
    for number in (signal.SIGINT, signal.SIGTERM):  # they may reach the whole group of processes; the driver decides
        signal.signal(number, signal.SIG_IGN)
    import cloudpickle

    for name in imports:
        with contextlib.suppress(ImportError):  # who needs it says so better
            importlib.import_module(name)
    child: Child | None = None
    code = 0
    try:
        what, *given = connection.recv()
        if what == "job":  # else the program ends before it began
            child = Child(cloudpickle.loads(given[0]), connection)
            child.run()
    except (BrokenPipeError, EOFError, ConnectionResetError):
        pass  # the driver has gone, and so do we
    except Stopped:
        pass  # what we write to was closed: the program ends
    except BaseException as error:
        code = 1
        with contextlib.suppress(OSError):
            connection.send(("failed", Failure.of(error)))
    try:
        if child is not None:
            child.close()
    except BaseException:
        code = 1
        traceback.print_exc()
    leave(code)


def leave(code: int) -> None:
    """All was closed. What remains is taking the interpreter apart, which with torch takes up to a second."""
    atexit._run_exitfuncs()
    sys.stdout.flush(), sys.stderr.flush()
    os._exit(code)


def die_with_parent() -> None:
    """Whatever kills the driver ends its processes too, even one that is stuck in an environment (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
