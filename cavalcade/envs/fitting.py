"""Whether observations are what their space declares, asked before they are cast to it.

A cast changes values silently: 0.5 in a space of whole numbers becomes 0, and 300 in a uint8 becomes 44. A value that
the cast would change, or that has no meaning (a Discrete out of its range), is a misfit that ends a run. A value beyond
the bounds of a Box reaches the network unchanged, so it is harmless and the user is told once: many environments exceed
their own bounds now and then.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from cavalcade.envs.spaces import observation_spec
from cavalcade.specs import MASK, Leaf

MISTAKES = (ArithmeticError, LookupError, TypeError, ValueError)  # what NumPy raises for observations that do not fit
SLACK = 1e-3  # share of the larger bound of a Box of floats by which rounding may exceed it


class Misfit(NamedTuple):
    """An observation that differs from what its space declares."""

    row: int  # among the observations that were checked
    field: str  # path in a Dict or Tuple; empty if the observation is one array
    came: str
    declared: str
    harmless: bool = False  # beyond the bounds of a Box, but not changed by the cast

    def sentence(self, environment: str, place: str) -> str:
        where = f"'{self.field}' of the observation" if self.field else "the observation"
        advice = "correct the bounds" if self.harmless else "make the two agree"
        return (
            f"The environment '{environment}' gave {self.came} in {where} in {place}, but its space declares "
            f"{self.declared}; {advice}."
        )


class Field:
    """One array of an observation, and what its space declares of it."""

    def __init__(self, space: gym.Space, path: tuple = ()) -> None:
        leaf = observation_spec(space, ".".join(("observation", *map(str, path))))
        self.path, self.name = path, "/".join(str(key) for key in path)
        self.shape, self.dtype = leaf.shape, np.dtype(leaf.dtype)
        self.is_box = leaf.kind == "box"
        self._declared = str(space)
        self._whole = self.dtype.kind != "f"
        self._low, self._high = _bounds(leaf)
        slack = np.zeros(()) if self._whole else _slack(self._low, self._high)
        self._least, self._most = self._low - slack, self._high + slack
        least, most = (-np.inf, np.inf) if not self._whole or not self.is_box else _limits(self.dtype)
        self._bounded = bool((self._low > least).any() or (self._high < most).any())

    def part(self, observation: Any) -> Any:
        """This field of an observation, single or batched."""
        for key in self.path:
            observation = observation[key]
        return observation

    def misfit(self, values: Any, count: int) -> Misfit | None:
        """The first of `count` values of this field that does not fit, if any."""
        if not self._bounded and type(values) is list and all(self._as_declared(value) for value in values):
            return None  # such as images, which would take long to stack
        try:
            array = np.asarray(values)
        except ValueError:  # values of different shapes
            return self._misshapen(values)
        if array.shape != (count, *self.shape) or array.dtype.kind not in "biuf":
            return self._misshapen(values)
        if self._whole and array.dtype != self.dtype:
            with np.errstate(invalid="ignore"):  # of a cast of NaN
                changed = array.astype(self.dtype) != array
            if changed.any():
                return self._at(array, changed)
        if self._bounded:
            outside = (array < self._least) | (array > self._most)
            if outside.any():
                return self._at(array, outside, harmless=self.is_box)
        return None

    def _as_declared(self, value: Any) -> bool:
        return type(value) is np.ndarray and value.dtype == self.dtype and value.shape == self.shape

    def _misshapen(self, values: Any) -> Misfit:
        """The first value that is no array of numbers of the declared shape; else their number is wrong."""
        rows = values if isinstance(values, (list, tuple)) or np.ndim(values) else [values]
        for row, value in enumerate(rows):
            try:
                one = np.asarray(value)
            except ValueError:
                return Misfit(row, self.name, f"a {type(value).__name__} of parts of different shapes", self._declared)
            if one.dtype.kind not in "biuf":
                return Misfit(row, self.name, f"a {type(value).__name__}", self._declared)
            if one.shape != self.shape:
                return Misfit(row, self.name, f"an array of shape {one.shape}", self._shaped)
        return Misfit(0, self.name, f"{len(rows)} rows", f"{self._shaped} for each environment")

    @property
    def _shaped(self) -> str:
        return f"the shape {self.shape}" if self.is_box else self._declared

    def _at(self, array: np.ndarray, wrong: np.ndarray, harmless: bool = False) -> Misfit:
        """The misfit of the first entry of `array` [count, ...] that is `wrong` [count, ...]."""
        row, *index = (int(i) for i in np.argwhere(wrong)[0])
        came = f"{array[(row, *index)].item():.6g} ({array.dtype})" + (f" at {index}" if index else "")
        declared = self._declared
        if self.is_box:
            low, high = (np.broadcast_to(bound, self.shape)[tuple(index)] for bound in (self._low, self._high))
            declared = f"{self.dtype} from {low:.6g} to {high:.6g}"
        return Misfit(row, self.name, came, declared, harmless)


class Fitting:
    """All fields of an observation, except a mask at the top, which `encoding.py` reads and checks."""

    def __init__(self, space: gym.Space) -> None:
        self._fields = list(_fields(space))

    def of_rows(self, rows: Sequence[Any]) -> Iterator[Misfit]:
        """What does not fit in the observations of single environments, one misfit for each field at most."""
        for field in self._fields:
            values = []
            for row, observation in enumerate(rows):
                try:
                    values.append(field.part(observation))
                except (LookupError, TypeError):
                    yield _missing(row, field, observation)
                    break
            else:
                if found := field.misfit(values, len(rows)):
                    yield found

    def of_batch(self, batch: Any, count: int) -> Iterator[Misfit]:
        """The same for the batched observations of the `count` environments of a vector environment."""
        for field in self._fields:
            try:
                values = field.part(batch)
            except (LookupError, TypeError):
                yield _missing(0, field, batch)
                continue
            if found := field.misfit(values, count):
                yield found


def _missing(row: int, field: Field, observation: Any) -> Misfit:
    return Misfit(row, "", f"a {type(observation).__name__} without '{field.name}'", f"'{field.name}'")


def _fields(space: gym.Space, path: tuple = ()) -> Iterator[Field]:
    """The fields of a space; `path` is where it lies in the observation."""
    if isinstance(space, gym.spaces.Dict):
        for key, child in space.spaces.items():
            if path or key != MASK:
                yield from _fields(child, (*path, key))
    elif isinstance(space, gym.spaces.Tuple):
        for index, child in enumerate(space.spaces):
            yield from _fields(child, (*path, index))
    else:
        yield Field(space, path)


def _bounds(leaf: Leaf) -> tuple[np.ndarray, np.ndarray]:
    """The lowest and the highest value that the environment may give; its choices count from `start`."""
    if leaf.kind == "box":
        shape = leaf.shape if len(leaf.low) == np.prod(leaf.shape) else ()  # else one bound holds everywhere
        return np.array(leaf.low).reshape(shape), np.array(leaf.high).reshape(shape)
    counts = np.array(leaf.counts, np.int64).reshape(leaf.shape)
    start = np.array(leaf.start, np.int64).reshape(leaf.shape) if leaf.start else np.zeros_like(counts)
    return start, start + counts - 1


def _slack(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """By how much values may exceed the bounds before it counts."""
    finite_low, finite_high = (np.where(np.isfinite(bound), bound, 0.0) for bound in (low, high))
    return SLACK * np.maximum(np.abs(finite_low), np.abs(finite_high)) + 1e-6


def _limits(dtype: np.dtype) -> tuple[float, float]:
    """The lowest and the highest value that a dtype of whole numbers can hold."""
    if dtype.kind == "b":
        return 0.0, 1.0
    return float(np.iinfo(dtype).min), float(np.iinfo(dtype).max)
