"""Parameters on servers, in slices; learners send gradients and get parameters back, each at its own pace (Nair 2015).

A server drops gradients that were computed with parameters too many updates ago; a learner drops those whose loss is
far above what it has seen so far. Both are counted. Against divergence, which the paper does not treat, a server keeps
a snapshot and goes back to it when numbers stop being finite.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import numpy as np

from cavalcade import tree
from cavalcade.learning.learner import Learner
from cavalcade.learning.updates import Means, Work
from cavalcade.learning.updates.descent import Descent, fresh, slices
from cavalcade.programs import Stopwatch
from cavalcade.transport import Client, Desk, Exchange, ServedDesk

SNAPSHOT_EVERY = 100  # updates


class Server:
    """Worker: one slice of the parameters and of the optimiser's state; answers one learner after the other."""

    def __init__(self, learner: Callable[[], Learner], index: int = 0, shards: int = 1, max_staleness: int = 100):
        """`max_staleness`: updates that may lie between the parameters a gradient was made with and now."""
        made = learner()
        part = slices(made.layout.size, shards)[index]
        rule = made.rule.of_slice(part)
        self.arrays = fresh(made.backend, rule, made.params()[0][part])
        self.descent = Descent(made.backend, rule, self.arrays)
        self.max_staleness, self.version = max_staleness, 0
        blank, number = np.zeros_like(self.arrays["params"]), np.zeros((), np.int64)
        request = {"gradient": blank, "version": number, "push": np.zeros((), np.bool_)}
        self.exchange = Exchange(request, {"params": blank, "version": number})
        self.snapshot = tree.map(np.copy, self.arrays)
        self.stale = self.rollbacks = 0
        self.watch = Stopwatch()

    def step(self) -> bool:
        self.watch.start()
        desks = self.exchange.collect(1, 0.0)
        for desk in desks:
            if desk.request["push"]:
                self._push(desk.request["gradient"], int(desk.request["version"]))
            desk.answer({"params": self.arrays["params"], "version": self.version})
            self.watch.lap("learning")
        return bool(desks)

    def _push(self, gradient: np.ndarray, version: int) -> None:
        if self.version - version > self.max_staleness:
            self.stale += 1
            return
        self.descent.apply(gradient)
        self.version += 1  # after a roll-back too: versions never come twice
        if not self.descent.finite():
            self.rollbacks += 1
            tree.assign(self.arrays, ..., self.snapshot)
        elif self.version % SNAPSHOT_EVERY == 0:
            tree.assign(self.snapshot, ..., self.arrays)

    def desk(self, name: str) -> Client:
        return self.exchange.desk(name)

    def share(self, consumer: str) -> Desk:
        return self.exchange.share(consumer)

    def serve(self, consumer: str) -> ServedDesk:
        return self.exchange.serve(consumer)

    def report(self) -> dict:
        counted = {"dropped_stale": float(self.stale), "rollbacks": float(self.rollbacks)}
        self.stale = self.rollbacks = 0
        return {"counted": counted, "seconds": self.watch.drain()}

    def account(self) -> str:
        return f"waits for a gradient; {self.version} updates done"

    def state(self) -> dict:
        return {"arrays": tree.map(np.copy, self.arrays), "version": self.version}

    def restore(self, state: dict) -> None:
        tree.assign(self.arrays, ..., state["arrays"])
        tree.assign(self.snapshot, ..., state["arrays"])
        self.version = int(state["version"])

    def close(self) -> None:
        self.exchange.close()


@dataclass(frozen=True)
class ByServers:
    name: str  # of the learner's node
    deviations: float = 3.0

    def __call__(self, learner: Learner, partners: list) -> "Pushed":
        return Pushed(learner, self.name, partners, self.deviations)


class Pushed:
    """A learner's updates, made by servers."""

    learned_with: int | None = None

    def __init__(self, learner: Learner, name: str, servers: list, deviations: float = 3.0):
        """`servers`: in the order of their slices. `deviations`: how far above the mean a loss may lie."""
        self.learner, self.clients = learner, [server.desk(name) for server in servers]
        self.parts = slices(learner.layout.size, len(servers))
        self.outliers = Outliers(deviations)
        self.vector = learner.params()[0]
        self.versions = [0] * len(servers)  # each server counts its own
        self.fetched = False

    def update(self, items: Any) -> Work:
        learner, means = self.learner, Means()
        if not self.fetched:  # others may have begun long ago
            yield from self._exchange(None)
        for samples, index in learner.minibatches(items):
            gradient, metrics = learner.gradients(samples, index)
            yield True
            gradient, norm = learner.clipped(gradient)
            outlying = self.outliers.outlying(metrics["loss"], norm)
            yield from self._exchange(None if outlying else gradient)
            learner.adapt(metrics)  # its own, by what it sees itself
            means.add({**metrics, "gradient_norm": norm})
        return means.given()

    def _exchange(self, gradient: np.ndarray | None) -> Generator[bool, None, None]:
        """Send a gradient, if there is one, to all servers at once; take the parameters that they have now."""
        sent = self.vector if gradient is None else gradient
        for client, part, version in zip(self.clients, self.parts, self.versions):
            client.send({"gradient": sent[part], "version": version, "push": gradient is not None})
        yield True
        for number, (client, part) in enumerate(zip(self.clients, self.parts)):
            while (reply := client.take()) is None:
                yield False
            self.vector[part], self.versions[number] = reply["params"], int(reply["version"])
        self.fetched = True
        self.learner.adopt(self.vector, self.versions[0])

    def counted(self) -> dict[str, float]:
        dropped, self.outliers.dropped = self.outliers.dropped, 0
        return {"dropped_outlying": float(dropped)}


class Outliers:
    """Which losses lie too far above what came before, by the running mean m and deviation s of their size:
    |loss| > m + deviations s. What is not a number always does."""

    WARM_UP = 100  # losses before any is judged
    MEMORY = 0.01  # weight of the newest
    IN_A_ROW = 20  # what lies outside so often is how things are now: learned anew, or nothing would ever count again

    def __init__(self, deviations: float):
        self.deviations, self.dropped = deviations, 0
        self.count, self.mean, self.square, self.row = 0, 0.0, 0.0, 0

    def outlying(self, loss: float, norm: float) -> bool:
        """`norm`: of the gradient, which has to be a number too."""
        spread = max(self.square - self.mean**2, 0.0) ** 0.5
        gate = self.mean + self.deviations * spread if self.count >= self.WARM_UP else np.inf
        number = bool(np.isfinite(loss) and np.isfinite(norm))
        if number:
            self._take(min(abs(loss), gate))  # else one wild loss would widen the gate for long
        if number and abs(loss) <= gate:
            self.row = 0
            return False
        self.dropped, self.row = self.dropped + 1, self.row + 1
        if self.row >= self.IN_A_ROW:
            self.count = self.row = 0
        return True

    def _take(self, size: float) -> None:
        self.count += 1
        share = max(1.0 / self.count, self.MEMORY)
        self.mean += share * (size - self.mean)
        self.square += share * (size**2 - self.square)
