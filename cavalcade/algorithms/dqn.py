"""DQN: Q-learning with replay and a target network (Mnih 2015).

Settings add double Q-learning (van Hasselt 2016), the dueling network (Wang 2016), n-step targets (Sutton 1988) and
prioritised replay (Schaul 2016):
    y = R_n + discount * Q_target(s', argmax_a Q(s', a)),    loss = huber(y - Q(s, a)).
What is learned for each action is its mean return, or with `value` the distribution of returns, on atoms (C51,
Bellemare 2017) or as quantiles (QR-DQN, Dabney 2018). Priorities are the errors of the means, whatever the head.
Ape-X (Horgan 2018) adds actors that do not wait for the learner: each environment explores at its own rate, and the
first priority of an item comes from the values that its actor computed.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from cavalcade.algorithms.contract import Acted, Algorithm, Clock, Forward, Loss, Target
from cavalcade.algorithms.value_heads import HEADS, Categorical, Quantiles, Scalar, ValueHead
from cavalcade.config import setting
from cavalcade.errors import UserError, require_at_least
from cavalcade.experience import SMALLEST_PRIORITY, Experience, NStep, Replay
from cavalcade.networks import ACTIVATIONS, CONVOLUTIONS, Model, Network, Torso, build, dueling, linear
from cavalcade.optimiser import NAMES as OPTIMISERS
from cavalcade.optimiser import Optimiser
from cavalcade.specs import MASK, EnvSpec
from cavalcade.tree import Tree

ILLEGAL = -1e9  # the value of an illegal action


@dataclass(frozen=True)
class DQN(Algorithm):
    """Q-learning for Discrete actions."""

    discount: float = setting(
        0.99, "what a reward is worth one environment step later", "learning", at_least=0, at_most=1
    )
    learning_rate: float = setting(1e-3, "step size of the optimiser", "learning", at_least=0)
    anneal: bool = setting(True, "the learning rate falls linearly to zero over the run", "learning")
    batch: int = setting(64, "transitions of one update", "learning", at_least=1)
    update_every: int = setting(2, "environment steps per update", "learning", at_least=1)
    updates_per_draw: int = setting(
        4, "updates made from one draw of the table, compiled as one call", "learning", at_least=1
    )
    target_period: int = setting(250, "updates between copies into the target network", "learning", at_least=1)
    n_step: int = setting(3, "rewards that are summed before the value of what follows counts", "learning", at_least=1)
    double: bool = setting(True, "the network chooses, the target network judges (van Hasselt 2016)", "learning")
    squared: bool = setting(False, "the squared error, instead of Huber's, for means alone", "learning")
    max_gradient_norm: float = setting(
        10.0, "gradients are scaled down to this norm; 0 leaves them as they are", "learning", at_least=0
    )
    optimiser_name: str = setting("adam", "the rule of the updates", "learning", words=OPTIMISERS)
    optimiser_epsilon: float = setting(1e-8, "added where the optimiser divides", "learning", at_least=0)
    clip_rewards: bool = setting(False, "to -1 .. 1, as on Atari", "learning")
    epsilon_start: float = setting(1.0, "share of random actions at first", "exploration", at_least=0, at_most=1)
    epsilon_end: float = setting(0.04, "share of random actions in the end", "exploration", at_least=0, at_most=1)
    epsilon_steps: int = setting(
        0, "environment steps over which it falls; 0 is a share of the run", "exploration", at_least=0
    )
    epsilon_share: float = setting(0.1, "that share of the run's steps", "exploration", at_least=0, at_most=1)
    epsilon_decay: str = setting(
        "linear", "by equal differences or by equal ratios", "exploration", words=("linear", "multiplicative")
    )
    epsilon_ladder: bool = setting(
        False, "instead, environment i of N keeps 0.4 ** (1 + 7 i / (N - 1)), as in Ape-X", "exploration"
    )
    replay_size: int = setting(50_000, "transitions that are kept", "experience", at_least=1)
    replay_start: int = setting(1_000, "transitions before the first update", "experience", at_least=1)
    priority_exponent: float = setting(
        0.0, "draws in proportion to |error| ** exponent; 0 is uniform", "experience", at_least=0
    )
    importance_exponent: float = setting(0.4, "of the weights that correct for it", "experience", at_least=0)
    actor_priorities: bool = setting(
        False, "new items come with the error that acting saw; else with the highest so far", "experience"
    )
    trim_every: int = setting(
        0, "draws up to which replay may exceed its size; 0 removes at once", "experience", at_least=0
    )
    tolerance: float = setting(
        0.0, "updates may run ahead or behind by this share of what replay_start is worth", "experience", at_least=0
    )
    flush: int = setting(1, "items that an actor gathers before it sends them", "experience", at_least=1)
    pull_every: int = setting(
        0, "steps of each environment until an actor asks for newer parameters; 0: at each", "experience", at_least=0
    )
    hidden: tuple[int, ...] = setting(
        (128, 128), "units of each layer of the torso, for observations that are no images", "network", at_least=1
    )
    activation: str = setting("relu", "between the layers", "network", words=tuple(ACTIVATIONS))
    convolution: str = setting("auto", "the CNN for images; auto: by their size", "network", words=CONVOLUTIONS)
    dueling: bool = setting(True, "value and advantages apart (Wang 2016)", "network")
    normalise_observations: bool = setting(False, "by their running mean and deviation; images are not", "network")
    value: str = setting(
        "scalar",
        "what is learned of returns: their mean, or their distribution on atoms or as quantiles",
        "network",
        words=HEADS,
    )
    atoms: int = setting(51, "of c51", "network", at_least=2)
    value_low: float = setting(-100.0, "the lowest return that atoms can hold, discounted", "network")
    value_high: float = setting(100.0, "the highest", "network")
    quantiles: int = setting(200, "of each distribution of returns", "network", at_least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, replay_size=self.replay_start)
        if self.epsilon_decay == "multiplicative" and not (self.epsilon_start and self.epsilon_end):
            raise UserError(
                "--epsilon-decay multiplicative needs --epsilon-start and --epsilon-end above 0; or use linear."
            )

        if self.value_low >= self.value_high:
            raise UserError("--value-low has to be below --value-high.")
        if self.squared and self.value != "scalar":
            raise UserError(f"--squared needs --value scalar: the loss of --value {self.value} is its own.")

    @property
    def head(self) -> ValueHead:
        """What describes the returns of each action."""
        if self.value == "c51":
            return Categorical(self.value_low, self.value_high, self.atoms)
        return Quantiles(self.quantiles) if self.value == "quantiles" else Scalar(self.squared)

    def model(self, spec: EnvSpec, network: Network | None = None) -> Model:
        if spec.action.kind != "discrete":
            raise UserError(
                f"dqn needs Discrete actions, but {spec.environment} has {spec.action.kind} actions; use ppo or sac."
            )
        actions = spec.action.logits
        torso = Torso(self.hidden, self.activation, self.convolution, "uniform")
        size = self.head.size
        heads = {
            "q": lambda features: (
                dueling(features, actions, size=size) if self.dueling else linear(features, size * actions)
            )
        }
        return build(spec, torso, heads, normalise=self.normalise_observations, network=network)

    def experience(self) -> Experience:
        exponents = self.priority_exponent, self.importance_exponent
        drawn = self.batch / self.update_every  # samples for each step
        replay = Replay(self.replay_size, self.replay_start, drawn, *exponents, self.tolerance, self.trim_every)
        item = NStep(self.n_step, self.discount, self.clip_rewards, self.actor_priorities)
        return Experience(item, replay, self.batch * self.updates_per_draw, self.flush, self.pull_every)

    def optimiser(self, updates: int) -> Optimiser:
        rule = self.optimiser_name, self.learning_rate, self.optimiser_epsilon, 0.95
        return Optimiser(*rule, self.max_gradient_norm, horizon=updates if self.anneal else 0)

    def updates(self, steps: int, environments: int) -> int:
        return max(0, steps - self.replay_start) // self.update_every

    def target(self) -> Target:
        return Target(self.target_period)

    def extras(self, spec: EnvSpec) -> Tree:
        zero = np.zeros((), np.float32)
        return {"q_taken": zero, "q_best": zero} if self.actor_priorities else {}

    def epsilon(self, count: int, clock: Clock) -> Any:
        """The share of random actions (0 to 1): one number, or one for each of the actor's `count` environments."""
        if self.epsilon_ladder:
            numbers, last = clock.environments(count)
            return 0.4 ** (1.0 + 7.0 * numbers / max(1, last))
        steps = self.epsilon_steps or self.epsilon_share * clock.budget
        progress = min(1.0, clock.steps / steps) if steps else 1.0
        if self.epsilon_decay == "multiplicative":
            return self.epsilon_start * (self.epsilon_end / self.epsilon_start) ** progress
        return self.epsilon_start + progress * (self.epsilon_end - self.epsilon_start)

    def exploration(self, count: int, clock: Clock) -> float | None:
        return float(np.mean(self.epsilon(count, clock)))

    def noise(self, spec: EnvSpec, rng: np.random.Generator, count: int, clock: Clock) -> Tree:
        explore = rng.random(count, np.float32) < self.epsilon(count, clock)
        return {"explore": explore, "preference": rng.random((count, spec.action.logits), np.float32)}

    def act(
        self, xp: Any, spec: EnvSpec, forward: Forward, obs: Tree, carry: Tree, first: Any, noise: Tree | None
    ) -> Acted:
        outputs, carry = forward(obs, carry, first)
        q = legal(xp, self.head.means(xp, outputs["q"]), obs)
        best = xp.argmax(q, axis=-1)
        if noise is None:
            return Acted(best, {}, carry)
        random = xp.argmax(legal(xp, noise["preference"], obs), axis=-1)
        action = xp.where(noise["explore"], random, best)
        judged = {"q_taken": xp.pick(q, action), "q_best": xp.max(q, axis=-1)} if self.actor_priorities else {}
        return Acted(action, judged, carry)

    def priority(self, items: Tree) -> np.ndarray:
        """|R_n + discount * max_a q(s', a) - q(s, a)|, from the values with which the actor chose (Horgan 2018)."""
        after, taken = items["next_extras"]["q_best"], items["extras"]["q_taken"]
        return np.abs(items["reward"] + items["discount"] * after - taken) + SMALLEST_PRIORITY

    def minibatches(self, rng: np.random.Generator, items: int) -> np.ndarray:
        return np.arange(items).reshape(self.updates_per_draw, -1)  # in order, because the table has drawn at random

    def loss(
        self, xp: Any, spec: EnvSpec, forward: Forward, target: Any, samples: Tree, noise: Tree, coefficients: Tree
    ) -> Loss:
        head = self.head
        now = forward(samples["obs"])[0]["q"]  # [B, size * A]
        after = xp.no_gradient(target, samples["next_obs"])[0]["q"]
        q_tm1, q_t = head.means(xp, now), head.means(xp, after)  # [B, A]
        chooser = head.means(xp, xp.no_gradient(forward, samples["next_obs"])[0]["q"]) if self.double else q_t
        a_t = xp.argmax(legal(xp, chooser, samples["next_obs"]), axis=-1)
        goal = samples["reward"] + samples["discount"] * xp.pick(q_t, a_t)
        error = goal - xp.pick(q_tm1, samples["action"])
        weight = samples.get("weight")  # [B], only if draws are prioritised
        losses, metrics = head.losses(xp, (now, samples["action"]), (after, a_t), error, samples)
        loss = xp.mean(losses if weight is None else weight * losses)
        priority = None if weight is None else xp.abs(error) + SMALLEST_PRIORITY
        return Loss(loss, {"loss": loss, "q": xp.mean(q_tm1), "error": xp.mean(xp.abs(error)), **metrics}, priority)


def legal(xp: Any, q: Any, obs: Tree) -> Any:
    """The values q [..., A], with `ILLEGAL` for illegal actions, which no argmax chooses."""
    if not (isinstance(obs, dict) and MASK in obs):
        return q
    return xp.where(xp.astype(obs[MASK], xp.bool), q, xp.full_like(q, ILLEGAL))
