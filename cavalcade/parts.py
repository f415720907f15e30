"""What an experiment hands to an architecture: how to make a policy, environments, a learner and a table.

Plain data with methods, so that a node can be built from it in any process. An architecture decides who gets which part
and how they are wired; it never learns which algorithm or backend is inside.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from cavalcade import adders, backends, envs
from cavalcade.algorithm import Algorithm
from cavalcade.envs.vector import Environments
from cavalcade.experience import Experience, NStep, Replay
from cavalcade.learning import Learner
from cavalcade.model import Model
from cavalcade.networks import Network
from cavalcade.policy import Policy
from cavalcade.specs import EnvSpec
from cavalcade.table import Limiter, Rows, Signature, Table, prioritised
from cavalcade.table.memory import Memory, require
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
    acting: str = "auto"  # auto, numpy, backend
    threads: int = 1
    options: dict = field(default_factory=dict)  # for the environment
    network: Callable[[EnvSpec], Network] | None = None  # a user's own torso
    storage: str = "memory"  # of replay: memory, file, compressed

    @cached_property
    def model(self) -> Model:
        return self.algorithm.model(self.spec, self.network(self.spec) if self.network else None)

    @property
    def experience(self) -> Experience:
        """With the batch in items: a queue's default is one unroll from every environment."""
        declared = self.algorithm.experience()
        return replace(declared, batch=declared.batch or self.envs * self.actors)

    @property
    def importance(self) -> float | None:
        """For the learner: the exponent of importance weights, or None where draws are not prioritised."""
        store = self.experience.store
        return store.importance if isinstance(store, Replay) and store.exponent else None

    @property
    def acts_in_numpy(self) -> bool:
        if self.model.backend:
            return False
        return self.model.small if self.acting == "auto" else self.acting == "numpy"

    def policy(self) -> Policy:
        backend = None if self.acts_in_numpy else backends.load(self.backend, self.threads)
        params = self.model.init(np.random.default_rng((self.seed, 0)))
        return Policy(self.algorithm, self.model, params, self.model.statistics(), backend)

    def environments(self, actor: int) -> Environments:
        return envs.make(self.environment, self.envs, self.seed, actor, **self.options)

    def learner(self) -> Learner:
        backend = backends.load(self.backend, self.threads)
        updates = max(1, self.algorithm.updates(self.steps, self.envs * self.actors))
        return Learner(self.algorithm, self.model, backend, self.algorithm.optimiser(updates), self.seed)

    def table(self) -> Table:
        """The table in lock step with acting: as little slack as its batches allow."""
        experience, store = self.experience, self.experience.store
        if not isinstance(store, Replay):
            return Table.queue(self.signature, self.table_size, **self._storage())
        at_once = self.envs * (experience.item.n if isinstance(experience.item, NStep) else 1)
        slack = max(experience.batch, store.samples_per_insert * at_once, 1.0)
        limiter = Limiter.ratio(store.samples_per_insert, store.start, slack)
        sampler = prioritised(store.exponent) if store.exponent else "uniform"
        return Table(self.signature, store.size, sampler, limiter=limiter, seed=self.seed, **self._storage())

    @property
    def table_size(self) -> int:
        store = self.experience.store
        return store.size if isinstance(store, Replay) else max(self.experience.batch, self.envs * self.actors)

    @property
    def signature(self) -> Signature:
        carry = take(self.model.carry(1), 0) if self.model.memory else {}
        return adders.signature(self.experience.item, self.spec, carry, self.algorithm.extras(self.spec))

    @property
    def storage_kind(self) -> str:
        """What is drawn once is small and lies in memory."""
        return self.storage if isinstance(self.experience.store, Replay) else "memory"

    def _rows(self) -> int:
        drawn_once = not isinstance(self.experience.store, Replay)
        environments = self.envs * self.actors
        return adders.rows_needed(self.experience.item, self.signature.rows, self.table_size, drawn_once, environments)

    def require_memory(self) -> None:
        """Refuse a table that does not fit. How much smaller compressed frames become is not known beforehand."""
        if self.storage_kind != "compressed":
            needed = self._rows() * self.signature.rows.bytes + self.table_size * self.signature.item_bytes
            require(needed, self.table_size, self.storage_kind)

    def _storage(self) -> dict[str, Any]:
        """Where the items and their rows lie."""
        self.require_memory()
        compressed = self.storage_kind == "compressed"
        memory = Memory("file" if self.storage_kind == "file" else "memory")
        rows = Rows(self.signature.rows, self._rows(), memory, compressed)
        return {"rows": rows, "memory": memory, "compressed": compressed}
