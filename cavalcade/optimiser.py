"""Which update rule, in words that every backend understands; torch.optim and optax do the work."""

from dataclasses import dataclass

from cavalcade.errors import UserError, nearest

NAMES = ("adam", "rmsprop", "sgd")


@dataclass(frozen=True)
class Optimiser:
    name: str = "adam"
    learning_rate: float = 1e-3
    epsilon: float = 1e-8
    decay: float = 0.99  # of the mean square in rmsprop
    clip: float = 0.0  # largest global gradient norm; 0 does not clip
    horizon: int = 0  # updates after which the learning rate has fallen linearly to zero; 0 keeps it

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise UserError(
                f"There is no optimiser '{self.name}'; choose one of {', '.join(NAMES)}." + nearest(self.name, NAMES)
            )
