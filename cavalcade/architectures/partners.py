"""What learners have beside them: with whom they make their updates, and who says how many of them are active."""

from cavalcade.architectures.adjusting import Adjuster
from cavalcade.assembly import Parts
from cavalcade.errors import UserError
from cavalcade.learning.updates import Alone, Recipe
from cavalcade.learning.updates.allreduce import ByAllReduce, Meeting
from cavalcade.learning.updates.hogwild import SharedParams, Unlocked
from cavalcade.learning.updates.parameter_server import ByServers, Server
from cavalcade.programs import Handle, Placement, Program


def add_valves(program: Program, x: Parts, table: Handle) -> dict[str, Handle]:
    """Beside the table, if it is asked for: who decides how many predictors, learners and workers are active."""
    wiring = x.wiring
    if not wiring.adjust_every:
        return {}
    most = (wiring.predictors or wiring.learners, wiring.learners, x.actors)
    if most == (1, 1, 1):
        raise UserError("--adjust-every has nothing to adjust: give more --actors, --learners or --predictors.")
    steps = x.experience.item.steps
    return {"valves": program.add("adjuster", Adjuster, table, steps, most, wiring.adjust_every, x.seed)}


def add_partners(program: Program, x: Parts) -> list[Handle]:
    """What learners make their updates with."""
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
    name = f"learner/{k}" if k else "learner"
    if x.wiring.updates == "parameter-server":
        return ByServers(name)
    if x.wiring.updates == "allreduce":
        return ByAllReduce(name, x.algorithm.adds_gradients)
    return Unlocked(x.wiring.experience != "bundled") if x.wiring.updates == "hogwild" else Alone()
