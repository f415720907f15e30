"""The update rules of torch.optim, on one vector of params."""

from typing import Any

import torch

from cavalcade.optimiser import STATISTICS, Optimiser

# Adam in one pass over its vectors instead of nine. It is an operation of its own because torch.jit drops torch's from
# a recorded update: that one changes lists of tensors and returns nothing.
_OPERATIONS = torch.library.Library("cavalcade", "DEF")
_OPERATIONS.define(
    "adam(Tensor(a!) vector, Tensor gradient, Tensor(b!) mean, Tensor(c!) square, Tensor count, Tensor rate, "
    "float epsilon) -> Tensor(a!)"
)


def _adam(
    vector: torch.Tensor,
    gradient: torch.Tensor,
    mean: torch.Tensor,
    square: torch.Tensor,
    count: torch.Tensor,
    rate: torch.Tensor,
    epsilon: float,
) -> torch.Tensor:
    """`count`: of updates, this one too."""
    torch._fused_adam_(
        *([vector], [gradient], [mean], [square], [], [count]),
        lr=rate,
        beta1=0.9,
        beta2=0.999,
        weight_decay=0.0,
        eps=epsilon,
        amsgrad=False,
        maximize=False,
    )
    return vector


_OPERATIONS.impl("adam", _adam, "CompositeExplicitAutograd")


class TorchOptimiser:
    """A rule with the arithmetic of torch.optim on params [n]. Its state is a plain dict, so that a checkpoint can hold
    it. The count of updates is a tensor, because a recorded update can change only tensors."""

    def __init__(self, settings: Optimiser):
        self.settings = settings

    def init(self, vector: torch.Tensor) -> dict:
        kept = STATISTICS[self.settings.name]
        return {"count": torch.zeros(()), **{name: torch.zeros_like(vector) for name in kept}}

    def update(self, gradient: torch.Tensor, state: dict, vector: torch.Tensor) -> tuple[torch.Tensor, dict]:
        s, count = self.settings, state["count"]
        rate: Any = s.learning_rate
        if s.horizon:
            rate = s.learning_rate * torch.clamp(1.0 - count / s.horizon, min=0.0)
        count += 1
        if s.name == "adam":
            rate = torch.as_tensor(rate, dtype=torch.float32, device=vector.device)
            torch.ops.cavalcade.adam(vector, gradient, state["mean"], state["square"], count, rate, s.epsilon)
        else:
            vector -= self._move(gradient, state) * rate
        return vector, state

    def _move(self, gradient: torch.Tensor, state: dict) -> torch.Tensor:
        """What an update with a learning rate of one subtracts from the params [n]."""
        s, decay = self.settings, self.settings.decay
        if s.name == "sgd":
            return gradient
        if s.name == "adagrad":
            square = state["square"].addcmul_(gradient, gradient)
            return gradient / square.sqrt().add_(s.epsilon)
        square = state["square"].mul_(decay).addcmul_(gradient, gradient, value=1.0 - decay)
        if s.name == "rmsprop":
            return gradient / square.sqrt().add_(s.epsilon)
        mean = state["mean"].mul_(decay).add_(gradient, alpha=1.0 - decay)
        variance = torch.clamp(square - mean * mean, min=0.0)  # rounding may make it negative
        return gradient / variance.add_(s.epsilon).sqrt_()
