"""A2C: the advantage actor-critic of A3C (Mnih 2016) in lock step.

R_t = r_t + ... + discount^n V(s_{t+n}),
loss = -log pi(a|s) (R - V) + value_cost / 2 (R - V)^2 - entropy_cost H(pi).
"""

from dataclasses import dataclass
from typing import Any

from cavalcade.algorithms.actor_critic import ActorCritic, evaluated, policy_of, standardised
from cavalcade.algorithms.contract import Forward, Loss
from cavalcade.config import setting
from cavalcade.experience import Experience, Queue
from cavalcade.ops.losses import explained_variance, weighted_mean
from cavalcade.ops.returns import gae
from cavalcade.specs import EnvSpec
from cavalcade.tree import Tree


@dataclass(frozen=True)
class A2C(ActorCritic):
    """One update from each batch of unrolls."""

    discount: float = 0.999
    gae_lambda: float = 0.98
    learning_rate: float = 2e-3
    entropy_cost: float = 0.01
    normalise_advantages: bool = False
    queue_batches: int = setting(
        1, "that may wait for the learner; with more than one the policy may have moved since", "experience", at_least=1
    )
    log_epsilon: float = setting(
        0.0,
        "inside logarithms of the policy, for unrolls that it has moved away from (GA3C: 1e-6)",
        "learning",
        at_least=0,
    )

    @property
    def max_lag(self) -> int | None:  # type: ignore[override]
        """Any lag if the queue holds several batches and `log_epsilon` is set: the params change while batches wait,
        and `log_epsilon` bounds the logarithm for actions that have become improbable. Otherwise lock step."""
        return None if self.queue_batches > 1 and self.log_epsilon else 0

    def experience(self) -> Experience:
        return Experience(self.item(), Queue(self.queue_batches), 0)

    def updates(self, steps: int, environments: int) -> int:
        return steps // (self.unroll * environments)

    def loss(
        self, xp: Any, spec: EnvSpec, forward: Forward, target: Any, samples: Tree, noise: Tree, coefficients: Tree
    ) -> Loss:
        outputs, values, step = evaluated(xp, forward, samples)
        reward, valid = self.rewards(xp, step["reward"]), step["valid"]
        advantage = gae(xp, reward, step["discount"], values, valid, self.gae_lambda)
        goal = advantage + xp.stop_gradient(values[:-1])  # the return R
        explained = explained_variance(xp, goal, advantage, valid)

        def mean(x: Any) -> Any:
            return weighted_mean(xp, x, valid)

        if self.normalise_advantages:
            advantage = standardised(xp, advantage, mean)
        policy = policy_of(xp, spec, outputs["policy"][:-1], step["obs"])
        log_prob = policy.log_prob(step["action"])
        if self.log_epsilon:
            log_prob = xp.log(xp.exp(log_prob) + self.log_epsilon)
        policy_loss = -mean(log_prob * advantage)
        value_loss = 0.5 * mean(xp.square(goal - values[:-1]))
        entropy, both = policy.entropy(self.log_epsilon), policy_loss + self.value_cost * value_loss
        loss, metrics = self.less_entropy(both, entropy, mean, step, coefficients)
        metrics |= {"loss": loss, "policy_loss": policy_loss, "value_loss": value_loss}
        return Loss(loss, {**metrics, "explained_variance": explained})
