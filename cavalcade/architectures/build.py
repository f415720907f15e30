"""Any row as a program. An architecture with a name is a row with a story: see the files beside this one."""

from typing import Any

from cavalcade.acting import EnvLoop
from cavalcade.architectures.tables import add_draws, add_table, add_tables
from cavalcade.central import CentralActor
from cavalcade.env_worker import EnvWorker
from cavalcade.errors import UserError
from cavalcade.learner_loop import LearnerLoop
from cavalcade.parts import Parts
from cavalcade.program import Handle, Placement, Program
from cavalcade.updates import Alone, Recipe
from cavalcade.updates.allreduce import ByAllReduce, Meeting
from cavalcade.updates.hogwild import SharedParams, Unlocked
from cavalcade.updates.parameter_server import ByServers, Shard

MOST, PATIENCE = 64, 2e-3  # workers that central acting answers together, and seconds that one may wait for others


def build(name: str, x: Parts) -> Program:
    row, program = x.row, Program(name)
    if row.experience == "bundled" and x.actors % row.learners:
        raise UserError(
            f"--experience bundled gives each of {row.learners} learners as many actors, but --actors {x.actors} "
            "cannot be divided by it."
        )
    if row.experience != "bundled" and row.learners > 1 and x.lock_step:
        raise UserError(
            f"--experience {row.experience} lets {row.learners} learners draw while others still learn, but this "
            "algorithm bears no policy lag: use --experience bundled."
        )
    partners = add_partners(program, x)
    one = x.of_one_learner
    sinks, drawers = add_tables(program, x)
    learners = []
    for k in range(row.learners):
        with program.group(place(x, k)):
            if drawers:
                source = add_draws(program, x, drawers, k)
            else:
                sink, source = add_table(program, one)
                sinks.append(sink)
            learners.append(add_learner(program, one, source, recipe(x, k), partners))
    add_acting(program, x, sinks, learners)
    return program


def place(x: Parts, k: int) -> str:
    """The process of learner k."""
    if x.row.together:
        return f"worker/{k}"
    return f"learner/{k}" if x.row.learners > 1 else "learner"


def add_partners(program: Program, x: Parts) -> list[Handle]:
    """What learners make their updates with."""
    row = x.row
    if row.updates == "parameter-server":
        args = [(x.shared_learner, i, row.servers, row.max_staleness) for i in range(row.servers)]
        return [program.add("server", Shard, *given, placement=Placement(group=f"server/{given[1]}")) for given in args]
    if row.updates == "allreduce":
        return [program.add("meeting", Meeting, x.learner, row.learners, row.stragglers)]
    return [program.add("params", SharedParams, x.shared_learner)] if row.updates == "hogwild" else []


def recipe(x: Parts, k: int) -> Recipe:
    name = f"learner/{k}" if k else "learner"
    if x.row.updates == "parameter-server":
        return ByServers(name)
    if x.row.updates == "allreduce":
        return ByAllReduce(name, getattr(x.algorithm, "summed", False))
    return Unlocked() if x.row.updates == "hogwild" else Alone()


def add_learner(program: Program, x: Parts, source: Handle, updates: Recipe, partners: list[Handle]) -> Handle:
    """A learner that draws from `source`; if it fails, all goes on from the last checkpoint."""
    about: dict[str, Any] = {"importance": x.importance, "max_lag": x.max_lag, "prefetch": x.prefetch}
    about |= {"updates": updates, "partners": partners}
    placement = Placement(gpus=1.0 if x.learner_device.startswith("cuda") else 0.0)
    return program.add("learner", LearnerLoop, x.learner, source, x.experience.batch, **about, placement=placement)


def add_acting(program: Program, x: Parts, sinks: list[Handle], learners: list[Handle]) -> None:
    """Actors or environment workers, dealt out to tables and learners in turn. One that fails is built anew: what it
    had under way is lost, and nothing else."""
    row, alone = x.row, Placement(restart="alone")
    numbered = [{"seed": x.seed, "actor": i, "actors": x.actors} for i in range(x.actors)]
    if row.acting == "local":
        for i, about in enumerate(numbered):
            k = i % row.learners
            where = Placement(group=place(x, k)) if row.together else alone
            ends = {"sink": sinks[i % len(sinks)], "source": learners[k]}
            program.add("actor", EnvLoop, x.policy, x.environments, x.experience, **ends, **about, placement=where)
        return
    predictors = []
    for j in range(row.predictors or row.learners):
        where = Placement(group=f"predictor/{j}" if row.predictors else place(x, j))
        given = (
            x.policy,
            x.experience,
            [sinks[j]] if row.experience == "bundled" else sinks,
            learners[j % row.learners],
        )
        patience = PATIENCE if x.writers != "here" else 0.0  # a clock would make runs differ
        made = program.add("predictor", CentralActor, *given, x.envs, MOST, patience, placement=where)
        predictors.append(made)
    for i, about in enumerate(numbered):
        central = predictors[i % len(predictors)]
        program.add("actor", EnvWorker, x.environments, x.algorithm, x.spec, central, **about, placement=alone)
