"""Lock step: actors act with the environment, one learner learns, and neither runs ahead (DQN, A2C, PPO as published).

There is no special loop for it. The table's window has no slack: actors reserve room before they act, and the learner
draws as soon as a batch is there.
"""

from cavalcade.architectures.wiring import add_actors
from cavalcade.learning import LearnerLoop
from cavalcade.parts import Parts
from cavalcade.program import Program


def sync(x: Parts) -> Program:
    program = Program("sync")
    with program.group("learner"):
        table = program.add("table", x.table)
        learner = program.add("learner", LearnerLoop, x.learner, table, x.experience.batch, x.importance)
    add_actors(program, x, table, learner)
    return program
