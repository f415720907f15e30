"""What an algorithm is: a frozen dataclass of hyper-parameters with pure functions, and nothing else.

It knows networks, ops and specs. It never mentions tables, processes, or a deep-learning library: arrays come with the
namespace `xp` that computes on them, and randomness comes in as `noise`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from cavalcade.experience import Experience
from cavalcade.layers import Network
from cavalcade.model import Model
from cavalcade.optimiser import Optimiser
from cavalcade.specs import EnvSpec
from cavalcade.tree import Tree

Forward = Callable[..., dict]  # forward(obs, carry=None, first=None) -> {head: [..., features]}
DRAW = "draw"  # key of what was gathered from the draw that is being learned from; it begins anew with the draw


class Adaptation(NamedTuple):
    """Coefficients: numbers beside the params that the loss reads and a rule changes after every update, such as the
    weight of a penalty or a temperature."""

    initial: Tree  # of floats
    reads: tuple[str, ...]  # metrics of the loss that the rule needs; where learners update together, their means
    rule: Callable[[Any, Tree, dict], Tree]  # rule(xp, coefficients, metrics) -> coefficients


class Clock(NamedTuple):
    """What an acting worker knows of the run when it draws noise."""

    steps: int  # environment steps of the whole run so far, as far as this actor knows
    actor: int = 0
    actors: int = 1


class Algorithm(Protocol):
    reuse: str  # "once": learns from data of its own policy; "many": bears policy lag, of replay or of a long queue
    acts_by: str  # the head that `act` reads
    target_period: int  # updates between copies into the target network; 0 has none

    def model(self, spec: EnvSpec, network: Network | None = None) -> Model: ...

    def experience(self) -> Experience: ...

    def optimiser(self, updates: int) -> Optimiser:
        """`updates` is how many the whole run will make, for schedules."""

    def updates(self, steps: int, environments: int) -> int:
        """How many updates this many environment steps lead to."""

    def extras(self, spec: EnvSpec) -> Tree:
        """What `act` stores with each step, as zeros for one environment."""

    def noise(self, spec: EnvSpec, rng: np.random.Generator, count: int, clock: Clock) -> Tree: ...

    def exploration(self, count: int, clock: Clock) -> float | None:
        """The share of actions that are random beside the policy, in the mean over an actor's `count` environments;
        None where the policy itself is what explores."""

    def act(self, xp: Any, spec: EnvSpec, outputs: dict, obs: Tree, noise: Tree | None) -> tuple[Any, Tree]:
        """Actions [B, ...] and extras; without noise, the action to be judged by."""

    def prepare(self, xp: Any, spec: EnvSpec, forward: Forward, items: Tree) -> tuple[Tree, dict]:
        """Samples [N, ...] out of drawn items [B, ...], once per draw (advantages, for example), and metrics of the
        whole draw before it is learned from."""

    def minibatches(self, rng: np.random.Generator, items: int) -> np.ndarray:
        """[updates, samples] indices into the prepared samples of a draw of `items`."""

    def adaptation(self) -> Adaptation | None:
        """What changes beside the params, if anything does."""

    def loss(
        self, xp: Any, spec: EnvSpec, forward: Forward, target: Forward, samples: Tree, coefficients: Tree
    ) -> tuple[Any, dict]: ...
