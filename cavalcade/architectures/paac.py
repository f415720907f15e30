"""PAAC: lock step with one policy for all environment workers (Clemente 2017; batched A2C in Espeholt 2018)."""

from cavalcade.architectures.build import build
from cavalcade.assembly import Parts, Wiring
from cavalcade.programs import Program

WIRING = Wiring(acting="central")


def paac(x: Parts) -> Program:
    return build("paac", x)
