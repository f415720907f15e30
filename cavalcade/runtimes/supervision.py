"""What every driver of other processes does: it knows them, counts their failures, and keeps what they say. How one is
started, heard and ended is the runtime's own part.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cavalcade.checkpoints import checkpoint
from cavalcade.errors import UserError
from cavalcade.failures import Failure, Tries
from cavalcade.programs import Node, Program, ProgramFailed

PATIENCE = 5  # deaths of one process in a row, without an environment step between; of environments see `Tries`
BACK_OFF, LONGEST_BACK_OFF = 0.25, 10.0  # seconds before a process is started anew, doubled each time
STARTING = 300.0  # seconds until a process must be ready: it may wait for a place, import and build slowly


@dataclass(eq=False)
class Member:
    """A process and what the driver knows of it."""

    group: str
    index: int
    nodes: list[Node]
    process: Any = None
    ready: bool = False
    incarnation: int = 0
    steps: int = 0  # counted by those before it, or by all where nobody knows better
    failures: int = 0  # in a row
    steps_then: int = 0  # counted when it failed last
    start_at: float = 0.0  # when it may be started anew
    started: float = 0.0  # when it was, or when it was ready
    failure: Failure | None = None  # why it has ended, if it has

    @property
    def alone(self) -> bool:
        return all(node.placement.restart == "alone" for node in self.nodes)


class Supervisor:
    """A runtime gives `_ask`, `_failed`, `_keep`, `_kept`, `_seen` and `_moved`, and starts its members."""

    quiet: float  # seconds without a move of anybody after which nobody waits for a message that is on its way

    def __init__(
        self,
        program: Program,
        hang_seconds: float,
        restore: tuple[Path, int, dict] | None,
        member: type[Member] = Member,
    ):
        """`restore`: folder, step and the driver's part of a checkpoint."""
        program.check()
        self.program, self.hang_seconds, self.restored = program, hang_seconds, restore
        self.faults: list[dict] = []
        self.remarks = ["actors begin new episodes"] if restore else []
        self.saving: tuple[Path, int, dict, set[str]] | None = None
        self.members: list[Any] = [member(group, i, nodes) for i, (group, nodes) in enumerate(program.groups().items())]
        self.counting = [member for member in self.members if any(node.counts for node in member.nodes)]
        self.where = {node.name: member for member in self.members for node in member.nodes}
        self.closed = False
        self.tries = Tries()
        self.spent = 0.0  # when all steps of the budget had been made
        for known in self.members if restore else []:
            kept = restore[2]["members"].get(known.group, {})  # type: ignore[index]
            known.steps, known.incarnation = kept.get("steps", 0), kept.get("incarnation", -1) + 1
            checkpoint.forget_later(restore[0] / known.group, restore[1])  # type: ignore[index]

    def _ask(self, member: Any, *message: Any) -> tuple | None:
        """Send a message and wait for its answer; None if the process has gone or does not answer in time."""
        raise NotImplementedError

    def _failed(self, member: Any, failure: Failure) -> None:
        """End what is left of it, and count the failure."""
        raise NotImplementedError

    def _keep(self, member: Any, folder: Path, step: int) -> None:
        """Begin to write the process's part of a checkpoint into `folder`."""
        raise NotImplementedError

    def _kept(self, group: str) -> bool:
        """Whether that part has been written since."""
        raise NotImplementedError

    def _seen(self, member: Any) -> float:
        """When it was last known to be alive: its last turn."""
        raise NotImplementedError

    def _moved(self, member: Any) -> float:
        """When one of its nodes last moved."""
        raise NotImplementedError

    def _steps(self, member: Any) -> int:
        return member.steps

    # --- edges --------------------------------------------------------------------------------------------------------

    def _edges(self, member: Member) -> list[tuple[str, str]]:
        """(node elsewhere, node of this process that refers to it)."""
        here = {node.name for node in member.nodes}
        return sorted({(edge, node.name) for node in member.nodes for edge in node.edges() if edge not in here})

    def _consumers(self, member: Member) -> list[tuple[str, str]]:
        """(node of this process, node elsewhere that refers to it); once it is built it is seen what it offers."""
        here = {node.name for node in member.nodes}
        return sorted(
            (edge, node.name)
            for node in self.program.nodes.values()
            for edge in set(node.edges())
            if edge in here and node.name not in here
        )

    # --- signs of life ------------------------------------------------------------------------------------------------

    def _is_ready(self, member: Any) -> None:
        member.ready, member.started = True, time.monotonic()

    def _hangs(self, member: Any, seen: float) -> bool:
        """`seen`: when it was last known to be alive. To start is not to hang, however long it takes."""
        allowed = self.hang_seconds if member.ready else STARTING
        return time.monotonic() - max(seen, member.started) > allowed

    def _silence(self, member: Any) -> Failure:
        if member.ready:
            return Failure.found(f"no sign of life for {self.hang_seconds:g} s")
        return Failure.found(f"no place for it, or no start, within {STARTING:g} s")

    def settled(self) -> bool:
        """Asked when the budget is spent: whether what waits has been learned from and judged, so that nobody moves any
        more. Whoever only steps environments has nothing left to do, and is not waited for; nor is anybody for ever."""
        now = time.monotonic()
        self.spent = self.spent or now
        others = [member for member in self.members if any(not node.counts for node in member.nodes)]
        last = max([self.spent, *(self._moved(member) for member in others)])
        return all(self._seen(member) > last + self.quiet for member in others) or now > self.spent + self.hang_seconds

    # --- failures -----------------------------------------------------------------------------------------------------

    def _heard_failure(self, member: Any, failure: Failure) -> None:
        """What a process says of its own failure."""
        member.failure = failure
        if failure.for_user:
            raise UserError(f"{member.group}: {failure.cause}")

    def _count_failure(self, member: Any, failure: Failure) -> None:
        """Its process is gone. Others forget what it had under way, and it may be started anew after a while."""
        steps = self._steps(member)
        member.failures = 1 if steps > member.steps_then else member.failures + 1
        member.steps_then, member.failure, member.process = steps, None, None
        alike = self.tries.count(member.group, failure.mishap) if failure.mishap else member.failures
        self.faults.append(failure.fault(member.group, failures=alike))
        if not member.alone:
            raise ProgramFailed(member.group, "failed", failure)
        if failure.mishap is not None:
            self.tries.check(member.group)
        elif member.failures > PATIENCE:
            often = f"failed {member.failures} times in a row"
            raise ProgramFailed(member.group, often, failure, final=member in self.counting)
        member.incarnation += 1
        for owner in self._owners(member):
            for node in member.nodes:
                self._ask(owner, "reclaim", node.name)
        member.start_at = time.monotonic() + min(LONGEST_BACK_OFF, BACK_OFF * 2 ** (member.failures - 1))

    def _not_built(self, member: Any, failure: Failure) -> None:
        """It failed before the program began. An environment that fails now and then may be tried again."""
        if not member.alone or (member.failures and failure.mishap is None):
            raise ProgramFailed(member.group, "could not be built", failure)
        self._failed(member, failure)

    def _owners(self, member: Member) -> list[Any]:
        groups = {self.where[edge].group for edge, _ in self._edges(member)}
        return [other for other in self.members if other.group in groups and not other.alone]

    # --- asking -------------------------------------------------------------------------------------------------------

    def steps(self) -> int:
        """What the clock's nodes have counted, those before a restart included."""
        return sum(self._steps(member) for member in self.counting)

    def reports(self) -> dict[str, dict]:
        """What each node counted since it was last asked; of a process also how long it had nothing to do."""
        found: dict[str, dict] = {}
        for member, answer in zip(self.members, self._ask_all("report")):
            if answer:
                reports, spent = answer
                found |= reports
                first = member.nodes[0].name
                seconds = dict(found.get(first, {}).get("seconds", {}))
                seconds |= {role: seconds.get(role, 0.0) + amount for role, amount in spent.items()}
                found[first] = {**found.get(first, {}), "seconds": seconds}
            for node in member.nodes:
                if node.counts:
                    self.tries.finished |= bool(found.get(node.name, {}).get("episodes"))
                    found[node.name] = {"episodes": [], **found.get(node.name, {}), "steps": self._steps(member)}
        return found

    def _ask_all(self, *message: Any) -> list[tuple | None]:
        return [self._ask(member, *message) for member in self.members]

    def call(self, name: str, method: str, *arguments: Any) -> Any:
        answer = self._ask(self.where[name], "call", name, method, arguments)
        if answer is None:
            raise ProgramFailed(name, "failed", Failure.found("it does not answer"))
        return answer[0]

    # --- keeping ------------------------------------------------------------------------------------------------------

    def save(self, folder: Path, step: int, extra: dict) -> None:
        """The part of every process that matters is written beside its work; the driver's part comes last and makes the
        checkpoint whole. Nothing is begun while the last one is still being written."""
        if self.saving is not None:
            return
        waiting = [member for member in self.members if not member.alone]
        for member in waiting:
            self._keep(member, folder / member.group, step)
        members = {
            member.group: {"steps": self._steps(member), "incarnation": member.incarnation} for member in self.members
        }
        self.saving = (folder, step, {**extra, "members": members}, {member.group for member in waiting})

    def finish_saving(self) -> bool:
        """When all parts are there, write the driver's; whether nothing is being saved any more."""
        if self.saving is None:
            return True
        folder, step, state, waiting = self.saving
        waiting -= {group for group in waiting if self._kept(group)}
        if waiting:
            return False
        self.saving = None
        checkpoint.save(folder, state, step)
        return True

    def round(self) -> None:
        """Look after the processes for a moment."""
        raise NotImplementedError

    def tend(self) -> None:
        """Look after the processes while something else is waited for."""
        self.round()


def packed(value: Any, group: str, dumps: Callable[[Any], bytes]) -> bytes:
    """The part of a process as bytes for a child of ours; says what cannot be sent."""
    try:
        return dumps(value)
    except Exception as error:
        raise UserError(
            f"The process '{group}' cannot be given its part ({error}); make environments and networks from "
            "functions and classes of a module, or use --runtime inprocess."
        ) from error
