"""Parameters from the learner to actors in other processes: the latest value by version, taken when an actor likes.

On one machine they lie in shared memory; elsewhere a runtime hands them out on request, see `ParamsService`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from cavalcade.transport.broadcast import Broadcast, BroadcastAddress
from cavalcade.tree import Tree


class ParamsBroadcast(Broadcast):
    def __init__(self, vector: np.ndarray, statistics: Tree):
        super().__init__({"vector": vector, "statistics": statistics})
        self.address = ParamsAddress(self.address)  # type: ignore[assignment]

    def publish_params(self, version: int, vector: np.ndarray, statistics: Tree) -> None:
        self.publish(version, {"vector": vector, "statistics": statistics})


@dataclass(frozen=True)
class ParamsAddress:
    broadcast: BroadcastAddress

    def connect(self) -> "ParamsReader":
        return ParamsReader(self.broadcast)


class ParamsReader:
    """Stands in for the learner in another process."""

    def __init__(self, address: BroadcastAddress):
        self.reader = address.connect()

    def latest(self, known: int) -> tuple[int, np.ndarray, Tree] | None:
        found = self.reader.latest(known)
        return None if found is None else (found[0], found[1]["vector"], found[1]["statistics"])


class ParamsService:
    """The latest value in a form that a runtime can send: `current` is replaced and never changed, so that it may be
    looked at from any thread, and sent once for each version, however many ask for it."""

    def __init__(self, version: int, vector: np.ndarray, statistics: Tree):
        self.address = RemoteParams()
        self.publish_params(version, vector, statistics)

    def publish_params(self, version: int, vector: np.ndarray, statistics: Tree) -> None:
        self.current = (version, {"vector": vector, "statistics": statistics})

    def reclaim(self) -> None:
        """A reader that dies leaves nothing."""

    def close(self) -> None:
        """Nothing lies elsewhere."""


@dataclass(frozen=True)
class RemoteParams:
    def connect(self, ask: Callable[[int], Any]) -> "RemoteParamsReader":
        return RemoteParamsReader(ask)


class RemoteParamsReader:
    """Stands in for the learner where no memory is shared with it."""

    def __init__(self, ask: Callable[[int], Any]):
        self.ask = ask

    def latest(self, known: int) -> tuple[int, np.ndarray, Tree] | None:
        """Waits for the answer: an unroll is begun with the newest parameters there are."""
        found = self.ask(known).get()
        return None if found is None else (found[0], found[1]["vector"], found[1]["statistics"])
