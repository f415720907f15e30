"""Parameters from the learner to actors in other processes: the latest value by version, taken when an actor likes."""

from dataclasses import dataclass

import numpy as np

from cavalcade.broadcast import Broadcast, BroadcastAddress
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
