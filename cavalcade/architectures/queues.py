"""A queue with a replay beside it: IMPALA's variant in which a share of each batch is replayed (Espeholt 2018)."""

from typing import Any

import numpy as np

from cavalcade.assembly import Parts, allocate
from cavalcade.table import Limiter, Mixture, Table


class QueueBesideReplay(Table):
    """A queue whose items also go into a replay, over the same rows. Only the queue makes actors wait; the replay takes
    every item that the queue has taken."""

    def __init__(self, x: Parts):
        where, size = allocate(x), x.plan.sizes.queue
        super().__init__(x.signature, size, "fifo", limiter=Limiter.queue(size), max_times_sampled=1, **where)
        self.replay = Table.uniform(
            x.signature, x.plan.sizes.replay, Limiter.at_least(x.experience.batch), seed=x.seed, **where
        )

    def insert(self, *given: Any, **named: Any) -> bool:
        return super().insert(*given, **named) and self.replay.insert(*given, **named)

    def take_rows(self, count: int, writer: int = 0) -> np.ndarray:
        """If rows run out, items of the replay are removed: those in the queue must not be lost."""
        return self.replay.take_rows(count, writer)

    def tables(self) -> dict[str, Table]:
        return {"queue": self, "replay": self.replay}

    def state(self) -> dict:
        replay = self.replay.state()
        del replay["rows"]  # the queue saves them: they are the same
        kept = {**super().state(), "replay": replay}
        self.copied = self.copied and self.replay.copied
        return kept

    def restore(self, state: dict) -> None:
        super().restore(state)
        self.replay.restore({**state["replay"], "rows": state["rows"]})

    def check(self) -> None:
        from cavalcade.table.invariants import check

        check(*self.tables().values())

    def stop(self) -> None:
        super().stop()
        self.replay.stop()


def mixture(table: QueueBesideReplay, share: float) -> Mixture:
    """Draws new unrolls from the queue and, once the replay has enough, a share of each batch from there."""
    return Mixture({"queue": (table, 1.0 - share), "replay": (table.replay, share)}, start_alone=True)
