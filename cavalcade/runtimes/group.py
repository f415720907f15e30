"""The nodes of one process, built: what a runtime asks of them is the same wherever that process is."""

import time
from collections.abc import Callable, Iterable
from typing import Any

from cavalcade.programs import Closable, Lasting, Node, Reporting, Served, Shared, Worker, resolve

SHORTEST, LONGEST = 100e-6, 20e-3  # seconds of rest when nobody can move, doubled from one to the other unless rung


Turn = Callable[[], bool]


def turns_of(nodes: Iterable[Node], objects: dict[str, Any]) -> tuple[list[Turn], list[Turn]]:
    """The turns of the workers among them: of those that do not count, and of those that do."""
    workers = [(node.counts, objects[node.name]) for node in nodes if isinstance(objects[node.name], Worker)]
    return [each.step for counts, each in workers if not counts], [each.step for counts, each in workers if counts]


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
            if node.counts:
                made.steps, steps = steps, 0  # counted once
            self.objects[node.name] = self.mine[node.name] = made
        self.counting = [self.mine[node.name] for node in nodes if node.counts]
        self.turns, self.counted_turns = turns_of(nodes, self.mine)
        self.services: dict[tuple[str, str], Any] = {}  # (node here, node elsewhere that it serves)
        self.serving: list[Turn] = []  # turns of those that have any
        self.idle = self.served = 0.0  # seconds in which nobody could move, and of the services
        self.pause = SHORTEST

    def offer(self, consumers: list[tuple[str, str]], by_messages: bool = False) -> dict[tuple[str, str], Any]:
        """Make the services by which nodes elsewhere reach those here, through shared memory or by messages. Of a node
        that offers none, others see its counted steps."""
        for name, consumer in consumers:
            node = self.mine[name]
            if by_messages and isinstance(node, Served):
                self.services[name, consumer] = node.serve(consumer)
            elif not by_messages and isinstance(node, Shared):
                self.services[name, consumer] = node.share(consumer)
        made = dict.fromkeys(self.services.values())  # several may share one
        self.serving = [service.step for service in made if isinstance(service, Worker)]
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
        return {name: node.report() for name, node in self.mine.items() if isinstance(node, Reporting)}, seconds

    def call(self, name: str, method: str, arguments: tuple) -> Any:
        return getattr(self.mine[name], method)(*arguments)

    def state(self) -> dict:
        return {name: node.state() for name, node in self.mine.items() if isinstance(node, Lasting)}

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
            if isinstance(node, Closable):
                node.close()
