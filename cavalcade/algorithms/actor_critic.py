"""What actor-critics share: a model with a policy and a value, and acting by sampling from the policy."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from cavalcade.algorithms.contract import Acted, Adaptation, Algorithm, Clock, Forward
from cavalcade.config import setting
from cavalcade.errors import UserError
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
FACTOR = "entropy_factor"  # key of what the entropy's cost is multiplied by, beside the noise and in the extras


@dataclass(frozen=True)
class ActorCritic(Algorithm):
    """The settings and functions of A2C, PPO and IMPALA, which learn from unrolls."""

    discount: float = setting(0.995, DISCOUNT, "learning", at_least=0, at_most=1)
    gae_lambda: float = setting(
        0.95, "0 trusts the values after one step, 1 only the rewards of the unroll", "learning", at_least=0, at_most=1
    )
    unroll: int = setting(32, "steps of each environment in one update", "learning", at_least=1)
    learning_rate: float = setting(1e-3, "step size of the optimiser", "learning", at_least=0)
    anneal: bool = setting(True, "the learning rate falls linearly to zero over the run", "learning")
    value_cost: float = setting(
        1.0, "weight of half the squared error of the values in the loss", "learning", at_least=0
    )
    entropy_cost: float = setting(0.0, "reward for an undecided policy in the loss", "exploration", at_least=0)
    entropy_cost_end: float | None = setting(
        None, "to which it moves linearly over the run; none: it stays", "exploration", at_least=0
    )
    entropy_ladder: float = setting(
        1.0,
        "L: environment i of N has the cost times L ** (1 - 2 i / (N - 1)), from times L to divided by L; 1 is off",
        "exploration",
        at_least=1,
    )
    initial_deviation: float = setting(
        1.0, "of Gaussian policies, in units of the action, before they learn it", "exploration", above=0
    )
    noise_correlation: float = setting(
        0.0,
        "of the noise of Gaussian policies from one step of an episode to the next",
        "exploration",
        at_least=0,
        below=1,
    )
    max_gradient_norm: float = setting(
        0.5, "gradients are scaled down to this norm; 0 leaves them as they are", "learning", at_least=0
    )
    optimiser_name: str = setting("adam", "the rule of the updates", "learning", words=OPTIMISERS)
    optimiser_epsilon: float = setting(1e-5, "added where the optimiser divides", "learning", at_least=0)
    optimiser_decay: float = setting(0.99, "of the running means of rmsprop", "learning", at_least=0, below=1)
    normalise_advantages: bool = setting(True, "to mean 0 and deviation 1 in every minibatch", "learning")
    normalise_observations: bool = setting(True, "by their running mean and deviation; images are not", "network")
    normalise_rewards: bool = setting(True, "in units of the deviation of their discounted sums", "learning")
    clip_rewards: bool = setting(False, "to -1 .. 1, as on Atari", "learning")
    hidden: tuple[int, ...] = setting((64, 64), HIDDEN, "network", at_least=1)
    activation: str = setting("tanh", "between the layers", "network", words=tuple(ACTIVATIONS))
    convolution: str = setting("auto", CONVOLUTION, "network", words=CONVOLUTIONS)
    shared: bool = setting(False, "one torso for policy and value; always so for images and with memory", "network")
    memory: int = setting(0, "size of the LSTM between torso and heads; 0 is none", "network", at_least=0)

    max_lag: ClassVar[int | None] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.entropy_ladder != 1.0 and not (self.entropy_cost or self.entropy_cost_end):
            raise UserError("--entropy-ladder multiplies --entropy-cost, which is 0; give one above 0, or no ladder.")

    def model(self, spec: EnvSpec, network: Network | None = None) -> Model:
        gaussian_only = {
            "initial-deviation": self.initial_deviation != 1.0,
            "noise-correlation": self.noise_correlation,
        }
        for name, given in gaussian_only.items():
            if given and spec.action.kind != "box":
                actions = f"{spec.environment} has {spec.action.kind} actions"
                raise UserError(f"--{name} is for Gaussian policies, but {actions}; leave it out.")
        torso = Torso(self.hidden, self.activation, self.convolution, "orthogonal")
        return build(spec, torso, self.heads(spec), self.shared, self.memory, self.normalise_observations, network)

    def heads(self, spec: EnvSpec) -> dict[str, Callable[[int], Network]]:
        """The heads of the model by name: functions from a number of features to a network."""
        return {
            "policy": lambda features: policy_head(spec, features, self.initial_deviation),
            "value": lambda features: linear(features, 1, "orthogonal"),
        }

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
        behaviour = {"behaviour": np.zeros(distributions.parameter_count(spec.action), np.float32)}
        return {**behaviour, FACTOR: np.ones((), np.float32)} if self.entropy_ladder != 1.0 else behaviour

    def noise(self, spec: EnvSpec, rng: np.random.Generator, count: int, clock: Clock) -> Tree:
        drawn = {"action": distributions.draw_noise(spec.action, rng, count)}
        if self.entropy_ladder == 1.0:
            return drawn
        numbers, last = clock.environments(count)
        factor = self.entropy_ladder ** ((last - 2 * numbers) / max(1, last))  # one environment alone: 1
        return {**drawn, FACTOR: factor.astype(np.float32)}

    def correlated(self, noise: Tree, last: Tree, first: np.ndarray) -> Tree:
        """By itself the noise of each step stays standard normal, so log-probabilities and losses stay as they are."""
        return distributions.correlated(noise, last, first, self.noise_correlation)

    def act(
        self, xp: Any, spec: EnvSpec, forward: Forward, obs: Tree, carry: Tree, first: Any, noise: Tree | None
    ) -> Acted:
        """The extras hold the numbers of the acting policy's distribution, from which the learner computes how probable
        the action was, and the environment's rung of the ladder if there is one."""
        outputs, carry = forward(obs, carry, first, heads=("policy",))
        policy = policy_of(xp, spec, outputs["policy"], obs)
        if noise is None:
            return Acted(policy.mode(), {}, carry)
        extras = {"behaviour": outputs["policy"]} | ({FACTOR: noise[FACTOR]} if FACTOR in noise else {})
        return Acted(policy.sample(noise["action"]), extras, carry)

    @property
    def scales_rewards(self) -> bool:
        return self.normalise_rewards

    def adaptation(self, updates: int) -> Adaptation | None:
        """The schedule of the entropy's cost: `entropy_cost` is that of the next update, after `entropy_updates`."""
        end = self.entropy_cost_end
        if end is None:
            return None

        def rule(xp: Any, coefficients: Tree, metrics: dict) -> Tree:
            made = coefficients["entropy_updates"] + 1.0
            cost = self.entropy_cost + (end - self.entropy_cost) * xp.clip(made / updates, None, 1.0)
            return {"entropy_cost": cost, "entropy_updates": made}

        return Adaptation({"entropy_cost": self.entropy_cost, "entropy_updates": 0.0}, (), rule)

    def less_entropy(
        self, loss: Any, entropy: Any, mean: Callable[[Any], Any], samples: Tree, coefficients: Tree
    ) -> tuple[Any, dict]:
        """The loss minus the cost times the mean of `entropy` [...], whose rows count by their rung of the ladder; and
        metrics. With a cost that is always 0 it is the loss alone, to save that gradient."""
        metrics = {"entropy": mean(entropy)}
        counted = mean(samples[FACTOR] * entropy) if self.entropy_ladder != 1.0 else metrics["entropy"]
        if self.entropy_cost_end is not None:
            metrics["entropy_cost"] = coefficients["entropy_cost"]
        cost = metrics.get("entropy_cost", self.entropy_cost)
        always_zero = self.entropy_cost_end is None and not self.entropy_cost
        return loss if always_zero else loss - cost * counted, metrics

    def rewards(self, xp: Any, reward: Any) -> Any:
        """The rewards as the loss sees them: clipped to -1 .. 1 if the setting says so."""
        return xp.clip(reward, -1.0, 1.0) if self.clip_rewards else reward


def policy_head(spec: EnvSpec, features: int, deviation: float) -> Network:
    """From features to the numbers of a distribution over actions; `deviation`: of a Gaussian before it has learned."""
    size = distributions.parameter_count(spec.action)
    if spec.action.kind == "box":
        return gaussian(features, size // 2, deviation)
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
