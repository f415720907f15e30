"""What DDPG, SAC and MPO share: a policy of continuous actions, critics that judge an observation with an action, and
learning from replay.

A critic gives a number, or with `atoms` a distribution of returns on a fixed support (Bellemare 2017). With `twin`
there are two, and the lower one counts (Fujimoto 2018); of two distributions, at each sample, the one with the lower
mean. Policies and critics see actions in the unit box -1 .. 1, which `Bounds` maps to the environment's.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from cavalcade.algorithms.contract import Acted, Algorithm, Clock, Forward, Target
from cavalcade.config import setting
from cavalcade.errors import UserError, require_at_least
from cavalcade.experience import SMALLEST_PRIORITY, Experience, NStep, Replay
from cavalcade.networks import ACTIVATIONS, CONVOLUTIONS, Model, Network, Torso, build, conditioned, linear, mlp
from cavalcade.ops.atoms import OUTSIDE, Atoms
from cavalcade.ops.bounds import Bounds, require_bounds
from cavalcade.ops.distributions import draw_noise
from cavalcade.optimiser import Group, Optimiser
from cavalcade.specs import EnvSpec
from cavalcade.tree import Tree

SHARED = "shared"  # the torso of all heads if observations are images: only critics change it


@dataclass(frozen=True)
class ActionCritic(Algorithm):
    """The settings of critics, replay and networks, and the loss of the critics."""

    discount: float = setting(
        0.99, "what a reward is worth one environment step later", "learning", at_least=0, at_most=1
    )
    learning_rate: float = setting(3e-4, "step size of the optimiser (Adam)", "learning", at_least=0)
    policy_rate: float | None = setting(None, "that of the policy; none: the same", "learning", at_least=0)
    anneal: bool = setting(False, "the learning rate falls linearly to zero over the run", "learning")
    batch: int = setting(256, "transitions of one update", "learning", at_least=1)
    update_every: float = setting(
        1.0, "environment steps per update; 0.5 is two updates for each step", "learning", above=0
    )
    updates_per_draw: int = setting(
        1, "updates made from one draw of the table, compiled as one call", "learning", at_least=1
    )
    target_period: int = setting(1, "updates between moves of the target networks", "learning", at_least=1)
    target_mix: float = setting(0.005, "by which share of the way they move; 1 copies", "learning", above=0, at_most=1)
    n_step: int = setting(1, "rewards that are summed before the value of what follows counts", "learning", at_least=1)
    twin: bool = setting(True, "two critics, of which the lower counts (Fujimoto 2018)", "learning")
    max_gradient_norm: float = setting(
        0.0, "gradients are scaled down to this norm; 0 leaves them as they are", "learning", at_least=0
    )
    atoms: int = setting(0, "of the critics' distributions of returns; 0: they give their mean", "network", at_least=0)
    value_low: float = setting(-150.0, "the lowest return that atoms can hold, discounted", "network")
    value_high: float = setting(150.0, "the highest", "network")
    replay_size: int = setting(1_000_000, "transitions that are kept", "experience", at_least=1)
    replay_start: int = setting(
        1_000, "transitions before the first update; until then actions are random", "experience", at_least=1
    )
    priority_exponent: float = setting(
        0.0, "draws in proportion to |error| ** exponent; 0 is uniform", "experience", at_least=0
    )
    importance_exponent: float = setting(0.4, "of the weights that correct for it", "experience", at_least=0)
    actor_priorities: bool = setting(
        False, "new items come with the error that acting saw; else with the highest so far", "experience"
    )
    eviction_exponent: float = setting(
        0.0, "removes in proportion to |error| ** exponent; 0 removes the oldest", "experience", at_most=0
    )
    tolerance: float = setting(
        0.0, "updates may run ahead or behind by this share of what replay_start is worth", "experience", at_least=0
    )
    flush: int = setting(1, "items that an actor gathers before it sends them", "experience", at_least=1)
    pull_every: int = setting(
        0, "steps of each environment until an actor asks for newer parameters; 0: at each", "experience", at_least=0
    )
    hidden: tuple[int, ...] = setting(
        (256, 256), "units of each layer of the policy, for observations that are no images", "network", at_least=1
    )
    critic_hidden: tuple[int, ...] = setting((256, 256), "units of each layer of a critic", "network", at_least=1)
    activation: str = setting("relu", "between the layers", "network", words=tuple(ACTIVATIONS))
    layer_norm: bool = setting(False, "and tanh after the first layer, as in Acme", "network")
    convolution: str = setting("auto", "the CNN for images; auto: by their size", "network", words=CONVOLUTIONS)
    normalise_observations: bool = setting(False, "by their running mean and deviation; images are not", "network")

    CRITICS: ClassVar[tuple[str, str]] = ("critic", "second_critic")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, replay_size=self.replay_start)
        if self.atoms == 1 or (self.atoms and self.value_low >= self.value_high):
            raise UserError("--atoms needs at least 2, and --value-low below --value-high; 0 atoms need neither.")
        prioritised = self.priority_exponent > 0
        if (self.eviction_exponent or self.actor_priorities) and not prioritised:
            raise UserError("--eviction-exponent and --actor-priorities need --priority-exponent above 0.")

    @property
    def critics(self) -> tuple[str, ...]:
        """The names of the critics' heads."""
        return self.CRITICS if self.twin else self.CRITICS[:1]

    # --- model, experience and optimiser ------------------------------------------------------------------------------

    def built(
        self, spec: EnvSpec, policy: int, constants: dict[str, Network], network: Network | None, who: str
    ) -> Model:
        """A model with a policy head of so many outputs, critics of actions, and heads that need no observation."""
        require_bounds(spec, who)
        size = int(np.prod(spec.action.shape))
        torso = Torso(self.hidden, self.activation, self.convolution, "uniform", self.layer_norm)

        def critic(features: int) -> Network:
            return conditioned(features, {"action": size}, lambda inputs: self.critic_body(inputs, self.atoms or 1))

        heads: dict[str, Any] = {"policy": lambda features: linear(features, policy)}
        heads |= dict.fromkeys(self.critics, critic)
        heads |= {name: lambda features, one=one: one for name, one in constants.items()}
        raw = (*self.critics, *constants)
        return build(spec, torso, heads, False, normalise=self.normalise_observations, network=network, raw=raw)

    def critic_body(self, inputs: int, outputs: int) -> Network:
        """The layers of a critic."""
        body = mlp(inputs, self.critic_hidden, self.activation, "uniform", self.layer_norm)
        last = linear(body.features, outputs)

        def apply(xp: Any, params: Tree, x: Any) -> Any:
            return last.apply(xp, params["last"], body.apply(xp, params["body"], x))

        return Network(lambda rng: {"body": body.init(rng), "last": last.init(rng)}, apply, last.features)

    def experience(self) -> Experience:
        exponents = self.priority_exponent, self.importance_exponent
        drawn = self.batch / self.update_every  # samples for each step
        replay = Replay(
            self.replay_size, self.replay_start, drawn, *exponents, self.tolerance, eviction=self.eviction_exponent
        )
        item = NStep(self.n_step, self.discount, prioritised=self.actor_priorities)
        return Experience(item, replay, self.batch * self.updates_per_draw, self.flush, self.pull_every)

    def optimiser(self, updates: int) -> Optimiser:
        horizon = updates if self.anneal else 0
        return Optimiser("adam", self.learning_rate, clip=self.max_gradient_norm, horizon=horizon, groups=self.groups())

    def groups(self) -> dict[str, Group]:
        """The parts of the model with a rate or a period of their own."""
        return {} if self.policy_rate is None else {"policy": Group(self.policy_rate)}

    def updates(self, steps: int, environments: int) -> int:
        return int(max(0, steps - self.replay_start) / self.update_every)

    def target(self) -> Target:
        return Target(self.target_period, self.target_mix)

    def minibatches(self, rng: np.random.Generator, items: int) -> np.ndarray:
        return np.arange(items).reshape(self.updates_per_draw, -1)  # in order, because the table has drawn at random

    # --- acting -------------------------------------------------------------------------------------------------------

    def noise(self, spec: EnvSpec, rng: np.random.Generator, count: int, clock: Clock) -> Tree:
        """`action` [count, D] is standard normal; `random` [count, D] is uniform in the unit box and becomes the action
        where `at_random` [count] is true, at first."""
        drawn = draw_noise(spec.action, rng, count)
        uniform = rng.uniform(-1.0, 1.0, drawn.shape).astype(np.float32)
        return {"action": drawn, "random": uniform, "at_random": np.full(count, clock.steps < self.replay_start)}

    def explored(
        self, xp: Any, spec: EnvSpec, forward: Forward, obs: Tree, carry: Tree, noise: Tree, best: Any, drawn: Any
    ) -> Acted:
        """The actions `drawn` [B, D] with noise, at first random ones instead; `best` are the policy's own."""
        taken = xp.where(noise["at_random"][:, None], noise["random"], drawn)
        return Acted(Bounds(xp, spec).action(taken), self.seen(xp, forward, obs, taken, best), carry)

    def extras(self, spec: EnvSpec) -> Tree:
        zero = np.zeros((), np.float32)
        return {"value_taken": zero, "value_best": zero} if self.actor_priorities else {}

    def seen(self, xp: Any, forward: Forward, obs: Tree, taken: Any, best: Any) -> Tree:
        """The extras of acting: what the first critic thinks of the action that was taken, and of the policy's."""
        if not self.actor_priorities:
            return {}
        judged = self.judged(forward, obs, xp.stack([taken, best]), self.critics[:1])
        values = self.mean(xp, self.after(xp, judged))  # [2, B]
        return {"value_taken": values[0], "value_best": values[1]}

    def priority(self, items: Tree) -> np.ndarray:
        after, taken = items["next_extras"]["value_best"], items["extras"]["value_taken"]
        return np.abs(items["reward"] + items["discount"] * after - taken) + SMALLEST_PRIORITY

    # --- critics ------------------------------------------------------------------------------------------------------

    def judged(
        self, forward: Forward, obs: Tree, unit: Any, critics: tuple[str, ...] = (), freeze: tuple[str, ...] = ()
    ) -> list[Any]:
        """What these critics (all, if none is named) give for actions of the unit box: [..., 1], or the logits [..., K]
        of their atoms."""
        names = critics or self.critics
        outputs, _ = forward(obs, heads=names, inputs={"action": unit}, freeze=freeze)
        return [outputs[name] for name in names]

    def after(self, xp: Any, outputs: list[Any]) -> Any:
        """The lowest of what critics give: values [...], or the probabilities [..., K] of atoms."""
        if not self.atoms:
            values = [xp.squeeze(each, -1) for each in outputs]
            return values[0] if len(values) == 1 else xp.minimum(*values)
        atoms = self.support(xp)
        found = [atoms.probabilities(each) for each in outputs]
        if len(found) == 1:
            return found[0]
        return xp.where((atoms.mean(found[0]) <= atoms.mean(found[1]))[..., None], *found)

    def mean(self, xp: Any, after: Any) -> Any:
        """The expected return [...] of what `after` gives."""
        return self.support(xp).mean(after) if self.atoms else after

    def support(self, xp: Any) -> Atoms:
        return Atoms(xp, self.value_low, self.value_high, self.atoms)

    def critic_loss(
        self, xp: Any, outputs: list[Any], after: Any, samples: Tree, bonus: Any = 0.0
    ) -> tuple[Any, dict, Any]:
        """The sum of the critics' losses, metrics, and the new priorities. `outputs`: of `judged` for the actions that
        were taken. `after`: of `after` for what follows, a constant. `bonus` [B] is added to it: an entropy."""
        reward, discount, weight = samples["reward"], samples["discount"], samples.get("weight")
        goal = reward + discount * (self.mean(xp, after) + bonus)
        values = [self.mean(xp, self.after(xp, [each])) for each in outputs]
        metrics = {}
        if self.atoms:
            atoms = self.support(xp)
            places = atoms.moved(reward + discount * bonus, discount)
            wanted = atoms.projected(after, places)
            losses = [-xp.sum(wanted * xp.log_softmax(each), axis=-1) for each in outputs]
            metrics[OUTSIDE] = atoms.outside(after, places)
        else:
            losses = [0.5 * xp.square(goal - each) for each in values]
        total = sum(losses[1:], losses[0])
        loss = xp.mean(total if weight is None else weight * total)
        error = xp.abs(goal - values[0])
        metrics |= {"value": xp.mean(values[0]), "error": xp.mean(error)}
        return loss, metrics, None if weight is None else error + SMALLEST_PRIORITY
