"""Cavalcade: large-scale reinforcement learning that anyone can read, run and trust.

Importing the package loads no deep-learning library: a name is imported from its module when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for editors and type checkers, which cannot follow `__getattr__`
    from cavalcade.errors import UserError as UserError
    from cavalcade.experiment.typed_settings import settings as settings
    from cavalcade.records.folder import Run as Run
    from cavalcade.runs.trained import evaluate as evaluate
    from cavalcade.runs.trained import load_policy as load_policy
    from cavalcade.runs.training import resume as resume
    from cavalcade.runs.training import train as train

__version__ = "0.1.0"

_HOMES = {  # public name -> its module
    "train": "cavalcade.runs.training",
    "resume": "cavalcade.runs.training",
    "settings": "cavalcade.experiment.typed_settings",
    "evaluate": "cavalcade.runs.trained",
    "play": "cavalcade.runs.trained",
    "load_policy": "cavalcade.runs.trained",
    "Greedy": "cavalcade.acting.greedy",
    "check": "cavalcade.runs.checking",
    "Callback": "cavalcade.runs.callbacks",
    "STOP": "cavalcade.runs.callbacks",
    "Run": "cavalcade.records.folder",
    "UserError": "cavalcade.errors",
}
__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"cavalcade has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
