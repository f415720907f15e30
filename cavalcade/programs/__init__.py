"""Programs: nodes and the handles between them, and what runtimes may ask of a node."""

from cavalcade.programs.program import Handle, Node, Placement, Program, ProgramFailed, resolve
from cavalcade.programs.stopwatch import ROLES, WALL, Stopwatch

__all__ = ["ROLES", "WALL", "Handle", "Node", "Placement", "Program", "ProgramFailed", "Stopwatch", "resolve"]
