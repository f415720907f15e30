"""Which update rule, in words that every backend understands; torch.optim and optax do the work where they agree.

centred-rmsprop is Graves' (2013), with epsilon inside the root, as Nature DQN and Ape-X had it:
    n = decay n + (1 - decay) g^2,    m = decay m + (1 - decay) g,    step = rate g / sqrt(n - m^2 + epsilon).
adagrad is Duchi's (2011) as in torch.optim:    n = n + g^2,    step = rate g / (sqrt(n) + epsilon).
"""

from dataclasses import dataclass

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
class Optimiser:
    name: str = "adam"
    learning_rate: float = 1e-3
    epsilon: float = 1e-8
    decay: float = 0.99  # of the means in rmsprop
    clip: float = 0.0  # largest global gradient norm; 0 does not clip
    horizon: int = 0  # updates after which the learning rate has fallen linearly to zero; 0 keeps it

    def rate(self, updates: int) -> float:
        """The learning rate of the update after this many."""
        return self.learning_rate * (max(0.0, 1.0 - updates / self.horizon) if self.horizon else 1.0)

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise UserError(
                f"There is no optimiser '{self.name}'; choose one of {', '.join(NAMES)}." + nearest(self.name, NAMES)
            )
