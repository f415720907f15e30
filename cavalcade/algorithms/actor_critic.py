"""What actor-critics share: a model with a policy and a value, and acting by sampling from the policy."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from cavalcade.algorithms.contract import Acted, Algorithm, Clock, Forward
from cavalcade.config import setting
from cavalcade.experience import Experience, Queue, Unroll
from cavalcade.networks import ACTIVATIONS, CONVOLUTIONS, Model, Network, Torso, build, gaussian, linear
from cavalcade.ops import distributions
from cavalcade.optimiser import NAMES as OPTIMISERS
from cavalcade.optimiser import Optimiser
from cavalcade.specs import MASK, EnvSpec
from cavalcade.tree import Tree, map, take

DISCOUNT = "what a reward is worth one environment step later"
HIDDEN = "units of each layer of the torso, for observations that are no images"
CONVOLUTION = "the CNN for images; auto: by their size"


@dataclass(frozen=True)
class ActorCritic(Algorithm):
    """The settings and functions of A2C, PPO and IMPALA, which learn from unrolls."""

    discount: float = setting(0.99, DISCOUNT, "learning", at_least=0, at_most=1)
    gae_lambda: float = setting(
        0.95, "0 trusts the values after one step, 1 only the rewards of the unroll", "learning", at_least=0, at_most=1
    )
    unroll: int = setting(64, "steps of each environment in one update", "learning", at_least=1)
    learning_rate: float = setting(1e-3, "step size of the optimiser", "learning", at_least=0)
    anneal: bool = setting(True, "the learning rate falls linearly to zero over the run", "learning")
    value_cost: float = setting(
        1.0, "weight of half the squared error of the values in the loss", "learning", at_least=0
    )
    entropy_cost: float = setting(0.0, "reward for an undecided policy in the loss", "exploration", at_least=0)
    max_gradient_norm: float = setting(
        0.5, "gradients are scaled down to this norm; 0 leaves them as they are", "learning", at_least=0
    )
    optimiser_name: str = setting("adam", "the rule of the updates", "learning", words=OPTIMISERS)
    optimiser_epsilon: float = setting(1e-5, "added where the optimiser divides", "learning", at_least=0)
    optimiser_decay: float = setting(0.99, "of the running means of rmsprop", "learning", at_least=0, below=1)
    normalise_advantages: bool = setting(True, "to mean 0 and deviation 1 in every minibatch", "learning")
    normalise_observations: bool = setting(False, "by their running mean and deviation; images are not", "network")
    normalise_rewards: bool = setting(True, "in units of the deviation of their discounted sums", "learning")
    clip_rewards: bool = setting(False, "to -1 .. 1, as on Atari", "learning")
    hidden: tuple[int, ...] = setting((64, 64), HIDDEN, "network", at_least=1)
    activation: str = setting("tanh", "between the layers", "network", words=tuple(ACTIVATIONS))
    convolution: str = setting("auto", CONVOLUTION, "network", words=CONVOLUTIONS)
    shared: bool = setting(False, "one torso for policy and value; always so for images and with memory", "network")
    memory: int = setting(0, "size of the LSTM between torso and heads; 0 is none", "network", at_least=0)

    max_lag: ClassVar[int | None] = 0

    def model(self, spec: EnvSpec, network: Network | None = None) -> Model:
        heads = {
            "policy": lambda features: policy_head(spec, features),
            "value": lambda features: linear(features, 1, "orthogonal"),
        }
        torso = Torso(self.hidden, self.activation, self.convolution, "orthogonal")
        return build(spec, torso, heads, self.shared, self.memory, self.normalise_observations, network)

    def item(self) -> Unroll:
        """The unrolls that it learns from."""
        return Unroll(self.unroll, self.discount, totals=self.scales_rewards)

    def experience(self) -> Experience:
        return Experience(self.item(), Queue(), 0)

    def optimiser(self, updates: int) -> Optimiser:
        return Optimiser(
            self.optimiser_name,
            self.learning_rate,
            self.optimiser_epsilon,
            self.optimiser_decay,
            self.max_gradient_norm,
            horizon=updates if self.anneal else 0,
        )

    def extras(self, spec: EnvSpec) -> Tree:
        return {"behaviour": np.zeros(distributions.parameter_count(spec.action), np.float32)}

    def noise(self, spec: EnvSpec, rng: np.random.Generator, count: int, clock: Clock) -> Tree:
        return {"action": distributions.draw_noise(spec.action, rng, count)}

    def act(
        self, xp: Any, spec: EnvSpec, forward: Forward, obs: Tree, carry: Tree, first: Any, noise: Tree | None
    ) -> Acted:
        """The extras hold the numbers of the acting policy's distribution, from which the learner computes how probable
        the action was."""
        outputs, carry = forward(obs, carry, first, heads=("policy",))
        policy = policy_of(xp, spec, outputs["policy"], obs)
        if noise is None:
            return Acted(policy.mode(), {}, carry)
        return Acted(policy.sample(noise["action"]), {"behaviour": outputs["policy"]}, carry)

    @property
    def scales_rewards(self) -> bool:
        return self.normalise_rewards

    def less_entropy(self, loss: Any, entropy: Any) -> Any:
        """The loss minus the weighted entropy; with a weight of 0 the loss alone, to save that gradient."""
        return loss - self.entropy_cost * entropy if self.entropy_cost else loss

    def rewards(self, xp: Any, reward: Any) -> Any:
        """The rewards as the loss sees them: clipped to -1 .. 1 if the setting says so."""
        return xp.clip(reward, -1.0, 1.0) if self.clip_rewards else reward


def policy_head(spec: EnvSpec, features: int) -> Network:
    """From features to the numbers of a distribution over actions."""
    size = distributions.parameter_count(spec.action)
    if spec.action.kind == "box":
        return gaussian(features, size // 2)
    return linear(features, size, "orthogonal", 0.01)  # small weights: nearly uniform at first


def policy_of(xp: Any, spec: EnvSpec, parameters: Any, obs: Tree) -> Any:
    """The distribution over legal actions, from the output [..., P] of the policy head for these observations."""
    return distributions.make(xp, spec.action, parameters, obs[MASK] if spec.masked else None)


def standardised(xp: Any, x: Any, mean: Callable[[Any], Any]) -> Any:
    """x with mean 0 and standard deviation 1; `mean` averages over the rows that are valid."""
    centred = x - mean(x)
    return centred / (xp.sqrt(mean(xp.square(centred))) + 1e-8)


def evaluated(
    xp: Any, forward: Forward, items: Tree, heads: tuple[str, ...] = ("policy", "value")
) -> tuple[dict, Any, Tree]:
    """From items [B, T + 1, ...]: outputs of heads [T + 1, B, ...], values [T + 1, B], and steps [T, B, ...]."""
    unroll, carry = time_major(xp, items)
    outputs, _ = forward(unroll["obs"], carry, unroll["first"], heads=heads)
    return outputs, xp.squeeze(outputs["value"], -1), take(unroll, slice(-1))


def time_major(xp: Any, items: Tree) -> tuple[Tree, Tree | None]:
    """Items [B, T, ...] as [T, B, ...], and the carry [B, ...] before their first step; None without memory."""
    rows = {name: leaf for name, leaf in items.items() if name != "carry"}
    return map(lambda leaf: xp.swapaxes(leaf, 0, 1), rows), items.get("carry")
