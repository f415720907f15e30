"""SEED RL: IMPALA with the actor moved to the learner; environment workers only step environments (Espeholt 2020).

Workers send observations and get actions; one policy beside the learner answers many of them together, keeps the
recurrent state and builds the unrolls. Parameters never travel.
"""

from cavalcade.architectures.build import build
from cavalcade.architectures.impala import require_unrolls
from cavalcade.assembly import Parts, Wiring
from cavalcade.programs import Program

WIRING = Wiring(acting="central")


def seed(x: Parts) -> Program:
    require_unrolls(x, "seed")
    return build("seed", x)
