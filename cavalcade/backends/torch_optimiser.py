"""The update rules of torch.optim, on one vector of params."""

from typing import Any

import torch

from cavalcade.optimiser import STATISTICS, Optimiser


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
        vector -= self._move(gradient, state) * rate
        return vector, state

    def _move(self, gradient: torch.Tensor, state: dict) -> torch.Tensor:
        """What an update with a learning rate of one subtracts from the params [n]."""
        s, decay = self.settings, self.settings.decay
        if s.name == "sgd":
            return gradient
        if s.name == "adam":
            mean = state["mean"].lerp_(gradient, 1.0 - 0.9)
            square = state["square"].mul_(0.999).addcmul_(gradient, gradient, value=1.0 - 0.999)
            scale = 1.0 / (1.0 - 0.9 ** state["count"])  # corrects the mean, which begins at zero, as the square does
            root = square.sqrt().div_((1.0 - 0.999 ** state["count"]).sqrt() * scale)
            return mean / root.add_(s.epsilon / scale)
        if s.name == "adagrad":
            square = state["square"].addcmul_(gradient, gradient)
            return gradient / square.sqrt().add_(s.epsilon)
        square = state["square"].mul_(decay).addcmul_(gradient, gradient, value=1.0 - decay)
        if s.name == "rmsprop":
            return gradient / square.sqrt().add_(s.epsilon)
        mean = state["mean"].mul_(decay).add_(gradient, alpha=1.0 - decay)
        variance = torch.clamp(square - mean * mean, min=0.0)  # rounding may make it negative
        return gradient / variance.add_(s.epsilon).sqrt_()
