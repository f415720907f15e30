"""A user's Flax module (linen) in the place of a torso: its parameters join the vector, its code runs as it is."""

from typing import Any

import jax
import numpy as np

from cavalcade import tree
from cavalcade.errors import UserError
from cavalcade.networks import Network
from cavalcade.specs import EnvSpec


class Adapted:
    """Called with a spec, gives a network from observations [N, ...] (an array, or a nest of them) to [N, features]."""

    def __init__(self, module: Any):
        self.module = module

    def __call__(self, spec: EnvSpec) -> Network:
        module, example = self.module, spec.zeros(2)
        try:
            variables = module.init(jax.random.key(0), example)
            output = module.apply(variables, example)
        except Exception as error:
            shapes = {path or "observation": leaf.shape for path, leaf in tree.named(spec.observation)}
            raise UserError(
                f"The module does not take observations of shape [2, ...] with {shapes}: {error}"
            ) from error
        if set(variables) != {"params"}:
            raise UserError(
                f"The module keeps {set(variables) - {'params'}}; use layers that hold nothing but parameters."
            )
        if output.ndim != 2 or output.shape[0] != 2:
            raise UserError(f"The module gives {output.shape} for 2 observations; it has to give [2, features].")

        def init(rng: np.random.Generator) -> tree.Tree:
            born = module.init(jax.random.key(int(rng.integers(2**31))), example)
            return tree.map(lambda leaf: np.asarray(leaf, np.float32), dict(born["params"]))

        def apply(xp: Any, params: tree.Tree, x: tree.Tree) -> Any:
            return module.apply({"params": params}, x)

        return Network(init, apply, int(output.shape[1]), small=False, backend="jax")
