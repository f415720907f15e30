"""What a runtime may ask of a node, and what the session that drives a run may ask of a runtime.

A node is a plain object: it implements the protocols that concern it, and a runtime uses those.
"""

from pathlib import Path
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Worker(Protocol):
    """Gets turns."""

    def step(self) -> bool:
        """Do one unit of work without blocking; return whether anything was done."""


@runtime_checkable
class Accountable(Protocol):
    """Can say why it waits."""

    def account(self) -> str:
        """Why the node waits, in a line for the user whose program does not move."""


@runtime_checkable
class Reporting(Protocol):
    """Has something for the metrics."""

    def report(self) -> dict:
        """What the node counted since the last call."""


@runtime_checkable
class Lasting(Protocol):
    """Has a state that belongs into a checkpoint. If the state is too large for a copy, the node's attribute `copied`
    is False after `state()`: the node may not change before the state is written."""

    def state(self) -> dict: ...

    def restore(self, state: dict) -> str | None:
        """Put a state back; return a remark if something could not be put back exactly."""


@runtime_checkable
class Closable(Protocol):
    """Has something to release when the program ends."""

    def close(self) -> None: ...


@runtime_checkable
class Shared(Protocol):
    """Can be reached from other processes of the same machine."""

    def share(self, consumer: str) -> "Service":
        """A service for the node `consumer`, which is in another process."""


@runtime_checkable
class Served(Protocol):
    """Can be reached from other machines, by messages."""

    def serve(self, consumer: str) -> "Service":
        """A service for the node `consumer`, which shares no memory with this process."""


class Service(Protocol):
    """This end of an edge between processes; if it is a `Worker` too it gets turns."""

    address: Any  # plain data for the consumer's process, where `address.connect()` stands in for the node

    def reclaim(self) -> None:
        """The consumer has died: forget what it had under way."""

    def close(self) -> None: ...


class Runtime(Protocol):
    """A program that runs."""

    faults: list[dict]  # failures that the session has not taken yet
    remarks: list[str]  # on what could not be restored exactly
    cores: int | None  # of the machines that it runs on; None: those of this machine

    def round(self) -> None:
        """Let the program run for a moment."""

    def steps(self) -> int:
        """What the nodes of the clock (`Program.clock`) have counted together, earlier incarnations included."""

    def settled(self) -> bool:
        """Asked once the budget is spent: whether all experience has been learned from and the policy was judged."""

    def reports(self) -> dict[str, dict]:
        """By node, what it counted since the last call."""

    def call(self, name: str, method: str, *arguments: Any) -> Any:
        """Call a method of a node, and wait for its result."""

    def save(self, folder: Path, step: int, extra: dict) -> None:
        """Begin to write a checkpoint of all nodes and the driver's `extra` into `folder`."""

    def finish_saving(self) -> bool:
        """Go on with the checkpoint. Returns whether none is being written any more; an error is raised here."""

    def tend(self) -> None:
        """Look after the program while the session waits for something else."""

    def close(self) -> None: ...
