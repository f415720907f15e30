"""Numbers that environments put into their infos, summed until they are reported.

Two places are read: the dict `info["metrics"]` of any step, and `info` itself in the step that ends an episode. Entries
that Gymnasium, its wrappers and Shimmy put there (`NOT_METRICS`) are left out, and so is what is not one finite number.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from cavalcade.envs.batches import as_info
from cavalcade.specs import MASK

METRICS = "metrics"
NOT_METRICS = {MASK, METRICS, "TimeLimit.truncated", "episode", "lives", "seeds", "prob", "p", "env_id"}
NOT_METRICS |= {"frame_number", "episode_frame_number", "final_obs", "final_observation", "final_info", "reset_mask"}
NOT_METRICS |= {"timestep.discount", "timestep.step_type"}

Sums = dict[str, list]  # name -> [sum of the values, number of values]


class Tally:
    """Sums and counts of the numbers in infos, by name."""

    def __init__(self) -> None:
        self.sums: Sums = {}

    def add_steps(self, infos: Iterable[dict]) -> None:
        """Add `info["metrics"]` of single environments, after any step."""
        for info in infos:
            if METRICS in info:
                self._add_all(info[METRICS])

    def add_end(self, info: dict) -> None:
        """Add the info of one environment, after the step that ended its episode."""
        self._add_all({name: value for name, value in info.items() if name not in NOT_METRICS})

    def add_vector_step(self, info: dict, valid: np.ndarray, ended: np.ndarray, reset_at_once: bool) -> None:
        """Add the infos of one step of a vector environment. `reset_at_once`: where an episode ended, the infos are
        those of the reset that followed, and those of the end are in `final_info`. `valid`, `ended`: [N]."""
        over = np.flatnonzero(ended).tolist()
        if not reset_at_once:
            self.add_vector(info, np.flatnonzero(valid).tolist(), over)
            return
        self.add_vector(info, np.flatnonzero(~ended).tolist(), [])
        if over:
            self.add_vector(as_info(info.get("final_info")), over, over)

    def add_vector(self, info: dict, rows: Sequence[int], ended: Sequence[int]) -> None:
        """Add infos of a vector environment: metrics of the environments `rows`, all infos of those that `ended`."""
        if METRICS in info:
            for row in rows:
                if _has(info, METRICS, row):
                    self._add_all(_row(info[METRICS], row))
        for row in ended:
            self.add_end(_row(info, row))

    def _add_all(self, metrics: Any) -> None:
        if not isinstance(metrics, dict):
            return
        for name, value in metrics.items():
            number = _number(value)
            if number is not None and isinstance(name, str) and not name.startswith("_"):
                entry = self.sums.setdefault(name, [0.0, 0])
                entry[0] += number
                entry[1] += 1

    def drain(self) -> Sums:
        """The sums since the last call, which begin anew."""
        sums, self.sums = self.sums, {}
        return sums

    def state(self) -> Sums:
        return {name: list(entry) for name, entry in self.sums.items()}

    def restore(self, state: Sums) -> None:
        self.sums = {name: list(entry) for name, entry in state.items()}


def _number(value: Any) -> float | None:
    """The value as a float if it is one finite number."""
    if not isinstance(value, (bool, int, float, np.generic, np.ndarray)) or np.ndim(value):
        return None
    return float(value) if np.asarray(value).dtype.kind in "biuf" and math.isfinite(value) else None


def _has(info: dict, name: str, row: int) -> bool:
    """Whether environment `row` gave this entry of a vector environment's infos. Gymnasium says so in an array `_name`
    beside it; without that array all environments gave it."""
    given = info.get(f"_{name}")
    return given is None or bool(given[row])


def _row(info: Any, row: int) -> dict:
    """What one environment gave, out of the infos of a vector environment."""
    if not isinstance(info, dict):
        return {}
    return {
        name: values[row]
        for name, values in info.items()
        if isinstance(values, np.ndarray) and len(values) > row and _has(info, name, row)
    }
