"""PPO (Schulman 2017), feed-forward or recurrent: several epochs of minibatches over each batch of unrolls. A clipped
surrogate or a penalty keeps the policy near the one that acted; advantages A are by GAE (Schulman 2016).

    ratio = pi(a|s) / pi_old(a|s),    clip:     loss = -min(ratio A, clip(ratio, 1 - clip, 1 + clip) A)
                                      penalty:  loss = -ratio A + coefficient KL(pi_old || pi)
plus value and entropy terms. The KL is exact, from the distributions that actors stored. After each draw the
coefficient changes by the KL of the draw's last epoch (`ops/penalty.py`): the mean over the minibatches of that epoch,
each computed before its own update, and over all learners of an all-reduce.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from cavalcade.algorithms.actor_critic import FACTOR, ActorCritic, evaluated, policy_of, standardised, time_major
from cavalcade.algorithms.contract import DRAW, Adaptation, Forward, Loss
from cavalcade.config import setting
from cavalcade.errors import UserError
from cavalcade.ops.losses import explained_variance, policy_ratio, ppo_clip, unbounded_surrogate
from cavalcade.ops.penalty import KL_RULES, adapted, kl_penalty
from cavalcade.ops.returns import gae
from cavalcade.specs import EnvSpec
from cavalcade.tree import Tree, map


@dataclass(frozen=True)
class PPO(ActorCritic):
    """`epochs` times `minibatches_per_epoch` updates from each batch of unrolls."""

    unroll: int = 256
    learning_rate: float = 5e-4
    epochs: int = setting(10, "how often each batch is gone through", "learning", at_least=1)
    minibatches_per_epoch: int = setting(
        16, "an update each; at most one for each step, with memory for each unroll", "learning", at_least=1
    )
    surrogate: str = setting("clip", "what bounds the policy's move", "learning", words=("clip", "penalty"))
    clip: float = setting(0.2, "how far the ratio of new to old probabilities counts", "learning", at_least=0)
    kl_rule: str = setting("ppo", "how the penalty's coefficient changes", "learning", words=tuple(KL_RULES))
    kl_target: float = setting(0.01, "divergence per draw that the penalty aims at", "learning", above=0)

    def updates(self, steps: int, environments: int) -> int:
        return steps // (self.unroll * environments) * self.epochs * self._cuts(environments)

    def _cuts(self, items: int) -> int:
        """How many minibatches an epoch of `items` unrolls has: no more than there are samples. The rule of the penalty
        counts epochs by the number that was asked for, so there it stays."""
        if self.surrogate == "penalty":
            return self.minibatches_per_epoch
        return min(self.minibatches_per_epoch, self._samples(items))

    def _samples(self, items: int) -> int:
        return items if self.memory else items * self.unroll  # with memory a sample is a whole unroll

    def prepare(self, xp: Any, spec: EnvSpec, forward: Forward, target: Any, items: Tree) -> tuple[Tree, dict]:
        _, values, step = evaluated(xp, forward, items, ("value",))
        reward = self.rewards(xp, step["reward"])
        advantage = gae(xp, reward, step["discount"], values, step["valid"], self.gae_lambda)
        behaviour = policy_of(xp, spec, step["behaviour"], step["obs"])
        samples = {
            **{name: step[name] for name in ("obs", "action", "valid")},
            "log_prob": behaviour.log_prob(step["action"]),
            "advantage": advantage,
            "goal": advantage + values[:-1],
        }
        metrics = {"explained_variance": explained_variance(xp, samples["goal"], advantage, step["valid"])}
        if self.surrogate == "penalty":
            samples["behaviour"] = step["behaviour"]
        if FACTOR in step:
            samples[FACTOR] = step[FACTOR]
        if self.memory:  # a sample is a whole unroll, with the carry before it
            samples["first"] = step["first"]
            return {**map(lambda leaf: xp.swapaxes(leaf, 0, 1), samples), "carry": items["carry"]}, metrics
        flat = map(lambda leaf: xp.reshape(leaf, (leaf.shape[0] * leaf.shape[1], *leaf.shape[2:])), samples)
        return flat, metrics

    def minibatches(self, rng: np.random.Generator, items: int) -> np.ndarray:
        samples, cuts = self._samples(items), self._cuts(items)
        size = samples // cuts
        if size == 0:
            raise UserError(
                f"A batch of {items} unrolls cannot be cut into {self.minibatches_per_epoch} minibatches; "
                "use more --envs or fewer --minibatches-per-epoch."
            )
        epochs = [rng.permutation(samples)[: size * cuts].reshape(-1, size) for _ in range(self.epochs)]
        return np.concatenate(epochs)

    def adaptation(self, updates: int) -> Adaptation | None:
        entropy = super().adaptation(updates)
        if self.surrogate == "clip":
            return entropy
        initial = {"kl_coefficient": KL_RULES[self.kl_rule].initial, DRAW: {"made": 0.0, "kl": 0.0, "going": 1.0}}
        return Adaptation(initial, ("kl",), self._adapt).beside(entropy)

    def _adapt(self, xp: Any, coefficients: Tree, metrics: dict) -> Tree:
        """The penalty's coefficients after one update. `made`: updates of this draw so far; `kl`: the sum over this
        epoch so far, divided by its minibatches; `going`: 0 for the rest of the draw once the policy has moved too far,
        else 1."""
        rule, so_far, size = KL_RULES[self.kl_rule], coefficients[DRAW], self.minibatches_per_epoch
        made = so_far["made"] + 1.0
        kl = xp.where(so_far["made"] % size == 0, 0.0, so_far["kl"]) + metrics["kl"] / size
        going, over = so_far["going"], made == size * self.epochs
        if rule.end:
            far = xp.logical_and(made % size == 0, kl > rule.end * self.kl_target)
            going = xp.where(over, 1.0, xp.where(far, 0.0, going))
        coefficient = coefficients["kl_coefficient"]
        changed = adapted(xp, rule, coefficient, kl, self.kl_target)
        return {
            "kl_coefficient": xp.where(over, changed, coefficient),
            DRAW: {"made": xp.where(over, 0.0, made), "kl": kl, "going": going},
        }

    def loss(
        self, xp: Any, spec: EnvSpec, forward: Forward, target: Any, samples: Tree, noise: Tree, coefficients: Tree
    ) -> Loss:
        carry, first = None, None
        if self.memory:
            samples, carry = time_major(xp, samples)
            first = samples["first"]
        outputs, _ = forward(samples["obs"], carry, first)
        valid, advantage = samples["valid"], samples["advantage"]
        weight = valid / xp.clip(xp.sum(valid), 1.0, None)

        def mean(x: Any) -> Any:
            return xp.sum(weight * x)

        if self.normalise_advantages:
            advantage = standardised(xp, advantage, mean)
        policy = policy_of(xp, spec, outputs["policy"], samples["obs"])
        log_ratio = (policy.log_prob(samples["action"]) - samples["log_prob"]) * valid  # 0 if no transition
        ratio = policy_ratio(xp, log_ratio)
        value_loss = 0.5 * mean(xp.square(xp.squeeze(outputs["value"], -1) - samples["goal"]))
        entropy, metrics = policy.entropy(), {"value_loss": value_loss}
        if self.surrogate == "clip":
            policy_loss = mean(ppo_clip(xp, ratio, advantage, self.clip))
            moved = xp.stop_gradient(ratio) - 1.0
            metrics["approx_kl"] = mean(moved - xp.stop_gradient(log_ratio))  # Schulman's low-variance estimate
            metrics["clip_fraction"] = mean(xp.abs(moved) > self.clip)
        else:
            rule, coefficient = KL_RULES[self.kl_rule], coefficients["kl_coefficient"]
            kl = mean(policy_of(xp, spec, samples["behaviour"], samples["obs"]).kl(policy))
            penalty = kl_penalty(xp, rule, coefficient, kl, self.kl_target)
            policy_loss = mean(unbounded_surrogate(xp, ratio, advantage)) + penalty
            metrics |= {"kl": kl, "kl_coefficient": coefficient}
        loss, about_entropy = self.less_entropy(policy_loss, entropy, mean, samples, coefficients)
        if self.surrogate == "penalty" and KL_RULES[self.kl_rule].end:
            loss = loss * coefficients[DRAW]["going"]  # 0 stops the policy for the rest of the draw, but not the value
        loss = loss + self.value_cost * value_loss
        return Loss(loss, {"loss": loss, "policy_loss": policy_loss, **metrics, **about_entropy})
