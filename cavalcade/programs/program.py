"""A program: plain classes wired by passing handles (Launchpad's idea). A runtime builds and runs it.

`program.add("learner", LearnerLoop, source=table)` returns a handle; a handle among another node's arguments is an
edge. `protocols.py` has what a node may offer to a runtime. A node has a role, the name with which it was added. The
nodes of one role are the program's clock: what they count together is compared with the program's budget.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from cavalcade.errors import UserError
from cavalcade.failures import Failure


class ProgramFailed(RuntimeError):
    """A node that cannot be restarted alone has failed; the run may go on from the last checkpoint."""

    def __init__(self, node: str, what: str, failure: Failure, final: bool = False):
        """`what`: what happened to the node, such as "failed". `final`: going on from a checkpoint would not help."""
        super().__init__(f"{node} {what}: {failure}")
        self.node, self.cause, self.final = node, failure, final


NUMBERED = ("actor", "predictor", "server")  # roles whose nodes have a number even if there is only one


@dataclass(frozen=True)
class Handle:
    """Stands for a node until a runtime has built it."""

    name: str


@dataclass(frozen=True)
class Placement:
    """Where a node runs, what its process needs, and what happens when it fails."""

    group: str = ""  # nodes of one group share a process; empty: the node has a process of its own
    cpus: float = 1.0
    gpus: float = 0.0
    resources: dict[str, float] = field(default_factory=dict)  # further ones, by the names that the cluster gives them
    restart: str = "program"  # after a failure "alone" builds this node anew; "program" goes back to a checkpoint
    imports: tuple[str, ...] = ()  # slow modules, which its process may import while other processes are being built


@dataclass(frozen=True)
class Node:
    """One node of a program, before it is built: `make(*args, **kwargs)` with handles replaced by objects."""

    name: str
    make: Callable
    args: tuple
    kwargs: dict
    placement: Placement = Placement()
    role: str = ""  # the name without its number
    counts: bool = False  # it belongs to the clock: the built object has `steps`, what it has counted so far

    def edges(self) -> list[str]:
        """The names of the nodes that it refers to."""
        found: list[str] = []
        _walk((self.args, self.kwargs), lambda handle: found.append(handle.name))
        return found


@dataclass
class Program:
    """Nodes and the handles between them."""

    name: str
    nodes: dict[str, Node] = field(default_factory=dict)  # by name, in the order in which they were added
    clock: str = "actor"  # the role whose nodes count the program's progress: environment steps, updates or games
    budget: int = 0  # what these nodes may count together; then they get no more turns. 0: no end
    _group: str = ""  # of nodes that are added now

    def add(self, name: str, make: Callable, *args: Any, placement: Placement | None = None, **kwargs: Any) -> Handle:
        """Add a node of the role `name`. Roles in `NUMBERED` have numbers (actor/0, actor/1, ...), and so has the
        second node of any role."""
        taken = self.of_role(name)
        unique = f"{name}/{len(taken)}" if taken or name in NUMBERED else name
        placed = placement or Placement()
        placed = replace(placed, group=placed.group or self._group or unique)
        self.nodes[unique] = Node(unique, make, args, kwargs, placed, name, name == self.clock)
        return Handle(unique)

    def of_role(self, role: str) -> list[Handle]:
        return [Handle(node.name) for node in self.nodes.values() if node.role == role]

    @contextmanager
    def group(self, name: str) -> Iterator[None]:
        """Nodes that are added inside share a process and call each other directly."""
        before, self._group = self._group, name
        try:
            yield
        finally:
            self._group = before

    def groups(self) -> dict[str, list[Node]]:
        """Nodes by group; each group comes after those that it refers to."""
        members: dict[str, list[Node]] = {}
        for node in self.nodes.values():
            members.setdefault(node.placement.group, []).append(node)
        ordered: dict[str, list[Node]] = {}
        while len(ordered) < len(members):
            ready = [g for g in members if g not in ordered and self._needs(members, g) <= ordered.keys()]
            if not ready:
                raise UserError(f"The groups of the program '{self.name}' refer to each other in a circle.")
            ordered |= {group: members[group] for group in ready}
        return ordered

    def consumers(self, nodes: list[Node]) -> list[tuple[str, str]]:
        """Pairs (one of these nodes, a node beyond them that refers to it)."""
        here = {node.name for node in nodes}
        return sorted(
            (edge, node.name)
            for node in self.nodes.values()
            for edge in set(node.edges())
            if edge in here and node.name not in here
        )

    def _needs(self, members: dict[str, list[Node]], group: str) -> set[str]:
        """The groups that a group refers to."""
        return {self.nodes[edge].placement.group for node in members[group] for edge in node.edges()} - {group}

    def check(self) -> None:
        """Refuse a program whose handles lead nowhere, or whose groups cannot be built in any order."""
        for node in self.nodes.values():
            for edge in node.edges():
                if edge not in self.nodes:
                    raise UserError(f"The node '{node.name}' refers to '{edge}', which the program does not have.")
        self.groups()

    def graph(self) -> str:
        """The program as a Mermaid flow chart: boxes are processes, arrows are edges."""
        lines = ["flowchart LR"]
        for group, nodes in self.groups().items():
            lines.append(f'  subgraph {_identifier(group)}["process {group}"]')
            lines += [f'    {_identifier(node.name)}_["{node.name}<br/>{_class(node.make)}"]' for node in nodes]
            lines.append("  end")
        for node in self.nodes.values():
            lines += [f"  {_identifier(node.name)}_ --> {_identifier(edge)}_" for edge in dict.fromkeys(node.edges())]
        return "\n".join(lines)


def _identifier(name: str) -> str:
    return name.replace("/", "_").replace("-", "_")


def _class(make: Callable) -> str:
    return getattr(make, "__name__", type(make).__name__)


def resolve(value: Any, objects: dict[str, Any]) -> Any:
    """A copy of `value` with every handle in it replaced by the object that it stands for."""
    return _walk(value, lambda handle: objects[handle.name])


def _walk(value: Any, at_handle: Callable[[Handle], Any]) -> Any:
    """A copy of nested lists, tuples and dicts with `at_handle(handle)` in the place of every handle."""
    if isinstance(value, Handle):
        return at_handle(value)
    if isinstance(value, (list, tuple)):
        items = [_walk(item, at_handle) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)  # _fields: a named tuple
    if isinstance(value, dict):
        return {key: _walk(item, at_handle) for key, item in value.items()}
    return value
