"""Programs: nodes and the handles between them, and what runtimes may ask of a node."""

from cavalcade.programs.program import Handle, Node, Placement, Program, ProgramFailed, resolve
from cavalcade.programs.protocols import (
    Accountable,
    Closable,
    Lasting,
    Reporting,
    Runtime,
    Served,
    Service,
    Shared,
    Worker,
)
from cavalcade.programs.stopwatch import ROLES, WALL, Stopwatch

__all__ = [
    "ROLES",
    "WALL",
    "Accountable",
    "Closable",
    "Handle",
    "Lasting",
    "Node",
    "Placement",
    "Program",
    "ProgramFailed",
    "Reporting",
    "Runtime",
    "Served",
    "Service",
    "Shared",
    "Stopwatch",
    "Worker",
    "resolve",
]
