"""The built nodes of one process. Runtimes ask the same of them, on whatever machine the process is."""

import time
from collections.abc import Callable, Iterable
from typing import Any

from cavalcade.programs import Closable, Lasting, Node, Reporting, Served, Shared, Worker, resolve

SHORTEST, LONGEST = 100e-6, 20e-3  # seconds: rests in which nobody rings double from the one to the other


Turn = Callable[[], bool]  # a worker's `step`


def turns_of(nodes: Iterable[Node], objects: dict[str, Any]) -> tuple[list[Turn], list[Turn]]:
    """The turns of the workers among the nodes: of those that do not count steps, and of those that do."""
    workers = [(node.counts, objects[node.name]) for node in nodes if isinstance(objects[node.name], Worker)]
    return [each.step for counts, each in workers if not counts], [each.step for counts, each in workers if counts]


class Group:
    """Builds the nodes of one process, gives them turns, and asks them what the runtime wants to know."""

    def __init__(self, nodes: list[Node], others: dict[str, Any], incarnation: int, steps: int):
        """`others`: by name, what stands in for nodes in other processes. `incarnation`: how often the group was built
        before. `steps`: what its earlier incarnations counted."""
        self.objects = dict(others)
        self.mine: dict[str, Any] = {}
        for node in nodes:
            args, kwargs = resolve((node.args, node.kwargs), self.objects)
            if node.placement.restart == "alone" and incarnation:
                kwargs = {**kwargs, "incarnation": incarnation}
            made = node.make(*args, **kwargs)
            if node.counts:
                made.steps, steps = steps, 0  # the first node that counts takes them all
            self.objects[node.name] = self.mine[node.name] = made
        self.counting = [self.mine[node.name] for node in nodes if node.counts]
        self.turns, self.counted_turns = turns_of(nodes, self.mine)
        self.services: dict[tuple[str, str], Any] = {}  # by (node here, consumer in another process)
        self.serving: list[Turn] = []  # turns of the services that are workers
        self.idle = self.served = 0.0  # seconds in which no node could move, and that services took
        self.pause = SHORTEST

    def offer(self, consumers: list[tuple[str, str]], by_messages: bool = False) -> dict[tuple[str, str], Any]:
        """Make and return the services for `consumers`, pairs of a node here and a node in another process that refers
        to it: through shared memory, or by messages. A node that offers neither gets no service."""
        for name, consumer in consumers:
            node = self.mine[name]
            if by_messages and isinstance(node, Served):
                self.services[name, consumer] = node.serve(consumer)
            elif not by_messages and isinstance(node, Shared):
                self.services[name, consumer] = node.share(consumer)
        made = dict.fromkeys(self.services.values())  # one service may serve several consumers
        self.serving = [service.step for service in made if isinstance(service, Worker)]
        return self.services

    def reclaim(self, consumer: str) -> None:
        """The node `consumer` in another process has died: its services forget what it had under way."""
        for (_, whose), service in self.services.items():
            if whose == consumer:
                service.reclaim()

    def take_turns(self, count: bool = True) -> bool:
        """Give every worker one turn, but those that count steps only if `count`. Returns whether anybody moved."""
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
        """If nobody moved in the turns that began at `began` (monotonic seconds), wait: each time twice as long, until
        a neighbour rings. `wait(seconds)` ends early when a neighbour rings, and returns whether one has."""
        if moved:
            self.pause = SHORTEST
            return
        rung = wait(self.pause)
        self.idle += time.monotonic() - began
        self.pause = SHORTEST if rung else min(LONGEST, 2 * self.pause)

    @property
    def steps(self) -> int:
        """What the nodes that count have counted, earlier incarnations included."""
        return sum(node.steps for node in self.counting)

    def reports(self) -> tuple[dict[str, dict], dict[str, float]]:
        """By node, what it counted since the last call; and seconds since then that no node books."""
        seconds = {"waiting": self.idle, "storing": self.served}
        self.idle = self.served = 0.0
        return {name: node.report() for name, node in self.mine.items() if isinstance(node, Reporting)}, seconds

    def call(self, name: str, method: str, arguments: tuple) -> Any:
        return getattr(self.mine[name], method)(*arguments)

    def state(self) -> dict:
        return {name: node.state() for name, node in self.mine.items() if isinstance(node, Lasting)}

    @property
    def copied(self) -> bool:
        """Whether the last `state()` is a copy. If not, nobody may move before it is written."""
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
