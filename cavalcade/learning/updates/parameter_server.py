"""Params on servers, in slices; learners send gradients and get params back, each at its own pace (Nair 2015).

A server drops gradients that were computed with params of too many updates ago; a learner drops gradients whose loss is
far above its losses so far. Both are counted. Against divergence, which the paper does not treat, a server keeps a
snapshot of its slice, and goes back to it when a number of the slice is no longer finite.
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

SNAPSHOT_EVERY = 100  # updates of a server


class Server:
    """Worker: holds one slice of the params and of the optimiser's state, and answers one learner after the other."""

    def __init__(self, learner: Callable[[], Learner], index: int = 0, shards: int = 1, max_staleness: int = 100):
        """The server holds slice `index` of `shards` slices. `max_staleness`: a gradient is dropped if this server made
        more updates since the params that the gradient was computed with."""
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
        self.stale = self.rollbacks = 0  # since the last report
        self.watch = Stopwatch()

    def step(self) -> bool:
        """Apply the gradient of one waiting learner, if it sends one, and answer with the params as they are then."""
        self.watch.start()
        desks = self.exchange.collect(1, 0.0)
        for desk in desks:
            if desk.request["push"]:
                self._push(desk.request["gradient"], int(desk.request["version"]))
            desk.answer({"params": self.arrays["params"], "version": self.version})
            self.watch.lap("learning")
        return bool(desks)

    def _push(self, gradient: np.ndarray, version: int) -> None:
        """Apply a gradient that was computed with the params of this version, or drop it if that is too old."""
        if self.version - version > self.max_staleness:
            self.stale += 1
            return
        self.descent.apply(gradient)
        self.version += 1  # after a roll-back too, so that a version never means two params
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
    """The recipe of `Pushed`."""

    name: str  # of the learner's node
    deviations: float = 3.0  # see `Outliers`

    def __call__(self, learner: Learner, partners: list) -> "Pushed":
        return Pushed(learner, self.name, partners, self.deviations)


class Pushed:
    """A learner's updates, made by servers with its gradients."""

    learned_with: int | None = None

    def __init__(self, learner: Learner, name: str, servers: list, deviations: float = 3.0):
        """`servers`: in the order of their slices. `deviations`: how many standard deviations above the mean a loss may
        be."""
        self.learner, self.clients = learner, [server.desk(name) for server in servers]
        self.parts = slices(learner.layout.size, len(servers))
        self.outliers = Outliers(deviations)
        self.vector = learner.params()[0]
        self.versions = [0] * len(servers)  # of the params in `vector`; each server counts its own updates
        self.fetched = False  # whether `vector` has come from the servers

    def update(self, items: Any) -> Work:
        learner, means = self.learner, Means()
        if not self.fetched:  # other learners may have changed the params long before
            yield from self._exchange(None)
        for samples, index in learner.minibatches(items):
            gradient, metrics = learner.gradients(samples, index)
            yield True
            gradient, norm = learner.clipped(gradient)
            outlying = self.outliers.outlying(metrics["loss"], norm)
            yield from self._exchange(None if outlying else gradient)
            learner.adapt(metrics)  # each learner has coefficients of its own, changed by its own metrics
            means.add({**metrics, "gradient_norm": norm})
        return means.given()

    def _exchange(self, gradient: np.ndarray | None) -> Generator[bool, None, None]:
        """Send the gradient [n], unless it is None, to all servers at once, and take the params of their answers."""
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
    """Finds losses far above earlier ones, by the running mean m and standard deviation s of the losses' size:
    |loss| > m + deviations s. A loss or a gradient that is not finite is always an outlier."""

    WARM_UP = 100  # losses that are seen before one can be an outlier
    MEMORY = 0.01  # weight of the newest loss in the running means
    # After so many outliers in a row losses have become larger for good: the means begin anew, or every gradient would
    # be dropped from then on.
    IN_A_ROW = 20

    def __init__(self, deviations: float):
        self.deviations, self.dropped = deviations, 0
        self.count, self.mean, self.square, self.row = 0, 0.0, 0.0, 0

    def outlying(self, loss: float, norm: float) -> bool:
        """Whether this loss is an outlier, or `norm`, the gradient's norm, is not finite. Counts the outliers."""
        spread = max(self.square - self.mean**2, 0.0) ** 0.5
        gate = self.mean + self.deviations * spread if self.count >= self.WARM_UP else np.inf
        number = bool(np.isfinite(loss) and np.isfinite(norm))
        if number:
            self._take(min(abs(loss), gate))  # cut at the gate, or one huge loss would raise the gate for long
        if number and abs(loss) <= gate:
            self.row = 0
            return False
        self.dropped, self.row = self.dropped + 1, self.row + 1
        if self.row >= self.IN_A_ROW:
            self.count = self.row = 0
        return True

    def _take(self, size: float) -> None:
        """Add the size |loss| to the running means."""
        self.count += 1
        share = max(1.0 / self.count, self.MEMORY)
        self.mean += share * (size - self.mean)
        self.square += share * (size**2 - self.square)
