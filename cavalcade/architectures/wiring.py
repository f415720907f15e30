"""What several architectures wire alike."""

from cavalcade.acting import EnvLoop
from cavalcade.learning import LearnerLoop
from cavalcade.parts import Parts
from cavalcade.program import Handle, Placement, Program


def actors_table_learner(name: str, x: Parts) -> Program:
    """Actors fill one table, one learner draws from it; both lie in one process, so that a draw is a plain call."""
    program = Program(name)
    with program.group("learner"):
        table = program.add("table", x.table)
        learner = add_learner(program, x, table)
    add_actors(program, x, table, learner)
    return program


def add_learner(program: Program, x: Parts, source: Handle) -> Handle:
    """A learner that draws from `source`; if it fails, all goes on from the last checkpoint."""
    about = {"importance": x.importance, "max_lag": x.max_lag, "prefetch": x.prefetch}
    placement = Placement(gpus=1.0 if x.learner_device.startswith("cuda") else 0.0)
    return program.add("learner", LearnerLoop, x.learner, source, x.experience.batch, **about, placement=placement)


def add_actors(program: Program, x: Parts, sink: Handle, source: Handle) -> None:
    """Actors that act with their environments, send to `sink` and take parameters from `source`. One that fails is
    built anew: what it had under way is lost, and nothing else."""
    for i in range(x.actors):
        program.add(
            "actor",
            EnvLoop,
            x.policy,
            x.environments,
            x.experience,
            sink=sink,
            source=source,
            seed=x.seed,
            actor=i,
            actors=x.actors,
            placement=Placement(restart="alone"),
        )
