"""Local processes: one for each group of nodes, arrays in shared memory, messages only for control.

The driver starts them, asks for reports, and watches. A process that fails or hangs is started anew if its nodes may be
(`Placement.restart`); otherwise the program has failed, and whoever drives it goes on from the last checkpoint.
"""

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from cavalcade import checkpoint
from cavalcade.errors import UserError
from cavalcade.memory import SharedWords, sweep
from cavalcade.program import Node, Program, ProgramFailed
from cavalcade.runtimes import child
from cavalcade.runtimes.child import BEAT, STEPS, Counter, Job

PAUSE = 0.02  # seconds between two looks at the processes
PATIENCE = 5  # failures of one process in a row, without an environment step between, before the run is given up
BACK_OFF, LONGEST_BACK_OFF = 0.25, 10.0  # seconds before a process is started anew, doubled each time
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


@dataclass
class Member:
    """A process and what the driver knows of it."""

    group: str
    index: int
    nodes: list[Node]
    process: Any = None
    connection: Connection | None = None
    ready: bool = False
    incarnation: int = 0
    failures: int = 0  # in a row
    steps_then: int = 0  # counted when it failed last
    start_at: float = 0.0  # when it may be started anew
    started: float = 0.0
    cause: str = ""  # of its failure, whole
    short: str = ""  # and in a line

    @property
    def alone(self) -> bool:
        return all(node.placement.restart == "alone" for node in self.nodes)


