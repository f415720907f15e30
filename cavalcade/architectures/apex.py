"""Ape-X: many actors, each exploring at its own rate, fill one prioritised replay; one learner draws (Horgan 2018).

The wiring is that of lock step. What differs is slack, which the algorithm's experience declares: actors gather `flush`
items before they send them and ask for params every `pull_every` steps. `tolerance` is how far draws may run ahead of
inserts or behind them, so that neither side waits for the other at every step. And replay may exceed its size: new
items are always taken, and every `trim_every` draws the oldest items beyond the size are removed.
"""

from cavalcade.architectures.build import build
from cavalcade.assembly import Parts, Wiring
from cavalcade.errors import UserError
from cavalcade.programs import Program

WIRING = Wiring()


def apex(x: Parts) -> Program:
    if x.experience.store.drawn_once:
        raise UserError("The architecture apex replays experience, but this algorithm draws it once; use impala.")
    return build("apex", x)
