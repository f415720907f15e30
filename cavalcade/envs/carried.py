"""Environment ids that only one process has registered, in its script or a notebook, sent to processes that it starts.

A script is not run again in the processes of a run, so ids that it registers would be unknown there. Their specs travel
as bytes. They are registered when an id is asked for that is missing, so that modules can register their own ids first.
"""

import contextlib
import dataclasses
from typing import Any

import cloudpickle
import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, load_env_creator

EVERYWHERE = ("gymnasium.", "cavalcade.")  # modules whose ids every process knows
_carried: dict[str, bytes] = {}  # id -> pickled spec, sent to this process


def pack(environment: Any) -> dict[str, bytes]:
    """The ids of this process that another process may need to make `environment`: if it is an id that one, if it is a
    function all. A spec that cannot be pickled is left out: who needs it is told that there is no such environment."""
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
    """Keep what another process has packed, for `register_missing`."""
    _carried.update(packed)


def register_missing() -> bool:
    """Register the ids that were sent here and are unknown here; whether there were any."""
    missing = {name: packed for name, packed in _carried.items() if name not in gym.registry}
    gym.registry.update({name: cloudpickle.loads(packed) for name, packed in missing.items()})
    return bool(missing)


def _origin(spec: EnvSpec) -> str:
    """The module that makes the environment, as the beginning of a dotted name."""
    made_by = spec.entry_point or spec.vector_entry_point
    return made_by if isinstance(made_by, str) else f"{getattr(made_by, '__module__', '')}."


def _by_value(spec: EnvSpec) -> EnvSpec:
    """The spec with classes of `__main__` instead of their names: in another process `__main__` is another script."""
    entries: dict[str, Any] = {name: getattr(spec, name) for name in ("entry_point", "vector_entry_point")}
    for name, entry in entries.items():
        if isinstance(entry, str) and entry.startswith("__main__:"):
            entries[name] = load_env_creator(entry)
    return dataclasses.replace(spec, **entries)
