"""Updates in torch without the cost of Python: recorded once, then replayed by torch's own interpreter.

Eager torch spends three quarters of the time of a small update in Python and in building its graph. Here the whole
update (minibatch, loss, gradient, clipping, optimiser) is recorded as one list of operations, below autograd, and
replayed by torch.jit: the same kernels on the same numbers in the same order, hence the same bits. Params, optimiser
state and coefficients change in place. A function that cannot be recorded is called eagerly as before.

An operation on a small network costs microseconds whatever it does, so a program has as few operations as possible. The
views of params and target that networks read (a slice and a reshape for each layer) are made once and given to the
program, because these vectors keep their memory. Python numbers are given as arrays, or torch would convert them each
time.
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
BY_VALUE = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)  # shapes depend on numbers
VECTORS = ("state/params", "state/target")  # the inputs that keep their memory, so that views of them last


class Recorded:
    """A function that makes an update or a gradient, with a program for each set of shapes. It is called like the
    function itself."""

    WARM_UP = 4  # updates of the run that are made eagerly before recording; a resumed run counts on

    def __init__(self, function: Callable):
        self.function = function
        self.programs: dict[Any, Program | None] = {}  # by shapes of the inputs; None: cannot be recorded

    def __call__(self, state: dict, samples: tree.Tree, plan: tree.Tree) -> torch.Tensor:
        replay = self.bound(state, samples, plan)
        if replay is None:
            return self.function(state, samples, plan)
        with replaying():
            return replay(plan)

    def bound(self, state: dict, samples: tree.Tree, plan: tree.Tree) -> Callable[[tree.Tree], torch.Tensor] | None:
        """A function of a row of the plan alone, to be called inside `replaying`, for rows of the same shapes: so the
        updates of a draw look up the other arrays once. None if the function itself has to be called."""
        if state["updates"] < self.WARM_UP or not state["params"].is_cpu:  # on a GPU kernels cost more than Python
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
        """The program of the function for these inputs; None if the function cannot be recorded."""
        scratch = [leaf.clone() for leaf in flat]  # recording makes the update, so it works on copies
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
    """For replays: without torch's preparations for gradients, and without jit's optimiser, which joins matrix products
    so that the last bits would differ."""
    with torch.inference_mode(), torch.jit.optimized_execution(False):
        yield


class View(NamedTuple):
    """A view of a vector of params that a network reads, as torch describes it."""

    vector: int  # the number of the input that it is a view of
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
        self.made: list[torch.Tensor] = []  # the views of these vectors
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch.jit is in maintenance; without it updates are eager
            self.replay = torch.jit.trace(module, (*given, *self.views_of(given)), check_trace=False)

    def views_of(self, given: list[torch.Tensor]) -> list[torch.Tensor]:
        """The views of these inputs, which `replay` takes after the inputs; made anew if a vector is another."""
        vectors = [given[view.vector] for view in self.views]
        if list(map(id, vectors)) != list(map(id, self.viewed)):
            self.viewed = vectors
            self.made = [view.of(vector) for view, vector in zip(self.views, vectors)]
        return self.made


class Recording(TorchDispatchMode):
    """Records every operation that torch carries out inside `with`, and which results are its arguments.

    torch's own `make_fx` does the same and more, but imports eight hundred modules, which takes two seconds in the
    middle of a run.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False, because torch would import its compiler in order to skip it; nothing is compiled in here."""
        return False

    def __init__(self, given: list[torch.Tensor], vectors: list[int]):
        """`given`: the inputs. `vectors`: the numbers of those that are only changed in place from call to call."""
        super().__init__()
        self.graph, self.constants = torch.fx.Graph(), {}  # type: torch.fx.Graph, dict[str, torch.Tensor]
        self.names = WeakIdKeyDictionary()  # nodes by tensor; weak, because a large update frees tensors as it goes
        self.inputs: list[torch.fx.Node] = []
        self.views: dict[torch.fx.Node, View] = {}  # inputs that are views of `given`
        self.numbers: dict[tuple[Any, torch.dtype], torch.Tensor] = {}
        for tensor in given:
            self._input(tensor)
        self.seen = {self.inputs[number]: number for number in vectors}  # vectors and views of them: which vector

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if any(tag in function.tags for tag in BY_VALUE):
            raise ValueError(f"{function} depends on numbers, not on shapes alone")
        named = kwargs or {}
        result = function(*args, **named)
        if function is DETACH:  # the same numbers: below autograd `detach` does nothing
            self.names[result] = self._name(args[0])
        elif function.is_view and isinstance(result, torch.Tensor) and self._name(args[0]) in self.seen:
            vector, node = self.seen[self._name(args[0])], self._input(result)
            self.views[node] = View(vector, tuple(result.shape), result.stride(), int(result.storage_offset()))
            self.seen[node] = vector
        else:
            self._write(function, self._numbers_as_arrays(function, args, result), named, result)
        return result

    def _write(self, function: Any, args: tuple, named: dict, result: Any) -> None:
        """Add an operation to the graph, and name its results."""
        made = self.graph.call_function(function, *tree_map(self._name, (args, named)))
        if isinstance(result, torch.Tensor):
            self.names[result] = made
        else:
            for number, part in enumerate(result or ()):
                self.names[part] = self.graph.call_function(operator.getitem, (made, number))

    def _numbers_as_arrays(self, function: Any, args: tuple, result: Any) -> tuple:
        """The arguments, with an array of the result's type for each number that stands where an array may stand."""
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
        """Make this tensor the next input of the program."""
        with self.graph.inserting_after(self.inputs[-1] if self.inputs else None):
            self.inputs.append(self.graph.placeholder(f"given_{len(self.inputs)}"))
        self.names[tensor] = self.inputs[-1]
        return self.inputs[-1]

    def _name(self, value: Any) -> Any:
        """The node of the graph that stands for a tensor; any other value stands for itself."""
        if not isinstance(value, torch.Tensor):
            return value
        if value not in self.names:  # neither an input nor a result: a constant
            name = f"constant_{len(self.constants)}"
            self.constants[name] = value
            self.names[value] = self.graph.get_attr(name)
        return self.names[value]

    def program(self, result: torch.Tensor) -> tuple[torch.nn.Module, list[View]]:
        """A module that computes `result` from the inputs followed by views of them; and these views."""
        self.graph.output(self._name(result))
        for node in [node for node in self.views if not node.users]:  # a slice of which only the reshape is read
            self.graph.erase_node(node)
            del self.views[node]
        return torch.fx.GraphModule(self.constants, self.graph), list(self.views.values())
