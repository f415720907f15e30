"""Environment ids that only one process has registered, in its script or a notebook, carried to processes it starts.

A script is not run again in the processes of a run, so what it registers would be unknown there. Ids go along as bytes
and are registered when something asks for an id that is missing: modules that register their own do so first.
"""

import contextlib
import dataclasses
from typing import Any

import cloudpickle
import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, load_env_creator

EVERYWHERE = ("gymnasium.", "cavalcade.")  # modules whose ids every process knows
_carried: dict[str, bytes] = {}  # to this process


def pack(environment: Any) -> dict[str, bytes]:
    """The ids of this process that making `environment` may need elsewhere: one, or for a function any. What cannot be
    sent is left out: whoever needs it is told that there is no such environment."""
    if isinstance(environment, str):
        specs = [gym.registry[environment]] if environment in gym.registry else []
    else:
        specs = list(gym.registry.values()) if callable(environment) else []
    packed = dict(_carried)
    for spec in specs:
        if not _origin(spec).startswith(EVERYWHERE):
            with contextlib.suppress(Exception):
                packed[spec.id] = cloudpickle.dumps(_by_value(spec))
    return packed


def unpack(packed: dict[str, bytes]) -> None:
    _carried.update(packed)


def register_missing() -> bool:
    """Register what was carried here and is not known yet; whether there was any."""
    missing = {name: packed for name, packed in _carried.items() if name not in gym.registry}
    gym.registry.update({name: cloudpickle.loads(packed) for name, packed in missing.items()})
    return bool(missing)


def _origin(spec: EnvSpec) -> str:
    made_by = spec.entry_point or spec.vector_entry_point
    return made_by if isinstance(made_by, str) else f"{getattr(made_by, '__module__', '')}."


def _by_value(spec: EnvSpec) -> EnvSpec:
    """The script's own classes: elsewhere its name leads to another script."""
    entries: dict[str, Any] = {name: getattr(spec, name) for name in ("entry_point", "vector_entry_point")}
    for name, entry in entries.items():
        if isinstance(entry, str) and entry.startswith("__main__:"):
            entries[name] = load_env_creator(entry)
    return dataclasses.replace(spec, **entries)
