"""Which runs are one line of a picture: those that differ only in their seed. Lines are named by what differs."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cavalcade.errors import UserError
from cavalcade.records.folder import Run

# Settings that do not change how a run learns; neither do those whose names begin with `evaluation`. What a preset has
# changed is in other settings.
ASIDE = ("format", "seed", "versions", "target", "rows", "checkpoint_seconds", "address", "preset")
SPEAK_FOR_THEMSELVES = ("system", "environment", "backend", "runtime")  # labels show these values without names
LONGEST_LABEL, LONGEST_PIECE = 56, 32  # characters

Facts = dict[str, str]  # settings by name, as JSON


@dataclass
class Line:
    """Runs with the same settings."""

    label: str
    runs: list[Run]


def lines(runs: Sequence[Run], labels: Sequence[str] = ()) -> list[Line]:
    """The lines of a picture, in the order of their first runs. `labels`: one for each run, and runs with equal labels
    are one line; or one for each of the lines that there are without labels."""
    if labels and len(labels) == len(runs):
        by_label: dict[str, list[Run]] = {}
        for label, run in zip(labels, runs):
            by_label.setdefault(label, []).append(run)
        return [Line(label, members) for label, members in by_label.items()]
    found = _by_setting(runs)
    if labels and len(labels) != len(found):
        given = "1 label fits" if len(labels) == 1 else f"{len(labels)} labels fit"
        raise UserError(
            f"{given} neither the {len(runs)} run folders nor the {len(found)} lines they make "
            f"({'; '.join(line.label for line in found)}): give one for each folder or one for each line."
        )
    for line, label in zip(found, labels):
        line.label = label
    return found


def _by_setting(runs: Sequence[Run]) -> list[Line]:
    """One line for each combination of settings, labelled by what differs."""
    groups: dict[str, tuple[Facts, list[Run]]] = {}
    for facts, run in zip(_facts([run.config for run in runs]), runs):
        groups.setdefault(json.dumps(facts, sort_keys=True), (facts, []))[1].append(run)
    everyone = [facts for facts, _ in groups.values()]
    found = [Line(_label(facts, everyone), members) for facts, members in groups.values()]
    names = [line.label for line in found]
    for line, name in zip(found, names):
        if not name or names.count(name) > 1:  # no config, or the differences were cut off as too long
            line.label = f"{name}, {line.runs[0].path.name}".removeprefix(", ")
    return found


def _facts(configs: Sequence[dict[str, Any]]) -> list[Facts]:
    """The settings by which each run is compared. A setting that only some configs of a system have, because another
    version of the program wrote them, is left out; an option of the environment that was not given is "default"."""
    everything = [_flat(config) for config in configs]
    options = dict.fromkeys(name for flat in everything for name in flat if name.startswith("options."))
    facts = []
    for flat in everything:
        peers = [other for other in everything if other.get("system") == flat.get("system")]
        known = {name: value for name, value in flat.items() if all(name in other for other in peers)}
        facts.append({"system": '""', **known, **{name: flat.get(name, '"default"') for name in options}})
    return facts


def _flat(config: dict[str, Any]) -> Facts:
    """A config without nesting: `options.NAME`, `algorithm.NAME`, and the rest by its names."""
    flat: Facts = {}
    for name, value in config.items():
        if name in ("options", "algorithm") and isinstance(value, dict):
            flat |= {f"{name}.{inner}": json.dumps(kept) for inner, kept in value.items()}
        elif name not in ASIDE and not name.startswith("evaluation"):
            flat[name] = json.dumps(value)
    return flat


def _label(facts: Facts, everyone: list[Facts]) -> str:
    """The settings in which a line differs from others; an algorithm's settings are compared within one system only."""
    pieces = []
    for name in sorted(facts, key=_rank):
        peers = [other for other in everyone if not _of_algorithm(name) or other["system"] == facts["system"]]
        if len({other[name] for other in peers if name in other}) > 1:
            pieces.append(_piece(name, json.loads(facts[name])))
    shown = pieces or [str(json.loads(facts["system"]))]
    while len(", ".join(shown)) > LONGEST_LABEL and len(shown) > 1:
        shown = shown[:-1]
    more = [f"{len(pieces) - len(shown)} more"] if len(pieces) > len(shown) else []
    return ", ".join([*shown, *more])


def _of_algorithm(name: str) -> bool:
    return name.startswith("algorithm.")


def _rank(name: str) -> int:
    """Where a setting stands in a label: system, environment, its options, the algorithm's, then all others."""
    first = [name == "system", name == "environment", name.startswith("options."), _of_algorithm(name)]
    return first.index(True) if any(first) else len(first)


def _piece(name: str, value: Any) -> str:
    """One setting as a label shows it, with its name on the command line."""
    section, _, inner = name.rpartition(".")
    word = inner.replace("_", "-")
    if section == "options":
        text = f"{inner}={value if isinstance(value, str) else json.dumps(value)}"
    elif name in SPEAK_FOR_THEMSELVES:
        text = str(value)
    elif isinstance(value, bool):
        text = word if value else f"no {word}"
    elif isinstance(value, list):
        text = f"{word} {' '.join(map(str, value))}"
    elif isinstance(value, int | float):
        text = f"{word} {value:,}" if isinstance(value, int) else f"{word} {value:g}"
    else:
        text = f"{word} {value or 'default'}"  # empty means as the system says
    half = LONGEST_PIECE // 2
    return text if len(text) <= LONGEST_PIECE else f"{text[: half - 1]}…{text[-half:]}"
