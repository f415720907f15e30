"""The nodes of one process, built: what a runtime asks of them is the same wherever that process is."""

import time
from collections.abc import Callable
from typing import Any

from cavalcade.programs import Node, resolve

SHORTEST, LONGEST = 100e-6, 20e-3  # seconds of rest when nobody can move, doubled from one to the other unless rung


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
        self.counting = [node for node in self.mine.values() if hasattr(node, "steps")]
        workers = [node for node in self.mine.values() if hasattr(node, "step")]
        self.turns = [node.step for node in workers if not hasattr(node, "steps")]
        self.counted_turns = [node.step for node in workers if hasattr(node, "steps")]
        self.services: dict[tuple[str, str], Any] = {}  # (node here, node elsewhere that it serves)
        self.serving: list[Callable[[], bool]] = []  # turns of those that have any
        self.idle = self.served = 0.0  # seconds in which nobody could move, and of the services
        self.pause = SHORTEST

    def offer(self, way: str, consumers: list[tuple[str, str]]) -> dict[tuple[str, str], Any]:
        """Make the services by which nodes elsewhere reach those here; `way` is the method that makes one. Of a node
        without it, others see its counted steps."""
        there = [(name, consumer) for name, consumer in consumers if hasattr(self.mine[name], way)]
        self.services = {(name, consumer): getattr(self.mine[name], way)(consumer) for name, consumer in there}
        made = dict.fromkeys(self.services.values())  # several may share one
        self.serving = [service.step for service in made if hasattr(service, "step")]
        return self.services

    def reclaim(self, consumer: str) -> None:
        """A node elsewhere has died: forget what it had under way."""
        for (_, whose), service in self.services.items():
            if whose == consumer:
                service.reclaim()

    def take_turns(self, count: bool = True) -> bool:
        """One turn of every worker, of those that count steps only if they may `count` more; whether anybody moved."""
        moved = False
        for turn in self.turns:
            moved |= bool(turn())
        if count:
            for turn in self.counted_turns:
                moved |= bool(turn())
        if self.serving:
            began, served = time.monotonic(), False
            for turn in self.serving:
                served |= bool(turn())
            if moved or served:
                self.served += time.monotonic() - began
            moved |= served
        return moved

    def rest(self, moved: bool, began: float, wait: Callable[[float], bool]) -> None:
        """After turns that began then: if nobody moved, wait, each time longer than the last. `wait(seconds)` ends when
        a neighbour rings, and says whether one has."""
        if moved:
            self.pause = SHORTEST
            return
        rung = wait(self.pause)
        self.idle += time.monotonic() - began
        self.pause = SHORTEST if rung else min(LONGEST, 2 * self.pause)

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
        for service in set(self.services.values()):
            service.close()
        for node in self.mine.values():
            if hasattr(node, "close"):
                node.close()
