"""Settings as data: frozen dataclasses whose fields say what they mean and what they may be.

    @dataclass(frozen=True)
    class DQN(Config):
        discount: float = setting(0.99, "what a reward is worth one step later", "learning", at_least=0, at_most=1)

Values are converted and checked in the same way, whether they come from the command line, from Python or from a
config.json. A subclass that changes a default (`discount: float = 0.9`) keeps the sentence and the range.
"""

import dataclasses
import math
import types
import typing
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Self

import numpy as np

from cavalcade.errors import UserError, nearest

Numbers, Words = tuple[int, ...], tuple[str, ...]
TRUE, FALSE, NONE = ("true", "yes", "on", "1"), ("false", "no", "off", "0"), ("none", "null")


@dataclass(frozen=True)
class About:
    """What is declared of a setting: a sentence, the group in which help shows it, and which values are allowed."""

    sentence: str = ""
    group: str = ""
    at_least: float | None = None
    at_most: float | None = None
    above: float | None = None
    below: float | None = None
    words: tuple[str, ...] = ()  # the only values that are allowed; empty: any value of its type


def setting(default: Any, sentence: str, group: str = "", **may_be: Any) -> Any:
    """A field of a `Config`; `may_be`: the bounds and words of `About`."""
    return field(default=default, metadata={"about": About(sentence, group, **may_be)})


@dataclass(frozen=True)
class Setting:
    """One setting of a config, with what the command line, the help and the check need."""

    name: str
    kind: Any  # its type, a key of CONVERSIONS
    optional: bool  # whether None is a value
    default: Any
    about: About

    @property
    def option(self) -> str:
        return "--" + self.name.rstrip("_").replace("_", "-")  # `from_` ends so because `from` is a word of Python

    @property
    def expected(self) -> str:
        """`a whole number of at least 1`, for messages and help."""
        if self.about.words:
            return f"one of {', '.join(filter(None, self.about.words))}"
        nouns = {bool: "true or false", int: "a whole number", float: "a number", str: "a word", Path: "a path"}
        nouns |= {Numbers: "whole numbers such as 64 64", Words: "words"}
        noun = nouns[self.kind]
        a = self.about
        if a.at_least is not None and a.at_most is not None:
            noun += f" from {a.at_least:g} to {a.at_most:g}"
        else:
            bounds = {"of at least": a.at_least, "of at most": a.at_most, "above": a.above, "below": a.below}
            noun += " and".join(f" {words} {bound:g}" for words, bound in bounds.items() if bound is not None)
        return f"{noun}, or none" if self.optional else noun

    def converted(self, value: Any) -> Any:
        """`value` in the type of this setting. A UserError names the setting, what was given, and what is allowed."""
        if self.optional and (value is None or (isinstance(value, str) and value.lower() in NONE)):
            return None
        if self.about.words:
            if value not in self.about.words:
                guess = nearest(str(value), filter(None, self.about.words))
                raise UserError(f"{self.option} '{value}' is not {self.expected}.{guess}")
            return value
        try:
            made = CONVERSIONS[self.kind](value)
        except (TypeError, ValueError, OverflowError):
            raise self._refused(value) from None
        if not all(self._in_range(number) for number in (made if isinstance(made, tuple) else (made,))):
            raise self._refused(made)
        return made

    def _in_range(self, value: Any) -> bool:
        a = self.about
        return (
            (a.at_least is None or value >= a.at_least)
            and (a.at_most is None or value <= a.at_most)
            and (a.above is None or value > a.above)
            and (a.below is None or value < a.below)
        )

    def _refused(self, value: Any) -> UserError:
        given = " ".join(map(str, value)) if isinstance(value, tuple) else repr(value)
        return UserError(f"{self.option} is {given}; it has to be {self.expected}.")

    def shown(self, value: Any) -> str:
        """`value` as a user would type it after the option."""
        if value is None:
            return "none"
        if isinstance(value, bool):
            return str(value).lower()
        return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


@dataclass(frozen=True)
class Config:
    """Converts and checks its fields when it is made. A subclass that checks several fields together does so in its own
    `__post_init__`, which calls this one first."""

    def __post_init__(self) -> None:
        kind: Any = type(self)
        for name, declared in described(kind).items():
            object.__setattr__(self, name, declared.converted(getattr(self, name)))

    def replace(self, **changed: Any) -> Self:
        """A copy with these settings changed."""
        kind: Any = type(self)
        known = described(kind)
        for name in changed:
            if name not in known:
                raise UserError(f"There is no setting '{name}'.{nearest(name, known)}")
        return dataclasses.replace(self, **changed)


@cache
def described(kind: type) -> dict[str, Setting]:
    """The settings of a dataclass by name, in the order of their declaration."""
    hints = typing.get_type_hints(kind)
    found = {}
    for one in dataclasses.fields(kind):
        base, optional = _unwrapped(hints[one.name])
        found[one.name] = Setting(one.name, base, optional, one.default, _about(kind, one.name))
    return found


def _about(kind: type, name: str) -> About:
    """What the nearest class in the order of inheritance declares of the setting `name`."""
    for base in kind.__mro__:
        declared = base.__dict__.get("__dataclass_fields__", {}).get(name)
        if declared is not None and "about" in declared.metadata:
            return declared.metadata["about"]
    return About()


def _unwrapped(hint: Any) -> tuple[Any, bool]:
    """The type without None, and whether None is allowed: `float | None` gives (float, True)."""
    inner = typing.get_args(hint)
    optional = isinstance(hint, types.UnionType) and type(None) in inner
    if optional:
        hint = next(one for one in inner if one is not type(None))
    return hint, optional


def _bool(value: Any) -> bool:
    word = str(value).lower()
    if word in TRUE or word in FALSE:
        return word in TRUE
    raise ValueError


def _int(value: Any) -> int:
    """1e5, "1e5" and "100_000" are whole numbers; 0.5 and True are not."""
    if isinstance(value, (bool, np.bool_)):
        raise TypeError
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            value = float(value)
    if value != int(value):
        raise ValueError
    return int(value)


def _float(value: Any) -> float:
    if isinstance(value, (bool, np.bool_)) or math.isnan(float(value)):
        raise ValueError
    return float(value)


def _str(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _numbers(value: Any) -> tuple[int, ...]:
    """64, "64 64", "64,64" and [64, 64] are all accepted as whole numbers."""
    if isinstance(value, str):
        value = value.replace(",", " ").split()
    return tuple(map(_int, np.ravel(value).tolist() if not isinstance(value, (list, tuple)) else value))


def _words(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(map(_str, value))


CONVERSIONS: dict[Any, Any] = {bool: _bool, int: _int, float: _float, str: _str, Path: Path}
CONVERSIONS |= {Numbers: _numbers, Words: _words}
