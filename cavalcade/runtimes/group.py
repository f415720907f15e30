"""The nodes of one process, built: what a runtime asks of them is the same wherever that process is."""

import time
from collections.abc import Callable
from typing import Any

from cavalcade.program import Node, resolve


class Group:
    def __init__(self, nodes: list[Node], others: dict[str, Any], incarnation: int, steps: int):
        """`others`: what stands for nodes elsewhere. `incarnation`: how often the group was built before; `steps`: what
        was counted by then."""
        self.objects = dict(others)
        self.mine: dict[str, Any] = {}
        for node in nodes:
            args, kwargs = resolve((node.args, node.kwargs), self.objects)
            if node.placement.restart == "alone" and incarnation:
                kwargs = {**kwargs, "incarnation": incarnation}
            made = node.make(*args, **kwargs)
            if hasattr(made, "steps"):
                made.steps, steps = steps, 0  # counted once
            self.objects[node.name] = self.mine[node.name] = made
        self.turns = [node.step for node in self.mine.values() if hasattr(node, "step")]
        self.counting = [node for node in self.mine.values() if hasattr(node, "steps")]
        self.services: list[Callable[[], bool]] = []  # turns of what serves nodes elsewhere
        self.idle = self.served = 0.0  # seconds in which nobody could move, and of the services

    def take_turns(self) -> bool:
        """One turn of every worker; whether anybody moved."""
        moved = False
        for turn in self.turns:
            moved |= bool(turn())
        if self.services:
            began, served = time.monotonic(), False
            for turn in self.services:
                served |= bool(turn())
            if moved or served:
                self.served += time.monotonic() - began
            moved |= served
        return moved

    @property
    def steps(self) -> int:
        return sum(node.steps for node in self.counting)

    def reports(self) -> tuple[dict[str, dict], dict[str, float]]:
        """What each node counted since it was last asked, and seconds that no node books."""
        seconds = {"waiting": self.idle, "storing": self.served}
        self.idle = self.served = 0.0
        return {name: node.report() for name, node in self.mine.items() if hasattr(node, "report")}, seconds

    def call(self, name: str, method: str, arguments: tuple) -> Any:
        return getattr(self.mine[name], method)(*arguments)

    def state(self) -> dict:
        return {name: node.state() for name, node in self.mine.items() if hasattr(node, "state")}

    @property
    def copied(self) -> bool:
        """Whether the last state is a copy, which nobody changes any more."""
        return all(getattr(node, "copied", True) for node in self.mine.values())

    def restore(self, state: dict) -> None:
        for name, kept in state.items():
            self.mine[name].restore(kept)

    def close(self) -> None:
        for node in self.mine.values():
            if hasattr(node, "close"):
                node.close()
