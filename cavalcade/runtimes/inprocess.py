"""One process, one thread: handles become the objects themselves, and workers take turns in the order of their adding.

A run is deterministic bit for bit, can be followed in a debugger, and never hangs: when no worker can move, it ends
with each node's account of why it waits.
"""

import contextlib
import time
from pathlib import Path
from typing import Any

from cavalcade.checkpoints import Saver
from cavalcade.errors import UserError
from cavalcade.failures import EnvironmentFailed, Failure
from cavalcade.programs import Accountable, Closable, Lasting, Program, Reporting, Worker, resolve
from cavalcade.runtimes.group import turns_of


class Deadlock(RuntimeError):
    """No worker can move; the text holds each node's account."""


class InProcess:
    """A program in this process."""

    cores: int | None = None  # those of this machine

    def __init__(self, program: Program, restore: tuple[Path, int, dict] | None = None):
        """`restore`: folder, step and state of a checkpoint."""
        self.program = program
        self.objects: dict[str, Any] = {}
        self.faults: list[dict] = []  # at most one, because the run ends with it
        self.remarks: list[str] = []  # on what could not be restored exactly
        self.saver: Saver | None = None
        for name, node in program.nodes.items():
            args, kwargs = resolve((node.args, node.kwargs), self.objects)
            self.objects[name] = node.make(*args, **kwargs)
        self.moved = True
        self.arrange()
        if restore:
            self.remarks = self.restore(restore[2]["nodes"])

    def arrange(self) -> None:
        """Who takes turns, in the order they were added. `turns_behind` are those of workers behind the last that
        counts (an evaluator), `turns_after` those that go on when the budget is spent."""
        nodes = self.program.nodes
        self.counting = [self.objects[name] for name, node in nodes.items() if node.counts]
        last = max((number for number, node in enumerate(nodes.values()) if node.counts), default=len(nodes))
        workers = [(n, made.step) for n, made in enumerate(self.objects.values()) if isinstance(made, Worker)]
        self.turns = [turn for number, turn in workers if number <= last]
        self.turns_behind = [turn for number, turn in workers if number > last]
        self.turns_after = turns_of(nodes.values(), self.objects)[0]

    @property
    def spent(self) -> bool:
        return 0 < self.program.budget <= self.steps()

    def round(self) -> None:
        """One turn of every worker. When the budget is spent, one turn of the first that can move: what comes last, an
        evaluation, comes after all has been learned."""
        moved, spent = False, self.spent
        try:
            for turn in self.turns_after if spent else self.turns:
                if turn():
                    moved = True
                    if spent:
                        break
            if not spent and not self.spent:
                for turn in self.turns_behind:
                    moved |= turn()
        except EnvironmentFailed as error:
            node = next(name for name, node in self.objects.items() if node is turn.__self__)  # type: ignore[attr-defined]
            self.faults.append(Failure.of(error).fault(node))
            raise
        self.moved = moved
        if not moved and not spent:
            raise Deadlock(self._account())

    def _account(self) -> str:
        lines = [f"  {name}: {node.account()}" for name, node in self.objects.items() if isinstance(node, Accountable)]
        return f"Nothing in the program '{self.program.name}' can move:\n" + "\n".join(lines)

    def settled(self) -> bool:
        """Asked once the budget is spent: whether no node moves any more, because all experience has been learned from
        and the policy was judged."""
        return not self.moved

    def steps(self) -> int:
        """What the nodes of the clock have counted together."""
        return sum(node.steps for node in self.counting)

    def reports(self) -> dict[str, dict]:
        """By node, what it counted since the last call."""
        return {name: node.report() for name, node in self.objects.items() if isinstance(node, Reporting)}

    def call(self, name: str, method: str, *arguments: Any) -> Any:
        return getattr(self.objects[name], method)(*arguments)

    def state(self) -> dict:
        return {name: node.state() for name, node in self.objects.items() if isinstance(node, Lasting)}

    def restore(self, state: dict) -> list[str]:
        """Restore every node; returns their remarks on what could not be restored exactly."""
        remarks = []
        for name, kept in state.items():
            remark = self.objects[name].restore(kept)
            if isinstance(remark, str):
                remarks.append(f"{name}: {remark}")
        return remarks

    def save(self, folder: Path, step: int, extra: dict) -> None:
        """Begin to write a checkpoint from a copy of all state, in a thread of its own. `extra`: the driver's part."""
        self.saver = self.saver or Saver(folder)
        self.saver.save({"nodes": self.state(), **extra}, step)
        if not all(getattr(node, "copied", True) for node in self.objects.values()):
            self.saver.wait()  # the state was too large for a copy: nothing may change until it is written

    def finish_saving(self) -> bool:
        """Whether no checkpoint is being written any more; an error of the writing thread is raised here."""
        return self.saver is None or self.saver.finished()

    def tend(self) -> None:
        """Wait a millisecond, while the driver waits for a checkpoint."""
        time.sleep(0.001)

    def close(self) -> None:
        if self.saver is not None:
            with contextlib.suppress(UserError):  # `finish_saving` has raised it if anybody needed this checkpoint
                self.saver.wait()
        for node in self.objects.values():
            if isinstance(node, Closable):
                node.close()
