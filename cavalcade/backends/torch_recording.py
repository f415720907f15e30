"""Updates in torch without the cost of calling them: recorded once, then replayed by torch's own interpreter.

Eager torch spends three quarters of a small update in Python and in building its graph. Here the whole update (draw,
loss, gradient, clipping, optimiser) is written down as one list of operations, below autograd, and replayed by
torch.jit: the same kernels on the same numbers in the same order, hence the same bits. Parameters, optimiser state and
coefficients change in place. What cannot be recorded goes on eagerly.

An operation on a small network costs microseconds whatever it does, so that programs have as few as they can. What
networks see of the parameter vectors (a slice and a reshape for each layer) is made once and given to the program,
because these vectors keep their memory. Numbers in the code are given as arrays; torch would convert them each time.
"""

import operator
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from torch.utils.weak import WeakIdKeyDictionary

from cavalcade import tree

DETACH = torch.ops.aten.detach.default
BY_VALUE = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)  # other numbers would go another way
VECTORS = ("state/params", "state/target")  # of what is given, those that are the same ones in most calls


class Recorded:
    """An update or a gradient, called like the function it replaces."""

    WARM_UP = 4  # updates of a run before recording; a resumed run counts on

    def __init__(self, function: Callable):
        self.function = function
        self.programs: dict[Any, Program | None] = {}

    def __call__(self, state: dict, samples: tree.Tree, plan: tree.Tree) -> torch.Tensor:
        replay = self.bound(state, samples, plan)
        if replay is None:
            return self.function(state, samples, plan)
        with replaying():
            return replay(plan)

    def bound(self, state: dict, samples: tree.Tree, plan: tree.Tree) -> Callable[[tree.Tree], torch.Tensor] | None:
        """A function of the plan alone, for plans of this one's shape, to be called inside of `replaying`: many updates
        of a draw look up the other arrays once. None if the function itself has to be called."""
        if state["updates"] < self.WARM_UP or not state["params"].is_cpu:  # elsewhere kernels cost more
            return None
        given = {"plan": plan, "samples": samples, "state": {**state, "updates": {}}}
        flat = tree.leaves(given)
        shapes = tuple(leaf.shape for leaf in flat)
        if shapes not in self.programs:
            self.programs[shapes] = self._record(given, flat)
        program = self.programs[shapes]
        if program is None:
            return None
        replay, rest = program.replay, [*flat[len(tree.leaves(plan)) :], *program.views_of(flat)]
        return lambda plan: replay(*tree.leaves(plan), *rest)

    def _record(self, given: dict, flat: list[torch.Tensor]) -> "Program | None":
        scratch = [leaf.clone() for leaf in flat]  # recording runs the update, so it gets copies
        paths = [path for path, _ in tree.named(given)]
        recording = Recording(scratch, [number for number, path in enumerate(paths) if path in VECTORS])
        try:
            with recording:
                same = tree.rebuild(given, iter(scratch))
                result = self.function(same["state"], same["samples"], same["plan"])
            return Program(recording, result, scratch)
        except Exception:
            return None


@contextmanager
def replaying() -> Iterator[None]:
    """Without what torch prepares for gradients, and without jit's optimiser: it joins matrix products, and last bits
    would differ."""
    with torch.inference_mode(), torch.jit.optimized_execution(False):
        yield


class View(NamedTuple):
    """What a network sees of a vector, as torch describes it."""

    vector: int  # which of what is given
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def of(self, vector: torch.Tensor) -> torch.Tensor:
        return vector.as_strided(self.size, self.stride, vector.storage_offset() + self.offset)


class Program:
    """A recorded function of arrays with the shapes that it was recorded with."""

    def __init__(self, recording: "Recording", result: torch.Tensor, given: list[torch.Tensor]):
        module, self.views = recording.program(result)
        self.viewed: list[torch.Tensor] = []  # the vectors of the last call, one for each view
        self.made: list[torch.Tensor] = []  # and what is seen of them
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch.jit is in maintenance; without it the eager path remains
            self.replay = torch.jit.trace(module, (*given, *self.views_of(given)), check_trace=False)

    def views_of(self, given: list[torch.Tensor]) -> list[torch.Tensor]:
        """What `replay` wants behind that which is given."""
        vectors = [given[view.vector] for view in self.views]
        if list(map(id, vectors)) != list(map(id, self.viewed)):
            self.viewed = vectors
            self.made = [view.of(vector) for view, vector in zip(self.views, vectors)]
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

    def __init__(self, given: list[torch.Tensor], vectors: list[int]):
        """`vectors`: which of what is given is only changed in place from call to call."""
        super().__init__()
        self.graph, self.constants = torch.fx.Graph(), {}  # type: torch.fx.Graph, dict[str, torch.Tensor]
        self.names = WeakIdKeyDictionary()  # of tensors that are still alive: a large update frees them as it goes
        self.inputs: list[torch.fx.Node] = []
        self.views: dict[torch.fx.Node, View] = {}  # those of the inputs that are made from the given ones
        self.numbers: dict[tuple[Any, torch.dtype], torch.Tensor] = {}
        for tensor in given:
            self._input(tensor)
        self.seen = {self.inputs[number]: number for number in vectors}  # inputs that show a vector, and which

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if any(tag in function.tags for tag in BY_VALUE):
            raise ValueError(f"{function} depends on numbers, not on shapes alone")
        named = kwargs or {}
        result = function(*args, **named)
        if function is DETACH:  # nothing records a gradient any more
            self.names[result] = self._name(args[0])
        elif function.is_view and isinstance(result, torch.Tensor) and self._name(args[0]) in self.seen:
            vector, node = self.seen[self._name(args[0])], self._input(result)
            self.views[node] = View(vector, tuple(result.shape), result.stride(), int(result.storage_offset()))
            self.seen[node] = vector
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

    def program(self, result: torch.Tensor) -> tuple[torch.nn.Module, list[View]]:
        """What is called with all that is given and, behind it, these views of it."""
        self.graph.output(self._name(result))
        for node in [node for node in self.views if not node.users]:  # a slice on the way to its reshape
            self.graph.erase_node(node)
            del self.views[node]
        return torch.fx.GraphModule(self.constants, self.graph), list(self.views.values())
