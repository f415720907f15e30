"""A program: plain classes wired by passing handles (Launchpad's idea). What it runs on is a runtime's business.

`program.add("learner", LearnerLoop, source=table)` returns a handle; a handle among another node's arguments is an
edge. A node with `step() -> bool` is a worker: one unit of work that never blocks, and whether it moved. A node may
also offer `account() -> str` (why it waits), `report() -> dict` (what it counted since the last time), `state()` and
`restore(state)`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Handle:
    """Stands for a node until a runtime has built it."""

    name: str


@dataclass(frozen=True)
class Node:
    name: str
    make: Callable
    args: tuple
    kwargs: dict

    def edges(self) -> list[str]:
        found: list[str] = []
        _walk((self.args, self.kwargs), lambda handle: found.append(handle.name))
        return found


@dataclass
class Program:
    name: str
    nodes: dict[str, Node] = field(default_factory=dict)

    def add(self, name: str, make: Callable, *args: Any, **kwargs: Any) -> Handle:
        """Add a node; actors are numbered (actor/0, actor/1, ...), and so is a second node of any name."""
        taken = [n for n in self.nodes if n.split("/")[0] == name]
        unique = f"{name}/{len(taken)}" if taken or name in ("actor",) else name
        self.nodes[unique] = Node(unique, make, args, kwargs)
        return Handle(unique)


def resolve(value: Any, objects: dict[str, Any]) -> Any:
    """`value` with every handle in it replaced by the object it stands for."""
    return _walk(value, lambda handle: objects[handle.name])


def _walk(value: Any, at_handle: Callable[[Handle], Any]) -> Any:
    if isinstance(value, Handle):
        return at_handle(value)
    if isinstance(value, (list, tuple)):
        items = [_walk(item, at_handle) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)  # _fields: a named tuple
    if isinstance(value, dict):
        return {key: _walk(item, at_handle) for key, item in value.items()}
    return value
