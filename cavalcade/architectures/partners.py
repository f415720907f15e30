"""Nodes beside the learners: those they make updates with (partners), and the one that sets the valves."""

from cavalcade.architectures.adjusting import Adjuster
from cavalcade.assembly import Parts
from cavalcade.errors import UserError
from cavalcade.learning.updates import Alone, Recipe
from cavalcade.learning.updates.allreduce import ByAllReduce, Meeting
from cavalcade.learning.updates.hogwild import SharedParams, Unlocked
from cavalcade.learning.updates.parameter_server import ByServers, Server
from cavalcade.programs import Handle, Placement, Program


def add_valves(program: Program, x: Parts, table: Handle) -> dict[str, Handle]:
    """With --adjust-every: add the adjuster beside the table, as the argument `valves` of other nodes; else nothing."""
    wiring = x.wiring
    if not wiring.adjust_every:
        return {}
    most = (wiring.predictors or wiring.learners, wiring.learners, x.actors)
    if most == (1, 1, 1):
        raise UserError("--adjust-every has nothing to adjust: give more --actors, --learners or --predictors.")
    steps = x.experience.item.steps
    return {"valves": program.add("adjuster", Adjuster, table, steps, most, wiring.adjust_every, x.seed)}


def add_partners(program: Program, x: Parts) -> list[Handle]:
    """The nodes that learners make their updates with: servers, a meeting or shared params; none if they are alone."""
    wiring, placed = x.wiring, Placement(imports=x.learner_imports)
    if wiring.updates == "parameter-server":
        args = [(x.shared_learner, i, wiring.servers, wiring.max_staleness) for i in range(wiring.servers)]
        return [program.add("server", Server, *given, placement=placed) for given in args]
    if wiring.updates == "allreduce":
        return [program.add("meeting", Meeting, x.learner, wiring.learners, wiring.stragglers, placement=placed)]
    return (
        [program.add("params", SharedParams, x.shared_learner, placement=placed)] if wiring.updates == "hogwild" else []
    )


def recipe(x: Parts, k: int) -> Recipe:
    """How learner k makes updates of its gradients."""
    name = f"learner/{k}" if k else "learner"
    if x.wiring.updates == "parameter-server":
        return ByServers(name)
    if x.wiring.updates == "allreduce":
        return ByAllReduce(name, x.algorithm.adds_gradients)
    return Unlocked(x.wiring.experience != "bundled") if x.wiring.updates == "hogwild" else Alone()
