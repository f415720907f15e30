"""What several architectures wire alike."""

from cavalcade.acting import EnvLoop
from cavalcade.parts import Parts
from cavalcade.program import Handle, Placement, Program


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
