"""SEED RL: IMPALA with acting moved to the learner; environment workers only step environments (Espeholt 2020).

Workers send observations and get actions. One policy in the learner's process answers many workers together, keeps the
carry of their environments and builds the unrolls. Params never leave that process.
"""

from cavalcade.architectures.build import build
from cavalcade.architectures.impala import require_unrolls
from cavalcade.assembly import Parts, Wiring
from cavalcade.programs import Program

WIRING = Wiring(acting="central")


def seed(x: Parts) -> Program:
    require_unrolls(x, "seed")
    return build("seed", x)
