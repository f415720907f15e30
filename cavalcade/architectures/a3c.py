"""A3C: every worker acts, learns from its own unrolls, and changes the shared params without waiting (Mnih 2016).

On one machine there are no locks (hogwild; the optimiser's statistics are shared too); across machines a parameter
server takes the gradients (--updates parameter-server).
"""

from cavalcade.architectures.build import build
from cavalcade.assembly import Parts, Wiring
from cavalcade.programs import Program

WIRING = Wiring(experience="bundled", updates="hogwild", together=True)


def a3c(x: Parts) -> Program:
    return build("a3c", x)
