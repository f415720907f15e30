"""A user's Flax module (Linen, NNX) as a torso: its parameters join the params, its code runs unchanged."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from flax import nnx

from cavalcade import tree
from cavalcade.errors import UserError
from cavalcade.networks import Network, Rng
from cavalcade.specs import EnvSpec

Init = Callable[[Rng], tree.Tree]
Apply = Callable[[tree.Tree, tree.Tree], Any]  # params, observations [N, ...] -> [N, features]


class Adapted:
    """Called with a spec, returns a network: observations [N, ...] (an array, or a nest of them) -> [N, features]."""

    def __init__(self, module: Any):
        self.module = module

    def __call__(self, spec: EnvSpec) -> Network:
        example = spec.features(2)
        taken_apart = _nnx if isinstance(self.module, nnx.Module) else _linen
        try:
            init, apply = taken_apart(self.module, example)
            output = apply(init(np.random.default_rng(0)), example)
        except UserError:
            raise
        except Exception as error:
            shapes = {path or "observation": leaf.shape[1:] for path, leaf in tree.named(example)}
            raise UserError(
                f"The module does not take observations of shape [2, ...] with {shapes}: {error}"
            ) from error
        if not isinstance(output, (jax.Array, np.ndarray)) or output.ndim != 2 or output.shape[0] != 2:
            gives = output.shape if hasattr(output, "shape") else f"a {type(output).__name__}"
            raise UserError(f"The module gives {gives} for 2 observations; it has to give [2, features].")
        return Network(init, lambda _, *given: apply(*given), int(output.shape[1]), small=False, backend="jax")


def _linen(module: Any, example: tree.Tree) -> tuple[Init, Apply]:
    """`init` and `apply` of a Linen module, whose params are drawn from the run's seed."""
    _refuse_state(set(module.init(jax.random.key(0), example)) - {"params"})

    def init(rng: Rng) -> tree.Tree:
        born = module.init(jax.random.key(int(rng.integers(2**31))), example)
        return tree.map(_float32, dict(born.get("params", {})))

    return init, lambda params, x: module.apply({"params": params}, x)


def _nnx(module: nnx.Module, example: tree.Tree) -> tuple[Init, Apply]:
    """`init` and `apply` of an NNX module. The user has made it with its params, and learning begins from these."""
    parts: Any = nnx.split(module, nnx.Param, ...)
    graph, state, others = parts
    kept = jax.tree.leaves(others, is_leaf=lambda node: isinstance(node, nnx.Variable))
    _refuse_state({type(one).__name__ if isinstance(one, nnx.Variable) else "an array" for one in kept})
    pairs, structure = jax.tree_util.tree_flatten_with_path(state)
    names = ["/".join(str(key.key) for key in path if isinstance(key, jax.tree_util.DictKey)) for path, _ in pairs]
    born = {name: _float32(leaf) for name, (_, leaf) in zip(names, pairs)}

    def init(rng: Rng) -> tree.Tree:
        return tree.from_named({name: array.copy() for name, array in born.items()})

    def apply(params: tree.Tree, x: tree.Tree) -> Any:
        given = dict(tree.named(params))
        merged: Any = nnx.merge(graph, jax.tree.unflatten(structure, [given[name] for name in names]))
        return merged(x)

    return init, apply


def _refuse_state(kinds: set[str]) -> None:
    """Raise a UserError if a module keeps variables other than params, of these kinds: nothing would save them."""
    if kinds:
        raise UserError(
            f"The module keeps {', '.join(sorted(kinds))}; use layers that hold nothing but parameters, "
            "without running statistics and random streams."
        )


def _float32(array: Any) -> np.ndarray:
    return np.array(array, np.float32)
