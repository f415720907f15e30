"""What a runtime may ask of a node. A node is a plain object; whatever of these it has, a runtime uses.

And what a runtime is to whoever drives a run.
"""

from pathlib import Path
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Worker(Protocol):
    def step(self) -> bool:
        """One unit of work, which never blocks; whether anything was done."""


@runtime_checkable
class Accountable(Protocol):
    def account(self) -> str:
        """Why it waits, for the user whose program does not move."""


@runtime_checkable
class Reporting(Protocol):
    def report(self) -> dict:
        """What it counted since the last time."""


@runtime_checkable
class Lasting(Protocol):
    """Has a state that belongs into a checkpoint. Where the state is too large for a copy, an attribute `copied` is
    False after `state()`: nothing may change before it is written."""

    def state(self) -> dict: ...

    def restore(self, state: dict) -> str | None:
        """Gives a remark, if something could not be put back exactly."""


@runtime_checkable
class Closable(Protocol):
    def close(self) -> None: ...


@runtime_checkable
class Shared(Protocol):
    """Can be reached from other processes of the same machine."""

    def share(self, consumer: str) -> "Service":
        """For the node `consumer`, which is in another process."""


@runtime_checkable
class Served(Protocol):
    """Can be reached from other machines, by messages."""

    def serve(self, consumer: str) -> "Service":
        """For the node `consumer`, which shares no memory with this process."""


class Service(Protocol):
    """This end of an edge between processes; it may be a `Worker` too, and then gets turns."""

    address: Any  # plain data for the other process; there, `address.connect()` takes the node's place

    def reclaim(self) -> None:
        """The consumer has died: forget what it had under way."""

    def close(self) -> None: ...


class Runtime(Protocol):
    """A program that runs. Its clock is what the nodes of one role count (see `Program.clock`)."""

    faults: list[dict]  # failures since they were last looked at
    remarks: list[str]  # on what could not be restored exactly

    def round(self) -> None:
        """Let the program go on for a moment."""

    def steps(self) -> int:
        """What the clock shows: that its nodes have counted, those before a restart included."""

    def settled(self) -> bool:
        """Asked when the budget is spent: whether what waits has been learned from and judged."""

    def reports(self) -> dict[str, dict]:
        """What each node counted since it was last asked."""

    def call(self, name: str, method: str, *arguments: Any) -> Any:
        """Call a method of a node, and wait for its result."""

    def save(self, folder: Path, step: int, extra: dict) -> None:
        """Begin to write a checkpoint."""

    def finish_saving(self) -> bool:
        """Go on with it; whether nothing is being written any more. An error of the writer is raised here."""

    def tend(self) -> None:
        """Look after the program while something else is waited for."""

    def close(self) -> None: ...
