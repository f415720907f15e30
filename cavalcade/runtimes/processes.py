"""Local processes: one for each group of nodes, arrays in shared memory, messages only for control.

The driver starts them, asks for reports, and watches. A process that fails or hangs is started anew if its nodes may be
(`Placement.restart`); otherwise the program has failed, and whoever drives it goes on from the last checkpoint.
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
    connection: Connection | None = None
    told: bool = False  # what it is to do


class Processes(Supervisor):
    quiet = 0.06  # several rests of a process in which nobody can move

    def __init__(self, program: Program, hang_seconds: float = 60.0, restore: tuple[Path, int, dict] | None = None):
        """`restore`: folder, step and the driver's part of a checkpoint."""
        super().__init__(program, hang_seconds, restore, Process)
        self.context = multiprocessing.get_context("spawn")
        self.answers: dict[str, list[tuple]] = {}
        self.addresses: dict[tuple[str, str], Any] = {}
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
        """A process imports what it needs while it waits to be told what to do: all begin at the same time, though one
        can be built only after those it refers to."""
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
        restore = None
        if self.restored and not member.alone:
            restore = (str(self.restored[0] / member.group), self.restored[1])
        job = Job(
            member.group,
            member.index,
            member.nodes,
            {edge: self._address(edge, consumer) for edge, consumer in self._edges(member)},
            self._consumers(member),
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
        with contextlib.suppress(OSError, AttributeError):  # it has gone already: that is noticed
            member.connection.send(("job", payload))  # type: ignore[union-attr]

    def _address(self, edge: str, consumer: str) -> Any:
        found = self.addresses.get((edge, consumer))
        return found if found is not None else Counter(self.words.address, self.where[edge].index)

    def _get_ready(self) -> None:
        """Tell those what to do whose neighbours are there, and see what has become of the others."""
        for member in self.members:
            if not member.told and all(self.where[edge].ready for edge, _ in self._edges(member)):
                self._tell(member)
        waiting = [member for member in self.members if not member.ready]
        wait([member.connection for member in waiting if member.connection], PAUSE)
        for member in waiting:
            self._hear(member, 0.0)
            if not member.ready and not member.process.is_alive():
                self._not_built(member, self._last_words(member))
                self._start(member)
            elif member.told and self._hangs(member, self._seen(member)):
                self._kill(member)
                self._not_built(member, self._silence(member))
                self._start(member)

    def _steps(self, member: Process) -> int:
        return int(self.words.array[member.index, STEPS])

    # --- running ------------------------------------------------------------------------------------------------------

    def round(self) -> None:
        """Look after the processes for a moment."""
        connections = [member.connection for member in self.members if member.connection]
        for connection in wait(connections, PAUSE):
            self._hear(next(member for member in self.members if member.connection is connection), 0.0)
        gone = [member for member in self.members if member.process is not None and not member.process.is_alive()]
        # whoever ended of its own accord did so because another had gone, and that one is to be named
        for member in sorted(gone, key=lambda member: member.process.exitcode == 0):
            self._failed(member, self._last_words(member))
        for member in self.members:
            if member.process is None:
                if time.monotonic() >= member.start_at:
                    self._start(member)
                    self._tell(member)
            elif self._hangs(member, self._seen(member)):
                self._kill(member)
                self._failed(member, self._silence(member))

    def _hear(self, member: Process, timeout: float) -> None:
        try:
            while member.connection is not None and member.connection.poll(timeout):
                timeout = 0.0
                what, *given = member.connection.recv()
                if what == "ready":
                    self._is_ready(member)
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
        """Why its process has ended: what it said, or what the system says."""
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
        """It writes its own part."""
        with contextlib.suppress(OSError):  # it has just gone: that is noticed, and all goes back to a checkpoint
            if member.connection is not None:
                member.connection.send(("save", str(folder), step))

    def _kept(self, group: str) -> bool:
        answers = self.answers.get(group, [])
        if ("saved",) not in answers:
            return False
        answers.remove(("saved",))
        return True

    def close(self) -> None:
        """Stop everything; whoever does not stop by itself is stopped."""
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
                for member in running:  # what they still want to say must not block them
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
    """Thread counts have to be known before a child imports NumPy: it inherits them."""
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
    """A new process would first run the user's script, as far as it is not guarded, and has no use for it: what it is
    given of the script, functions and classes, comes by value. So scripts without a guard, standard input and notebooks
    work as well."""
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
