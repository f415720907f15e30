"""The guard at every step: values that would poison learning are refused where they appear.

A NaN that an environment gives at step 10 shows up hours later as a broken policy, far from its cause. So in every step
the shapes are compared and one cheap sum is checked, and the error names environment, episode and step.
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
    """Refuses observations of another shape or that are not finite, such rewards, and states without a legal action."""

    def __init__(self, spec: EnvSpec, count: int, place: Place) -> None:
        self._name, self._masked, self._place = spec.environment, spec.masked, place
        self._leaves = [  # keys, shape, whether its dtype can hold NaN or infinity
            (keys, (count, *leaf.shape), np.dtype(leaf.dtype).kind == "f") for keys, leaf in _leaves(spec.observation)
        ]
        self._choices = np.cumsum((0, *spec.action.counts[:-1]))  # where the mask of each entry of an action begins

    def check(self, observation: tree.Tree, terminated: np.ndarray | None = None) -> None:
        self.check_observation(observation)
        self.check_mask(observation, terminated)

    def check_observation(self, observation: tree.Tree) -> None:
        """Refuse arrays of another shape than [N, ...] of the spec, NaN and infinity."""
        for keys, shape, is_float in self._leaves:
            array = observation
            for key in keys:
                array = array[key]
            if array.shape != shape:
                misfit = Misfit(0, "/".join(keys), f"an array of shape {array.shape[1:]}", f"the shape {shape[1:]}")
                raise BadEnvironment(misfit.sentence(self._name, self._place(0)))
            # A sum of squares is one call without a temporary array. It may overflow although every value is finite,
            # so it only decides whether every value is looked at.
            if is_float and not isfinite(np.vdot(array, array)):
                self._check_each("/".join(keys), array)

    def check_reward(self, reward: np.ndarray) -> None:
        """Refuse rewards [N] that are NaN or infinite."""
        if not isfinite(np.vdot(reward, reward)):
            for row in np.flatnonzero(~np.isfinite(reward)).tolist():
                raise BadEnvironment(
                    f"The environment '{self._name}' gave the reward {reward[row]} in {self._place(row)}; "
                    "make it give finite rewards."
                )

    def check_mask(self, observation: tree.Tree, terminated: np.ndarray | None) -> None:
        """Refuse a state without a legal action (of MultiDiscrete: in one of its entries), unless it is terminal. A
        terminal state needs none: there all actions are made legal, in place, so that a maximum over its legal actions
        is finite when it is discounted by zero. `terminated`: [N], or None if no state is terminal."""
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
        """Raise on the first value of `array` [N, ...] that is not finite."""
        finite = np.isfinite(array).reshape(len(array), -1)
        for row in np.flatnonzero(~finite.all(axis=1)).tolist():
            value = array[row].reshape(-1)[~finite[row]][0]
            part = f"'{name}' of the observation" if name else "the observation"
            raise BadEnvironment(
                f"The environment '{self._name}' gave {value} in {part} in {self._place(row)}; "
                "make it give finite observations."
            )


def _leaves(spec: tree.Tree, keys: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Leaf]]:
    """Every leaf of a spec, with the keys that lead to it."""
    if not isinstance(spec, dict):
        yield keys, spec
        return
    for key, child in spec.items():
        yield from _leaves(child, (*keys, key))
