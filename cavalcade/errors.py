"""Errors a user can act on: one sentence that says what is wrong and what to change."""

import difflib
from collections.abc import Iterable
from typing import Any


class UserError(Exception):
    """Bad input, a bad file or a bad environment. The command line prints it without a traceback."""


class BadEnvironment(UserError):
    """An environment does what it must not do: `cavalcade check` lists it, and ends otherwise at other errors."""


class Stopped(RuntimeError):
    """What was waited for was stopped: the program ends, and so does whoever waited."""


def nearest(word: str, options: Iterable[str]) -> str:
    """` Did you mean 'x'?` for the option most like `word`, or an empty string."""
    by_lower = {option.lower(): option for option in options}
    close = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.5)
    return f" Did you mean '{by_lower[close[0]]}'?" if close else ""


def require_one_of(config: Any, **choices: Iterable[str]) -> None:
    """Refuse a word in a setting of `config` that means nothing."""
    for name, words in choices.items():
        given, words = getattr(config, name), tuple(words)
        if given not in words:
            option = name.replace("_", "-")
            raise UserError(f"--{option} '{given}' is not one of {', '.join(words)}.{nearest(str(given), words)}")


def require_at_least(config: Any, **bounds: float) -> None:
    """Refuse a setting of `config` that is no number, or below its bound."""
    for name, bound in bounds.items():
        value = getattr(config, name)
        if not isinstance(value, (int, float)) or not value >= bound:  # NaN is not at least anything
            raise UserError(f"--{name.replace('_', '-')} is {value}; it has to be at least {bound:g}.")
