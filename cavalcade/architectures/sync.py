"""Lock step: actors act with the environment, one learner learns, and neither runs ahead (DQN, A2C, PPO as published).

There is no special loop for it. The table's window has no slack: actors reserve room before they act, and the learner
draws as soon as a batch is there.
"""

from cavalcade.architectures.build import build
from cavalcade.assembly import Parts, Wiring
from cavalcade.programs import Program

WIRING = Wiring()


def sync(x: Parts) -> Program:
    return build("sync", x)
