"""One process, one thread: handles are the objects, and workers take turns in the order they were added.

Bit-for-bit deterministic, open to a debugger, and without hangs: when no worker can move, the run stops with what each
node says of itself.
"""

import contextlib
import time
from pathlib import Path
from typing import Any

from cavalcade.checkpoints import Saver
from cavalcade.errors import UserError
from cavalcade.failures import EnvironmentFailed, Failure
from cavalcade.programs import Program, resolve


class Deadlock(RuntimeError):
    """No worker can move; the text holds each node's account."""


class InProcess:
    def __init__(self, program: Program, restore: tuple[Path, int, dict] | None = None):
        """`restore`: folder, step and state of a checkpoint."""
        self.program = program
        self.objects: dict[str, Any] = {}
        self.faults: list[dict] = []  # none that the run survives
        self.remarks: list[str] = []  # on what could not be restored exactly
        self.saver: Saver | None = None
        for name, node in program.nodes.items():
            args, kwargs = resolve((node.args, node.kwargs), self.objects)
            self.objects[name] = node.make(*args, **kwargs)
        self.turns = [node.step for node in self.objects.values() if hasattr(node, "step")]
        if restore:
            self.remarks = self.restore(restore[2]["nodes"])

    def round(self) -> None:
        """One turn of every worker."""
        moved = False
        try:
            for turn in self.turns:
                if turn():
                    moved = True
        except EnvironmentFailed as error:
            node = next(name for name, node in self.objects.items() if node is turn.__self__)
            self.faults.append(Failure.of(error).fault(node))
            raise
        if not moved:
            raise Deadlock(self._account())

    def _account(self) -> str:
        lines = [f"  {name}: {node.account()}" for name, node in self.objects.items() if hasattr(node, "account")]
        return f"Nothing in the program '{self.program.name}' can move:\n" + "\n".join(lines)

    def settled(self) -> bool:
        """Whether, when the budget is spent, nothing is left to be done: all have had their turn."""
        return True

    def steps(self, role: str) -> int:
        """Environment steps that nodes of this role have counted."""
        return sum(node.steps for name, node in self.objects.items() if name.split("/")[0] == role)

    def reports(self) -> dict[str, dict]:
        """What each node counted since it was last asked."""
        return {name: node.report() for name, node in self.objects.items() if hasattr(node, "report")}

    def call(self, name: str, method: str, *arguments: Any) -> Any:
        return getattr(self.objects[name], method)(*arguments)

    def state(self) -> dict:
        return {name: node.state() for name, node in self.objects.items() if hasattr(node, "state")}

    def restore(self, state: dict) -> list[str]:
        """Put every node back; gives their remarks on what could not be kept exactly."""
        remarks = []
        for name, kept in state.items():
            remark = self.objects[name].restore(kept)
            if isinstance(remark, str):
                remarks.append(f"{name}: {remark}")
        return remarks

    def save(self, folder: Path, step: int, extra: dict) -> None:
        """Write a checkpoint beside the run, from a copy of all state."""
        self.saver = self.saver or Saver(folder)
        self.saver.save({"nodes": self.state(), **extra}, step)
        if not all(getattr(node, "copied", True) for node in self.objects.values()):
            self.saver.wait()  # too large for a copy: nothing may change until it is written

    def saved(self) -> bool:
        """Whether nothing is being written any more; an error of the writer is raised here."""
        return self.saver is None or self.saver.finished()

    def tend(self) -> None:
        """Wait a moment for what goes on beside the program."""
        time.sleep(0.001)

    def close(self) -> None:
        if self.saver is not None:
            with contextlib.suppress(UserError):  # whoever needed the checkpoint has waited for it and been told
                self.saver.wait()
        for node in self.objects.values():
            if hasattr(node, "close"):
                node.close()
