"""IMPALA: actors send whole unrolls through a bounded queue to one learner, and need not wait for it (Espeholt 2018).

Actors take the newest parameters at the start of each unroll, so how old an unroll is when it is drawn is bounded by
the length of the queue; the algorithm has to bear that lag.

In the variant with replay every unroll goes into the queue and into a replay beside it, and a share of each batch is
drawn from there.
"""

from typing import Any

import numpy as np

from cavalcade.architectures.wiring import add_actors, add_learner
from cavalcade.errors import UserError
from cavalcade.experience import Queue
from cavalcade.parts import Parts
from cavalcade.program import Program
from cavalcade.table import Limiter, Table
from cavalcade.table.mixture import Mixture


def impala(x: Parts) -> Program:
    store = x.experience.store
    if x.algorithm.reuse == "once" or not isinstance(store, Queue):
        raise UserError(
            "The architecture impala draws unrolls once, a little after their policy has changed; this algorithm "
            "replays transitions, or bears no such lag: use it with the architecture sync."
        )
    program = Program("impala")
    with program.group("learner"):
        if store.replay_share:
            table = program.add("table", QueueBesideReplay, x)
            source = program.add("mixture", mixture, table, store.replay_share)
        else:
            table = source = program.add("table", x.table)
        learner = add_learner(program, x, source)
    add_actors(program, x, table, learner)
    return program


class QueueBesideReplay(Table):
    """A queue whose items all go into a replay as well, over the same rows. Only the queue makes actors wait; replay
    takes whatever the queue has taken."""

    def __init__(self, x: Parts):
        where, size = x.allocate(), x.queue_size
        super().__init__(x.signature, size, "fifo", limiter=Limiter.queue(size), max_times_sampled=1, **where)
        self.replay = Table.uniform(x.signature, x.replay_size, Limiter.at_least(x.experience.batch), x.seed, **where)

    def insert(self, *given: Any, **named: Any) -> bool:
        return super().insert(*given, **named) and self.replay.insert(*given, **named)

    def take_rows(self, count: int, writer: int = 0) -> np.ndarray:
        """Where rows run out, what is replayed goes: what waits in the queue may not be lost."""
        return self.replay.take_rows(count, writer)

    def state(self) -> dict:
        replay = self.replay.state()
        del replay["rows"]  # they are the queue's too
        kept = {**super().state(), "replay": replay}
        self.copied = self.copied and self.replay.copied
        return kept

    def restore(self, state: dict) -> None:
        super().restore(state)
        self.replay.restore({**state["replay"], "rows": state["rows"]})

    def check(self) -> None:
        from cavalcade.table.invariants import check

        check(self, self.replay)

    def stop(self) -> None:
        super().stop()
        self.replay.stop()


def mixture(table: QueueBesideReplay, share: float) -> Mixture:
    """New unrolls and, as soon as there are some, a share of replayed ones."""
    return Mixture({"queue": (table, 1.0 - share), "replay": (table.replay, share)}, start_alone=True)
