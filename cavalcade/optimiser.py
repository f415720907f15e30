"""Which update rule, as plain data that every backend understands; torch.optim and optax apply it where they agree.

centred-rmsprop is Graves' (2013), with epsilon inside the root, as Nature DQN and Ape-X had it:
    n = decay n + (1 - decay) g^2,    m = decay m + (1 - decay) g,    step = rate g / sqrt(n - m^2 + epsilon).
adagrad is Duchi's (2011) as in torch.optim:    n = n + g^2,    step = rate g / (sqrt(n) + epsilon).
"""

from dataclasses import dataclass, field, replace

from cavalcade.errors import UserError, nearest

STATISTICS = {  # running means of gradients and of their squares that each rule keeps for every parameter
    "adam": ("mean", "square"),
    "rmsprop": ("square",),
    "centred-rmsprop": ("mean", "square"),
    "adagrad": ("square",),
    "sgd": (),
}
NAMES = tuple(STATISTICS)


@dataclass(frozen=True)
class Group:
    """How the params of one part of the model are updated, if that differs from the others."""

    rate: float | None = None  # learning rate; None: that of the optimiser
    clip: float | None = None  # largest norm of the gradient of these params alone; None: that of the optimiser
    every: int = 1  # these params change at every `every`-th update; in between their statistics stay as well


@dataclass(frozen=True)
class Optimiser:
    """An update rule and its numbers."""

    name: str = "adam"
    learning_rate: float = 1e-3
    epsilon: float = 1e-8
    decay: float = 0.99  # of the means in rmsprop
    clip: float = 0.0  # largest global gradient norm; 0 does not clip
    horizon: int = 0  # updates after which the learning rate has fallen linearly to zero; 0: it stays
    groups: dict[str, Group] = field(default_factory=dict)  # by part of the model; all other parts are one more group

    def rate(self, updates: int) -> float:
        """The learning rate after `updates` updates."""
        return self.learning_rate * (max(0.0, 1.0 - updates / self.horizon) if self.horizon else 1.0)

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise UserError(
                f"There is no optimiser '{self.name}'; choose one of {', '.join(NAMES)}." + nearest(self.name, NAMES)
            )

    def of_group(self, group: Group) -> "Optimiser":
        """The rule for the params of one group. Its horizon counts the group's own updates, so that its rate too
        reaches zero at the end of the run."""
        rate = self.learning_rate if group.rate is None else group.rate
        return replace(self, learning_rate=rate, horizon=self.horizon // group.every, groups={})
