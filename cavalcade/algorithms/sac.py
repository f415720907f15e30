"""Soft actor-critic (Haarnoja 2018): a random policy that is rewarded for its entropy, at a price that is learned.

    V(s) = E[min Q(s, a) - temperature log pi(a|s)],    y = R_n + discount * V_target(s'),
    loss = (y - Q(s, a))^2 / 2 - V(s) + log temperature (entropy - wanted entropy),
where each term changes its own network alone. For a Box the expectation is over one action, tanh of a normal; for
Discrete actions it is a sum over all of them (Christodoulou 2019), and critics give a value for each.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from cavalcade.algorithms.action_critic import SHARED, ActionCritic
from cavalcade.algorithms.contract import Acted, Clock, Forward, Loss
from cavalcade.config import setting
from cavalcade.errors import UserError
from cavalcade.networks import Model, Network, Torso, build, constants, linear
from cavalcade.ops.bounds import Bounds
from cavalcade.ops.distributions import Categorical, SquashedGaussian, draw_noise
from cavalcade.specs import MASK, EnvSpec
from cavalcade.tree import Tree

DISCRETE_ENTROPY = 0.3  # of the entropy of the uniform policy: the wanted one for Discrete actions


@dataclass(frozen=True)
class SAC(ActionCritic):
    """Random policies of continuous or Discrete actions."""

    temperature: float = setting(1.0, "of the entropy, at first", "exploration", above=0)
    learned_temperature: bool = setting(True, "it moves until the entropy is the wanted one", "exploration")
    wanted_entropy: float | None = setting(
        None,
        "in nats, in the unit box; none: minus the size of an action, 0.3 of the largest for Discrete ones",
        "exploration",
    )

    def model(self, spec: EnvSpec, network: Network | None = None) -> Model:
        prices = {"temperature": constants((math.log(self.temperature),))}
        if spec.action.kind != "discrete":
            return self.built(spec, 2 * int(np.prod(spec.action.shape)), prices, network, "sac")
        if self.atoms or self.actor_priorities:
            raise UserError(
                f"--atoms and --actor-priorities are for a Box of actions, but {spec.environment} has Discrete ones."
            )
        torso = Torso(self.hidden, self.activation, self.convolution, "uniform", self.layer_norm)
        actions = spec.action.logits
        heads = {"policy": lambda features: linear(features, actions)}
        heads |= {name: lambda features: self.critic_body(features, actions) for name in self.critics}
        heads |= {"temperature": lambda features: prices["temperature"]}
        raw = (*self.critics, "temperature")
        return build(spec, torso, heads, False, normalise=self.normalise_observations, network=network, raw=raw)

    # --- acting -------------------------------------------------------------------------------------------------------

    def noise(self, spec: EnvSpec, rng: np.random.Generator, count: int, clock: Clock) -> Tree:
        if spec.action.kind != "discrete":
            return super().noise(spec, rng, count, clock)
        at_random = np.full(count, clock.steps < self.replay_start)
        return {"action": draw_noise(spec.action, rng, count), "at_random": at_random}

    def act(
        self, xp: Any, spec: EnvSpec, forward: Forward, obs: Tree, carry: Tree, first: Any, noise: Tree | None
    ) -> Acted:
        parameters = forward(obs, heads=("policy",))[0]["policy"]
        if spec.action.kind == "discrete":
            policy = Categorical(xp, parameters, obs[MASK] if spec.masked else None)
            if noise is None:
                return Acted(policy.mode(), {}, carry)
            anything = Categorical(xp, 0.0 * parameters, obs[MASK] if spec.masked else None)
            drawn, free = policy.sample(noise["action"]), anything.sample(noise["action"])
            return Acted(xp.where(noise["at_random"], free, drawn), {}, carry)
        squashed = SquashedGaussian(xp, parameters)
        if noise is None:
            return Acted(Bounds(xp, spec).action(squashed.mode()), {}, carry)
        drawn, _ = squashed.sample(noise["action"])
        return self.explored(xp, spec, forward, obs, carry, noise, drawn, drawn)

    # --- learning -----------------------------------------------------------------------------------------------------

    def learning_noise(self, spec: EnvSpec, rng: np.random.Generator, indices: np.ndarray) -> Tree:
        if spec.action.kind == "discrete":
            return {}
        shape = (*indices.shape, int(np.prod(spec.action.shape)))
        return {name: rng.standard_normal(shape, np.float32) for name in ("now", "after")}

    def entropy_goal(self, spec: EnvSpec) -> float:
        """The wanted entropy, in nats."""
        if self.wanted_entropy is not None:
            return self.wanted_entropy
        discrete = spec.action.kind == "discrete"
        return DISCRETE_ENTROPY * math.log(spec.action.logits) if discrete else -float(np.prod(spec.action.shape))

    def loss(
        self, xp: Any, spec: EnvSpec, forward: Forward, target: Any, samples: Tree, noise: Tree, coefficients: Tree
    ) -> Loss:
        obs, next_obs = samples["obs"], samples["next_obs"]
        heads, freeze = ("policy", "temperature"), (*self.critics, SHARED)
        found, _ = forward(obs, heads=heads, freeze=(SHARED,))
        log_temperature = found["temperature"][0, 0]
        temperature = xp.stop_gradient(xp.exp(log_temperature))
        following = xp.no_gradient(forward, next_obs, heads=("policy",))[0]["policy"]
        if spec.action.kind == "discrete":
            after, entropy_after = xp.no_gradient(self._over_actions, xp, spec, target, next_obs, following)
            outputs = [xp.pick(each, samples["action"])[..., None] for each in self._of_each(forward, obs)]
            value, entropy = self._over_actions(xp, spec, forward, obs, found["policy"], freeze)
        else:
            after, entropy_after = xp.no_gradient(self._of_sample, xp, target, next_obs, following, noise["after"])
            outputs = self.judged(forward, obs, Bounds(xp, spec).unit(samples["action"]))
            judged, entropy = self._of_sample(xp, forward, obs, found["policy"], noise["now"], freeze)
            value = self.mean(xp, judged)
        loss, metrics, priority = self.critic_loss(xp, outputs, after, samples, temperature * entropy_after)
        mean_entropy = xp.mean(entropy)
        policy_loss = -xp.mean(value) - temperature * mean_entropy
        surplus = xp.stop_gradient(mean_entropy) - self.entropy_goal(spec)
        whole = loss + policy_loss + (log_temperature * surplus if self.learned_temperature else 0.0 * log_temperature)
        metrics |= {"entropy": mean_entropy, "temperature": temperature, "policy_loss": policy_loss}
        return Loss(whole, {"loss": loss, **metrics}, priority)

    def _of_sample(
        self, xp: Any, critics: Forward, obs: Tree, parameters: Any, noise: Any, freeze: tuple[str, ...] = ()
    ) -> tuple[Any, Any]:
        """What the critics give for one action of the policy with these parameters [B, 2D], as `after` has it; and the
        estimate -log pi [B] of its entropy."""
        action, log_prob = SquashedGaussian(xp, parameters).sample(noise)
        return self.after(xp, self.judged(critics, obs, action, freeze=freeze)), -log_prob

    def _of_each(self, critics: Forward, obs: Tree, freeze: tuple[str, ...] = ()) -> list[Any]:
        """What each critic gives for all Discrete actions, [B, A]."""
        outputs, _ = critics(obs, heads=self.critics, freeze=freeze)
        return [outputs[name] for name in self.critics]

    def _over_actions(
        self, xp: Any, spec: EnvSpec, critics: Forward, obs: Tree, logits: Any, freeze: tuple[str, ...] = ()
    ) -> tuple[Any, Any]:
        """The mean [B] of the lowest critic over all legal actions of the policy with these logits [B, A]; and its
        entropy [B]."""
        policy = Categorical(xp, logits, obs[MASK] if spec.masked else None)
        values = self._of_each(critics, obs, freeze)
        lowest = values[0] if len(values) == 1 else xp.minimum(*values)
        return xp.sum(policy.probs * lowest, axis=-1), policy.entropy()
