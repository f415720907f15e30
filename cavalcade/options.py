"""From the words of a command line to settings; what cannot be understood is said in one sentence."""

import contextlib
import dataclasses
import io
import json
import re
import sys
from typing import Any

from cavalcade.errors import UserError, nearest


def parse(kind: type, arguments: list[str], prog: str) -> Any:
    """An instance of the dataclass `kind` from options; an unknown one is refused with the nearest name."""
    import tyro

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            result: Any = tyro.cli(
                kind,
                args=arguments,
                prog=f"cavalcade {prog}",
                return_unknown_args=True,
                config=(tyro.conf.OmitArgPrefixes,),
            )
    except SystemExit as stop:
        if not stop.code:  # --help
            sys.stdout.flush()
            raise
        lines = [re.sub(r"[│╭╮╰╯─]", "", line).strip() for line in said.getvalue().splitlines()]
        raise UserError(f"{next((line for line in lines[1:] if line), 'Bad options')}; see --help.") from None
    parsed, unknown = result
    for word in unknown:
        if word.startswith("-"):
            options = sorted(_options(kind))
            raise UserError(f"There is no option '{word.split('=')[0]}'.{nearest(word.split('=')[0], options)}")
    if unknown:
        raise UserError(f"'{unknown[0]}' is one word too many; see cavalcade {prog} --help.")
    return parsed


def _options(kind: Any) -> set[str]:
    found = set()
    for field in dataclasses.fields(kind):
        inner = field.type if not isinstance(field.type, str) else None
        if dataclasses.is_dataclass(inner):
            found |= _options(inner)
        else:
            found.add("--" + field.name.replace("_", "-"))
    return found


def environment_options(arguments: list[str]) -> tuple[dict, list[str]]:
    """`--option name=value` (JSON values), given to the environment."""
    options: dict = {}
    rest: list[str] = []
    words = iter(arguments)
    for word in words:
        if word != "--option":
            rest.append(word)
            continue
        name, equals, value = next(words, "").partition("=")
        if not equals:
            raise UserError("--option takes name=value, for example --option max_episode_steps=200.")
        try:
            options[name] = json.loads(value)
        except json.JSONDecodeError:
            options[name] = value
    return options, rest


def positionals(arguments: list[str], count: int, usage: str) -> tuple[list[str], list[str]]:
    """The leading words and the options after them; `count` 0 takes one or more."""
    words = []
    for argument in arguments:
        if argument.startswith("-"):
            break
        words.append(argument)
    if "--help" in arguments or "-h" in arguments:
        return words or [""] * max(count, 1), arguments[len(words) :]
    if len(words) != count and (count or not words):
        raise UserError(f"Usage: cavalcade {usage}")
    return words, arguments[len(words) :]
