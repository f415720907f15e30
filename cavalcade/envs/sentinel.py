"""The guard at the door: values that would poison learning are refused where they appear.

A NaN that an environment gives at step 10 shows up hours later as a broken policy, far from its cause. So
every step is checked with one cheap reduction, and the error names the environment, the episode and the
step.
"""

from collections.abc import Callable
from math import isfinite

import numpy as np

from cavalcade import tree
from cavalcade.errors import UserError
from cavalcade.specs import MASK, EnvSpec

Place = Callable[[int], str]  # row -> "environment 3, episode 5, step 17"


class Sentinel:
    def __init__(self, spec: EnvSpec) -> None:
        self._name = spec.environment
        self._masked = spec.masked
        names = [name for name, leaf in tree.named(spec.observation) if np.dtype(leaf.dtype).kind == "f"]
        self._float_names = set(names)
        self._single_float = names == [""]  # the usual case: the observation is one array of floats

    def check_observation(self, observation: tree.Tree, place: Place) -> None:
        if self._single_float:
            # A sum of squares is one call without a temporary array. It may overflow where every value is
            # finite, so it only decides whether the exact question is asked.
            if not isfinite(np.vdot(observation, observation)):
                self._check_each("", observation, place)
        elif self._float_names:
            for name, array in tree.named(observation):
                if name in self._float_names and not isfinite(np.vdot(array, array)):
                    self._check_each(name, array, place)

    def check_reward(self, reward: np.ndarray, place: Place) -> None:
        if not isfinite(np.vdot(reward, reward)):
            for row in np.flatnonzero(~np.isfinite(reward)).tolist():
                raise UserError(
                    f"The environment '{self._name}' gave the reward {reward[row]} in {place(row)}; "
                    "make it give finite rewards."
                )

    def check_mask(self, observation: tree.Tree, terminated: np.ndarray | None, place: Place) -> None:
        """Every state that can be acted on needs a legal action. A terminal state has none and needs none: it
        gets all of them, so that a maximum over its legal actions stays finite when discounted by zero."""
        if not self._masked:
            return
        mask = observation[MASK]
        stuck = ~mask.any(axis=1)
        if not stuck.any():
            return
        for row in np.flatnonzero(stuck if terminated is None else stuck & ~terminated).tolist():
            raise UserError(
                f"The environment '{self._name}' gave no legal action in its '{MASK}' in {place(row)}; "
                "allow at least one action in every state where the episode goes on."
            )
        mask[stuck] = 1

    def _check_each(self, name: str, array: np.ndarray, place: Place) -> None:
        finite = np.isfinite(array).reshape(len(array), -1)
        for row in np.flatnonzero(~finite.all(axis=1)).tolist():
            value = array[row].reshape(-1)[~finite[row]][0]
            part = f"'{name}' of the observation" if name else "the observation"
            raise UserError(
                f"The environment '{self._name}' gave {value} in {part} in {place(row)}; "
                "make it give finite observations."
            )
