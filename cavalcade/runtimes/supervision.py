"""What all drivers of other processes have in common: they know the processes, count their failures, ask them, and save
checkpoints. How a process is started, heard and ended is each runtime's own part.
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

PATIENCE = 5  # failures of one process in a row that are borne, without a counted step between; environments: `Tries`
BACK_OFF, LONGEST_BACK_OFF = 0.25, 10.0  # seconds before a process is started anew: the first, doubled up to the last
STARTING = 300.0  # seconds in which a process must become ready: it may wait for a free machine, import and build


@dataclass(eq=False)
class Member:
    """A process of the program, as the driver knows it. Times are monotonic seconds."""

    group: str
    index: int
    nodes: list[Node]
    process: Any = None  # None: it has failed and was not started anew yet
    ready: bool = False  # all its nodes are built
    incarnation: int = 0
    steps: int = 0  # counted by earlier incarnations; on Ray, by all as far as the driver knows
    failures: int = 0  # in a row, without a counted step between
    steps_then: int = 0  # counted when it failed last
    start_at: float = 0.0  # when it may be started anew
    started: float = 0.0  # when it was started, was sent its job, or became ready, whichever was last
    failure: Failure | None = None  # what it said of its own failure

    @property
    def alone(self) -> bool:
        """Whether it is started anew when it fails, while the other processes go on; it is then not saved either."""
        return all(node.placement.restart == "alone" for node in self.nodes)

    @property
    def edges(self) -> list[tuple[str, str]]:
        """Pairs (node in another process, node of this process that refers to it)."""
        here = {node.name for node in self.nodes}
        return sorted({(edge, node.name) for node in self.nodes for edge in node.edges() if edge not in here})

    def is_ready(self) -> None:
        self.ready, self.started = True, time.monotonic()

    def hangs(self, seen: float, hang_seconds: float) -> bool:
        """Whether it was silent for too long. `seen`: when it took its last turns. A process that is not ready yet has
        `STARTING` seconds, because imports and building take long."""
        allowed = hang_seconds if self.ready else STARTING
        return time.monotonic() - max(seen, self.started) > allowed

    def silence(self, hang_seconds: float) -> Failure:
        if self.ready:
            return Failure.found(f"no sign of life for {hang_seconds:g} s")
        return Failure.found(f"no place for it, or no start, within {STARTING:g} s")


class Supervisor:
    """Watches the processes of a program. A runtime implements `_ask`, `_failed`, `_keep`, `_kept`, `_seen` and
    `_moved`, and starts the members."""

    cores: int | None = None  # those of this machine
    quiet: float  # if no node moves for so many seconds, no message is on its way that a node waits for

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
        self.saving: tuple[Path, int, dict, set[str]] | None = None  # folder, step, driver's part, groups not written
        self.members: list[Any] = [member(group, i, nodes) for i, (group, nodes) in enumerate(program.groups().items())]
        self.counting = [member for member in self.members if any(node.counts for node in member.nodes)]
        self.where = {node.name: member for member in self.members for node in member.nodes}
        self.closed = False
        self.tries = Tries()
        self.spent = 0.0  # when the driver first saw that the budget was spent; 0.0: not yet
        for known in self.members if restore else []:
            kept = restore[2]["members"].get(known.group, {})  # type: ignore[index]
            known.steps, known.incarnation = kept.get("steps", 0), kept.get("incarnation", -1) + 1
            checkpoint.forget_later(restore[0] / known.group, restore[1])  # type: ignore[index]

    def _ask(self, member: Any, *message: Any) -> tuple | None:
        """Send a message and wait for its answer; None if the process has ended or does not answer in time."""
        raise NotImplementedError

    def _failed(self, member: Any, failure: Failure) -> None:
        """End what is left of a failed process, and count the failure."""
        raise NotImplementedError

    def _keep(self, member: Any, folder: Path, step: int) -> None:
        """Begin to write the process's part of a checkpoint into `folder`."""
        raise NotImplementedError

    def _kept(self, group: str) -> bool:
        """Whether the group's part of the checkpoint is written. Says so once for each."""
        raise NotImplementedError

    def _seen(self, member: Any) -> float:
        """When the process took its last turns, in monotonic seconds."""
        raise NotImplementedError

    def _moved(self, member: Any) -> float:
        """When a node of the process last moved, in monotonic seconds."""
        raise NotImplementedError

    def _steps(self, member: Any) -> int:
        """What all incarnations of the process have counted."""
        return member.steps

    # --- signs of life ------------------------------------------------------------------------------------------------

    def settled(self) -> bool:
        """Asked once the budget is spent: whether no node moves any more, because all experience has been learned from
        and the policy was judged. That is so when every process has taken turns `quiet` seconds after the last move.
        Processes with counting nodes only have nothing left to do and are left out. After `hang_seconds` the answer is
        yes in any case."""
        now = time.monotonic()
        self.spent = self.spent or now
        others = [member for member in self.members if any(not node.counts for node in member.nodes)]
        last = max([self.spent, *(self._moved(member) for member in others)])
        return all(self._seen(member) > last + self.quiet for member in others) or now > self.spent + self.hang_seconds

    # --- failures -----------------------------------------------------------------------------------------------------

    def _heard_failure(self, member: Any, failure: Failure) -> None:
        """Keep what a process said of its own failure; a mistake of the user ends the run at once."""
        member.failure = failure
        if failure.for_user:
            raise UserError(f"{member.group}: {failure.cause}")

    def _count_failure(self, member: Any, failure: Failure) -> None:
        """A process has ended. If it may be started anew, other processes forget what it had under way, and it starts
        after a while; else, or after too many failures, the program has failed."""
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
        groups = {self.where[edge].group for edge, _ in member.edges}
        for owner in [other for other in self.members if other.group in groups and not other.alone]:
            for node in member.nodes:
                self._ask(owner, "reclaim", node.name)
        member.start_at = time.monotonic() + min(LONGEST_BACK_OFF, BACK_OFF * 2 ** (member.failures - 1))

    def _not_built(self, member: Any, failure: Failure) -> None:
        """A process failed before it was ready. It is tried again if it may be started anew: once, or, if its
        environment failed, as often as `Tries` allows."""
        if not member.alone or (member.failures and failure.mishap is None):
            raise ProgramFailed(member.group, "could not be built", failure)
        self._failed(member, failure)

    # --- asking -------------------------------------------------------------------------------------------------------

    def steps(self) -> int:
        """What the nodes of the clock have counted together, earlier incarnations included."""
        return sum(self._steps(member) for member in self.counting)

    def reports(self) -> dict[str, dict]:
        """By node, what it counted since the last call. The first node of a process also gets the seconds in which the
        process had nothing to do, or worked for services."""
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
        """Begin a checkpoint: the part of every process that is not restarted alone is written while the process goes
        on. The driver's part, with `extra`, is written last (`finish_saving`) and makes the checkpoint whole. Does
        nothing while an earlier checkpoint is still being written."""
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
        """Write the driver's part if all other parts are written. Returns whether no checkpoint is being written any
        more."""
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
        """Watch the processes for a moment: read messages, count failures, and start failed processes anew."""
        raise NotImplementedError

    def tend(self) -> None:
        """Watch the processes while the driver waits for something else."""
        self.round()


def packed(value: Any, group: str, dumps: Callable[[Any], bytes]) -> bytes:
    """`value`, which the process of `group` is to be given, as bytes; a UserError if it cannot be pickled."""
    try:
        return dumps(value)
    except Exception as error:
        raise UserError(
            f"The process '{group}' cannot be given its part ({error}); make environments and networks from "
            "functions and classes of a module, or use --runtime inprocess."
        ) from error
