"""Beginning from another run's policy: its parameters and normalisers, in a network that has to be the same.

Everything else of the new run is its own: optimiser, schedules, counters, experience. A target network begins as a
copy.
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

# what makes a network, of whatever algorithms have it
NETWORK = ("hidden", "activation", "convolution", "shared", "memory", "dueling", "normalise_observations")


@dataclass(frozen=True)
class Origin:
    """A policy that learners begin with."""

    params: np.ndarray  # [size]
    statistics: Tree  # of the normalisers that the policy had

    @classmethod
    def load(cls, path: str | Path, algorithm: Algorithm, model: Model, custom_network: bool) -> "Origin":
        """From a run folder or a policy folder. What was made with another network than this algorithm's is refused.
        `custom_network`: the user's own module is part of it."""
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
    """By what the user can change: the module, the algorithm, its settings."""
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
    """Lists of a JSON file are tuples here."""
    return tuple(value) if isinstance(value, list) else value


def _shown(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _heads(model: Model, params: Tree) -> str:
    """What the network gives, as words."""
    return " and ".join(sorted({model.part_of(path) for path, _ in named(params)} - {"shared", "memory"}))
