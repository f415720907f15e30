"""A user's Flax module (linen) in the place of a torso: its parameters join the vector, its code runs as it is."""

from typing import Any

import jax
import numpy as np

from cavalcade import tree
from cavalcade.errors import UserError
from cavalcade.layers import Network
from cavalcade.specs import EnvSpec


class Adapted:
    """Called with a spec, gives a network from observations [N, ...] (an array, or a nest of them) to [N, features]."""

    def __init__(self, module: Any):
        self.module = module

    def __call__(self, spec: EnvSpec) -> Network:
        module, example = self.module, spec.features(2)
        try:
            output, variables = module.init_with_output(jax.random.key(0), example)
        except Exception as error:
            shapes = {path or "observation": leaf.shape[1:] for path, leaf in tree.named(example)}
            raise UserError(
                f"The module does not take observations of shape [2, ...] with {shapes}: {error}"
            ) from error
        if others := set(variables) - {"params"}:
            raise UserError(
                f"The module keeps {', '.join(sorted(others))}; use layers that hold nothing but parameters."
            )
        if not isinstance(output, (jax.Array, np.ndarray)) or output.ndim != 2 or output.shape[0] != 2:
            gives = output.shape if hasattr(output, "shape") else f"a {type(output).__name__}"
            raise UserError(f"The module gives {gives} for 2 observations; it has to give [2, features].")

        def init(rng: np.random.Generator) -> tree.Tree:
            born = module.init(jax.random.key(int(rng.integers(2**31))), example)
            return tree.map(lambda leaf: np.asarray(leaf, np.float32), dict(born.get("params", {})))

        def apply(xp: Any, params: tree.Tree, x: tree.Tree) -> Any:
            return module.apply({"params": params}, x)

        return Network(init, apply, int(output.shape[1]), small=False, backend="jax")
