"""What Q-learning learns for each action: the mean return, or its distribution on atoms or as quantiles.

A network gives `size` numbers for each of A actions as [B, size * A], the actions of the first number first. Every head
answers with the means [B, A] by which actions are chosen, and with the loss of each sample.
"""

from typing import Any, Protocol

from cavalcade.ops.atoms import OUTSIDE, Atoms
from cavalcade.ops.losses import huber
from cavalcade.ops.quantiles import midpoints, quantile_huber
from cavalcade.tree import Tree

Taken = tuple[Any, Any]  # outputs [B, size * A], and an action [B] of each sample
HEADS = ("scalar", "c51", "quantiles")


class ValueHead(Protocol):
    """One way to describe returns."""

    size: int  # numbers for each action

    def means(self, xp: Any, outputs: Any) -> Any:
        """The expected returns [B, A] of outputs [B, size * A]."""

    def losses(self, xp: Any, now: Taken, after: Taken, error: Any, samples: Tree) -> tuple[Any, dict]:
        """The loss [B] of each sample, and metrics. `now`: the outputs [B, size * A] and the actions [B] that were
        taken; `after`: the target network's for what follows, constants, and the best actions there; `error` [B]: that
        of the means."""


class Scalar:
    """The mean return alone (Mnih 2015)."""

    size = 1

    def __init__(self, squared: bool):
        self.squared = squared

    def means(self, xp: Any, outputs: Any) -> Any:
        return outputs

    def losses(self, xp: Any, now: Taken, after: Taken, error: Any, samples: Tree) -> tuple[Any, dict]:
        return 0.5 * xp.square(error) if self.squared else huber(xp, error), {}


class Categorical:
    """Logits of the probabilities of atoms, and the cross-entropy to the projected target (Bellemare 2017)."""

    def __init__(self, low: float, high: float, count: int):
        self.low, self.high, self.size = low, high, count

    def atoms(self, xp: Any) -> Atoms:
        return Atoms(xp, self.low, self.high, self.size)

    def means(self, xp: Any, outputs: Any) -> Any:
        logits = xp.swapaxes(by_action(xp, outputs, self.size), 1, 2)  # [B, A, K]
        atoms = self.atoms(xp)
        return atoms.mean(atoms.probabilities(logits))

    def losses(self, xp: Any, now: Taken, after: Taken, error: Any, samples: Tree) -> tuple[Any, dict]:
        atoms = self.atoms(xp)
        places, probabilities = (
            atoms.moved(samples["reward"], samples["discount"]),
            atoms.probabilities(of_action(xp, self.size, *after)),
        )
        wanted = atoms.projected(probabilities, places)
        losses = -xp.sum(wanted * xp.log_softmax(of_action(xp, self.size, *now)), axis=-1)
        return losses, {OUTSIDE: atoms.outside(probabilities, places)}


class Quantiles:
    """The quantiles of evenly spaced fractions, by quantile regression (Dabney 2018)."""

    def __init__(self, count: int):
        self.size = count

    def means(self, xp: Any, outputs: Any) -> Any:
        return xp.mean(by_action(xp, outputs, self.size), axis=1)

    def losses(self, xp: Any, now: Taken, after: Taken, error: Any, samples: Tree) -> tuple[Any, dict]:
        goal = samples["reward"][:, None] + samples["discount"][:, None] * of_action(xp, self.size, *after)
        return quantile_huber(xp, of_action(xp, self.size, *now), xp.asarray(midpoints(self.size)), goal), {}


def by_action(xp: Any, outputs: Any, size: int) -> Any:
    """[B, size * A] -> [B, size, A]."""
    return xp.reshape(outputs, (outputs.shape[0], size, -1))


def of_action(xp: Any, size: int, outputs: Any, action: Any) -> Any:
    """The outputs [B, size] for one action [B] of each sample."""
    index = action[:, None] + 0 * xp.arange(size)
    return xp.pick(by_action(xp, outputs, size), index)
