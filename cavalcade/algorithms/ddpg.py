"""DDPG (Lillicrap 2016): a deterministic policy that climbs the gradient of a critic of its actions.

    y = R_n + discount * Q_target(s', policy_target(s')),    loss = (y - Q(s, a))^2 / 2 - Q(s, policy(s)),
where each term changes its own network alone. Settings make its successors: TD3 (Fujimoto 2018) has twin critics, a
policy that learns at every second update and noise on the target's actions; D4PG (Barth-Maron 2018) has distributions
of returns over n steps; Ape-X DPG (Horgan 2018) has priorities from many actors and bounds the critic's gradient.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from cavalcade.algorithms.action_critic import SHARED, ActionCritic
from cavalcade.algorithms.contract import Acted, Forward, Loss, Target
from cavalcade.config import setting
from cavalcade.networks import Model, Network
from cavalcade.ops.bounds import Bounds
from cavalcade.ops.distributions import correlated
from cavalcade.optimiser import Group
from cavalcade.specs import EnvSpec
from cavalcade.tree import Tree


@dataclass(frozen=True)
class DDPG(ActionCritic):
    """Deterministic policies of continuous actions; lengths of actions are in half-widths of their Box."""

    learning_rate: float = 1e-3
    twin: bool = False
    policy_every: int = setting(
        1, "updates of the critics for each of the policy, with which the targets move", "learning", at_least=1
    )
    smoothing: float = setting(
        0.0, "deviation of the noise on actions of the target policy (Fujimoto 2018)", "learning", at_least=0
    )
    smoothing_bound: float = setting(0.5, "the largest size of that noise", "learning", at_least=0)
    action_gradient_bound: float = setting(
        0.0, "of each entry of the critic's gradient by the action; 0 is none (Horgan 2018)", "learning", at_least=0
    )
    exploration_noise: float = setting(0.1, "deviation of the noise on actions", "exploration", at_least=0)
    noise_correlation: float = setting(
        0.0,
        "of this noise from one step of an episode to the next; 0.85 is Ornstein-Uhlenbeck noise with theta 0.15",
        "exploration",
        at_least=0,
        below=1,
    )

    def model(self, spec: EnvSpec, network: Network | None = None) -> Model:
        return self.built(spec, int(np.prod(spec.action.shape)), {}, network, "ddpg")

    def groups(self) -> dict[str, Group]:
        same = self.policy_rate is None and self.policy_every == 1
        return {} if same else {"policy": Group(self.policy_rate, every=self.policy_every)}

    def target(self) -> Target:
        return Target(self.target_period * self.policy_every, self.target_mix)

    # --- acting -------------------------------------------------------------------------------------------------------

    def correlated(self, noise: Tree, last: Tree, first: np.ndarray) -> Tree:
        return correlated(noise, last, first, self.noise_correlation)

    def act(
        self, xp: Any, spec: EnvSpec, forward: Forward, obs: Tree, carry: Tree, first: Any, noise: Tree | None
    ) -> Acted:
        best = self.policy(xp, forward, obs)
        if noise is None:
            return Acted(Bounds(xp, spec).action(best), {}, carry)
        drawn = xp.clip(best + self.exploration_noise * noise["action"], -1.0, 1.0)
        return self.explored(xp, spec, forward, obs, carry, noise, best, drawn)

    def policy(self, xp: Any, forward: Forward, obs: Tree) -> Any:
        """The policy's actions [B, D] in the unit box."""
        return xp.tanh(forward(obs, heads=("policy",), freeze=(SHARED,))[0]["policy"])

    # --- learning -----------------------------------------------------------------------------------------------------

    def learning_noise(self, spec: EnvSpec, rng: np.random.Generator, indices: np.ndarray) -> Tree:
        if not self.smoothing:
            return {}
        return {"smoothing": rng.standard_normal((*indices.shape, int(np.prod(spec.action.shape))), np.float32)}

    def loss(
        self, xp: Any, spec: EnvSpec, forward: Forward, target: Any, samples: Tree, noise: Tree, coefficients: Tree
    ) -> Loss:
        obs, next_obs = samples["obs"], samples["next_obs"]
        after = xp.no_gradient(self._after, xp, target, next_obs, noise)
        outputs = self.judged(forward, obs, Bounds(xp, spec).unit(samples["action"]))
        loss, metrics, priority = self.critic_loss(xp, outputs, after, samples)
        action = self.policy(xp, forward, obs)
        if self.action_gradient_bound:  # the mean below divides by the number of samples
            action = xp.clip_gradient(action, self.action_gradient_bound / action.shape[0])
        liked = self.judged(forward, obs, action, self.critics[:1], freeze=(*self.critics, SHARED))
        value = xp.mean(self.mean(xp, self.after(xp, liked)))
        return Loss(loss - value, {"loss": loss, **metrics, "policy_value": value}, priority)

    def _after(self, xp: Any, target: Forward, next_obs: Tree, noise: Tree) -> Any:
        """What the target critics give for the target policy's actions, on which lies bounded noise."""
        action = self.policy(xp, target, next_obs)
        if self.smoothing:
            moved = xp.clip(self.smoothing * noise["smoothing"], -self.smoothing_bound, self.smoothing_bound)
            action = xp.clip(action + moved, -1.0, 1.0)
        return self.after(xp, self.judged(target, next_obs, action))
