"""What learners have beside them: with whom they make their updates, and who says how many of them are active."""

from cavalcade.architectures.adjusting import Adjuster
from cavalcade.assembly import Parts
from cavalcade.errors import UserError
from cavalcade.learning.updates import Alone, Recipe
from cavalcade.learning.updates.allreduce import ByAllReduce, Meeting
from cavalcade.learning.updates.hogwild import SharedParams, Unlocked
from cavalcade.learning.updates.parameter_server import ByServers, Shard
from cavalcade.programs import Handle, Placement, Program


def add_valves(program: Program, x: Parts, table: Handle) -> dict[str, Handle]:
    """Beside the table, if it is asked for: who decides how many predictors, learners and workers are active."""
    row = x.row
    if not row.adjust_every:
        return {}
    most = (row.predictors or row.learners, row.learners, x.actors)
    if most == (1, 1, 1):
        raise UserError("--adjust-every has nothing to adjust: give more --actors, --learners or --predictors.")
    steps = x.experience.item.steps
    return {"valves": program.add("adjuster", Adjuster, table, steps, most, row.adjust_every, x.seed)}


def add_partners(program: Program, x: Parts) -> list[Handle]:
    """What learners make their updates with."""
    row, placed = x.row, Placement(imports=x.learner_imports)
    if row.updates == "parameter-server":
        args = [(x.shared_learner, i, row.servers, row.max_staleness) for i in range(row.servers)]
        return [program.add("server", Shard, *given, placement=placed) for given in args]
    if row.updates == "allreduce":
        return [program.add("meeting", Meeting, x.learner, row.learners, row.stragglers, placement=placed)]
    return [program.add("params", SharedParams, x.shared_learner, placement=placed)] if row.updates == "hogwild" else []


def recipe(x: Parts, k: int) -> Recipe:
    name = f"learner/{k}" if k else "learner"
    if x.row.updates == "parameter-server":
        return ByServers(name)
    if x.row.updates == "allreduce":
        return ByAllReduce(name, x.algorithm.adds_gradients)
    return Unlocked(x.row.experience != "bundled") if x.row.updates == "hogwild" else Alone()
