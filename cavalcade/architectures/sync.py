"""Lock step: actors act with the environment, one learner learns, and neither runs ahead (DQN, A2C, PPO as published).

There is no special loop for it. The table's window has no slack: actors reserve room before they act, and the learner
draws as soon as a batch is there.
"""

from cavalcade.acting import EnvLoop
from cavalcade.learning import LearnerLoop
from cavalcade.parts import Parts
from cavalcade.program import Program


def sync(x: Parts) -> Program:
    program = Program("sync")
    table = program.add("table", x.table)
    learner = program.add("learner", LearnerLoop, x.learner, table, x.experience.batch, x.importance)
    for i in range(x.actors):
        program.add(
            "actor",
            EnvLoop,
            x.policy,
            x.environments,
            x.experience,
            sink=table,
            source=learner,
            seed=x.seed,
            actor=i,
            actors=x.actors,
        )
    return program
