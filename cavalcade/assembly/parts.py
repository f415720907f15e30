"""What an experiment hands to an architecture: how to make a policy, environments, a learner and a table.

Parts are plain data with methods, so that a node can be built from them in any process. An architecture decides which
node gets which part and how nodes are wired; it never looks at which algorithm or backend is inside.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from cavalcade import backends, envs
from cavalcade.acting import Policy
from cavalcade.algorithms import Algorithm
from cavalcade.assembly.origin import Origin
from cavalcade.assembly.table_memory import allocate
from cavalcade.assembly.table_plan import TablePlan
from cavalcade.assembly.wiring import SYNC, Wiring
from cavalcade.envs import Environments, carried, stream_seed
from cavalcade.errors import UserError
from cavalcade.experience import Experience
from cavalcade.learning import Learner
from cavalcade.networks import Model, Network
from cavalcade.specs import EnvSpec
from cavalcade.table import Signature, Table
from cavalcade.tree import take


@dataclass(frozen=True)
class Parts:
    """Everything that the nodes of one run are made from."""

    algorithm: Algorithm
    spec: EnvSpec
    environment: Any  # what `envs.make` takes: an id, a function or an object
    backend: str
    envs: int  # environments of each actor
    actors: int
    steps: int  # environment steps of the whole run
    seed: int
    acts_in: str = "auto"  # auto, numpy, backend
    threads: int = 1
    options: dict = field(default_factory=dict)  # for the environment
    actor_options: dict[str, list] = field(default_factory=dict)  # the same: values that actors take in turn
    network: Callable[[EnvSpec], Network] | None = None  # a user's own torso
    storage: str = "memory"  # of replay: memory, file, compressed
    writers: str = "here"  # of a table: here in its process, beside it in others, or away on other machines
    device: str = "auto"  # of the learner: auto, cpu, cuda, mps; actors act on the CPU
    wiring: Wiring = SYNC
    part: Experience | None = None  # the share of one shard, in the place of the algorithm's own
    origin: Origin | None = None  # the policy that learners begin with

    def __getstate__(self) -> dict:
        """The fields only, as cached values are computed again elsewhere; and the ids that only this process knows."""
        state = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**state, "ids": carried.pack(self.environment)}

    def __setstate__(self, state: dict) -> None:
        carried.unpack(state.pop("ids"))
        self.__dict__.update(state)

    def but(self, **changes: Any) -> "Parts":
        """A copy with these fields changed, and the same model: only for fields on which the model does not depend."""
        made = replace(self, **changes)
        if "model" in self.__dict__:
            made.__dict__["model"] = self.model
        return made

    @property
    def of_one_learner(self) -> "Parts":
        """The parts of one learner: with its share of the actors and of the steps of the run."""
        learners = self.wiring.learners
        return self.but(actors=max(1, self.actors // learners), steps=self.steps // learners)

    @property
    def of_actors(self) -> "Parts":
        """The parts of actors: without the origin's params, for which they ask a learner before their first step."""
        return self.but(origin=None)

    def of_shard(self, shard: int) -> "Parts":
        """The parts of one shard: with its actors, and their share of the table's size and batch."""
        whole, actors = self.experience, len(range(shard, self.actors, self.wiring.shards))
        if not actors:
            raise UserError(
                f"--shards {self.wiring.shards} and --actors {self.actors} contradict each other: a shard to which no "
                "actor writes would stay empty."
            )
        store, batch = whole.store.dealt(actors, self.actors, whole.batch)
        part = replace(whole, store=store, batch=batch)
        return self.but(actors=actors, part=part, seed=stream_seed(self.seed, 3, shard))

    def shared_learner(self) -> Learner:
        """The learner behind params that all learners change, on servers or in shared memory. It applies the updates of
        all of them, so its schedules span the steps of the whole run."""
        return self.of_one_learner.but(steps=self.steps).learner()

    @cached_property
    def model(self) -> Model:
        return self.algorithm.model(self.spec, self.network(self.spec) if self.network else None)

    @property
    def experience(self) -> Experience:
        """The experience with its batch in items, where 0 stands for one item from every environment."""
        declared = self.part or self.algorithm.experience()
        return replace(declared, batch=declared.batch or self.envs * self.actors)

    @property
    def prefetch(self) -> bool:
        """Whether the learner may draw a batch while it learns from the one before. A draw makes room, which actors
        fill with params that are about to change: so not in lock step. And a thread would make runs of one process
        differ: so not there either."""
        return self.writers != "here" and self.experience.store.ahead and not self.algorithm.lock_step

    @property
    def learner_device(self) -> str:
        """`device`, but `auto` is the CPU for small networks: they spend most time on calls, which cost least there."""
        return "cpu" if self.device == "auto" and self.model.small else self.device

    @property
    def acts_in_numpy(self) -> bool:
        """Whether policies compute in NumPy and not on the backend; a user's own network has to use its backend."""
        if self.model.backend:
            return False
        return self.model.small if self.acts_in == "auto" else self.acts_in == "numpy"

    @property
    def learner_imports(self) -> tuple[str, ...]:
        """Modules that the process of a learner needs and that take long to import."""
        return (backends.module_of(self.backend),)

    @property
    def policy_imports(self) -> tuple[str, ...]:
        """The same for the process of a policy."""
        return () if self.acts_in_numpy else self.learner_imports

    def policy(self) -> Policy:
        """A policy with fresh params. If all nodes share one process it uses as many threads as the learner; otherwise
        each policy uses one thread, because many processes share the cores."""
        threads = 1 if self.writers != "here" else self.threads
        backend = None if self.acts_in_numpy else backends.load(self.backend, threads)
        params = self.model.init(np.random.default_rng((self.seed, 0)))
        made = Policy(self.algorithm, self.model, params, self.model.statistics(), backend)
        made.version = -1  # older than all params of a learner, so that actors ask for those before they act
        return made

    def environments(self, actor: int, incarnation: int = 0) -> Environments:
        """The environments of one actor. `incarnation`: how often it was built before; this changes its seeds."""
        seed = self.seed if not incarnation else stream_seed(self.seed, incarnation)
        options = envs.options_of(actor, self.options, self.actor_options)
        return envs.make(self.environment, self.envs, seed, actor, **options)

    def learner(self) -> Learner:
        """A learner whose schedules span the updates that `steps` environment steps lead to."""
        backend = backends.load(self.backend, self.threads, self.learner_device)
        places = self.experience.item.places(self.steps, self.spec.time_limit)
        updates = max(1, self.algorithm.updates(places, self.envs * self.actors))
        made = Learner(self.algorithm, self.model, backend, updates, self.seed)
        if self.origin is not None:
            made.begin_with(self.origin.params, self.origin.statistics)
        return made

    def table(self) -> Table:
        """The table that these actors fill, with its memory."""
        return self.experience.store.table(self.signature, self.plan.sizes, self.seed, **allocate(self))

    @cached_property
    def signature(self) -> Signature:
        """What one item of the table holds."""
        carry = take(self.model.carry(1), 0) if self.model.recurrent else {}
        return self.experience.item.signature(self.spec, carry, self.algorithm.extras(self.spec))

    @cached_property
    def plan(self) -> TablePlan:
        """The sizes of the table that these actors fill."""
        about = (self.experience, self.signature, self.envs, self.actors, self.wiring)
        return TablePlan.of(*about, one_process=self.writers == "here", shard=self.part is not None)
