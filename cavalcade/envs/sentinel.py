"""The guard at the door: values that would poison learning are refused where they appear.

A NaN that an environment gives at step 10 shows up hours later as a broken policy, far from its cause. So every step is
checked with a look at the shapes and one cheap reduction, and the error names environment, episode and step.
"""

from collections.abc import Iterator
from math import isfinite

import numpy as np

from cavalcade import tree
from cavalcade.envs.fitting import Misfit
from cavalcade.envs.protocol import Place
from cavalcade.errors import BadEnvironment
from cavalcade.specs import MASK, EnvSpec, Leaf


class Sentinel:
    def __init__(self, spec: EnvSpec, count: int, place: Place) -> None:
        self._name, self._masked, self._place = spec.environment, spec.masked, place
        self._leaves = [  # keys, shape, whether a value may be infinite or NaN
            (keys, (count, *leaf.shape), np.dtype(leaf.dtype).kind == "f") for keys, leaf in _leaves(spec.observation)
        ]
        self._choices = np.cumsum((0, *spec.action.counts[:-1]))  # where the mask of each entry of an action begins

    def check_observation(self, observation: tree.Tree) -> None:
        for keys, shape, is_float in self._leaves:
            array = observation
            for key in keys:
                array = array[key]
            if array.shape != shape:
                misfit = Misfit(0, "/".join(keys), f"an array of shape {array.shape[1:]}", f"the shape {shape[1:]}")
                raise BadEnvironment(misfit.sentence(self._name, self._place(0)))
            # A sum of squares is one call without a temporary array. It may overflow where every value is finite, so
            # it only decides whether the exact question is asked.
            if is_float and not isfinite(np.vdot(array, array)):
                self._check_each("/".join(keys), array)

    def check_reward(self, reward: np.ndarray) -> None:
        if not isfinite(np.vdot(reward, reward)):
            for row in np.flatnonzero(~np.isfinite(reward)).tolist():
                raise BadEnvironment(
                    f"The environment '{self._name}' gave the reward {reward[row]} in {self._place(row)}; "
                    "make it give finite rewards."
                )

    def check_mask(self, observation: tree.Tree, terminated: np.ndarray | None) -> None:
        """Every state that can be acted on needs a legal action, of MultiDiscrete in each entry. A terminal state has
        none and needs none: it gets all of them, so that a maximum over its legal actions stays finite when discounted
        by zero."""
        if not self._masked:
            return
        mask = observation[MASK]
        stuck = ~np.maximum.reduceat(mask, self._choices, axis=1).all(axis=1)
        if not stuck.any():
            return
        for row in np.flatnonzero(stuck if terminated is None else stuck & ~terminated).tolist():
            raise BadEnvironment(
                f"The environment '{self._name}' gave no legal action in its '{MASK}' in {self._place(row)}; "
                "allow at least one action in every state where the episode goes on."
            )
        mask[stuck] = 1

    def _check_each(self, name: str, array: np.ndarray) -> None:
        finite = np.isfinite(array).reshape(len(array), -1)
        for row in np.flatnonzero(~finite.all(axis=1)).tolist():
            value = array[row].reshape(-1)[~finite[row]][0]
            part = f"'{name}' of the observation" if name else "the observation"
            raise BadEnvironment(
                f"The environment '{self._name}' gave {value} in {part} in {self._place(row)}; "
                "make it give finite observations."
            )


def _leaves(spec: tree.Tree, keys: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Leaf]]:
    if not isinstance(spec, dict):
        yield keys, spec
        return
    for key, child in spec.items():
        yield from _leaves(child, (*keys, key))
