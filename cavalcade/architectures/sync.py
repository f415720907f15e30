"""Lock step: actors act with the environment, one learner learns, and neither runs ahead (DQN, A2C, PPO as published).

There is no special loop for it. The table's window has no slack: actors reserve room before they act, and the learner
draws as soon as a batch is there.
"""

from cavalcade.architectures.build import build
from cavalcade.parts import Parts
from cavalcade.program import Program
from cavalcade.row import Row

ROW = Row()


def sync(x: Parts) -> Program:
    return build("sync", x)
