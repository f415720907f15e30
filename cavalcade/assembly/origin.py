"""The origin of a run: another policy whose params and statistics it begins with. Both need the same network.

Everything else of the new run is its own: optimiser, schedules, counters, experience. A target begins as a copy of the
params.
"""

from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from cavalcade.acting import check_same_spaces, folder_of, intact, read
from cavalcade.algorithms import Algorithm
from cavalcade.errors import UserError
from cavalcade.learning import REWARD
from cavalcade.networks import Model
from cavalcade.specs import EnvSpec
from cavalcade.tree import Layout, Tree, named

# settings that shape a network; an algorithm has some of them
NETWORK = ("hidden", "activation", "convolution", "shared", "memory", "dueling", "normalise_observations")


@dataclass(frozen=True)
class Origin:
    """The policy that learners begin with."""

    params: np.ndarray  # [size]
    statistics: Tree  # of the policy's normalisers

    @classmethod
    def load(cls, path: str | Path, algorithm: Algorithm, model: Model, custom_network: bool) -> "Origin":
        """Read the policy of a run folder or a policy folder; refused if its network is not that of `model`.
        `custom_network`: whether this run uses a network of the user's own."""
        folder = folder_of(path)
        about, arrays = read(folder)
        with intact(folder):
            params, statistics = arrays["params"], arrays.get("statistics", {})
            check_same_spaces(EnvSpec.from_json(about["spec"]), model.spec)
            _check_same_network(path, about, params, algorithm, model, custom_network)
            layout = Layout.of(params)
        same = layout == Layout.of(model.init(np.random.default_rng(0)))
        if not same or set(statistics) - {REWARD} != set(model.statistics()):
            raise UserError(
                f"The network of the policy in {path} has other shapes than this run's; make them the same."
            )
        return cls(layout.flatten(params), statistics)


def _check_same_network(
    path: str | Path, about: dict, params: Tree, algorithm: Algorithm, model: Model, custom_network: bool
) -> None:
    """Refuse another network, naming what the user can change: network=..., the algorithm, or one of its settings."""
    if about["custom_network"] != custom_network:
        had = "a network of your own; give it with network=..." if about["custom_network"] else "no network of your own"
        raise UserError(f"The policy in {path} was made with {had}.")
    had_heads, has_heads = _heads(model, params), _heads(model, model.init(np.random.default_rng(0)))
    if had_heads != has_heads:
        ours = type(algorithm).__name__.lower()
        raise UserError(
            f"The policy in {path} was learned by {about['algorithm']}, whose network gives {had_heads}; "
            f"that of {ours} gives {has_heads}. Begin from a run of an algorithm like {ours}."
        )
    settings = asdict(algorithm)
    for name in NETWORK:
        had, has = about["settings"].get(name), settings.get(name)
        if _plain(had) != _plain(has):
            option = f"--{name.replace('_', '-')}"
            raise UserError(
                f"The policy in {path} was made with {option} {_shown(had)}, but this run has {_shown(has)}; give it "
                "the same."
            )


def _plain(value: object) -> object:
    """The value with a tuple for a list, because JSON has no tuples."""
    return tuple(value) if isinstance(value, list) else value


def _shown(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _heads(model: Model, params: Tree) -> str:
    """The heads of a network, in words for a message."""
    return " and ".join(sorted({model.part_of(path) for path, _ in named(params)} - {"shared", "memory"}))
