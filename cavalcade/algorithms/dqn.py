"""DQN: Q-learning with replay and a target network (Mnih 2015).

Settings add double Q-learning (van Hasselt 2016), the dueling network (Wang 2016), n-step targets (Sutton 1988) and
prioritised replay (Schaul 2016):
    y = R_n + discount * Q_target(s', argmax_a Q(s', a)),    loss = huber(y - Q(s, a)).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from cavalcade.algorithm import Clock, Forward
from cavalcade.errors import UserError, require_at_least
from cavalcade.experience import Experience, NStep, Replay
from cavalcade.model import Model, build
from cavalcade.networks import Network, Torso, dueling, linear
from cavalcade.ops.losses import huber
from cavalcade.optimiser import Optimiser
from cavalcade.specs import MASK, EnvSpec
from cavalcade.tree import Tree

SMALLEST_PRIORITY = 1e-6  # so that what is understood can still be drawn again
ILLEGAL = -1e9  # the value of an action that may not be taken


@dataclass(frozen=True)
class DQN:
    discount: float = 0.99  # per environment step
    n_step: int = 3
    double: bool = True
    dueling: bool = True
    replay_size: int = 50_000
    replay_start: int = 1_000  # transitions before the first update
    priority_exponent: float = 0.0  # draws in proportion to |error| ** exponent; 0 is uniform
    importance_exponent: float = 0.4  # of the weights that correct for it
    batch: int = 64
    update_every: int = 2  # environment steps per update
    updates_per_draw: int = 4  # updates made from one draw of the table, compiled as one call
    target_period: int = 250  # updates
    epsilon_start: float = 1.0
    epsilon_end: float = 0.04
    epsilon_steps: int = 10_000  # environment steps over which epsilon falls
    optimiser_name: str = "adam"
    learning_rate: float = 1e-3
    optimiser_epsilon: float = 1e-8
    max_gradient_norm: float = 10.0
    anneal: bool = True  # learning rate falls linearly to zero over the run
    clip_rewards: bool = False  # to [-1, 1], as on Atari
    hidden: tuple[int, ...] = (128, 128)
    activation: str = "relu"
    convolution: str = "nature"
    normalise_observations: bool = False

    reuse = "many"
    acts_by = "q"

    def __post_init__(self) -> None:
        require_at_least(self, n_step=1, batch=1, update_every=1, updates_per_draw=1, target_period=1, replay_start=1)
        require_at_least(self, priority_exponent=0, importance_exponent=0)
        require_at_least(self, replay_size=self.replay_start, discount=0, learning_rate=0, epsilon_steps=0)

    def model(self, spec: EnvSpec, network: Network | None = None) -> Model:
        if spec.action.kind != "discrete":
            raise UserError(
                f"dqn chooses among Discrete actions, but {spec.environment} has {spec.action.kind} actions; use ppo."
            )
        actions = spec.action.logits
        torso = Torso(self.hidden, self.activation, self.convolution, "uniform")
        head = dueling if self.dueling else linear
        heads = {"q": lambda features: head(features, actions)}
        return build(spec, torso, heads, normalise=self.normalise_observations, network=network)

    def experience(self) -> Experience:
        ratio = self.batch / self.update_every
        replay = Replay(self.replay_size, self.replay_start, ratio, self.priority_exponent, self.importance_exponent)
        return Experience(NStep(self.n_step, self.discount), replay, self.batch * self.updates_per_draw)

    def optimiser(self, updates: int) -> Optimiser:
        horizon = updates if self.anneal else 0
        return Optimiser(
            self.optimiser_name,
            self.learning_rate,
            self.optimiser_epsilon,
            0.95,
            self.max_gradient_norm,
            horizon,
        )

    def updates(self, steps: int, environments: int) -> int:
        return max(0, steps - self.replay_start) // self.update_every

    def extras(self, spec: EnvSpec) -> Tree:
        return {}

    def noise(self, spec: EnvSpec, rng: np.random.Generator, count: int, clock: Clock) -> Tree:
        fraction = min(1.0, clock.steps / self.epsilon_steps) if self.epsilon_steps else 1.0
        epsilon = self.epsilon_start + fraction * (self.epsilon_end - self.epsilon_start)
        explore = rng.random(count, np.float32) < epsilon
        return {"explore": explore, "preference": rng.random((count, spec.action.logits), np.float32)}

    def act(self, xp: Any, spec: EnvSpec, outputs: dict, obs: Tree, noise: Tree | None) -> tuple[Any, Tree]:
        best = xp.argmax(legal(xp, outputs["q"], obs), axis=-1)
        if noise is None:
            return best, {}
        random = xp.argmax(legal(xp, noise["preference"], obs), axis=-1)
        return xp.where(noise["explore"], random, best), {}

    def prepare(self, xp: Any, spec: EnvSpec, forward: Forward, items: Tree) -> Tree:
        return items

    def minibatches(self, rng: np.random.Generator, items: int) -> np.ndarray:
        return np.arange(items).reshape(self.updates_per_draw, -1)  # drawn at random already

    def loss(self, xp: Any, spec: EnvSpec, forward: Forward, target: Forward, samples: Tree) -> tuple[Any, dict]:
        r_t = xp.clip(samples["reward"], -1.0, 1.0) if self.clip_rewards else samples["reward"]
        q_tm1 = forward(samples["obs"])["q"]  # [B, A]
        q_t = xp.no_gradient(target, samples["next_obs"])["q"]
        chooser = xp.no_gradient(forward, samples["next_obs"])["q"] if self.double else q_t
        a_t = xp.argmax(legal(xp, chooser, samples["next_obs"]), axis=-1)
        goal = r_t + samples["discount"] * xp.pick(q_t, a_t)
        error = goal - xp.pick(q_tm1, samples["action"])
        metrics = {"q": xp.mean(q_tm1), "error": xp.mean(xp.abs(error))}
        if "weight" not in samples:
            loss = xp.mean(huber(xp, error))
            return loss, {"loss": loss, **metrics}
        loss = xp.mean(samples["weight"] * huber(xp, error))
        return loss, {"loss": loss, **metrics, "priority": xp.abs(error) + SMALLEST_PRIORITY}


def legal(xp: Any, q: Any, obs: Tree) -> Any:
    """Values with illegal actions out of reach."""
    if not (isinstance(obs, dict) and MASK in obs):
        return q
    return xp.where(xp.astype(obs[MASK], xp.bool), q, xp.full_like(q, ILLEGAL))
