"""Any row as a program. An architecture with a name is a row with a story: see the files beside this one."""

from typing import Any

from cavalcade.acting import EnvLoop
from cavalcade.architectures.partners import add_partners, add_valves, recipe
from cavalcade.architectures.queues import QueueBesideReplay, mixture
from cavalcade.central import CentralActor
from cavalcade.env_worker import EnvWorker
from cavalcade.errors import UserError
from cavalcade.experience import Queue
from cavalcade.learner_loop import LearnerLoop
from cavalcade.parts import Parts
from cavalcade.program import Handle, Placement, Program
from cavalcade.table.drawer import Drawer
from cavalcade.updates import Recipe

MOST, PATIENCE = 64, 2e-3  # workers that central acting answers together, and seconds that one may wait for others


def build(name: str, x: Parts) -> Program:
    row, program = x.row, Program(name)
    if row.experience == "bundled" and x.actors % row.learners:
        raise UserError(
            f"--experience bundled gives each of {row.learners} learners as many actors, but --actors {x.actors} "
            "cannot be divided by it."
        )
    if row.experience == "shared" and row.learners > 1 and x.algorithm.reuse == "once":
        raise UserError(
            f"--experience shared lets {row.learners} learners draw while others still learn, but this algorithm bears "
            "no policy lag: use --experience bundled or, where it has them, --queue-batches 2 --log-epsilon 1e-6."
        )
    partners = add_partners(program, x)
    one = x.of_one_learner
    tables: list[tuple[Handle, Handle]] = []  # where actors write, and where learners draw
    valves: dict[str, Handle] = {}
    if row.experience == "shared" and row.learners > 1:
        with program.group("table"):
            sink, source = add_table(program, x)
            drawer = program.add("drawer", Drawer, source, sink, one.experience.batch, x.importance or 0.0)
            tables.append((sink, drawer))
            valves = add_valves(program, x, sink)
    learners = []
    for k in range(row.learners):
        with program.group(place(x, k)):
            if len(tables) <= k and (row.experience == "bundled" or not tables):
                tables.append(add_table(program, one))
                valves = add_valves(program, x, tables[-1][0])
            source, number = tables[k % len(tables)][1], {"number": k} if valves else {}
            learners.append(add_learner(program, one, source, recipe(x, k), partners, **valves, **number))
    add_acting(program, x, [sink for sink, _ in tables], learners, partners, valves)
    return program


def place(x: Parts, k: int) -> str:
    """The process of learner k."""
    if x.row.together:
        return f"worker/{k}"
    return f"learner/{k}" if x.row.learners > 1 else "learner"


def add_table(program: Program, x: Parts) -> tuple[Handle, Handle]:
    store = x.experience.store
    if not isinstance(store, Queue) or not store.replay_share:
        table = program.add("table", x.table)
        return table, table
    table = program.add("table", QueueBesideReplay, x)
    return table, program.add("mixture", mixture, table, store.replay_share)


def add_learner(
    program: Program, x: Parts, source: Handle, updates: Recipe, partners: list[Handle], **more: Any
) -> Handle:
    """A learner that draws from `source`; if it fails, all goes on from the last checkpoint."""
    about: dict[str, Any] = {"importance": x.importance, "max_lag": x.max_lag, "prefetch": x.prefetch}
    about |= {"updates": updates, "partners": partners, **more}
    placement = Placement(gpus=1.0 if x.learner_device.startswith("cuda") else 0.0)
    return program.add("learner", LearnerLoop, x.learner, source, x.experience.batch, **about, placement=placement)


def add_acting(
    program: Program,
    x: Parts,
    sinks: list[Handle],
    learners: list[Handle],
    partners: list[Handle],
    valves: dict[str, Handle],
) -> None:
    """Actors or environment workers, dealt out to tables and learners in turn. One that fails is built anew: what it
    had under way is lost, and nothing else."""
    row, alone = x.row, Placement(restart="alone")
    numbered = [{"seed": x.seed, "actor": i, "actors": x.actors} for i in range(x.actors)]
    if row.acting == "local":
        for i, about in enumerate(numbered):
            k = i % row.learners
            where = Placement(group=place(x, k)) if row.together else alone
            ends = {"sink": sinks[k % len(sinks)], "source": learners[k]}
            program.add("actor", EnvLoop, x.policy, x.environments, x.experience, **ends, **about, placement=where)
        return
    predictors = []
    # what is shared knows of everybody's updates; and of learners that may rest, the first never does
    sources = partners if row.updates == "hogwild" else learners[:1] if valves else learners
    limits = {"envs": x.envs, "most": MOST, "patience": PATIENCE, **({"moving": True} if valves else {})}
    for j in range(row.predictors or row.learners):
        where = Placement(group=f"predictor/{j}" if row.predictors else place(x, j))
        ends = {"sink": sinks[j % len(sinks)], "source": sources[j % len(sources)]}
        given = (x.policy, x.experience)
        predictors.append(program.add("predictor", CentralActor, *given, **ends, **limits, placement=where))
    for i, about in enumerate(numbered):
        asked = (x.environments, x.algorithm, x.spec, predictors if valves else predictors[i % len(predictors)])
        program.add("actor", EnvWorker, *asked, **about, **valves, placement=alone)
