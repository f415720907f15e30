"""What an algorithm is: a frozen dataclass of hyper-parameters with pure functions, and nothing else.

It knows networks, ops and specs. It never mentions tables, processes, or a deep-learning library: arrays come with the
namespace `xp` that computes on them, randomness comes in as `noise`, and the network is a function `forward`.
What most algorithms do not need has a default here, so that an algorithm's file holds only what is its own.
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

DRAW = "draw"  # key of coefficients that begin anew with every draw


class Forward(Protocol):
    """The network with its params inside."""

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
        """{head: [..., features]} for observations [...], and the carry after the last of them.

        `heads` are those to be computed; none are all. `inputs` are arrays that heads ask for by name beside the
        features (the action that a critic judges); they may have more leading axes than the observations, and the
        outputs have them too. No gradient reaches the params of parts in `freeze`."""


class Loss(NamedTuple):
    value: Any  # the scalar whose gradient is followed
    metrics: dict[str, Any]  # scalars
    priority: Any = None  # [samples], by which a prioritised table draws them from now on


class Acted(NamedTuple):
    action: Any  # [B, ...]
    extras: Tree  # [B, ...], stored with the step
    carry: Tree  # [B, ...], what the model remembers after it


class Target(NamedTuple):
    """A second set of params that follows the first: every `period` updates it moves by the share `mix` of the way."""

    period: int = 1
    mix: float = 1.0  # 1 copies; 0.005 after every update is the polyak average of DDPG and its successors


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


@dataclass(frozen=True)
class Algorithm(Config):
    max_lag: ClassVar[int | None] = None  # updates between acting and learning that it bears; 0 is lock step, None any
    # instead of a loss that is differentiated, where an algorithm has it:
    # gradient(xp, spec, params [n], samples, noise) -> (gradient [n], Loss)
    gradient: ClassVar[Callable[..., tuple[Any, Loss]] | None] = None
    # where an algorithm explores by changing the params themselves, for whole episodes:
    # perturb(rng, params [n]) -> (params [n], extras of one environment that say what was changed)
    perturb: ClassVar[Callable[..., tuple[np.ndarray, Tree]] | None] = None

    def model(self, spec: EnvSpec, network: Network | None = None) -> Model:
        """The network for this environment; `network` is a user's own torso."""
        raise NotImplementedError

    def experience(self) -> Experience:
        """What is learned from, and where it waits."""
        raise NotImplementedError

    def optimiser(self, updates: int) -> Optimiser:
        """`updates` is how many the whole run will make, for schedules."""
        raise NotImplementedError

    def updates(self, steps: int, environments: int) -> int:
        """How many updates this many environment steps lead to."""
        raise NotImplementedError

    @property
    def lock_step(self) -> bool:
        """Whether it allows no policy lag: nobody acts before what was drawn has been learned from."""
        return self.max_lag == 0

    @property
    def scales_rewards(self) -> bool:
        """Whether rewards are learned in units of the deviation of their discounted sums."""
        return False

    @property
    def adds_gradients(self) -> bool:
        """Whether the gradients of learners that update together are added up instead of averaged."""
        return False

    def target(self) -> Target | None:
        """Whether there is a second set of params, and how it follows."""
        return None

    # --- acting -------------------------------------------------------------------------------------------------------

    def extras(self, spec: EnvSpec) -> Tree:
        """What `act` stores with each step, as zeros for one environment."""
        return {}

    def noise(self, spec: EnvSpec, rng: np.random.Generator, count: int, clock: Clock) -> Tree:
        """For one step of `count` environments, [count, ...]."""
        return {}

    def exploration(self, count: int, clock: Clock) -> float | None:
        """The share of actions that are random beside the policy, in the mean over an actor's `count` environments;
        None where the policy itself is what explores."""
        return None

    def act(
        self, xp: Any, spec: EnvSpec, forward: Forward, obs: Tree, carry: Tree, first: Any, noise: Tree | None
    ) -> Acted:
        """Without noise, the action to be judged by."""
        raise NotImplementedError

    def priority(self, items: Tree) -> np.ndarray:
        """[N], by which items are drawn before they were learned from the first time; for items that say `prioritised`.
        Beside what a table has of them, `extras` and `next_extras` are what `act` gave with the observations with
        which they begin and end."""
        raise NotImplementedError

    # --- learning -----------------------------------------------------------------------------------------------------

    def prepare(
        self, xp: Any, spec: EnvSpec, forward: Forward, target: Forward | None, items: Tree
    ) -> tuple[Tree, dict[str, Any]]:
        """Samples [N, ...] out of drawn items [B, ...], once per draw (advantages, for example), and metrics of the
        whole draw before it is learned from."""
        return items, {}

    def minibatches(self, rng: np.random.Generator, items: int) -> np.ndarray:
        """[updates, samples] indices into the prepared samples of a draw of `items`."""
        return np.arange(items)[None]  # one update from the whole draw

    def learning_noise(self, spec: EnvSpec, rng: np.random.Generator, indices: np.ndarray) -> Tree:
        """For the losses of a draw, [updates, ...] with one for each row of `indices`."""
        return {}

    def adaptation(self) -> Adaptation | None:
        """What changes beside the params by a rule, if anything does."""
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
        """Of one minibatch. Parts of the loss that concern some params only say so by `freeze`."""
        raise NotImplementedError
