"""DPPO: every worker acts and computes gradients from its own unrolls; each update is their mean (Heess 2017).

The slowest workers may be left out: an update is made as soon as W - D of W gradients are there (--stragglers D).
"""

from cavalcade.architectures.build import build
from cavalcade.assembly import Parts, Wiring
from cavalcade.programs import Program

WIRING = Wiring(experience="bundled", updates="allreduce", together=True)


def dppo(x: Parts) -> Program:
    return build("dppo", x)
