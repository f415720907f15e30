"""PyTorch: params are one flat vector, which updates change in place.

On a CPU most time of a small network is the cost of each call of torch. So gradients are taken with respect to views
of the vector that are made once, and clipping and the optimiser work on one tensor instead of a dozen.
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
    """Params, optimiser state, target and coefficients keep their memory and are changed in place."""

    name = "torch"

    def __init__(self, device: torch.device) -> None:
        self.xp, self.device = namespace(device), device
        self.copying = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.stepping: tuple[Callable, Recorded] | None = None  # the `step` of `scan_updates`, and its recording

    def vector(self, array: np.ndarray) -> torch.Tensor:
        return torch.tensor(array, dtype=torch.float32, device=self.device)

    def views(self, vector: Any, layout: tree.Layout) -> tree.Tree:
        """The views are made once for each vector, because a vector is changed in place and keeps its memory."""
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
        return vector  # the pieces are views of it, changed in place

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
        # Copies from pinned memory run beside this thread. torch reuses the pinned memory only when a copy is done.
        return (host.pin_memory() if self.copying else host).to(self.device, non_blocking=self.copying is not None)

    def send(self, arrays: tree.Tree) -> Callable[[], tree.Tree]:
        """On CUDA the copy has a stream of its own and runs beside kernels; the computing stream waits for its end,
        and no thread does."""
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
                leaf.record_stream(computing)  # torch frees its memory only when this stream has read it
            return moved

        return arrived

    def to_numpy(self, arrays: tree.Tree) -> tree.Tree:
        return tree.map(lambda x: x.detach().cpu().numpy() if isinstance(x, torch.Tensor) else np.asarray(x), arrays)


def devices() -> dict[str, int]:
    """How many devices of each kind torch can use, the fastest kind first."""
    return {"cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available()), "cpu": 1}


def _keep_freed_memory() -> None:
    """Let glibc keep up to a gigabyte of freed memory. Every update makes and frees large tensors; by default glibc
    returns their pages to the system, and getting new pages costs a fifth of the time of an update with images."""
    most_mapped, least_given_back = -4, -1  # M_MMAP_MAX, M_TRIM_THRESHOLD
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:  # other C libraries lack it
        mallopt(most_mapped, 0)
        mallopt(least_given_back, 1 << 30)


def create(threads: int, kind: str, number: int) -> TorchBackend:
    """A backend on device `number` of this kind; 0 `threads` leaves torch's own choice."""
    if kind == "cpu":
        _keep_freed_memory()
    if threads:
        torch.set_num_threads(threads)
    return TorchBackend(torch.device(kind, number))
