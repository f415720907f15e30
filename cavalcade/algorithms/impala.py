"""IMPALA: an actor-critic that learns from unrolls of slightly older policies, corrected by V-trace (Espeholt 2018).

    rho_t = min(rho_bar, pi(a|s) / mu(a|s)),    v_s = V-trace target (cavalcade.ops.returns.vtrace),
    loss = -rho_t log pi(a|s) (r_t + discount v_{t+1} - V_t) + value_cost / 2 (v_t - V_t)^2 - entropy_cost H(pi).

Without lag pi is mu, both bars have no effect, and this is A2C with n-step returns. The other values of `correction`
are those that the paper compares with V-trace (section 5.2.2), all with the returns of A2C: the policy's gradient
weighted by rho alone, a small number inside the logarithm of the policy, or no correction.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from cavalcade.algorithms.actor_critic import ActorCritic, evaluated, policy_of, standardised
from cavalcade.algorithms.contract import Forward, Loss
from cavalcade.config import setting
from cavalcade.errors import require_at_least
from cavalcade.experience import Experience, Queue
from cavalcade.ops.losses import explained_variance, weighted_mean
from cavalcade.ops.returns import clipped_ratio, gae, vtrace
from cavalcade.specs import EnvSpec
from cavalcade.tree import Tree

CORRECTIONS = ("vtrace", "one-step", "epsilon", "none")
EPSILON = 1e-6  # inside the logarithm of the policy, as in GA3C


@dataclass(frozen=True)
class Impala(ActorCritic):
    """One update from each batch of unrolls, which actors made while the learner went on."""

    correction: str = setting("vtrace", "of the lag between actors and learner", "learning", words=CORRECTIONS)
    rho_bar: float = setting(
        1.0,
        "decides whose value is learned: that of a policy between the actors' and the learner's",
        "learning",
        above=0,
    )
    c_bar: float = setting(1.0, "decides only how far corrections reach back", "learning", above=0)
    batch: int = setting(8, "unrolls of one update; 32 in the paper", "learning", at_least=1)
    queue_batches: int = setting(
        2,
        "that may wait for the learner, which bounds how old they get; 1 is nearly lock step",
        "experience",
        at_least=1,
    )
    max_policy_lag: int = setting(
        0, "updates; older unrolls are left out of the loss; 0 leaves out none", "experience", at_least=0
    )
    replay_share: float = setting(
        0.0,
        "of each batch, drawn again from the newest unrolls (0.5 in the paper); below 1, or nothing new is learned",
        "experience",
        at_least=0,
        below=1,
    )
    replay_size: int = setting(10_000, "unrolls that may be drawn again", "experience", at_least=1)
    # The paper sums its losses over batch and time, so its learning rate and largest norm hold only for its batch of
    # 32 x 20 steps. With means they hold for any batch, and those of the other actor-critics are used here.
    summed: bool = setting(False, "losses are summed over batch and time instead of averaged", "learning")
    discount: float = 0.999
    gae_lambda: float = 0.98  # of the traces; 1 in the paper
    learning_rate: float = 2e-3
    entropy_cost: float = 0.01
    normalise_advantages: bool = False

    max_lag: ClassVar[int | None] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, replay_size=self.batch)

    @property
    def adds_gradients(self) -> bool:
        return self.summed

    def experience(self) -> Experience:
        queue = Queue(self.queue_batches, self.max_policy_lag, self.replay_share, self.replay_size)
        return Experience(self.item(), queue, self.batch)

    def updates(self, steps: int, environments: int) -> int:
        return int(steps / (self.unroll * self.batch * (1.0 - self.replay_share)))

    def loss(
        self, xp: Any, spec: EnvSpec, forward: Forward, target: Any, samples: Tree, noise: Tree, coefficients: Tree
    ) -> Loss:
        outputs, values, step = evaluated(xp, forward, samples)
        reward, valid = self.rewards(xp, step["reward"]), step["valid"]
        policy = policy_of(xp, spec, outputs["policy"][:-1], step["obs"])
        behaviour = policy_of(xp, spec, step["behaviour"], step["obs"])
        log_prob = policy.log_prob(step["action"])
        log_rho = (log_prob - behaviour.log_prob(step["action"])) * valid  # 0 in rows that are no transition
        seen = (xp, reward, step["discount"], values, valid)
        if self.correction == "vtrace":
            goal, advantage = vtrace(*seen, log_rho, self.rho_bar, self.c_bar, self.gae_lambda)
        else:
            advantage = gae(*seen, self.gae_lambda)
            goal = advantage + xp.stop_gradient(values[:-1])
        if self.correction == "one-step":
            advantage = advantage * clipped_ratio(xp, xp.stop_gradient(log_rho), self.rho_bar)
        if self.correction == "epsilon":
            log_prob = xp.log(xp.exp(log_prob) + EPSILON)

        def mean(x: Any) -> Any:
            return weighted_mean(xp, x, valid)

        if self.normalise_advantages:
            advantage = standardised(xp, advantage, mean)
        policy_loss = -mean(log_prob * advantage)
        value_loss = 0.5 * mean(xp.square(goal - values[:-1]))
        both = policy_loss + self.value_cost * value_loss
        loss, metrics = self.less_entropy(both, policy.entropy(), mean, step, coefficients)
        # the mean weight of the steps, 0 to 1; 1 without lag
        rho = mean(xp.exp(xp.clip(xp.stop_gradient(log_rho), None, 0.0)))
        metrics |= {"loss": loss, "policy_loss": policy_loss, "value_loss": value_loss, "rho": rho}
        error = goal - xp.stop_gradient(values[:-1])
        metrics["explained_variance"] = explained_variance(xp, goal, error, valid)
        return Loss(loss * xp.sum(valid) if self.summed else loss, metrics)
