"""Local processes: one for each group of nodes. Arrays lie in shared memory; messages are only for control.

The driver starts the processes, asks them for reports, and watches them. A process that fails or hangs is started anew
if `Placement.restart` of its nodes says so; otherwise the program has failed, and the session that drives it goes on
from the last checkpoint.
"""

import contextlib
import multiprocessing
import os
import signal
import sys
import time
import types
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from cavalcade.errors import UserError
from cavalcade.failures import Failure
from cavalcade.programs import Program
from cavalcade.runtimes import child
from cavalcade.runtimes.child import BEAT, MOVED, STEPS, WORDS, Counter, Job
from cavalcade.runtimes.supervision import Member, Supervisor, packed
from cavalcade.transport import SharedWords, sweep, sweep_dead

PAUSE = 0.02  # seconds between two looks at the processes
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


@dataclass(eq=False)
class Process(Member):
    """A local process, as the driver knows it."""

    connection: Connection | None = None
    told: bool = False  # whether its job was sent


class Processes(Supervisor):
    """A program in local processes."""

    quiet = 0.06  # seconds: three of the longest rests of a process in which nobody can move

    def __init__(self, program: Program, hang_seconds: float = 60.0, restore: tuple[Path, int, dict] | None = None):
        """`restore`: folder, step and the driver's part of a checkpoint."""
        super().__init__(program, hang_seconds, restore, Process)
        self.context = multiprocessing.get_context("spawn")
        self.answers: dict[str, list[tuple]] = {}  # by group: messages that nobody has read yet
        self.addresses: dict[tuple[str, str], Any] = {}  # of services, by (node, consumer)
        sweep_dead()
        self.words = SharedWords((len(self.members), WORDS))
        try:
            for member in self.members:
                self.words.array[member.index, STEPS] = member.steps
                self._start(member)
            while not all(member.ready for member in self.members):
                self._get_ready()
        except BaseException:
            self.close()
            raise

    # --- starting -----------------------------------------------------------------------------------------------------

    def _start(self, member: Process) -> None:
        """Start a process without its job. All processes start at the same time and import modules, though each can be
        built only after those that it refers to."""
        imports = sorted({name for node in member.nodes for name in node.placement.imports})
        ours, theirs = self.context.Pipe()
        with _one_thread_each(), _without_the_script():
            member.process = self.context.Process(
                target=child.main, args=(theirs, imports), name=f"cavalcade {member.group}", daemon=True
            )
            member.process.start()
        theirs.close()
        member.connection, member.ready, member.told, member.started = ours, False, False, time.monotonic()
        self.words.array[member.index, [BEAT, MOVED]] = 0

    def _tell(self, member: Process) -> None:
        """Send a process its job; all processes that it refers to must be ready."""
        restore = None
        if self.restored and not member.alone:
            restore = (str(self.restored[0] / member.group), self.restored[1])
        job = Job(
            member.group,
            member.index,
            member.nodes,
            {edge: self._address(edge, consumer) for edge, consumer in member.edges},
            self.program.consumers(member.nodes),
            self.words.address,
            {node: member.index for node, member in self.where.items()},
            member.incarnation,
            self._steps(member),
            self.program.budget,
            restore,
        )
        import cloudpickle

        payload = packed(job, member.group, cloudpickle.dumps)
        member.told, member.started = True, time.monotonic()
        with contextlib.suppress(OSError, AttributeError):  # the process has ended already: the next look notices that
            member.connection.send(("job", payload))  # type: ignore[union-attr]

    def _address(self, edge: str, consumer: str) -> Any:
        found = self.addresses.get((edge, consumer))
        return found if found is not None else Counter(self.words.address, self.where[edge].index)

    def _get_ready(self) -> None:
        """Send jobs to the processes whose neighbours are ready, and look whether others have become ready or
        failed."""
        for member in self.members:
            if not member.told and all(self.where[edge].ready for edge, _ in member.edges):
                self._tell(member)
        waiting = [member for member in self.members if not member.ready]
        wait([member.connection for member in waiting if member.connection], PAUSE)
        for member in waiting:
            self._hear(member, 0.0)
            if not member.ready and not member.process.is_alive():
                self._not_built(member, self._last_words(member))
                self._start(member)
            elif member.told and member.hangs(self._seen(member), self.hang_seconds):
                self._kill(member)
                self._not_built(member, member.silence(self.hang_seconds))
                self._start(member)

    def _steps(self, member: Process) -> int:
        return int(self.words.array[member.index, STEPS])

    # --- running ------------------------------------------------------------------------------------------------------

    def round(self) -> None:
        """Read messages for up to `PAUSE` seconds, count failures, and start failed processes anew."""
        connections = [member.connection for member in self.members if member.connection]
        for connection in wait(connections, PAUSE):
            self._hear(next(member for member in self.members if member.connection is connection), 0.0)
        gone = [member for member in self.members if member.process is not None and not member.process.is_alive()]
        # a process that ended with code 0 did so because another had failed: the other one comes first, to be named
        for member in sorted(gone, key=lambda member: member.process.exitcode == 0):
            self._failed(member, self._last_words(member))
        for member in self.members:
            if member.process is None:
                if time.monotonic() >= member.start_at:
                    self._start(member)
                    self._tell(member)
            elif member.hangs(self._seen(member), self.hang_seconds):
                self._kill(member)
                self._failed(member, member.silence(self.hang_seconds))

    def _hear(self, member: Process, timeout: float) -> None:
        """Read the messages of a process, waiting up to `timeout` seconds for the first."""
        try:
            while member.connection is not None and member.connection.poll(timeout):
                timeout = 0.0
                what, *given = member.connection.recv()
                if what == "ready":
                    member.is_ready()
                    self.addresses |= given[0]
                elif what == "failed":
                    self._heard_failure(member, given[0])
                else:
                    self.answers.setdefault(member.group, []).append((what, *given))
        except (EOFError, ConnectionResetError, BrokenPipeError):
            member.connection = None

    def _seen(self, member: Process) -> float:
        return int(self.words.array[member.index, BEAT]) / 1e6

    def _moved(self, member: Process) -> float:
        return int(self.words.array[member.index, MOVED]) / 1e6

    def _last_words(self, member: Process) -> Failure:
        """Why a process has ended: what it said of itself, or else its exit code."""
        self._hear(member, 0.0)
        return member.failure or Failure.found(_exit(member.process.exitcode))

    def _kill(self, member: Process) -> None:
        member.process.kill()
        member.process.join()

    def _failed(self, member: Process, failure: Failure) -> None:
        sweep(member.process.pid)
        member.connection = None
        self._count_failure(member, failure)

    # --- asking -------------------------------------------------------------------------------------------------------

    def _ask(self, member: Process, *message: Any) -> tuple | None:
        if member.connection is None or not member.ready:
            return None
        expected = "report" if message[0] == "report" else "reply"
        try:
            member.connection.send(message)
        except (BrokenPipeError, ConnectionResetError):
            return None
        end = time.monotonic() + self.hang_seconds
        while time.monotonic() < end and member.process is not None and member.process.is_alive():
            self._hear(member, 0.05)
            for answer in self.answers.get(member.group, []):
                if answer[0] == expected:
                    self.answers[member.group].remove(answer)
                    return answer[1:]
        return None

    def _keep(self, member: Process, folder: Path, step: int) -> None:
        """The process writes its part itself."""
        with contextlib.suppress(OSError):  # the process has ended: the next look notices that
            if member.connection is not None:
                member.connection.send(("save", str(folder), step))

    def _kept(self, group: str) -> bool:
        answers = self.answers.get(group, [])
        if ("saved",) not in answers:
            return False
        answers.remove(("saved",))
        return True

    def close(self) -> None:
        """Stop all processes; those that do not end by themselves within 3 seconds are killed."""
        if self.closed:
            return
        self.closed = True
        running = [member for member in self.members if member.process is not None]
        for member in reversed(running):
            with contextlib.suppress(OSError, AttributeError):
                member.connection.send(("stop",))
        for grace, kill in ((3.0, False), (1.0, True)):
            if kill:
                for member in running:
                    member.process.kill()
            deadline = time.monotonic() + grace
            while time.monotonic() < deadline and any(member.process.is_alive() for member in running):
                for member in running:  # a full pipe must not block them
                    with contextlib.suppress(UserError):
                        self._hear(member, 0.0)
                time.sleep(0.01)
            running = [member for member in running if member.process.is_alive()]
            if not running:
                break
        for member in self.members:
            if member.process is not None:
                sweep(member.process.pid)
        self.words.close()


@contextlib.contextmanager
def _one_thread_each() -> Iterator[None]:
    """Processes that are started inside use one thread for NumPy, unless the user says otherwise. The environment says
    so, because it has to be known before NumPy is imported."""
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update({name: os.environ.get(name, "1") for name in THREADS})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)


@contextlib.contextmanager
def _without_the_script() -> Iterator[None]:
    """Processes that are started inside do not run the user's script again. They do not need it, because functions and
    classes of the script are sent by value. So scripts without a `__main__` guard, standard input and notebooks work
    too."""
    script = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


def _exit(code: int | None) -> str:
    if code is not None and code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"
