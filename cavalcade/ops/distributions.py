"""Policies as distributions over actions: the meaning of the output of a policy head.

`sample` takes its random numbers as `noise`, so the same output and noise give the same action on every backend
and in every batch. With Gumbel noise a categorical sample is an argmax; normal noise is scaled and shifted.

Illegal actions get a logit so low that its exponential is exactly zero, but finite. Minus infinity would be
the true number, but 0 * -inf in the entropy and inf - inf in the KL are NaN; here both are plain zeros.
The `parameters` of a distribution are the numbers that a head gives; they are not params of the model.
"""

import math
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from cavalcade.errors import UserError
from cavalcade.specs import Leaf
from cavalcade.tree import Tree

# Far below any logit of a network, and far enough from the largest float32 (3e38) that sums of it stay finite.
_ILLEGAL = -1e30
# Bound of |log_std|: the KL needs exp(-2 * log_std), which would overflow for large numbers.
_LARGEST_LOG_STD = 20.0
_SQUASHED_LOG_STD = -20.0, 2.0  # bounds of the log standard deviation before tanh (Haarnoja 2018)
_INSIDE = 1.0 - 1e-6
_HALF_LOG_TAU = 0.5 * math.log(2.0 * math.pi)


class Distribution(Protocol):
    """Over actions [..., *shape], from parameters [..., P]. Log probabilities, entropies, KLs are [...]."""

    def log_prob(self, action: Any) -> Any: ...

    def entropy(self, epsilon: float = 0.0) -> Any:
        """`epsilon`: added to each probability inside the logarithm; a `Gaussian` ignores it."""

    def kl(self, other: Any) -> Any:
        """KL(self || other), where `other` is of the same class."""

    def sample(self, noise: Any) -> Any:
        """Actions made from noise of the kind that `draw_noise` draws."""

    def mode(self) -> Any:
        """The most probable actions."""


class Categorical:
    """One choice among A actions, from logits [..., A]. Where `mask` [..., A] is zero an action is illegal.

    Every row needs a legal action. A row without any, which padding may have, is uniform over all actions: without
    meaning, but finite.
    """

    def __init__(self, xp: Any, logits: Any, mask: Any = None):
        self.xp = xp
        self.logits = logits if mask is None else xp.where(mask != 0, logits, _ILLEGAL)  # [..., A]

    # computed only when needed, because acting needs no softmax; and once, because a loss needs it several times

    @cached_property
    def log_probs(self) -> Any:
        return self.xp.log_softmax(self.logits)  # [..., A]

    @cached_property
    def probs(self) -> Any:
        return self.xp.exp(self.log_probs)  # [..., A]

    def log_prob(self, action: Any) -> Any:
        return self.xp.pick(self.log_probs, action)

    def entropy(self, epsilon: float = 0.0) -> Any:
        logs = self.xp.log(self.probs + epsilon) if epsilon else self.log_probs
        return -self.xp.sum(self.probs * logs, axis=-1)

    def kl(self, other: "Categorical") -> Any:
        """Both need the same mask. An action that is illegal only in `other` makes the KL huge instead of infinite."""
        return self.xp.sum(self.probs * (self.log_probs - other.log_probs), axis=-1)

    def sample(self, noise: Any) -> Any:
        """`noise` [..., A] is Gumbel."""
        return self.xp.argmax(self.logits + noise, -1)

    def mode(self) -> Any:
        return self.xp.argmax(self.logits, -1)


class MultiCategorical:
    """Independent choices, one for each entry of `counts`; logits, mask and noise lie end to end."""

    def __init__(
        self,
        xp: Any,
        logits: Any,  # [..., sum(counts)]
        counts: tuple[int, ...],
        mask: Any = None,  # [..., sum(counts)]
        shape: tuple[int, ...] | None = None,  # of one action; (len(counts),) unless said
    ):
        self.xp = xp
        self.leading = tuple(logits.shape[:-1])
        self.shape = (len(counts),) if shape is None else shape
        ends = np.cumsum(counts).tolist()
        self.spans = [slice(end - count, end) for end, count in zip(ends, counts)]
        self.parts = [
            Categorical(xp, logits[..., span], None if mask is None else mask[..., span]) for span in self.spans
        ]

    def log_prob(self, action: Any) -> Any:
        flat = self.xp.reshape(action, (*self.leading, len(self.parts)))
        return sum(part.log_prob(flat[..., i]) for i, part in enumerate(self.parts))

    def entropy(self, epsilon: float = 0.0) -> Any:
        return sum(part.entropy(epsilon) for part in self.parts)

    def kl(self, other: "MultiCategorical") -> Any:
        return sum(mine.kl(its) for mine, its in zip(self.parts, other.parts))

    def sample(self, noise: Any) -> Any:
        """`noise` [..., sum(counts)] is Gumbel."""
        return self._action([part.sample(noise[..., span]) for part, span in zip(self.parts, self.spans)])

    def mode(self) -> Any:
        return self._action([part.mode() for part in self.parts])

    def _action(self, choices: list) -> Any:
        return self.xp.reshape(self.xp.stack(choices, -1), (*self.leading, *self.shape))


