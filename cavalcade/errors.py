"""Errors a user can act on: one sentence that says what is wrong and what to change."""

import difflib
from collections.abc import Iterable
from typing import Any


class UserError(Exception):
    """Bad input, a bad file or a bad environment. The command line prints it without a traceback."""


class BadEnvironment(UserError):
    """An environment breaks Gymnasium's rules. `cavalcade check` lists this error as a finding; other errors end it."""


class Stopped(RuntimeError):
    """Raised in a node that waits for, or uses, a node that was closed: the program ends, and so does the waiting
    one."""


def nearest(word: str, options: Iterable[str]) -> str:
    """` Did you mean 'x'?`, with a leading space, for the option most like `word`; or an empty string."""
    by_lower = {option.lower(): option for option in options}
    close = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.5)
    return f" Did you mean '{by_lower[close[0]]}'?" if close else ""


def require_one_of(config: Any, **choices: Iterable[str]) -> None:
    """Raise a UserError if a setting of `config` is none of the words that are given for it."""
    for name, words in choices.items():
        given, words = getattr(config, name), tuple(words)
        if given not in words:
            option = name.replace("_", "-")
            raise UserError(f"--{option} '{given}' is not one of {', '.join(words)}.{nearest(str(given), words)}")


def require_at_least(config: Any, **bounds: float) -> None:
    """Raise a UserError if a setting of `config` is no number or is below its bound."""
    for name, bound in bounds.items():
        value = getattr(config, name)
        if not isinstance(value, (int, float)) or not value >= bound:  # refuses NaN too
            raise UserError(f"--{name.replace('_', '-')} is {value}; it has to be at least {bound:g}.")
