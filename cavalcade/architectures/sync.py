"""Lock step: actors act beside their environments, one learner learns, neither runs ahead (DQN, A2C, PPO as published).

There is no special loop for it. The table's limiter has no slack: actors reserve room before they act, and the learner
draws as soon as a batch is there.
"""

from cavalcade.architectures.build import build
from cavalcade.assembly import Parts, Wiring
from cavalcade.programs import Program

WIRING = Wiring()


def sync(x: Parts) -> Program:
    return build("sync", x)
