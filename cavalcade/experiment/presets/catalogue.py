"""Finding presets: reads the TOML files of this folder and chooses the entry for a system and an environment."""

import textwrap
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from cavalcade import envs
from cavalcade.config import described
from cavalcade.errors import UserError, nearest
from cavalcade.experiment import systems
from cavalcade.experiment.run_settings import Settings


@dataclass(frozen=True)
class Entry:
    """One preset of a file: what it holds for, where it comes from, and its settings."""

    systems: tuple[str, ...]
    environments: tuple[str, ...]  # ids, or patterns with *
    source: str
    settings: dict[str, Any]  # of the run and of the algorithm


@dataclass(frozen=True)
class Preset:
    """The entry that was found for one environment. Without settings it changes nothing."""

    name: str = "none"  # the environment's id: `--preset NAME` finds the same again
    matched: str = ""  # the id or the pattern of the entry
    source: str = ""
    settings: dict[str, Any] = field(default_factory=dict)

    def of(self, kind: type) -> dict[str, Any]:
        """Those settings that are fields of the dataclass `kind`."""
        return {name: value for name, value in self.settings.items() if name in described(kind)}

    @property
    def told(self) -> str:
        """`preset of LunarLander-v3, rl-baselines3-zoo`."""
        return f"preset of {self.matched}, {self.source.partition(',')[0]}"


NONE = Preset()


@cache
def entries() -> tuple[Entry, ...]:
    """All presets, in the order of their files."""
    files = [tomllib.loads(path.read_text("utf-8")) for path in sorted(Path(__file__).parent.glob("*.toml"))]
    bases: dict[str, dict] = {name: base for data in files for name, base in data.get("base", {}).items()}
    tables = [one for data in files for one in data.get("preset", ())]
    return tuple(_entry(one, bases[one["base"]] if "base" in one else {}) for one in tables)


def _entry(data: dict, base: dict[str, Any]) -> Entry:
    """An entry from its table; its own settings come first, then those of the base that it does not change."""
    rest = {name: value for name, value in base.items() if name not in data["settings"]}
    settings = {n: tuple(v) if isinstance(v, list) else v for n, v in {**data["settings"], **rest}.items()}
    return Entry(tuple(data["systems"]), tuple(data["environments"]), data["source"], settings)


def find(system: str, environment: Any, wanted: str = "auto") -> Preset:
    """The preset that a run of `system` uses. `wanted` is the setting `preset`: "none"; the id of an environment, which
    has to have one; or "auto": that of `environment`, or `NONE` if there is none.

    Functions have no id, so "auto" finds none for them. An environment object has the id of its spec; its number of
    environments cannot be changed, so "auto" finds only a preset that is for as many.
    """
    systems.find(system)  # raises if there is none of that name
    if wanted == "none":
        return NONE
    if wanted != "auto":
        found = _best(system, envs.id_of(wanted))
        if found is NONE:
            known = [name for entry in entries() if system in entry.systems for name in entry.environments]
            raise UserError(
                f"{system} has no preset of '{wanted}'; cavalcade presets {system} lists those that it has."
                f"{nearest(wanted, known)}"
            )
        return found
    found, count = _best(system, envs.id_of(environment)), envs.held(environment)
    return NONE if count is not None and found.settings.get("envs", count) != count else found


def run_settings(system: str, environment: Any, given: dict[str, Any]) -> Settings:
    """The settings of a run: those that are `given`, else the preset's, else the defaults."""
    asked = Settings(**given)
    preset = find(system, environment, asked.preset)
    return asked.replace(**{**preset.of(Settings), **given, "preset": preset.name})


def listing(system: str = "", environment: str = "") -> list[str]:
    """The lines of `cavalcade presets`: each preset with its source; of a named system with its settings too; of a
    named environment the one that is used."""
    if system:
        systems.find(system)  # raises if there is none of that name
    if environment:
        found = find(system, environment, environment)
        return list(_lines((system,), (found.matched,), found.source, found.settings))
    lines: list[str] = []
    for entry in entries():
        if not system or system in entry.systems:
            lines += _lines(entry.systems, entry.environments, entry.source, entry.settings if system else {})
    return lines


def _best(system: str, name: str) -> Preset:
    """The entry for an environment's id: one that names it before one whose pattern fits."""
    ours = [(known, entry) for entry in entries() if system in entry.systems for known in entry.environments]
    for fits in (str.__eq__, fnmatchcase):
        for known, entry in ours:
            if fits(name, known):
                return Preset(name, known, entry.source, entry.settings)
    return NONE


def _lines(names: tuple[str, ...], environments: tuple[str, ...], source: str, settings: dict) -> Iterator[str]:
    yield f"{', '.join(names)} on {', '.join(environments)}"
    yield f"    {source}"
    shown = (f"--{name.replace('_', '-')} {_typed(value)}" for name, value in settings.items())
    text = " ".join(one.replace(" ", "\0") for one in shown)  # an option stays on one line with its value
    lines = textwrap.wrap(text, 112, break_on_hyphens=False, break_long_words=False)
    yield from (f"    {line}".replace("\0", " ") for line in lines)


def _typed(value: Any) -> str:
    """A value as a user would type it."""
    if isinstance(value, bool):
        return str(value).lower()
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
