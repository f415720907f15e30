"""PyTorch: eager, functional, one flat parameter vector.

On a CPU small networks are dominated by the cost of each call, so gradients are taken with respect to
persistent views of the vector, and clipping and the optimiser see one tensor instead of a dozen.
"""

import ctypes
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch

from cavalcade import tree
from cavalcade.backends.torch_namespace import namespace
from cavalcade.backends.torch_optimiser import TorchOptimiser
from cavalcade.backends.torch_recording import Recorded, replaying
from cavalcade.optimiser import Optimiser


class TorchBackend:
    name = "torch"

    def __init__(self, device: torch.device) -> None:
        self.xp, self.device = namespace(device), device
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

    def optimiser(self, settings: Optimiser) -> TorchOptimiser:
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
