"""PyTorch: eager, functional, one flat parameter vector.

On a CPU small networks are dominated by the cost of each call, so gradients are taken with respect to
persistent views of the vector, and clipping and the optimiser see one tensor instead of a dozen.
"""

import ctypes
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from types import SimpleNamespace
from typing import Any

import array_api_compat.torch as standard
import numpy as np
import torch
import torch.nn.functional as F

from cavalcade import tree
from cavalcade.backends import STANDARD
from cavalcade.backends.torch_recording import Recorded, replaying
from cavalcade.optimiser import STATISTICS, Optimiser


def _scan(step: Callable, carry: Any, xs: tuple, reverse: bool = False) -> tuple[Any, Any]:
    rows = list(zip(*(torch.unbind(x) for x in xs)))
    outputs = []
    for row in reversed(rows) if reverse else rows:
        carry, output = step(carry, *row)
        outputs.append(output)
    return carry, torch.stack(outputs[::-1] if reverse else outputs)


def _conv2d(x: Any, weight: Any, bias: Any, stride: int, padding: int = 0) -> Any:
    # channels-last is 1.4 times faster on CPU for the networks used here
    return F.conv2d(x.contiguous(memory_format=torch.channels_last), weight, bias, stride, padding)


def _fractions(x: Any) -> Any:
    # in one pass, and in the layout that the convolution wants
    return x.to(torch.float32, memory_format=torch.channels_last).mul_(1.0 / 255.0)


def _no_gradient(function: Callable, *args: Any, **named: Any) -> Any:
    with torch.no_grad():
        return function(*args, **named)


def _namespace(device: torch.device) -> SimpleNamespace:
    xp = SimpleNamespace(**{name: getattr(standard, name) for name in STANDARD.split()})
    xp.name = "torch"
    xp.permute_dims, xp.bool, xp.concat = standard.permute_dims, torch.bool, torch.cat
    # torch's own functions take `axis` and `keepdims` and skip the wrappers of the compatibility layer
    xp.sum, xp.mean, xp.max, xp.argmax, xp.clip = torch.sum, torch.mean, torch.amax, torch.argmax, torch.clamp
    xp.swapaxes, xp.squeeze = torch.swapaxes, torch.squeeze
    xp.rows = lambda x, index: torch.index_select(x, 0, index)
    xp.asarray = torch.as_tensor
    if device.type != "cpu":  # what makes new arrays; on a CPU without a wrapper, since calls cost
        for name in ("asarray", "arange", "ones", "zeros"):
            setattr(xp, name, partial(getattr(xp, name), device=device))
    xp.astype = lambda x, dtype: x.to(dtype)
    xp.relu, xp.rectified, xp.sigmoid, xp.softplus = torch.relu, torch.relu_, torch.sigmoid, F.softplus
    xp.linear = lambda x, weight, bias: torch.addmm(bias, x, weight)
    xp.one_hot = lambda index, count: F.one_hot(index.long(), count).to(torch.float32)
    xp.stop_gradient = lambda x: x.detach()
    xp.log_softmax = lambda x: torch.log_softmax(x, -1)
    # `squeeze` and not `[..., 0]`, whose gradient is written into an array of zeros
    xp.pick = lambda x, index: torch.gather(x, -1, index.long()[..., None]).squeeze(-1)
    xp.max_pool = lambda x, size, stride, padding: F.max_pool2d(x, size, stride, padding)
    xp.conv2d, xp.scan, xp.no_gradient, xp.fractions = _conv2d, _scan, _no_gradient, _fractions
    return xp


