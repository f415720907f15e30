"""One process of a program on one machine: builds its group's nodes, gives them turns, and answers the driver.

A node that nodes in other processes refer to offers `share(consumer) -> service`. The service has an `address`, which
is sent to the consumer's process, where `address.connect()` stands in for the node; a `step()` that gets turns here; a
`reclaim()` for when the consumer has died; and a `close()`. Of a node without `share`, consumers see its counted steps
only.

A process in which no node can move rests until a neighbour rings its bell. Both ends of an edge have an attribute
`ring`, which is set here; an end calls it when the other end has something to do.
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

WORDS = 8  # shared words of each process: a cache line
# indices among them: microseconds (monotonic) of the last turns; counted steps; the bell, which takes two words;
# microseconds when a node last moved
BEAT, STEPS, BELL, MOVED = 0, 1, 2, 4
ASK = 2e-3  # seconds between two looks at the driver's messages


@dataclass(frozen=True)
class Job:
    """What a process is started with; plain data."""

    group: str
    index: int  # of the process, in the words of all processes
    nodes: list[Node]
    remote: dict[str, Any]  # by node in another process that is referred to here: its address
    consumers: list[tuple[str, str]]  # (node here, node in another process that refers to it)
    words: Any  # address of the words [processes, WORDS] of all processes
    places: dict[str, int]  # by node of the program: the index of its process
    incarnation: int = 0  # how often this group was started before
    steps: int = 0  # counted by its earlier incarnations
    budget: int = 0  # steps that all processes may count together; 0: no end
    restore: tuple[str, int] | None = None  # folder and step of a checkpoint


@dataclass(frozen=True)
class Counter:
    """The address of a node in another process of which only the counted steps can be seen."""

    words: Any
    index: int

    def connect(self) -> "Counted":
        return Counted(self.words.connect(), self.index)


class Counted:
    """Stands in for such a node."""

    def __init__(self, words: np.ndarray, index: int):
        self.words, self.index = words, index

    @property
    def steps(self) -> int:
        return int(self.words[self.index, STEPS])


class Child:
    """The group of one process, its words and its connection to the driver."""

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
        """Give turns, rest when nobody moves, and answer the driver, until it says stop."""
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
        """Rest for up to `seconds`; returns whether a neighbour has rung since the count `before`."""
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
    """Where a process begins. It imports the modules it will need while it waits for its job, which the driver sends
    when all processes that it refers to are ready."""
    die_with_parent()
    for number in (signal.SIGINT, signal.SIGTERM):  # a terminal sends them to all processes, but the driver decides
        signal.signal(number, signal.SIG_IGN)
    import cloudpickle

    for name in imports:
        with contextlib.suppress(ImportError):  # the code that needs the module gives a better message
            importlib.import_module(name)
    child: Child | None = None
    code = 0
    try:
        what, *given = connection.recv()
        if what == "job":  # else "stop": the program ends before it began
            child = Child(cloudpickle.loads(given[0]), connection)
            child.run()
    except (BrokenPipeError, EOFError, ConnectionResetError):
        pass  # the driver has gone, so this process ends too
    except Stopped:
        pass  # a node that this process needs was closed: the program ends
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
    """End the process at once, after everything was closed: taking the interpreter apart takes up to a second with
    torch."""
    atexit._run_exitfuncs()
    sys.stdout.flush(), sys.stderr.flush()
    os._exit(code)


def die_with_parent() -> None:
    """Let the system kill this process when the driver ends, even if it is stuck in an environment (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
