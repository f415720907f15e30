"""Networks: layers, torsos and heads as pure functions of params and arrays of any backend, joined into models."""

from cavalcade.networks.activations import ACTIVATIONS
from cavalcade.networks.images import image_of
from cavalcade.networks.layers import Network, Rng, linear, mlp
from cavalcade.networks.model import Model, build, forward_of
from cavalcade.networks.torso import CONVOLUTIONS, Torso, conditioned, constants, dueling, gaussian

__all__ = [
    "ACTIVATIONS",
    "CONVOLUTIONS",
    "Model",
    "Network",
    "Rng",
    "Torso",
    "build",
    "conditioned",
    "constants",
    "dueling",
    "forward_of",
    "gaussian",
    "image_of",
    "linear",
    "mlp",
]
