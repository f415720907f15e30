"""PPO with the clipped surrogate (Schulman 2017), feed-forward or recurrent.

    ratio = pi(a|s) / pi_old(a|s),    loss = -min(ratio A, clip(ratio, 1 - clip, 1 + clip) A) + value and entropy terms,
several epochs of minibatches over each batch of unrolls, advantages A by GAE (Schulman 2016).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from cavalcade.algorithm import Forward
from cavalcade.algorithms.actor_critic import ActorCritic, evaluated, policy_of, standardised, time_major
from cavalcade.errors import UserError, require_at_least
from cavalcade.ops.losses import ppo_clip
from cavalcade.ops.returns import gae
from cavalcade.specs import EnvSpec
from cavalcade.tree import Tree, map


@dataclass(frozen=True)
class PPO(ActorCritic):
    epochs: int = 4
    minibatches_per_epoch: int = 4
    clip: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, epochs=1, minibatches_per_epoch=1, clip=0)

    def updates(self, steps: int, environments: int) -> int:
        return steps // (self.unroll * environments) * self.epochs * self.minibatches_per_epoch

    def prepare(self, xp: Any, spec: EnvSpec, forward: Forward, items: Tree) -> Tree:
        _, values, step = evaluated(xp, forward, items)
        reward = self.rewards(xp, step["reward"])
        advantage = gae(xp, reward, step["discount"], values, step["valid"], self.gae_lambda)
        behaviour = policy_of(xp, spec, step["behaviour"], step["obs"])
        samples = {
            **{name: step[name] for name in ("obs", "action", "valid")},
            "log_prob": behaviour.log_prob(step["action"]),
            "advantage": advantage,
            "goal": advantage + values[:-1],
        }
        if self.memory:  # whole columns, with the carry before them
            samples["first"] = step["first"]
            return {**map(lambda leaf: xp.swapaxes(leaf, 0, 1), samples), "carry": items["carry"]}
        return map(lambda leaf: xp.reshape(leaf, (leaf.shape[0] * leaf.shape[1], *leaf.shape[2:])), samples)

    def minibatches(self, rng: np.random.Generator, items: int) -> np.ndarray:
        samples = items if self.memory else items * self.unroll
        size = samples // self.minibatches_per_epoch
        if size == 0:
            raise UserError(
                f"A batch of {items} unrolls cannot be cut into {self.minibatches_per_epoch} minibatches; "
                "use more --envs or fewer --minibatches-per-epoch."
            )
        used = size * self.minibatches_per_epoch
        epochs = [rng.permutation(samples)[:used].reshape(-1, size) for _ in range(self.epochs)]
        return np.concatenate(epochs)

    def loss(self, xp: Any, spec: EnvSpec, forward: Forward, target: Forward, samples: Tree) -> tuple[Any, dict]:
        carry, first = None, None
        if self.memory:
            samples, carry = time_major(xp, samples)
            first = samples["first"]
        outputs = forward(samples["obs"], carry, first)
        valid, advantage = samples["valid"], samples["advantage"]
        weight = valid / xp.clip(xp.sum(valid), 1.0, None)

        def mean(x: Any) -> Any:
            return xp.sum(weight * x)

        if self.normalise_advantages:
            advantage = standardised(xp, advantage, mean)
        policy = policy_of(xp, spec, outputs["policy"], samples["obs"])
        log_ratio = (policy.log_prob(samples["action"]) - samples["log_prob"]) * valid  # rows that are no step: 0
        policy_loss = mean(ppo_clip(xp, log_ratio, advantage, self.clip))
        value_loss = 0.5 * mean(xp.square(outputs["value"][..., 0] - samples["goal"]))
        entropy = mean(policy.entropy())
        loss = policy_loss + self.value_cost * value_loss - self.entropy_cost * entropy
        drift = xp.clip(xp.stop_gradient(log_ratio), None, 20.0)  # a larger ratio says no more, and overflows
        kl = mean(xp.expm1(drift) - drift)  # Schulman's low-variance estimate
        return loss, {"loss": loss, "policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy, "kl": kl}
