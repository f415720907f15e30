"""A user's `torch.nn.Module` as a torso: its parameters join the params, its code runs unchanged."""

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from cavalcade import tree
from cavalcade.errors import UserError
from cavalcade.networks import Network
from cavalcade.specs import EnvSpec


class Adapted:
    """Called with a spec, returns a network: observations [N, ...] (a tensor, or a nest of them) -> [N, features].

    Learning begins with the params that the module has."""

    def __init__(self, module: nn.Module):
        if next(module.buffers(), None) is not None:
            raise UserError(
                "The module keeps buffers (running statistics); use layers without them, for example LayerNorm."
            )
        if any(isinstance(part, _DropoutNd) and part.training and part.p for part in module.modules()):
            raise UserError(
                "The module has Dropout, with which acting and learning would see different networks; remove it, "
                "or switch it off with module.eval()."
            )
        self.module = module

    def __call__(self, spec: EnvSpec) -> Network:
        module = self.module
        try:
            with torch.no_grad():
                example = module(tree.map(torch.from_numpy, spec.features(2)))
        except Exception as error:
            shapes = {path or "observation": leaf.shape[1:] for path, leaf in tree.named(spec.features(2))}
            raise UserError(
                f"The module does not take observations of shape [2, ...] with {shapes}: {error}"
            ) from error
        if not isinstance(example, torch.Tensor) or example.ndim != 2 or example.shape[0] != 2:
            gives = tuple(example.shape) if isinstance(example, torch.Tensor) else f"a {type(example).__name__}"
            raise UserError(f"The module gives {gives} for 2 observations; it has to give [2, features].")
        names = {name.replace(".", "/"): name for name, p in module.named_parameters() if p.requires_grad}
        # frozen parameters stay in the module, and are copied to the device of the observations
        frozen = {name: p for name, p in module.named_parameters() if not p.requires_grad}
        born = {path: module.get_parameter(name).detach().numpy().copy() for path, name in names.items()}

        def init(rng: np.random.Generator) -> tree.Tree:
            return tree.from_named({path: array.copy() for path, array in born.items()})

        def apply(xp: Any, params: tree.Tree, x: tree.Tree) -> Any:
            given = {names[path]: leaf for path, leaf in tree.named(params)}
            if frozen:
                device = tree.leaves(x)[0].device
                given |= {name: p.to(device) for name, p in frozen.items()}
            return torch.func.functional_call(module, given, (x,))

        return Network(init, apply, int(example.shape[1]), small=False, backend="torch")
