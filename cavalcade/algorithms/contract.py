"""What an algorithm is: a frozen dataclass of hyper-parameters with pure functions, and nothing else.

An algorithm knows networks, ops and specs. It never mentions tables, processes, or a deep-learning library: arrays come
with the namespace `xp` that computes on them, random numbers come as `noise`, and the model is a function `forward`.
Methods that most algorithms do not need have a default here, so that an algorithm's file holds only its own.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from cavalcade.config import Config
from cavalcade.experience import Experience
from cavalcade.networks import Model, Network
from cavalcade.optimiser import Optimiser
from cavalcade.specs import EnvSpec
from cavalcade.tree import Tree

DRAW = "draw"  # key of the coefficients that a rule sets back at the end of every draw


class Forward(Protocol):
    """The model with its params and statistics inside."""

    def __call__(
        self,
        obs: Tree,
        carry: Tree | None = None,
        first: Any = None,
        *,
        heads: tuple[str, ...] = (),
        inputs: dict[str, Any] | None = None,
        freeze: tuple[str, ...] = (),
    ) -> tuple[dict, Tree]:
        """{head: [..., features]} for observations [..., shape], and the carry after the last step.

        The leading axes are [B] or [T, B]. `carry` [B, ...] is that before the first step; `first` [...] is true where
        an episode begins. `heads` are the heads to compute; an empty tuple means all. `inputs` are arrays that heads
        ask for by name beside the features (the action that a critic values); they may have more leading axes than the
        observations, and then the outputs have these too. No gradient reaches the params of parts in `freeze`."""


class Loss(NamedTuple):
    """What the loss of one minibatch returns."""

    value: Any  # the scalar to minimise
    metrics: dict[str, Any]  # scalars
    priority: Any = None  # [samples], the new priorities of their items in a prioritised table


class Acted(NamedTuple):
    """What `act` returns for one step of B environments."""

    action: Any  # [B, ...]
    extras: Tree  # [B, ...], stored with the step
    carry: Tree  # [B, ...], after the step


class Target(NamedTuple):
    """A second set of params that follows the first: after every `period` updates it moves by the share `mix` of the
    way to the first."""

    period: int = 1
    mix: float = 1.0  # 1 copies; 0.005 after every update is the polyak average of DDPG and its successors


class Adaptation(NamedTuple):
    """Coefficients: numbers beside the params that the loss reads and a rule changes after every update, such as the
    weight of a penalty or a temperature."""

    initial: Tree  # of floats, before the first update
    reads: tuple[str, ...]  # metrics of the loss that the rule needs; by all-reduce, their means over learners
    rule: Callable[[Any, Tree, dict], Tree]  # rule(xp, coefficients, metrics) -> coefficients

    def beside(self, other: "Adaptation | None") -> "Adaptation":
        """Both together. Their coefficients have different names, and each rule returns its own."""
        if other is None:
            return self

        def rule(xp: Any, coefficients: Tree, metrics: dict) -> Tree:
            return {**self.rule(xp, coefficients, metrics), **other.rule(xp, coefficients, metrics)}

        return Adaptation({**self.initial, **other.initial}, (*self.reads, *other.reads), rule)


class Clock(NamedTuple):
    """What an actor knows of the run when it draws noise."""

    steps: int  # environment steps of the whole run so far, as far as this actor knows
    actor: int = 0  # the number of this actor
    actors: int = 1  # of the run
    budget: int = 0  # environment steps that the whole run will make; 0: unknown

    def environments(self, count: int) -> tuple[np.ndarray, int]:
        """The numbers [count] of this actor's environments among those of all actors, which have `count` each, and the
        last number of all."""
        return self.actor * count + np.arange(count), self.actors * count - 1


@dataclass(frozen=True)
class Algorithm(Config):
    """The hyper-parameters of an algorithm, and its functions."""

    max_lag: ClassVar[int | None] = None  # largest policy lag (updates) with which it learns; 0 is lock step, None any
    # for an algorithm that computes its gradient itself, instead of a loss that is differentiated:
    # gradient(xp, spec, params [n], samples, noise) -> (gradient [n], Loss)
    gradient: ClassVar[Callable[..., tuple[Any, Loss]] | None] = None
    # for an algorithm that explores by changing the params themselves, for whole episodes:
    # perturb(rng, params [n]) -> (params [n], extras of one environment that say what was changed)
    perturb: ClassVar[Callable[..., tuple[np.ndarray, Tree]] | None] = None

    def model(self, spec: EnvSpec, network: Network | None = None) -> Model:
        """The model for this environment; `network` is a user's own torso."""
        raise NotImplementedError

    def experience(self) -> Experience:
        """The kind of item that it learns from, and the store where items wait."""
        raise NotImplementedError

    def optimiser(self, updates: int) -> Optimiser:
        """The update rule. `updates`: how many the whole run will make, over which learning rates fall."""
        raise NotImplementedError

    def updates(self, steps: int, environments: int) -> int:
        """How many updates a run of this many environment steps makes."""
        raise NotImplementedError

    @property
    def lock_step(self) -> bool:
        """Whether it allows no policy lag: no actor acts before the drawn batch has been learned from."""
        return self.max_lag == 0

    @property
    def scales_rewards(self) -> bool:
        """Whether losses see rewards in units of the standard deviation of their discounted sums."""
        return False

    @property
    def adds_gradients(self) -> bool:
        """Whether the gradients of learners that update together are added up instead of averaged."""
        return False

    def target(self) -> Target | None:
        """How a second set of params follows the first; None if the algorithm has none."""
        return None

    # --- acting -------------------------------------------------------------------------------------------------------

    def extras(self, spec: EnvSpec) -> Tree:
        """The extras that `act` stores with each step: zeros of their shapes and types, for one environment."""
        return {}

    def noise(self, spec: EnvSpec, rng: np.random.Generator, count: int, clock: Clock) -> Tree:
        """The random numbers of `act` for one step of `count` environments, [count, ...]."""
        return {}

    def correlated(self, noise: Tree, last: Tree, first: np.ndarray) -> Tree:
        """The noise of a step, from what `noise` has drawn for it and `last`, that of the step before, both
        [count, ...]. Where `first` [count] is true an episode begins, and nothing of the one before may remain."""
        return noise

    def exploration(self, count: int, clock: Clock) -> float | None:
        """The share of actions (0 to 1) that are random instead of the policy's, the mean over an actor's `count`
        environments; None if the policy itself is random."""
        return None

    def act(
        self, xp: Any, spec: EnvSpec, forward: Forward, obs: Tree, carry: Tree, first: Any, noise: Tree | None
    ) -> Acted:
        """Choose actions for observations [B, ...]. `noise` None asks for the best action, by which a policy is judged,
        and no extras."""
        raise NotImplementedError

    def priority(self, items: Tree) -> np.ndarray:
        """[N], the first priorities of new items; called only if the kind of item says `prioritised`. `items` holds
        what the table gets, and `extras` and `next_extras`: what `act` returned for the first observation of an item
        and for the one after its last step."""
        raise NotImplementedError

    # --- learning -----------------------------------------------------------------------------------------------------

    def prepare(
        self, xp: Any, spec: EnvSpec, forward: Forward, target: Forward | None, items: Tree
    ) -> tuple[Tree, dict[str, Any]]:
        """Samples [N, ...] made from drawn items [B, ...], once for a draw (with advantages, for example), and metrics
        of the draw before its first update."""
        return items, {}

    def minibatches(self, rng: np.random.Generator, items: int) -> np.ndarray:
        """[updates, samples]: for each update from a draw of `items` items, the indices of its samples."""
        return np.arange(items)[None]  # one update from the whole draw

    def learning_noise(self, spec: EnvSpec, rng: np.random.Generator, indices: np.ndarray) -> Tree:
        """The random numbers of the losses of a draw, [updates, ...]: one row for each row of `indices`."""
        return {}

    def adaptation(self, updates: int) -> Adaptation | None:
        """The coefficients and the rule that changes them; None if the algorithm has none. `updates`: how often the
        rule will be called in the whole run, over which schedules move."""
        return None

    def loss(
        self,
        xp: Any,
        spec: EnvSpec,
        forward: Forward,
        target: Forward | None,
        samples: Tree,
        noise: Tree,
        coefficients: Tree,
    ) -> Loss:
        """The loss of one minibatch. A term that should not change some params calls `forward` with `freeze`."""
        raise NotImplementedError
