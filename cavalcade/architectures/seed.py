"""SEED RL: acting is moved to the learner; environment workers only step environments (Espeholt 2020).

Workers send observations and get actions. One policy in the learner's process answers many workers together, keeps the
carry of their environments and builds the items: IMPALA's unrolls, which are drawn once, or transitions for a replay.
Params never leave that process.
"""

from cavalcade.architectures.build import build
from cavalcade.assembly import Parts, Wiring
from cavalcade.errors import UserError
from cavalcade.programs import Program

WIRING = Wiring(acting="central")


def seed(x: Parts) -> Program:
    if x.algorithm.lock_step:
        raise UserError(
            "The architecture seed acts while the learner learns, but this algorithm bears no policy lag; use paac."
        )
    return build("seed", x)
