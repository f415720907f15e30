"""DQN: Q-learning with replay and a target network (Mnih 2015).

Settings add double Q-learning (van Hasselt 2016), the dueling network (Wang 2016), n-step targets (Sutton 1988) and
prioritised replay (Schaul 2016):
    y = R_n + discount * Q_target(s', argmax_a Q(s', a)),    loss = huber(y - Q(s, a)).
Ape-X (Horgan 2018) adds actors that run ahead: each environment explores at its own rate, and items come with the
priority that the actor's own values give them.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from cavalcade.algorithm import Adaptation, Clock, Forward
from cavalcade.errors import UserError, require_at_least
from cavalcade.experience import SMALLEST_PRIORITY, Experience, NStep, Replay
from cavalcade.layers import Network, linear
from cavalcade.model import Model, build
from cavalcade.networks import Torso, dueling
from cavalcade.ops.losses import huber
from cavalcade.optimiser import Optimiser
from cavalcade.specs import MASK, EnvSpec
from cavalcade.tree import Tree

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
    actor_priorities: bool = False  # new items come with the error that acting saw; else with the highest so far
    trim_every: int = 0  # draws; up to then replay may exceed its size; 0 removes at once
    batch: int = 64
    update_every: int = 2  # environment steps per update
    updates_per_draw: int = 4  # updates made from one draw of the table, compiled as one call
    tolerance: float = 0.0  # updates may run ahead of acting, or behind, by this share of what replay_start is worth
    flush: int = 1  # items that an actor gathers before it sends them
    pull_every: int = 0  # steps of each environment until an actor asks for newer parameters; 0 asks at every step
    target_period: int = 250  # updates
    epsilon_start: float = 1.0
    epsilon_end: float = 0.04
    epsilon_steps: int = 10_000  # environment steps over which epsilon falls
    epsilon_ladder: bool = False  # instead: environment i of N keeps 0.4 ** (1 + 7 i / (N - 1)), as in Ape-X
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
        require_at_least(self, priority_exponent=0, importance_exponent=0, trim_every=0, tolerance=0)
        require_at_least(self, flush=1, pull_every=0)
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
        replay = Replay(
            self.replay_size,
            self.replay_start,
            self.batch / self.update_every,
            self.priority_exponent,
            self.importance_exponent,
            self.tolerance,
            self.trim_every,
        )
        item = NStep(self.n_step, self.discount, self.clip_rewards, self.actor_priorities)
        return Experience(item, replay, self.batch * self.updates_per_draw, self.flush, self.pull_every)

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
        zero = np.zeros((), np.float32)
        return {"q_taken": zero, "q_best": zero} if self.actor_priorities else {}

    def epsilon(self, count: int, clock: Clock) -> Any:
        """How often actions are random: one number, or one for each of the actor's `count` environments."""
        if self.epsilon_ladder:
            others = max(1, clock.actors * count - 1)
            return 0.4 ** (1.0 + 7.0 * (clock.actor * count + np.arange(count)) / others)
        fraction = min(1.0, clock.steps / self.epsilon_steps) if self.epsilon_steps else 1.0
        return self.epsilon_start + fraction * (self.epsilon_end - self.epsilon_start)

    def exploration(self, count: int, clock: Clock) -> float | None:
        return float(np.mean(self.epsilon(count, clock)))

    def noise(self, spec: EnvSpec, rng: np.random.Generator, count: int, clock: Clock) -> Tree:
        explore = rng.random(count, np.float32) < self.epsilon(count, clock)
        return {"explore": explore, "preference": rng.random((count, spec.action.logits), np.float32)}

    def act(self, xp: Any, spec: EnvSpec, outputs: dict, obs: Tree, noise: Tree | None) -> tuple[Any, Tree]:
        q = legal(xp, outputs["q"], obs)
        best = xp.argmax(q, axis=-1)
        if noise is None:
            return best, {}
        random = xp.argmax(legal(xp, noise["preference"], obs), axis=-1)
        action = xp.where(noise["explore"], random, best)
        return action, {"q_taken": xp.pick(q, action), "q_best": xp.max(q, axis=-1)} if self.actor_priorities else {}

    def prepare(self, xp: Any, spec: EnvSpec, forward: Forward, items: Tree) -> tuple[Tree, dict]:
        return items, {}

    def minibatches(self, rng: np.random.Generator, items: int) -> np.ndarray:
        return np.arange(items).reshape(self.updates_per_draw, -1)  # drawn at random already

    def adaptation(self) -> Adaptation | None:
        return None

    def loss(
        self, xp: Any, spec: EnvSpec, forward: Forward, target: Forward, samples: Tree, coefficients: Tree
    ) -> tuple[Any, dict]:
        q_tm1 = forward(samples["obs"])["q"]  # [B, A]
        q_t = xp.no_gradient(target, samples["next_obs"])["q"]
        chooser = xp.no_gradient(forward, samples["next_obs"])["q"] if self.double else q_t
        a_t = xp.argmax(legal(xp, chooser, samples["next_obs"]), axis=-1)
        goal = samples["reward"] + samples["discount"] * xp.pick(q_t, a_t)
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