class Processes:
    def __init__(self, program: Program, hang_seconds: float = 60.0, restore: tuple[Path, int, dict] | None = None):
        """`restore`: folder, step and the driver's part of a checkpoint."""
        program.check()
        self.program, self.hang_seconds = program, hang_seconds
        self.context = multiprocessing.get_context("spawn")
        self.faults: list[dict] = []
        self.answers: dict[str, list[tuple]] = {}
        self.saving: tuple[Path, int, dict, set[str]] | None = None
        self.addresses: dict[tuple[str, str], Any] = {}
        groups = program.groups()
        self.members = [Member(group, index, nodes) for index, (group, nodes) in enumerate(groups.items())]
        self.where = {node.name: member for member in self.members for node in member.nodes}
        self.words = SharedWords((len(self.members), 2))
        self.restored = restore
        if restore:
            for member in self.members:
                kept = restore[2]["members"].get(member.group, {})
                self.words.array[member.index, STEPS] = kept.get("steps", 0)
                member.incarnation = kept.get("incarnation", -1) + 1
        self.closed = False
        self.remarks = ["actors begin new episodes"] if restore else []
        try:
            for member in self.members:
                self._start(member)
                self._until_ready(member)
        except BaseException:
            self.close()
            raise

    # --- starting -----------------------------------------------------------------------------------------------------

    def _start(self, member: Member) -> None:
        here = {node.name for node in member.nodes}
        edges = {(edge, node.name) for node in member.nodes for edge in node.edges() if edge not in here}
        remote = {edge: self._address(edge, consumer) for edge, consumer in sorted(edges)}
        consumers = sorted(
            (edge, node.name)
            for node in self.program.nodes.values()
            for edge in set(node.edges())
            if edge in here and node.name not in here and hasattr(self._kind(edge), "share")
        )
        restore = None
        if self.restored and not member.alone:
            restore = (str(self.restored[0] / member.group), self.restored[1])
        job = Job(
            member.group,
            member.index,
            member.nodes,
            remote,
            consumers,
            self.words.address,
            member.incarnation,
            int(self.words.array[member.index, STEPS]),
            restore,
        )
        ours, theirs = self.context.Pipe()
        with _one_thread_each():
            member.process = self.context.Process(
                target=child.main, args=(_packed(job), theirs), name=f"cavalcade {member.group}", daemon=True
            )
            member.process.start()
        theirs.close()
        member.connection, member.ready, member.started = ours, False, time.monotonic()
        self.words.array[member.index, BEAT] = 0

    def _kind(self, name: str) -> Any:
        """What a node will be: its class, or the class that a method says it returns."""
        make = self.program.nodes[name].make
        return make if isinstance(make, type) else _returned(make)

    def _address(self, edge: str, consumer: str) -> Any:
        found = self.addresses.get((edge, consumer))
        return found if found is not None else Counter(self.words.address, self.where[edge].index)

    def _until_ready(self, member: Member) -> None:
        while not member.ready:
            self._hear(member, timeout=0.1)
            if not member.ready and not member.process.is_alive():
                self._hear(member, timeout=0.0)
                raise _failure(member)

    # --- running ------------------------------------------------------------------------------------------------------

    def round(self) -> None:
        """Look after the processes for a moment."""
        connections = [member.connection for member in self.members if member.connection]
        for connection in wait(connections, PAUSE):
            self._hear(next(member for member in self.members if member.connection is connection), 0.0)
        now = time.monotonic()
        for member in self.members:
            if member.process is None:
                if now >= member.start_at:
                    self._start(member)
            elif not member.process.is_alive():
                self._hear(member, 0.0)
                died = _exit(member.process.exitcode)
                self._failed(member, member.cause or died, member.short or died)
            elif self._hangs(member, now):
                os.kill(member.process.pid, signal.SIGKILL)
                member.process.join()
                hung = f"no sign of life for {self.hang_seconds:g} s"
                self._failed(member, hung, hung)

    def _hear(self, member: Member, timeout: float) -> None:
        try:
            while member.connection is not None and member.connection.poll(timeout):
                timeout = 0.0
                what, *given = member.connection.recv()
                if what == "ready":
                    member.ready = True
                    self.addresses |= given[0]
                elif what == "failed":
                    member.cause, member.short = given[0], given[1]
                    if given[2]:  # a sentence for the user: starting again would only say it again
                        raise UserError(f"{member.group}: {given[0]}")
                else:
                    self.answers.setdefault(member.group, []).append((what, *given))
        except (EOFError, ConnectionResetError, BrokenPipeError):
            member.connection = None

    def _hangs(self, member: Member, now: float) -> bool:
        seen = int(self.words.array[member.index, BEAT]) / 1e6
        return now - max(seen, member.started) > self.hang_seconds

    def _failed(self, member: Member, cause: str, short: str) -> None:
        steps = int(self.words.array[member.index, STEPS])
        member.failures = 1 if steps > member.steps_then else member.failures + 1
        member.steps_then, member.cause, member.short = steps, "", ""
        self.faults.append({"node": member.group, "cause": short, "failures": member.failures})
        sweep(member.process.pid)
        member.process = member.connection = None
        if not member.alone or member.failures > PATIENCE:
            raise ProgramFailed(f"{member.group} failed:\n{cause}")
        for owner in self._owners(member):
            for node in member.nodes:
                self._ask(owner, "reclaim", node.name)
        member.incarnation += 1
        member.start_at = time.monotonic() + min(LONGEST_BACK_OFF, BACK_OFF * 2 ** (member.failures - 1))

    def _owners(self, member: Member) -> list[Member]:
        groups = {self.where[edge].group for node in member.nodes for edge in node.edges()}
        return [other for other in self.members if other.group in groups and other is not member and not other.alone]

    # --- asking -------------------------------------------------------------------------------------------------------

    def _ask(self, member: Member, *message: Any) -> Any:
        """Send a message and wait for its answer; None if the process has gone or does not answer in time."""
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

    def steps(self, role: str) -> int:
        """Environment steps that nodes of this role have counted, those before a restart included."""
        return sum(
            int(self.words.array[member.index, STEPS])
            for member in self.members
            if any(node.name.split("/")[0] == role for node in member.nodes)
        )

    def reports(self) -> dict[str, dict]:
        """What each node counted since it was last asked; of a process also how long it had nothing to do."""
        found: dict[str, dict] = {}
        for member in self.members:
            answer = self._ask(member, "report")
            if answer:
                reports, idle = answer
                found |= reports
                first = member.nodes[0].name
                seconds = {**found.get(first, {}).get("seconds", {}), "waiting": idle}
                found[first] = {**found.get(first, {}), "seconds": seconds}
            for node in member.nodes:
                if node.name.startswith("actor"):
                    steps = int(self.words.array[member.index, STEPS])
                    found[node.name] = {"episodes": [], **found.get(node.name, {}), "steps": steps}
        return found

    def call(self, name: str, method: str, *arguments: Any) -> Any:
        answer = self._ask(self.where[name], "call", name, method, arguments)
        if answer is None:
            raise ProgramFailed(f"{name} does not answer")
        return answer[0]

    # --- keeping ------------------------------------------------------------------------------------------------------

    def save(self, folder: Path, step: int, extra: dict) -> None:
        """Every process that matters writes its own part, beside its work; the driver's part comes last and makes the
        checkpoint whole. Nothing is begun while the last one is still being written."""
        if self.saving is not None:
            return
        waiting = {member.group for member in self.members if not member.alone}
        for member in self.members:
            if member.group in waiting and member.connection is not None:
                member.connection.send(("save", str(folder / member.group), step))
        members = {
            member.group: {"steps": int(self.words.array[member.index, STEPS]), "incarnation": member.incarnation}
            for member in self.members
        }
        self.saving = (folder, step, {**extra, "members": members}, waiting)

    def saved(self) -> bool:
        """Whether nothing is being saved any more."""
        if self.saving is None:
            return True
        folder, step, state, waiting = self.saving
        for group in list(waiting):
            answers = self.answers.get(group, [])
            if ("saved",) in answers:
                answers.remove(("saved",))
                waiting.discard(group)
        if waiting:
            return False
        self.saving = None
        checkpoint.save(folder, state, step)
        return True

    def tend(self) -> None:
        """Look after the processes while something else is waited for."""
        self.round()

    def close(self) -> None:
        """Stop everything; whoever does not stop by itself is stopped."""
        if self.closed:
            return
        self.closed = True
        running = [member for member in self.members if member.process is not None]
        for member in reversed(running):
            with contextlib.suppress(OSError, AttributeError):
                member.connection.send(("stop",))  # type: ignore[union-attr]
        for grace, end in ((3.0, None), (1.0, "terminate"), (1.0, "kill")):
            if end:
                for member in running:
                    getattr(member.process, end)()
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


def _packed(job: Job) -> bytes:
    """The job as bytes for a child of ours; says what cannot be sent."""
    import cloudpickle

    try:
        return cloudpickle.dumps(job)
    except Exception as error:
        raise UserError(
            f"The process '{job.group}' cannot be given its part ({error}); make environments and networks from "
            "functions and classes of a module, or use --runtime inprocess."
        ) from error


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


def _returned(make: Any) -> Any:
    import typing

    with contextlib.suppress(NameError, TypeError):
        return typing.get_type_hints(make).get("return")
    return None


def _exit(code: int | None) -> str:
    if code is not None and code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def _failure(member: Member) -> Exception:
    return ProgramFailed(f"{member.group} could not be built:\n{member.cause or _exit(member.process.exitcode)}")
