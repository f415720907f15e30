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
from cavalcade.table import Limiter, Rows, Signature, Table
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
            size = max(experience.batch, self.envs * self.actors)
            return Table.queue(self.signature, size, **self._storage(size))
        at_once = self.envs * (experience.item.n if isinstance(experience.item, NStep) else 1)
        slack = max(experience.batch, store.samples_per_insert * at_once, 1.0)
        limiter = Limiter.ratio(store.samples_per_insert, store.start, slack)
        return Table.prioritised(
            self.signature, store.size, limiter, store.exponent, self.seed, **self._storage(store.size)
        )

    @property
    def signature(self) -> Signature:
        carry = take(self.model.carry(1), 0) if self.model.memory else {}
        return adders.signature(self.experience.item, self.spec, carry, self.algorithm.extras(self.spec))

    def _storage(self, size: int) -> dict[str, Any]:
        """Where `size` items and their rows will lie; refused if it does not fit."""
        signature, replayed = self.signature, isinstance(self.experience.store, Replay)
        rows = adders.rows_needed(self.experience.item, signature.rows, size, not replayed, self.envs * self.actors)
        kind = "file" if self.storage == "file" and replayed else "memory"
        compressed = self.storage == "compressed" and replayed
        if not compressed:  # how much smaller frames become is not known before they are seen
            require(rows * signature.rows.bytes + size * signature.item_bytes, size, kind)
        memory = Memory(kind)
        return {"rows": Rows(signature.rows, rows, memory, compressed), "memory": memory, "compressed": compressed}
