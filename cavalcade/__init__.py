"""Cavalcade: large-scale reinforcement learning that anyone can read, run and trust.

Importing the package loads no deep-learning library; names are resolved when they are first used.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "train": "cavalcade.training",
    "resume": "cavalcade.training",
    "evaluate": "cavalcade.trained",
    "load_policy": "cavalcade.trained",
    "Callback": "cavalcade.callbacks",
    "STOP": "cavalcade.callbacks",
    "Run": "cavalcade.runs",
    "UserError": "cavalcade.errors",
}
__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"cavalcade has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)
