"""One process, one thread: handles are the objects, and workers take turns in the order they were added.

Bit-for-bit deterministic, open to a debugger, and without hangs: when no worker can move, the run stops with what each
node says of itself.
"""

from typing import Any

from cavalcade.program import Program, resolve


class Deadlock(RuntimeError):
    """No worker can move; the text holds each node's account."""


class InProcess:
    def __init__(self, program: Program):
        self.program = program
        self.objects: dict[str, Any] = {}
        for name, node in program.nodes.items():
            args, kwargs = resolve((node.args, node.kwargs), self.objects)
            self.objects[name] = node.make(*args, **kwargs)
        self.steps = [node.step for node in self.objects.values() if hasattr(node, "step")]

    def round(self) -> None:
        """One turn of every worker."""
        moved = False
        for step in self.steps:
            if step():
                moved = True
        if not moved:
            raise Deadlock(self._account())

    def _account(self) -> str:
        lines = [f"  {name}: {node.account()}" for name, node in self.objects.items() if hasattr(node, "account")]
        return f"Nothing in the program '{self.program.name}' can move:\n" + "\n".join(lines)

    def reports(self) -> dict[str, dict]:
        """What each node counted since it was last asked."""
        return {name: node.report() for name, node in self.objects.items() if hasattr(node, "report")}

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

    def close(self) -> None:
        for node in self.objects.values():
            if hasattr(node, "close"):
                node.close()
