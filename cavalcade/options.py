"""From the words of a command line to settings; a word that cannot be understood is refused with one sentence.

Settings convert and check their values themselves (`config.py`), as they do with values from Python.
"""

import ast
import dataclasses
import json
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from cavalcade.config import Numbers, Setting, Words, described
from cavalcade.errors import UserError, nearest

HELP = ("--help", "-h")
LEFT, WIDEST = 32, 120  # columns of the terminal: for options in the help, and the most for a line


def parse(kind: type, arguments: list[str], prog: str) -> Any:
    """An instance of the dataclass `kind`, made from options. `--help` prints all options and ends the program."""
    declared = described(kind)
    if set(HELP) & set(arguments):
        print(f"cavalcade {prog}\n")
        print("\n".join(help_lines(declared.values(), {}) or ["No options."]), flush=True)
        raise SystemExit(0)
    values = {one.name: one.default if one.default is not dataclasses.MISSING else None for one in declared.values()}
    return kind(**{**values, **given(declared, arguments, prog)})


def given(declared: Mapping[str, Setting], arguments: list[str], prog: str) -> dict[str, Any]:
    """By name, the converted values of the settings that `arguments` give; an unknown option is refused with the
    nearest name."""
    by_option = {one.option: one for one in declared.values()}
    negated = {f"--no-{one.option[2:]}": one for one in declared.values() if one.kind is bool}
    found: dict[str, Any] = {}
    for option, words in _in_pieces(arguments, prog):
        one = by_option.get(option) or negated.get(option)
        if one is None:
            raise UserError(f"There is no option '{option}'.{nearest(option, sorted(by_option))}")
        if one.kind is bool and not words:
            found[one.name] = option in by_option
        elif one.kind == Words:  # the option may come several times
            found[one.name] = (*found.get(one.name, ()), *one.converted(words))
        elif one.kind == Numbers:
            found[one.name] = one.converted(" ".join(words))
        elif not words:
            raise UserError(f"{option} needs a value: {one.expected}.")
        elif len(words) > 1 or option in negated:
            raise UserError(f"'{words[-1]}' is one word too many; see cavalcade {prog} --help.")
        else:
            found[one.name] = one.converted(words[0])
    return found


def _in_pieces(arguments: list[str], prog: str) -> Iterator[tuple[str, list[str]]]:
    """Each option with the words after it, `--name value` or `--name=value`; `-150` is a value, not an option."""
    option: str = ""
    words: list[str] = []
    for word in arguments:
        if word.startswith("--") and len(word) > 2:
            if option:
                yield option, words
            option, equals, value = word.partition("=")
            words = [value] if equals else []
        elif not option:
            raise UserError(f"'{word}' is one word too many; see cavalcade {prog} --help.")
        else:
            words.append(word)
    if option:
        yield option, words


def help_lines(settings: Any, chosen: Mapping[str, tuple[Any, str]]) -> list[str]:
    """A line or more for each setting: the option with its value as it could be typed, the sentence, and the source of
    the value. `chosen`: name -> (value, source); settings that it lacks are shown with their default."""
    width = min(shutil.get_terminal_size((WIDEST, 24)).columns, WIDEST)
    lines = []
    for one in settings:
        value, source = chosen.get(one.name, (one.default, ""))
        typed = "" if value is dataclasses.MISSING else one.shown(value)
        left = f"  {one.option} {typed}".rstrip()
        words = f" ({', '.join(filter(None, one.about.words))})" if one.about.words else ""
        origin = f" [{source}]" if source else ""
        text = f"{one.about.sentence}{words}{origin}"
        right = textwrap.wrap(text, max(width - LEFT - 1, 20), break_on_hyphens=False) or [""]
        if len(left) >= LEFT:
            lines.append(left)
            left = ""
        lines += [f"{left:<{LEFT}} {right[0]}".rstrip(), *(f"{'':<{LEFT}} {more}" for more in right[1:])]
    return lines


def environment_options(arguments: list[str]) -> tuple[dict, list[str]]:
    """The options for the environment (`--option name=value`, by name), and the words that are left."""
    options: dict = {}
    rest: list[str] = []
    words = iter(arguments)
    for word in words:
        if word != "--option" and not word.startswith("--option="):
            rest.append(word)
            continue
        text = word.partition("=")[2] if "=" in word else next(words, "")
        name, equals, value = text.partition("=")
        if not equals:
            raise UserError("--option takes name=value, for example --option max_episode_steps=200.")
        options[name] = plain_value(value)
    return options, rest


def actor_options(words: Iterable[str]) -> dict[str, list]:
    """By name, the values of `name=value,value,...`; values with commas of their own are written as one JSON list."""
    found = {}
    for word in words:
        name, equals, values = word.partition("=")
        if not equals or not values:
            raise UserError("--actor-option takes name=value,value,..., for example --actor-option g=9.8,3.7.")
        one_list = values.startswith("[")
        found[name] = plain_value(values) if one_list else [plain_value(value) for value in values.split(",")]
    return found


def plain_value(text: str) -> Any:
    """A number, true, false, none, a list or a dict, written as JSON or as Python would; anything else is a string."""
    named = {"true": True, "false": False, "none": None, "null": None}
    if text.lower() in named:
        return named[text.lower()]
    for read in (json.loads, ast.literal_eval):
        try:
            return read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    return text


def positionals(arguments: list[str], count: int, usage: str) -> tuple[list[str], list[str]]:
    """The words before the first option, and the rest. There must be `count` of them (0: one or more)."""
    words = []
    for argument in arguments:
        if argument.startswith("-"):
            break
        words.append(argument)
    if set(HELP) & set(arguments):
        return words or [""] * max(count, 1), arguments[len(words) :]
    if len(words) != count and (count or not words):
        raise UserError(f"Usage: cavalcade {usage}")
    return words, arguments[len(words) :]
