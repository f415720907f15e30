"""Updates in torch without the cost of calling them: recorded once, then replayed by torch's own interpreter.

Eager torch spends three quarters of a small update in Python and in building its graph. Here the whole update (draw,
loss, gradient, clipping, optimiser) is written down as one list of operations, below autograd, and replayed by
torch.jit: the same kernels on the same numbers in the same order, hence the same bits. Parameters, optimiser state and
coefficients change in place. What cannot be recorded goes on eagerly.

An operation on a small network costs microseconds whatever it does, so that programs have as few as they can. What
networks see of the parameter vectors (a slice and a reshape for each layer) is made once and given to the program, since
these vectors keep their memory. Numbers in the code are arrays of one type with the rest; torch would convert each anew.
"""

import operator
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from torch.utils.weak import WeakIdKeyDictionary

from cavalcade import tree

DETACH = torch.ops.aten.detach.default
BY_VALUE = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)  # other numbers would go another way
VECTORS = ("params", "target")  # in the state


class Recorded:
    """An update or a gradient, called like the function it replaces."""

    WARM_UP = 4  # updates of a run before recording; a resumed run counts on

    def __init__(self, function: Callable):
        self.function = function
        self.programs: dict[Any, Program | None] = {}

    def __call__(self, state: dict, samples: tree.Tree, plan: tree.Tree) -> torch.Tensor:
        if state["updates"] < self.WARM_UP or not state["params"].is_cpu:  # elsewhere kernels cost more
            return self.function(state, samples, plan)
        given = {"state": {**state, "updates": {}}, "samples": samples, "plan": plan}
        flat = tree.leaves(given)
        shapes = tuple(leaf.shape for leaf in flat)
        if shapes not in self.programs:
            self.programs[shapes] = self._record(given, flat)
        program = self.programs[shapes]
        return self.function(state, samples, plan) if program is None else program(flat)

    def _record(self, given: dict, flat: list[torch.Tensor]) -> "Program | None":
        scratch = [leaf.clone() for leaf in flat]  # recording runs the update, so it gets copies
        same = tree.rebuild(given, iter(scratch))
        recording = Recording(scratch, [same["state"][name] for name in VECTORS if name in same["state"]])
        try:
            with recording:
                result = self.function(same["state"], same["samples"], same["plan"])
            return Program(recording, result, scratch)
        except Exception:
            return None


class View(NamedTuple):
    """What networks see of a vector: another way to look at one of the program's inputs."""

    source: int  # number of that input
    function: Callable
    args: tuple
    named: dict


class Program:
    """A recorded function of arrays with the shapes that it was recorded with."""

    def __init__(self, recording: "Recording", result: torch.Tensor, given: list[torch.Tensor]):
        self.views = recording.views
        self.sources = sorted({view.source for view in self.views if view.source < len(given)})
        self.viewed: list[torch.Tensor] = []  # what was given for them last, and its views
        self.made: list[torch.Tensor] = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch.jit is in maintenance; without it the eager path remains
            inputs = (*given, *self._views(given))
            self.replay = torch.jit.trace(recording.program(result), inputs, check_trace=False)

    def __call__(self, given: list[torch.Tensor]) -> torch.Tensor:
        views = self._views(given)
        # in inference mode nothing is prepared for a gradient; jit's optimiser would join matrix products, and the last
        # bits would differ
        with torch.inference_mode(), torch.jit.optimized_execution(False):
            return self.replay(*given, *views)

    def _views(self, given: list[torch.Tensor]) -> list[torch.Tensor]:
        vectors = [given[number] for number in self.sources]
        if len(self.viewed) != len(vectors) or any(one is not other for one, other in zip(vectors, self.viewed)):
            inputs = list(given)
            for view in self.views:
                inputs.append(view.function(inputs[view.source], *view.args, **view.named))
            self.viewed, self.made = vectors, inputs[len(given) :]
        return self.made


class Recording(TorchDispatchMode):
    """Writes down every operation that torch carries out, and of whose results each is made.

    torch's own `make_fx` does the same and more, and imports eight hundred modules for it, which takes two seconds in
    the middle of a run.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """To skip its compiler torch would import it first; nobody compiles what is called in here."""
        return False

    def __init__(self, given: list[torch.Tensor], vectors: list[torch.Tensor]):
        """`vectors`: those of the given arrays that will be the same ones, changed in place, in most calls."""
        super().__init__()
        self.graph, self.constants = torch.fx.Graph(), {}  # type: torch.fx.Graph, dict[str, torch.Tensor]
        self.names = WeakIdKeyDictionary()  # of tensors that are still alive: a large update frees them as it goes
        self.inputs: list[torch.fx.Node] = []
        self.views: list[View] = []
        self.numbers: dict[tuple[Any, torch.dtype], torch.Tensor] = {}
        for tensor in given:
            self._input(tensor)
        self.fixed = {self.names[vector] for vector in vectors}  # inputs that are vectors, or views of one

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if any(tag in function.tags for tag in BY_VALUE):
            raise ValueError(f"{function} depends on numbers, not on shapes alone")
        named = kwargs or {}
        result = function(*args, **named)
        if function is DETACH:  # nothing records a gradient any more
            self.names[result] = self._name(args[0])
        elif function.is_view and isinstance(result, torch.Tensor) and self._name(args[0]) in self.fixed:
            self.views.append(View(self.inputs.index(self.names[args[0]]), function, args[1:], named))
            self.fixed.add(self._input(result))
        else:
            self._write(function, self._numbers_as_arrays(function, args, result), named, result)
        return result

    def _write(self, function: Any, args: tuple, named: dict, result: Any) -> None:
        made = self.graph.call_function(function, *tree_map(self._name, (args, named)))
        if isinstance(result, torch.Tensor):
            self.names[result] = made
        else:
            for number, part in enumerate(result or ()):
                self.names[part] = self.graph.call_function(operator.getitem, (made, number))

    def _numbers_as_arrays(self, function: Any, args: tuple, result: Any) -> tuple:
        """Where an operation takes an array and got a number, an array with the type of its result."""
        if not isinstance(result, torch.Tensor) or result.dtype is torch.bool:
            return args
        kinds = [str(argument.type) for argument in function._schema.arguments]
        return tuple(
            self._number(arg, result.dtype) if kind == "Tensor" and isinstance(arg, (int, float)) else arg
            for arg, kind in zip(args, kinds)
        )

    def _number(self, number: float, dtype: torch.dtype) -> torch.Tensor:
        if (number, dtype) not in self.numbers:
            self.numbers[number, dtype] = torch.tensor(number, dtype=dtype)
        return self.numbers[number, dtype]

    def _input(self, tensor: torch.Tensor) -> torch.fx.Node:
        with self.graph.inserting_after(self.inputs[-1] if self.inputs else None):
            self.inputs.append(self.graph.placeholder(f"given_{len(self.inputs)}"))
        self.names[tensor] = self.inputs[-1]
        return self.inputs[-1]

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
