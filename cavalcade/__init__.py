"""Cavalcade: large-scale reinforcement learning that anyone can read, run and trust.

Importing the package loads no deep-learning library; names are resolved when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for editors, which cannot follow `__getattr__`
    from cavalcade.errors import UserError as UserError
    from cavalcade.runs import Run as Run
    from cavalcade.trained import evaluate as evaluate
    from cavalcade.trained import load_policy as load_policy
    from cavalcade.training import resume as resume
    from cavalcade.training import train as train
    from cavalcade.typed_settings import settings as settings

__version__ = "0.1.0"

_HOMES = {
    "train": "cavalcade.training",
    "resume": "cavalcade.training",
    "settings": "cavalcade.typed_settings",
    "evaluate": "cavalcade.trained",
    "play": "cavalcade.trained",
    "load_policy": "cavalcade.trained",
    "Greedy": "cavalcade.greedy",
    "check": "cavalcade.checking",
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


def __dir__() -> list[str]:
    return sorted(__all__)
