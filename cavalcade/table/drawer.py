"""Draws for learners in other processes than the table: a batch in one reply, new priorities with the next request.

In the table's own process, or in one process for all, the calls go straight to the table.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from cavalcade.exchange import Exchange
from cavalcade.table.table import Sample
from cavalcade.tree import map


class Drawer:
    """Worker beside a table. `source` is the table, or several drawn from as one."""

    def __init__(self, source: Any, blank: Any, batch: int, importance: float):
        """`blank`: a table whose items look like those that are drawn."""
        self.source, self.batch, self.importance = source, batch, importance
        keys, priority = np.zeros(batch, np.int64), np.zeros(batch, np.float32)
        request = {"keys": keys, "priority": priority, "judged": np.zeros((), np.bool_)}
        self.exchange = Exchange(request, blank_sample(blank, batch)._asdict())
        self.judged: set[str] = set()  # desks whose priorities have been taken, and which wait for their draw

    def step(self) -> bool:
        moved = False
        for desk in [desk for desk in self.exchange.desks if desk.waiting]:
            if desk.request["judged"] and desk.name not in self.judged:
                self.source.update_priorities(np.copy(desk.request["keys"]), np.copy(desk.request["priority"]))
                self.judged.add(desk.name)
            sample = self.source.sample(self.batch, self.importance)
            if sample is not None:
                self.judged.discard(desk.name)
                desk.answer(sample._asdict())
                moved = True
        return moved

    def sample(self, count: int, importance: float = 0.0, timeout: float | None = 0.0) -> Sample | None:
        return self.source.sample(count, importance, timeout)

    def update_priorities(self, keys: np.ndarray, priority: np.ndarray) -> int:
        return self.source.update_priorities(keys, priority)

    def share(self, consumer: str) -> "DrawDesk":
        return DrawDesk(self.exchange.share(consumer))

    def serve(self, consumer: str) -> "DrawDesk":
        return DrawDesk(self.exchange.serve(consumer))

    def close(self) -> None:
        self.exchange.close()


class DrawDesk:
    """A desk of the exchange whose client draws."""

    def __init__(self, desk: Any):
        self.desk = desk
        self.address = DrawAddress(desk.address)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.desk, name)

    @property
    def ring(self) -> Any:
        return self.desk.ring

    @ring.setter
    def ring(self, bell: Any) -> None:
        self.desk.ring = bell


@dataclass(frozen=True)
class DrawAddress:
    address: Any

    def connect(self, *ask: Any) -> "Draws":
        return Draws(self.address.connect(*ask))


class Draws:
    """A learner's side: asks for the next batch, and looks whether it has come."""

    def __init__(self, client: Any):
        self.client, self.asked = client, False
        self.judged: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def ring(self) -> Any:
        return self.client.ring

    @ring.setter
    def ring(self, bell: Any) -> None:
        self.client.ring = bell

    def sample(self, count: int, importance: float = 0.0, timeout: float | None = 0.0) -> Sample | None:
        if not self.asked:
            keys, priority = self.judged or (0, 0.0)
            self.client.send({"keys": keys, "priority": priority, "judged": self.judged is not None})
            self.asked, self.judged = True, None
        reply = self.client.take()
        if reply is None:
            return None
        self.asked = False
        return Sample(**map(np.copy, reply))

    def update_priorities(self, keys: np.ndarray, priority: np.ndarray) -> None:
        """Told with the next request."""
        self.judged = (keys, priority)


def blank_sample(table: Any, batch: int) -> Sample:
    """Zeros in the shape of a draw."""
    signature = table.signature
    own = {
        name: np.zeros((batch, *np.shape(leaf)), np.asarray(leaf).dtype)
        for name, leaf in signature.flatten(signature.own).items()
    }
    items = signature.build(table.rows, np.zeros((batch, signature.length), np.int32), own)
    numbers, reals = np.zeros(batch, np.int64), np.zeros(batch)
    return Sample(
        items, numbers, reals, np.zeros(batch, np.float32), np.zeros(batch, np.int32), numbers, numbers, reals
    )
