"""Ape-X: many actors, each exploring at its own rate, fill one prioritised replay; one learner draws (Horgan 2018).

The wiring is that of lock step; what differs is slack, and where it lies is declared with the experience. Actors gather
items before they send them and ask for parameters every so many steps. The window between inserts and draws is wide, so
that neither side waits for the other's every move. And replay has a soft size: what comes is always taken, and every so
many draws the oldest of what is too much goes.
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
