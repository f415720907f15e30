"""Which update rule, in words that every backend understands; torch.optim and optax do the work where they agree.

centred-rmsprop is Graves' (2013), with epsilon inside the root, as Nature DQN and Ape-X had it:
    n = decay n + (1 - decay) g^2,    m = decay m + (1 - decay) g,    step = rate g / sqrt(n - m^2 + epsilon).
adagrad is Duchi's (2011) as in torch.optim:    n = n + g^2,    step = rate g / (sqrt(n) + epsilon).
"""

from dataclasses import dataclass, field, replace

from cavalcade.errors import UserError, nearest

STATISTICS = {  # of gradients, kept for each parameter
    "adam": ("mean", "square"),
    "rmsprop": ("square",),
    "centred-rmsprop": ("mean", "square"),
    "adagrad": ("square",),
    "sgd": (),
}
NAMES = tuple(STATISTICS)


@dataclass(frozen=True)
class Group:
    """How the params of one part of the model are updated, where that differs from the rest."""

    rate: float | None = None  # learning rate; None is the optimiser's
    clip: float | None = None  # largest norm of the gradient of these params alone; None is the optimiser's
    every: int = 1  # updates from one of theirs to the next; in between their params and statistics stay as they are


@dataclass(frozen=True)
class Optimiser:
    name: str = "adam"
    learning_rate: float = 1e-3
    epsilon: float = 1e-8
    decay: float = 0.99  # of the means in rmsprop
    clip: float = 0.0  # largest global gradient norm; 0 does not clip
    horizon: int = 0  # updates after which the learning rate has fallen linearly to zero; 0 keeps it
    groups: dict[str, Group] = field(default_factory=dict)  # by part of the model; all other parts are one more

    def rate(self, updates: int) -> float:
        """The learning rate of the update after this many."""
        return self.learning_rate * (max(0.0, 1.0 - updates / self.horizon) if self.horizon else 1.0)

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise UserError(
                f"There is no optimiser '{self.name}'; choose one of {', '.join(NAMES)}." + nearest(self.name, NAMES)
            )

    def of_group(self, group: Group) -> "Optimiser":
        """The rule for the params of one group: a schedule ends with the run, however seldom the group is updated."""
        rate = self.learning_rate if group.rate is None else group.rate
        return replace(self, learning_rate=rate, horizon=self.horizon // group.every, groups={})