class Gaussian:
    """Independent normals: the first half of the parameters is the mean, the second the log standard deviation.

    The bounds of the action space are not applied here; the environment or the algorithm does that.
    """

    def __init__(
        self,
        xp: Any,
        parameters: Any,  # [..., 2D]
        shape: tuple[int, ...] | None = None,  # of one action, D in all; (D,) unless said
    ):
        self.xp = xp
        self.size = parameters.shape[-1] // 2  # D
        self.mean = parameters[..., : self.size]  # [..., D]
        self.log_std = xp.clip(parameters[..., self.size :], -_LARGEST_LOG_STD, _LARGEST_LOG_STD)  # [..., D]
        self.shape = (self.size,) if shape is None else shape

    def log_prob(self, action: Any) -> Any:
        xp = self.xp
        score = (xp.reshape(action, self.mean.shape) - self.mean) * xp.exp(-self.log_std)  # [..., D]
        return -xp.sum(0.5 * score * score + self.log_std, axis=-1) - self.size * _HALF_LOG_TAU

    def entropy(self, epsilon: float = 0.0) -> Any:
        return self.xp.sum(self.log_std, axis=-1) + self.size * (0.5 + _HALF_LOG_TAU)

    def kl(self, other: "Gaussian") -> Any:
        xp = self.xp
        widening = other.log_std - self.log_std  # [..., D]
        shift = (self.mean - other.mean) * xp.exp(-other.log_std)  # [..., D], in deviations of `other`
        return xp.sum(widening + 0.5 * (xp.exp(-2.0 * widening) + shift * shift - 1.0), axis=-1)

    def sample(self, noise: Any) -> Any:
        """`noise` [..., D] is standard normal; gradients flow through the action to the parameters."""
        return self._action(self.mean + self.xp.exp(self.log_std) * noise)

    def mode(self) -> Any:
        return self._action(self.mean)

    def _action(self, flat: Any) -> Any:
        return self.xp.reshape(flat, (*flat.shape[:-1], *self.shape))


class SquashedGaussian:
    """tanh of independent normals, in the unit box -1 .. 1 (Haarnoja 2018); parameters as those of `Gaussian`."""

    def __init__(self, xp: Any, parameters: Any):
        self.xp, self.size = xp, parameters.shape[-1] // 2  # D
        self.mean = parameters[..., : self.size]  # [..., D], before tanh
        self.log_std = xp.clip(parameters[..., self.size :], *_SQUASHED_LOG_STD)  # [..., D]

    def sample(self, noise: Any) -> tuple[Any, Any]:
        """Actions [..., D] from standard normal `noise` [..., D], and their log-probabilities [...]. These are computed
        from what tanh was taken of, so they are exact where the action itself has been rounded to 1."""
        before = self.mean + self.xp.exp(self.log_std) * noise
        return self.xp.tanh(before), self._log_prob(before, noise)

    def log_prob(self, action: Any) -> Any:
        """[...] of actions [..., D]; one nearer to an edge than 1e-6 counts as 1e-6 from it."""
        xp = self.xp
        inside = xp.clip(action, -_INSIDE, _INSIDE)
        before = 0.5 * (xp.log1p(inside) - xp.log1p(-inside))  # atanh
        return self._log_prob(before, (before - self.mean) * xp.exp(-self.log_std))

    def _log_prob(self, before: Any, score: Any) -> Any:
        """The density of the normal divided by the slope of tanh, 1 - tanh^2, whose logarithm is
        2 (log 2 - x - softplus(-2 x)) without cancellation."""
        xp = self.xp
        slope = 2.0 * (math.log(2.0) - before - xp.softplus(-2.0 * before))
        return -xp.sum(0.5 * score * score + self.log_std + slope, axis=-1) - self.size * _HALF_LOG_TAU

    def mode(self) -> Any:
        """The action at the mean of the normals, by which the policy is judged."""
        return self.xp.tanh(self.mean)


def make(xp: Any, leaf: Leaf, parameters: Any, mask: Any = None) -> Distribution:
    """The distribution over actions of this kind, from `parameters` [..., parameter_count(leaf)]."""
    if leaf.kind == "discrete":
        return Categorical(xp, parameters, mask)
    if leaf.kind == "multi_discrete":
        return MultiCategorical(xp, parameters, leaf.counts, mask, leaf.shape)
    _require_box(leaf)
    if mask is not None:
        raise UserError("The environment masks actions, but its action space is a Box; only choices can be masked.")
    return Gaussian(xp, parameters, leaf.shape)


def parameter_count(leaf: Leaf) -> int:
    """P, how many numbers a policy head gives for one action."""
    if leaf.kind in ("discrete", "multi_discrete"):
        return leaf.logits
    _require_box(leaf)
    return 2 * math.prod(leaf.shape)


def draw_noise(leaf: Leaf, rng: np.random.Generator, *leading: int) -> np.ndarray:
    """[*leading, N] float32, the noise that `sample` needs for actions of this kind."""
    if leaf.kind in ("discrete", "multi_discrete"):
        # Minus the log of an exponential is Gumbel, at half the cost of rng.gumbel. In double precision, because a
        # float32 exponential is zero about once in ten million times, and then its log would be infinite.
        waiting = rng.standard_exponential((*leading, leaf.logits))
        np.log(np.maximum(waiting, 1e-300, out=waiting), out=waiting)
        return np.negative(waiting, dtype=np.float32, casting="same_kind")
    _require_box(leaf)
    return rng.standard_normal((*leading, math.prod(leaf.shape)), np.float32)


def correlated(noise: Tree, last: Tree, first: np.ndarray, correlation: float) -> Tree:
    """The noise of a step with its `action` z_t = c z_{t-1} + sqrt(1 - c^2) eps_t [count, D], from standard normal
    eps_t of `noise` and z_{t-1} of `last`; begun anew where `first` [count] is true. By itself each z_t is standard
    normal. It is Ornstein-Uhlenbeck noise, looked at once a step, whose theta is 1 - c."""
    if not correlation:
        return noise
    drawn, before = noise["action"], last["action"]
    moved = np.where(first[:, None], drawn, correlation * before + math.sqrt(1.0 - correlation**2) * drawn)
    return {**noise, "action": moved}


def _require_box(leaf: Leaf) -> None:
    if leaf.kind != "box":
        raise UserError(f"No distribution over actions of kind '{leaf.kind}'; use discrete, multi_discrete or box.")
