"""What an experiment hands to an architecture: how to make a policy, environments, a learner and a table.

Plain data with methods, so that a node can be built from it in any process. An architecture decides who gets which part
and how they are wired; it never learns which algorithm or backend is inside.
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
from cavalcade.assembly.table_plan import TablePlan
from cavalcade.assembly.wiring import SYNC, Wiring
from cavalcade.envs import Environments, carried, stream_seed
from cavalcade.errors import UserError
from cavalcade.experience import Experience
from cavalcade.learning import Learner
from cavalcade.networks import Model, Network
from cavalcade.specs import EnvSpec
from cavalcade.table import Rows, Signature, Table
from cavalcade.transport import Memory, require
from cavalcade.tree import take


@dataclass(frozen=True)
class Parts:
    algorithm: Algorithm
    spec: EnvSpec
    environment: Any  # id, or a callable that makes one
    backend: str
    envs: int  # environments of each actor
    actors: int
    steps: int
    seed: int
    acts_in: str = "auto"  # auto, numpy, backend
    threads: int = 1
    options: dict = field(default_factory=dict)  # for the environment
    network: Callable[[EnvSpec], Network] | None = None  # a user's own torso
    storage: str = "memory"  # of replay: memory, file, compressed
    writers: str = "here"  # of the table: here in its process, beside it in others, or away on other machines
    device: str = "auto"  # auto, cpu, cuda, mps: of the learner; actors act on the CPU
    wiring: Wiring = SYNC  # of the table of architectures
    part: Experience | None = None  # of the algorithm's experience, where this is about one shard
    origin: Origin | None = None  # another policy, whose parameters learners begin with

    def __getstate__(self) -> dict:
        """What is worked out from the rest is worked out again elsewhere; ids that only this process knows go along."""
        state = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**state, "ids": carried.pack(self.environment)}

    def __setstate__(self, state: dict) -> None:
        carried.unpack(state.pop("ids"))
        self.__dict__.update(state)

    def but(self, **changes: Any) -> "Parts":
        """With these changed, none of which concerns the model: it is made once."""
        made = replace(self, **changes)
        if "model" in self.__dict__:
            made.__dict__["model"] = self.model
        return made

    @property
    def of_one_learner(self) -> "Parts":
        """With a learner's share of the actors and of the run."""
        learners = self.wiring.learners
        return self.but(actors=max(1, self.actors // learners), steps=self.steps // learners)

    @property
    def of_actors(self) -> "Parts":
        """Without parameters: actors ask for them before their first step."""
        return self.but(origin=None)

    def of_shard(self, shard: int) -> "Parts":
        """With a shard's actors, and their share of what may wait."""
        whole, actors = self.experience, len(range(shard, self.actors, self.wiring.shards))
        if not actors:
            raise UserError(
                f"--shards {self.wiring.shards} and --actors {self.actors} contradict each other: a shard to which no "
                "actor writes would stay empty."
            )
        store, batch = whole.store.dealt(actors, self.actors, whole.batch)
        part = replace(whole, store=store, batch=batch)
        return self.but(actors=actors, part=part, seed=stream_seed(self.seed, 3, shard))

    @property
    def lock_step(self) -> bool:
        """Whether the algorithm bears no policy lag: nobody acts before what was drawn has been learned from."""
        return self.algorithm.max_lag == 0

    def shared_learner(self) -> Learner:
        """For parameters that all learners change: each of their updates is one of its own."""
        return self.of_one_learner.but(steps=self.steps).learner()

    @cached_property
    def model(self) -> Model:
        return self.algorithm.model(self.spec, self.network(self.spec) if self.network else None)

    @property
    def experience(self) -> Experience:
        """With the batch in items: a queue's default is one unroll from every environment."""
        declared = self.part or self.algorithm.experience()
        return replace(declared, batch=declared.batch or self.envs * self.actors)

    @property
    def prefetch(self) -> bool:
        """For the learner: whether a batch may be drawn while the one before it is learned. A draw makes room, and
        actors would act on it with parameters that are about to change: not in lock step, nor where one process makes
        runs that can be repeated."""
        return self.writers != "here" and self.experience.store.ahead and not self.lock_step

    @property
    def learner_device(self) -> str:
        """Small networks are dominated by the cost of calls, which a CPU answers soonest."""
        return "cpu" if self.device == "auto" and self.model.small else self.device

    @property
    def acts_in_numpy(self) -> bool:
        if self.model.backend:
            return False
        return self.model.small if self.acts_in == "auto" else self.acts_in == "numpy"

    @property
    def learner_imports(self) -> tuple[str, ...]:
        return (backends.module_of(self.backend),)

    @property
    def policy_imports(self) -> tuple[str, ...]:
        return () if self.acts_in_numpy else self.learner_imports

    def policy(self) -> Policy:
        """Actors that have the cores to themselves use as many threads as the learner; beside others, one each."""
        threads = 1 if self.writers != "here" else self.threads
        backend = None if self.acts_in_numpy else backends.load(self.backend, threads)
        params = self.model.init(np.random.default_rng((self.seed, 0)))
        made = Policy(self.algorithm, self.model, params, self.model.statistics(), backend)
        made.version = -1  # older than any of the learner's, which may have begun with others
        return made

    def environments(self, actor: int, incarnation: int = 0) -> Environments:
        """`incarnation`: how often this actor was built before; each time its episodes begin from other seeds."""
        seed = self.seed if not incarnation else stream_seed(self.seed, incarnation)
        return envs.make(self.environment, self.envs, seed, actor, **self.options)

    def learner(self) -> Learner:
        backend = backends.load(self.backend, self.threads, self.learner_device)
        places = self.experience.item.places(self.steps, self.spec.time_limit)
        updates = max(1, self.algorithm.updates(places, self.envs * self.actors))
        made = Learner(self.algorithm, self.model, backend, self.algorithm.optimiser(updates), self.seed)
        if self.origin is not None:
            made.begin_with(self.origin.params, self.origin.statistics)
        return made

    def table(self) -> Table:
        return self.experience.store.table(self.signature, self.plan.sizes, self.seed, **self.allocate())

    @cached_property
    def signature(self) -> Signature:
        carry = take(self.model.carry(1), 0) if self.model.recurrent else {}
        return self.experience.item.signature(self.spec, carry, self.algorithm.extras(self.spec))

    @property
    def storage_kind(self) -> str:
        """What is drawn once is small and lies in memory."""
        return self.storage if self.plan.sizes.replay else "memory"

    @cached_property
    def plan(self) -> TablePlan:
        """Of the table that these actors fill."""
        about = (self.experience, self.signature, self.envs, self.actors, self.wiring)
        return TablePlan.of(*about, one_process=self.writers == "here", shard=self.part is not None)

    @property
    def table_bytes(self) -> int:
        if self.wiring.experience == "shards" and not self.part:
            return sum(self.of_shard(k).table_bytes for k in range(self.wiring.shards))
        return self.plan.bytes

    def require_memory(self) -> None:
        """Refuse tables that do not fit. How much smaller compressed frames become is not known beforehand."""
        if self.writers == "beside" and self.storage_kind != "memory":
            raise UserError(
                f"--storage {self.storage} needs --runtime inprocess: other processes write to memory only."
            )
        if self.storage_kind != "compressed":
            kind = "shared" if self.writers == "beside" else self.storage_kind
            require(self.table_bytes, self.plan.items, kind)

    def allocate(self) -> dict[str, Any]:
        """Where the items and their rows lie, as tables want to be told."""
        self.require_memory()
        compressed = self.storage_kind == "compressed"
        memory = Memory("shared" if self.writers == "beside" else self.storage_kind.replace("compressed", "memory"))
        rows = Rows(self.signature.rows, self.plan.rows, memory, compressed)
        where = {"rows": rows, "memory": memory, "compressed": compressed}
        return {**where, "writer_rows": self.plan.writer_rows, "writer_items": self.plan.writer_items}
