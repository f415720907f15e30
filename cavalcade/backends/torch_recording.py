"""Updates in torch without the cost of calling them: recorded once, then replayed by torch's own interpreter.

Eager torch spends three quarters of a small update in Python and in building its graph. Here the whole update (draw,
loss, gradient, clipping, optimiser) is written down as one list of operations, below autograd, and replayed by
torch.jit: the same kernels on the same numbers in the same order, hence the same bits. Parameters, optimiser state and
coefficients change in place. What cannot be recorded goes on eagerly.
"""

import operator
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from torch.utils.weak import WeakIdKeyDictionary

from cavalcade import tree

DETACH = torch.ops.aten.detach.default
BY_VALUE = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)  # other numbers would go another way


class Recorded:
    """An update or a gradient, called like the function it replaces."""

    WARM_UP = 4  # updates of a run before recording; a resumed run counts on

    def __init__(self, function: Callable):
        self.function = function
        self.programs: dict[Any, Callable | None] = {}

    def __call__(self, state: dict, samples: tree.Tree, plan: tree.Tree) -> torch.Tensor:
        if state["updates"] < self.WARM_UP or not state["params"].is_cpu:  # elsewhere kernels cost more
            return self.function(state, samples, plan)
        given = {"state": {**state, "updates": {}}, "samples": samples, "plan": plan}
        flat = tree.leaves(given)
        shapes = tuple(leaf.shape for leaf in flat)
        if shapes not in self.programs:
            self.programs[shapes] = self._record(given, flat)
        program = self.programs[shapes]
        if program is None:
            return self.function(state, samples, plan)
        with torch.jit.optimized_execution(False):  # its optimiser joins matrix products, and the last bits differ
            return program(*flat)

    def _record(self, given: dict, flat: list[torch.Tensor]) -> Callable | None:
        scratch = [leaf.clone() for leaf in flat]  # recording runs the update, so it gets copies
        try:
            recording = Recording(scratch)
            with recording:
                same = tree.rebuild(given, iter(scratch))
                result = self.function(same["state"], same["samples"], same["plan"])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch.jit is in maintenance; without it the eager path remains
                return torch.jit.trace(recording.program(result), tuple(scratch), check_trace=False)
        except Exception:
            return None


class Recording(TorchDispatchMode):
    """Writes down every operation that torch carries out, and of whose results each is made.

    torch's own `make_fx` does the same and more, and imports eight hundred modules for it, which takes two seconds in
    the middle of a run.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """To skip its compiler torch would import it first; nobody compiles what is called in here."""
        return False

    def __init__(self, given: list[torch.Tensor]):
        super().__init__()
        self.graph, self.constants = torch.fx.Graph(), {}  # type: torch.fx.Graph, dict[str, torch.Tensor]
        self.names = WeakIdKeyDictionary()  # of tensors that are still alive: a large update frees them as it goes
        for number, tensor in enumerate(given):
            self.names[tensor] = self.graph.placeholder(f"given_{number}")

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if any(tag in function.tags for tag in BY_VALUE):
            raise ValueError(f"{function} depends on numbers, not on shapes alone")
        result = function(*args, **(kwargs or {}))
        if function is DETACH:  # nothing records a gradient any more
            self.names[result] = self._name(args[0])
            return result
        named = tree_map(self._name, (args, kwargs or {}))
        made = self.graph.call_function(function, *named)
        if isinstance(result, torch.Tensor):
            self.names[result] = made
        else:
            for number, part in enumerate(result or ()):
                self.names[part] = self.graph.call_function(operator.getitem, (made, number))
        return result

    def _name(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if value not in self.names:  # neither given nor made here: it never changes
            name = f"constant_{len(self.constants)}"
            self.constants[name] = value
            self.names[value] = self.graph.get_attr(name)
        return self.names[value]

    def program(self, result: torch.Tensor) -> torch.nn.Module:
        self.graph.output(self._name(result))
        return torch.fx.GraphModule(self.constants, self.graph)
