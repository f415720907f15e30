"""How figures are written for people: short numbers, durations, a whole run's returns as a line of blocks."""

import math
import numbers
from itertools import pairwise
from statistics import fmean
from typing import Any


def is_number(value: Any) -> bool:
    """Whether the value is a finite number."""
    return isinstance(value, numbers.Real) and math.isfinite(value)


def number(value: float) -> str:
    """About three digits: 0.0123, 8.72, 87.2, 872, 87,213. For sizes and speeds; `score` is for results."""
    size = abs(value)
    if value == int(value) or size >= 100:
        return f"{value + 0.0:,.0f}"  # -0.0 is 0
    if size < 0.001:
        return f"{value:.1e}"
    return f"{value:.3g}"


def score(value: float) -> str:
    """A return, an evaluation or a target, in five digits without zeros at the end: 500, 487.33, 0.955, -0.04."""
    size = abs(value)
    if not 1e-4 <= size < math.inf:
        return f"{value + 0.0:.4g}"
    text = f"{value:,.{max(0, 4 - math.floor(math.log10(size)))}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def duration(seconds: float | None, missing: str = "–") -> str:
    """As h:mm:ss or m:ss."""
    if seconds is None:
        return missing
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


class History:
    """A whole run's values in at most `size` entries. When they are full each pair becomes its mean, and from then on
    each new entry is the mean of twice as many values."""

    def __init__(self, size: int):
        self._size = size
        self._every = 1
        self._values: list[float] = []
        self._pending: list[float] = []

    def add(self, value: float) -> None:
        self._pending.append(value)
        if len(self._pending) == self._every:
            self._values.append(fmean(self._pending))
            self._pending = []
        if len(self._values) == self._size:
            self._values = [fmean(self._values[i : i + 2]) for i in range(0, self._size, 2)]
            self._every *= 2

    def sparkline(self, width: int) -> str:
        """At most `width` blocks, each as high as the mean of its stretch between the lowest mean and the highest."""
        count = len(self._values)
        width = min(width, count)
        cuts = [count * i // width for i in range(width + 1)] if width else [0]
        means = [fmean(self._values[a:b]) for a, b in pairwise(cuts)]
        low, high = min(means, default=0.0), max(means, default=0.0)
        scale = 7 / (high - low) if high > low else 0.0
        return "".join("▁▂▃▄▅▆▇█"[round((mean - low) * scale)] for mean in means) or "–"
