"""Options of the environment that differ from actor to actor: actor i has value i of each list, counted round."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from cavalcade.errors import UserError
from cavalcade.specs import EnvSpec


def require_values(given: Mapping[str, Any], actors: int) -> dict[str, list]:
    """The values of each option as a list; refused if some actor or some value would be left out."""
    found = {}
    for name, values in given.items():
        if not isinstance(values, (list, tuple)) or not values:
            raise UserError(
                f"--actor-option {name} needs a list of values, one for each actor or fewer, but it is {values!r}."
            )
        if len(values) > actors:
            some = "actors" if actors > 1 else "actor"
            raise UserError(
                f"--actor-option {name} has {len(values)} values for --actors {actors}; actor i gets value i, so give "
                f"at most {actors} for {actors} {some}, or more --actors."
            )
        found[name] = list(values)
    return found


def options_of(actor: int, options: Mapping[str, Any], actor_options: Mapping[str, list]) -> dict[str, Any]:
    """The options of one actor's environments: its own values on top of those that all have."""
    return {**options, **{name: values[actor % len(values)] for name, values in actor_options.items()}}


def variants(options: Mapping[str, Any], actor_options: Mapping[str, list], actors: int) -> list[dict[str, Any]]:
    """The options of all actors, each kind once."""
    every = (options_of(actor, options, actor_options) for actor in range(actors if actor_options else 1))
    return list({repr(one): one for one in every}.values())


def require_equal_spaces(spec: EnvSpec, options: dict, kinds: list[dict], probe: Callable[[dict], EnvSpec]) -> None:
    """Refuse kinds of options with which the environment has other spaces than with the plain `options`, which gave
    `spec`. `probe`: finds the spec by making an environment. Names and time limits may differ."""
    for kind in kinds:
        if kind == options:
            continue
        found = replace(probe(kind), environment=spec.environment, time_limit=spec.time_limit)
        if found != spec:
            shown = ", ".join(f"{name}={value}" for name, value in kind.items() if options[name] != value)
            raise UserError(
                f"With --actor-option {shown} {spec.environment} has other spaces; all actors need equal ones."
            )
