"""PG: REINFORCE (Williams 1992), with the values as a baseline or without one, in lock step.

    R_t = r_t + discount r_{t+1} + ...,    loss = -log pi(a|s) (R - V) + value_cost / 2 (R - V)^2 - entropy_cost H(pi).

With a baseline the value takes the place of the rewards after the end of the unroll, and with `gae_lambda` below 1 of
earlier ones too. Without one there is no V: rewards after the end of the unroll, or after a time limit, count as
0. So unrolls should be about as long as episodes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cavalcade.algorithms.actor_critic import ActorCritic, policy_of, standardised, time_major
from cavalcade.algorithms.contract import Forward, Loss
from cavalcade.config import setting
from cavalcade.networks import Network
from cavalcade.ops.losses import explained_variance, weighted_mean
from cavalcade.ops.returns import gae
from cavalcade.specs import EnvSpec
from cavalcade.tree import Tree, take


@dataclass(frozen=True)
class PG(ActorCritic):
    """One update from each batch of unrolls."""

    baseline: bool = setting(True, "the values of states are learned, and subtracted from their returns", "learning")
    gae_lambda: float = 1.0
    unroll: int = 128
    learning_rate: float = 4e-3

    def heads(self, spec: EnvSpec) -> dict[str, Callable[[int], Network]]:
        heads = super().heads(spec)
        return heads if self.baseline else {"policy": heads["policy"]}

    def updates(self, steps: int, environments: int) -> int:
        return steps // (self.unroll * environments)

    def loss(
        self, xp: Any, spec: EnvSpec, forward: Forward, target: Any, samples: Tree, noise: Tree, coefficients: Tree
    ) -> Loss:
        unroll, carry = time_major(xp, samples)
        outputs, _ = forward(unroll["obs"], carry, unroll["first"], heads=tuple(self.heads(spec)))
        values = xp.squeeze(outputs["value"], -1) if self.baseline else xp.zeros_like(unroll["reward"])
        step = take(unroll, slice(-1))
        reward, valid = self.rewards(xp, step["reward"]), step["valid"]
        advantage = gae(xp, reward, step["discount"], values, valid, self.gae_lambda)
        goal, error = advantage + xp.stop_gradient(values[:-1]), advantage

        def mean(x: Any) -> Any:
            return weighted_mean(xp, x, valid)

        if self.normalise_advantages:
            advantage = standardised(xp, advantage, mean)
        policy = policy_of(xp, spec, outputs["policy"][:-1], step["obs"])
        policy_loss = -mean(policy.log_prob(step["action"]) * advantage)
        loss, metrics = self.less_entropy(policy_loss, policy.entropy(), mean, step, coefficients)
        metrics["policy_loss"] = policy_loss
        if self.baseline:
            metrics["value_loss"] = 0.5 * mean(xp.square(goal - values[:-1]))
            metrics["explained_variance"] = explained_variance(xp, goal, error, valid)
            loss = loss + self.value_cost * metrics["value_loss"]
        return Loss(loss, {"loss": loss, **metrics})
