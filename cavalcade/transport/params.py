"""Params from the learner to actors in other processes: each actor fetches the latest version when it wants to.

On one machine the params lie in shared memory; elsewhere a runtime sends them on request (`ParamsService`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from cavalcade.transport.broadcast import Broadcast, BroadcastAddress
from cavalcade.tree import Tree


class ParamsBroadcast(Broadcast):
    """The learner's side in shared memory. `vector`: [size] float32, all params; `statistics`: the model's."""

    def __init__(self, vector: np.ndarray, statistics: Tree):
        super().__init__({"vector": vector, "statistics": statistics})
        self.address = ParamsAddress(self.address)  # type: ignore[assignment]

    def publish_params(self, version: int, vector: np.ndarray, statistics: Tree) -> None:
        self.publish(version, {"vector": vector, "statistics": statistics})


@dataclass(frozen=True)
class ParamsAddress:
    """What a reader in another process needs; plain data."""

    broadcast: BroadcastAddress

    def connect(self) -> "ParamsReader":
        return ParamsReader(self.broadcast)


class ParamsReader:
    """Stands in for the learner in another process on the same machine."""

    def __init__(self, address: BroadcastAddress):
        self.reader = address.connect()

    def latest(self, known: int) -> tuple[int, np.ndarray, Tree] | None:
        """Version, vector and statistics; None if the latest version is `known`, or nothing was published yet."""
        found = self.reader.latest(known)
        return None if found is None else (found[0], found[1]["vector"], found[1]["statistics"])


class ParamsService:
    """The latest params in a form that a runtime can send. `current` (version, tree) is replaced and never changed in
    place, so any thread may read it, and the runtime sends each version once, however many actors ask for it."""

    def __init__(self, version: int, vector: np.ndarray, statistics: Tree):
        self.address = RemoteParams()
        self.publish_params(version, vector, statistics)

    def publish_params(self, version: int, vector: np.ndarray, statistics: Tree) -> None:
        self.current = (version, {"vector": vector, "statistics": statistics})

    def reclaim(self) -> None:
        """A reader that dies leaves nothing behind."""

    def close(self) -> None:
        """There is no shared memory to remove."""


@dataclass(frozen=True)
class RemoteParams:
    """Stands for a `ParamsService` at its consumer. `ask(known)`, given by the runtime, returns a future."""

    def connect(self, ask: Callable[[int], Any]) -> "RemoteParamsReader":
        return RemoteParamsReader(ask)


class RemoteParamsReader:
    """Stands in for the learner where no memory is shared with it."""

    def __init__(self, ask: Callable[[int], Any]):
        self.ask = ask

    def latest(self, known: int) -> tuple[int, np.ndarray, Tree] | None:
        """As `ParamsReader.latest`. Waits for the answer, so that an unroll begins with the newest params."""
        found = self.ask(known).get()
        return None if found is None else (found[0], found[1]["vector"], found[1]["statistics"])