class TorchBackend:
    name = "torch"

    def __init__(self, device: torch.device) -> None:
        self.xp, self.device = _namespace(device), device
        self.copying = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.stepping: tuple[Callable, Recorded] | None = None  # what updates are made of

    def vector(self, array: np.ndarray) -> torch.Tensor:
        return torch.tensor(array, dtype=torch.float32, device=self.device)

    def views(self, vector: Any, layout: tree.Layout) -> tree.Tree:
        """Made once per vector: a vector is changed in place and keeps its memory."""
        if not hasattr(vector, "views"):
            vector.views = layout.unflatten(vector.detach())
        return vector.views

    def differentiate(self, loss: Callable, layout: tree.Layout) -> Callable:
        def gradient(vector: Any, *args: Any) -> tuple[torch.Tensor, Any]:
            leaves = [leaf.detach().requires_grad_() for _, leaf in tree.named(self.views(vector, layout))]
            with torch.enable_grad():
                value, aux = loss(tree.from_named(dict(zip(layout.paths, leaves))), *args)
                parts = torch.autograd.grad(value, leaves)
            return torch.cat([part.flatten() for part in parts]), tree.map(lambda x: x.detach(), aux)

        return gradient

    def optimiser(self, settings: Optimiser) -> "TorchOptimiser":
        return TorchOptimiser(settings)

    def assign(self, target: torch.Tensor, source: torch.Tensor, now: Any, mix: float = 1.0) -> torch.Tensor:
        if not now:
            return target
        return target.copy_(source) if mix == 1.0 else target.lerp_(source, mix)

    def zero(self) -> torch.Tensor:
        return torch.zeros((), device=self.device)

    def increment(self, count: torch.Tensor) -> torch.Tensor:
        return count.add_(1.0)

    def copied(self, array: torch.Tensor) -> torch.Tensor:
        return array.clone()

    def select(self, now: Any, new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
        return new.copy_(torch.where(now, new, old))

    def joined(self, vector: torch.Tensor, pieces: list) -> torch.Tensor:
        return vector  # the pieces are parts of it

    def scan_updates(
        self, step: Callable, advance: Callable, state: dict, samples: tree.Tree, plan: tree.Tree
    ) -> tuple[dict, torch.Tensor]:
        if self.stepping is None or self.stepping[0] != step:
            self.stepping = (step, Recorded(lambda *given: step(*given)[1]))
        rows, each, replay = [], tree.map(torch.unbind, plan), None
        with ExitStack() as recorded:
            for number in range(len(each["index"])):
                one = tree.take(each, number)
                if replay is None and (replay := self.stepping[1].bound(state, samples, one)):
                    recorded.enter_context(replaying())
                rows.append(replay(one) if replay else step(state, samples, one)[1])
                state = advance(state)
        return state, torch.stack(rows)

    def record(self, function: Callable) -> Callable:
        return torch.no_grad()(Recorded(function))

    def compile(self, function: Callable) -> Callable:
        return torch.no_grad()(function)

    def load(self, current: tree.Tree, arrays: tree.Tree) -> tree.Tree:
        def copy(old: Any, array: Any) -> Any:
            return old.copy_(torch.as_tensor(array)) if isinstance(old, torch.Tensor) else array

        return tree.map(copy, current, arrays)

    def from_numpy(self, arrays: tree.Tree) -> tree.Tree:
        return tree.map(self._on_device, arrays)

    def _on_device(self, array: Any) -> torch.Tensor:
        if isinstance(array, torch.Tensor):
            return array
        host = torch.from_numpy(np.require(array, requirements="W"))
        if self.device.type == "cpu":
            return host
        # A copy from pinned memory needs not be waited for. torch keeps that memory and knows when it may use it again.
        return (host.pin_memory() if self.copying else host).to(self.device, non_blocking=self.copying is not None)

    def send(self, arrays: tree.Tree) -> Callable[[], tree.Tree]:
        """On CUDA beside the kernels, on a stream of its own; whoever computes waits for its end on the device only."""
        if self.copying is None:
            moved = self.from_numpy(arrays)
            return lambda: moved
        with torch.cuda.stream(self.copying):
            moved, done = self.from_numpy(arrays), torch.cuda.Event()
            done.record(self.copying)

        def arrived() -> tree.Tree:
            computing = torch.cuda.current_stream(self.device)
            computing.wait_event(done)
            for leaf in tree.leaves(moved):
                leaf.record_stream(computing)  # its memory is not free before this stream has read it
            return moved

        return arrived

    def to_numpy(self, arrays: tree.Tree) -> tree.Tree:
        return tree.map(lambda x: x.detach().cpu().numpy() if isinstance(x, torch.Tensor) else np.asarray(x), arrays)


class TorchOptimiser:
    """The rules of torch.optim, in its arithmetic, on one tensor and with their state in the open, so that it can be
    stored. The count of steps is a tensor, which a recorded update can raise."""

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
        """What is taken from the parameters at a learning rate of one."""
        s, decay = self.settings, self.settings.decay
        if s.name == "sgd":
            return gradient
        if s.name == "adam":
            mean = state["mean"].lerp_(gradient, 1.0 - 0.9)
            square = state["square"].mul_(0.999).addcmul_(gradient, gradient, value=1.0 - 0.999)
            scale = 1.0 / (1.0 - 0.9 ** state["count"])  # of the mean, which begins at zero; the square does too
            root = square.sqrt().div_((1.0 - 0.999 ** state["count"]).sqrt() * scale)
            return mean / root.add_(s.epsilon / scale)
        if s.name == "adagrad":
            square = state["square"].addcmul_(gradient, gradient)
            return gradient / square.sqrt().add_(s.epsilon)
        square = state["square"].mul_(decay).addcmul_(gradient, gradient, value=1.0 - decay)
        if s.name == "rmsprop":
            return gradient / square.sqrt().add_(s.epsilon)
        mean = state["mean"].mul_(decay).add_(gradient, alpha=1.0 - decay)
        variance = torch.clamp(square - mean * mean, min=0.0)  # rounding may take it below
        return gradient / variance.add_(s.epsilon).sqrt_()


def devices() -> dict[str, int]:
    return {"cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available()), "cpu": 1}


def _keep_freed_memory() -> None:
    """Large tensors come and go with every update. glibc gives their pages back to the system each time, and getting
    them anew costs a fifth of an update with images. Above a gigabyte it may still give back."""
    most_mapped, least_given_back = -4, -1  # M_MMAP_MAX, M_TRIM_THRESHOLD
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:  # only glibc has it
        mallopt(most_mapped, 0)
        mallopt(least_given_back, 1 << 30)


def create(threads: int, kind: str, number: int) -> TorchBackend:
    if kind == "cpu":
        _keep_freed_memory()
    if threads:
        torch.set_num_threads(threads)
    return TorchBackend(torch.device(kind, number))
