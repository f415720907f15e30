"""Maximum a posteriori policy optimisation (Abdolmaleki 2018), as in Acme; with atoms it is DMPO (Hoffman 2020).

At each state N actions of the target policy are judged by the target critics. The E-step gives them weights
q_i = softmax(Q_i / temperature); the M-step makes the policy as probable as it can, -sum_i q_i log pi(a_i), while the
mean and the deviation of each entry of the action stay within a KL of their own from the target policy's. The
temperature and the prices of these bounds are learned with the networks. Actions are normal in the unit box and
clipped to it; a second set of weights prefers actions that need no clipping (Abdolmaleki 2020).
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from cavalcade.algorithms.action_critic import SHARED, ActionCritic
from cavalcade.algorithms.contract import Acted, Forward, Loss
from cavalcade.config import setting
from cavalcade.networks import Model, Network, constants
from cavalcade.ops import mpo
from cavalcade.ops.bounds import Bounds
from cavalcade.optimiser import Group
from cavalcade.specs import EnvSpec
from cavalcade.tree import Tree

SMALLEST_DEVIATION = 1e-6


@dataclass(frozen=True)
class MPO(ActionCritic):
    """Gaussian policies of continuous actions; lengths of actions are in half-widths of their Box."""

    learning_rate: float = 3e-4
    batch: int = 256
    n_step: int = 5
    twin: bool = False
    target_period: int = 100
    target_mix: float = 1.0
    max_gradient_norm: float = 40.0
    layer_norm: bool = True
    activation: str = "elu"
    sampled_actions: int = setting(20, "N: actions of the target policy at each state", "learning", at_least=2)
    dual_rate: float = setting(1e-2, "step size of the temperatures and prices", "learning", at_least=0)
    epsilon: float = setting(0.1, "KL between the weights of actions and equal ones", "learning", above=0)
    epsilon_penalty: float = setting(
        1e-3, "the same for the weights against clipped actions; 0 has none", "learning", at_least=0
    )
    epsilon_mean: float = setting(2.5e-3, "KL by which the policy's mean may move, per entry", "learning", above=0)
    epsilon_deviation: float = setting(1e-6, "the same for its deviation", "learning", above=0)
    initial_deviation: float = setting(0.5, "of the policy, in half-widths of the Box", "exploration", above=0)
    initial_temperature: float = setting(10.0, "before the softplus, as all that follow", "learning")
    initial_price_mean: float = setting(10.0, "of moving the mean", "learning")
    initial_price_deviation: float = setting(1000.0, "of moving the deviation", "learning")

    def model(self, spec: EnvSpec, network: Network | None = None) -> Model:
        size = int(np.prod(spec.action.shape))
        prices = {"temperatures": constants((self.initial_temperature,) * 2)}
        prices["price_mean"] = constants((self.initial_price_mean,) * size)
        prices["price_deviation"] = constants((self.initial_price_deviation,) * size)
        return self.built(spec, 2 * size, prices, network, "mpo")

    def groups(self) -> dict[str, Group]:
        duals = dict.fromkeys(("temperatures", "price_mean", "price_deviation"), Group(self.dual_rate))
        return {"policy": Group(self.policy_rate), **duals}  # clipped apart from the critics, as in Acme

    # --- acting -------------------------------------------------------------------------------------------------------

    def act(
        self, xp: Any, spec: EnvSpec, forward: Forward, obs: Tree, carry: Tree, first: Any, noise: Tree | None
    ) -> Acted:
        mean, std = self.normal(xp, forward(obs, heads=("policy",))[0]["policy"])
        best = xp.clip(mean, -1.0, 1.0)
        if noise is None:
            return Acted(Bounds(xp, spec).action(best), {}, carry)
        drawn = xp.clip(mean + std * noise["action"], -1.0, 1.0)
        return self.explored(xp, spec, forward, obs, carry, noise, best, drawn)

    def normal(self, xp: Any, parameters: Any) -> tuple[Any, Any]:
        """Mean and deviation [..., D] of the policy, from the output [..., 2D] of its head."""
        size = parameters.shape[-1] // 2
        wide = xp.softplus(parameters[..., size:]) * (self.initial_deviation / math.log(2.0))
        return parameters[..., :size], wide + SMALLEST_DEVIATION

    # --- learning -----------------------------------------------------------------------------------------------------

    def learning_noise(self, spec: EnvSpec, rng: np.random.Generator, indices: np.ndarray) -> Tree:
        updates, samples = indices.shape
        shape = (updates, self.sampled_actions, samples, int(np.prod(spec.action.shape)))
        return {"actions": rng.standard_normal(shape, np.float32)}

    def loss(
        self, xp: Any, spec: EnvSpec, forward: Forward, target: Any, samples: Tree, noise: Tree, coefficients: Tree
    ) -> Loss:
        """The policy learns at the observations after each transition, where actions are judged for the critics'
        targets anyway."""
        obs, next_obs = samples["obs"], samples["next_obs"]
        old, actions, each = xp.no_gradient(self._judged_actions, xp, target, next_obs, noise["actions"])
        outputs = self.judged(forward, obs, Bounds(xp, spec).unit(samples["action"]))
        loss, metrics, priority = self.critic_loss(xp, outputs, xp.mean(each, axis=0), samples)
        policy_loss, more = self._policy_loss(xp, forward, next_obs, old, actions, self.mean(xp, each))
        return Loss(loss + policy_loss, {"loss": loss, **metrics, "policy_loss": policy_loss, **more}, priority)

    def _judged_actions(self, xp: Any, target: Forward, obs: Tree, noise: Any) -> tuple[dict, Any, Any]:
        """The target policy, actions [N, B, D] drawn from it, and what the target critics give for each."""
        mean, std = self.normal(xp, target(obs, heads=("policy",))[0]["policy"])
        actions = mean + std * noise
        each = self.after(xp, self.judged(target, obs, xp.clip(actions, -1.0, 1.0)))
        return {"mean": mean, "std": std}, actions, each

    def _policy_loss(
        self, xp: Any, forward: Forward, obs: Tree, old: dict, actions: Any, values: Any
    ) -> tuple[Any, dict]:
        """The losses of policy and duals; `values` [N, B] of the actions [N, B, D] that `old` has drawn."""
        heads = ("policy", "temperatures", "price_mean", "price_deviation")
        found, _ = forward(obs, heads=heads, freeze=(SHARED,))
        mean, std = self.normal(xp, found["policy"])
        temperatures = mpo.price(xp, found["temperatures"][0])
        weights, dual_loss = mpo.weighted_actions(xp, values, temperatures[0], self.epsilon)
        if self.epsilon_penalty:
            over = actions - xp.clip(actions, -1.0, 1.0)
            cost = -xp.sqrt(xp.sum(xp.square(over), axis=-1))
            more, penalty_loss = mpo.weighted_actions(xp, cost, temperatures[1], self.epsilon_penalty)
            weights, dual_loss = weights + more, dual_loss + penalty_loss
        likely = mpo.log_prob(xp, actions, mean, old["std"]) + mpo.log_prob(xp, actions, old["mean"], std)
        loss = -xp.mean(xp.sum(weights * likely, axis=0))
        kl_mean = xp.mean(mpo.kl_of_means(xp, mean, old["mean"], old["std"]), axis=0)  # [D]
        kl_deviation = xp.mean(mpo.kl_of_deviations(xp, std, old["std"]), axis=0)
        for divergence, name, bound in (
            (kl_mean, "price_mean", self.epsilon_mean),
            (kl_deviation, "price_deviation", self.epsilon_deviation),
        ):
            penalty, price_loss = mpo.bounded(xp, divergence, found[name][0], bound)
            loss, dual_loss = loss + penalty, dual_loss + price_loss
        metrics = {"temperature": temperatures[0], "kl_mean": xp.mean(kl_mean), "kl_deviation": xp.mean(kl_deviation)}
        return loss + dual_loss, {**metrics, "deviation": xp.mean(std)}
