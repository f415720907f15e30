"""DPPO: every worker acts and computes gradients from its own unrolls; each update is the mean of all (Heess 2017).

The slowest may be left out: W - D of W gradients suffice (--stragglers D).
"""

from cavalcade.architectures.build import build
from cavalcade.assembly import Parts, Wiring
from cavalcade.programs import Program

WIRING = Wiring(experience="bundled", updates="allreduce", together=True)


def dppo(x: Parts) -> Program:
    return build("dppo", x)
