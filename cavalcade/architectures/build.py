"""Makes a program of any wiring. Architectures are wirings with names: see the files beside this one."""

from typing import Any

from cavalcade.acting import CentralActor, EnvLoop, EnvWorker
from cavalcade.architectures.partners import add_partners, add_valves, recipe
from cavalcade.architectures.tables import add_draws, add_table, add_tables
from cavalcade.assembly import Parts
from cavalcade.errors import UserError
from cavalcade.learning import LearnerLoop
from cavalcade.learning.updates import Recipe
from cavalcade.programs import Handle, Placement, Program

MOST, PATIENCE = 64, 2e-3  # of central acting: workers answered together, seconds that one waits for others


def build(name: str, x: Parts) -> Program:
    """The program of `x.wiring`: tables, learners with their partners, and who acts; contradictions are refused."""
    wiring, program = x.wiring, Program(name)
    if wiring.experience == "bundled" and x.actors % wiring.learners:
        raise UserError(
            f"--experience bundled gives each of {wiring.learners} learners as many actors, but --actors {x.actors} "
            "cannot be divided by it."
        )
    if wiring.experience != "bundled" and wiring.learners > 1 and x.algorithm.lock_step:
        raise UserError(
            f"--experience {wiring.experience} lets {wiring.learners} learners draw while others still learn, but this "
            "algorithm bears no policy lag: use --experience bundled or, where it has them, --queue-batches 2 "
            "--log-epsilon 1e-6."
        )
    if wiring.acting == "central" and x.algorithm.perturb is not None:
        raise UserError(
            "--acting central answers all environments with the same parameters, but this algorithm perturbs them for "
            "each actor: use --acting local."
        )
    partners = add_partners(program, x)
    one, valves = x.of_one_learner, {}
    sinks, drawers = add_tables(program, x)
    if drawers:
        with program.group("table"):
            valves = add_valves(program, x, sinks[0])
    learners = []
    for k in range(wiring.learners):
        with program.group(place(x, k)):
            if drawers:
                source = add_draws(program, x, drawers, k)
            else:
                sink, source = add_table(program, one)
                sinks.append(sink)
                valves = add_valves(program, x, sink)
            number = {"number": k} if valves else {}
            learners.append(add_learner(program, one, source, recipe(x, k), partners, **valves, **number))
    add_acting(program, x.of_actors, sinks, learners, partners, valves)
    return program


def place(x: Parts, k: int) -> str:
    """The name of the process (group) of learner k."""
    if x.wiring.together:
        return f"worker/{k}"
    return f"learner/{k}" if x.wiring.learners > 1 else "learner"


def add_learner(
    program: Program, x: Parts, source: Handle, updates: Recipe, partners: list[Handle], **more: Any
) -> Handle:
    """A learner that draws from `source` and makes its updates with `partners`. If it fails, the whole program goes on
    from the last checkpoint."""
    store = x.experience.store
    about: dict[str, Any] = {"importance": store.correction, "max_lag": store.max_lag, "prefetch": x.prefetch}
    about |= {"updates": updates, "partners": partners, **more}
    placement = Placement(gpus=1.0 if x.learner_device.startswith("cuda") else 0.0, imports=x.learner_imports)
    return program.add("learner", LearnerLoop, x.learner, source, x.experience.batch, **about, placement=placement)


def add_acting(
    program: Program,
    x: Parts,
    sinks: list[Handle],
    learners: list[Handle],
    partners: list[Handle],
    valves: dict[str, Handle],
) -> None:
    """Actors, or predictors and environment workers; actor i belongs to the table and learner at i modulo their number.
    An actor or worker that fails is built anew alone, and only its unfinished items are lost."""
    wiring = x.wiring
    numbered = [{"seed": x.seed, "actor": i, "actors": x.actors, "budget": x.steps} for i in range(x.actors)]
    if wiring.acting == "local":
        alone = Placement(restart="alone", imports=x.policy_imports)
        for i, about in enumerate(numbered):
            k = i % wiring.learners
            where = Placement(group=place(x, k)) if wiring.together else alone
            ends = {"sink": sinks[i % len(sinks)], "source": learners[k]}
            program.add("actor", EnvLoop, x.policy, x.environments, x.experience, **ends, **about, placement=where)
        return
    predictors = []
    # Predictors pull params from: hogwild's shared params, which have the updates of all learners; where valves let
    # learners rest, the first learner, which never rests; otherwise any learner.
    sources = partners if wiring.updates == "hogwild" else learners[:1] if valves else learners
    patience = PATIENCE if x.writers != "here" else 0.0  # waiting by the clock would make runs of one process differ
    limits = {"envs": x.envs, "most": MOST, "patience": patience, **({"moving": True} if valves else {})}
    for j in range(wiring.predictors or wiring.learners):
        where = Placement(group=f"predictor/{j}" if wiring.predictors else place(x, j), imports=x.policy_imports)
        mine = [sinks[j]] if wiring.experience == "bundled" else sinks
        given = (x.policy, x.experience, mine, sources[j % len(sources)])
        predictors.append(program.add("predictor", CentralActor, *given, **limits, placement=where))
    for i, about in enumerate(numbered):
        asked = (x.environments, x.algorithm, x.spec, predictors if valves else predictors[i % len(predictors)])
        program.add("actor", EnvWorker, *asked, **about, **valves, placement=Placement(restart="alone"))
