"""Looking into a run's tables as its last checkpoint has them: fill, limiter, ages, priorities, and single items."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from cavalcade.checkpoints import checkpoint
from cavalcade.errors import UserError
from cavalcade.experiment import Experiment
from cavalcade.records import Run
from cavalcade.table import NEXT, ORIGIN, Table
from cavalcade.tree import named

BARS = 10  # of a histogram
WIDTH = 40  # characters of the longest bar


class SavedTables:
    """The tables of a run's last checkpoint, in the order of its program. Each is read when it is opened, because all
    of them together may be more than this machine can hold."""

    def __init__(self, path: str | Path, environment: Any = None, network: Any = None):
        self.run = Run.open(Path(path))
        self.state, self.step, _ = checkpoint.load_latest(self.run.checkpoints)
        nodes = Experiment.from_config(self.run.config, environment, network).program().nodes.values()
        self.tables = [node for node in nodes if node.role == "table"]
        self.learners = [node for node in nodes if node.role == "learner"]

    def __len__(self) -> int:
        return len(self.tables)

    @contextmanager
    def open(self, number: int) -> Iterator[tuple[Table, int]]:
        """A table, and the number of updates of the learner in its process; if learners have processes of their own, of
        the learner that has made most."""
        node = self.tables[number]
        place = node.placement.group
        learners = [one for one in self.learners if one.placement.group == place] or self.learners
        saved = {group: self._saved(group) for group in {place, *(one.placement.group for one in learners)}}
        updates = max(int(saved[one.placement.group][one.name]["state"]["updates"]) for one in learners)
        table = node.make(*node.args, **node.kwargs)
        try:
            table.restore(saved[place][node.name])
            yield table, updates
        finally:
            table.close()

    def _saved(self, group: str) -> dict:
        """Saved states by node. One process saves all nodes together; several processes have a folder each."""
        if "nodes" in self.state:
            return self.state["nodes"]
        folder = self.run.checkpoints / group
        try:
            return checkpoint.load_step(folder, self.step)
        except (OSError, ValueError) as error:
            raise UserError(f"What {folder} holds of step {self.step:,} cannot be read: {error}.") from error


def look(path: str | Path, table: int | None = None, item: int | None = None) -> Iterator[str]:
    """Lines for a person: about all tables of a run, one of them, or one item."""
    saved = SavedTables(path)
    if table is not None and not 0 <= table < len(saved):
        raise UserError(f"There is no table {table}: this run has the tables 0 to {len(saved) - 1}.")
    if item is not None and table is None and len(saved) > 1:
        raise UserError(
            f"This run has {len(saved)} tables, and each numbers its items: say which one with --table 0 to "
            f"{len(saved) - 1}."
        )
    for number in range(len(saved)) if table is None else [table]:
        with saved.open(number) as (found, version):
            yield f"{f'table/{number}' if len(saved) > 1 else 'table'} of {path} at step {saved.step:,}"
            yield from describe(found, version) if item is None else describe_item(found, item)


def describe(table: Table, version: int) -> list[str]:
    """Figures of a table, and of a replay beside it. `version`: of the learner's params."""
    lines = []
    for name, one in table.tables().items():
        first, *rest = _figures(one, version)
        lines += [f"{name}: {first}" if name else first, *rest]
    return lines


def _figures(table: Table, version: int) -> list[str]:
    there = np.flatnonzero(table.key >= 0)
    used = table.rows.count - 1 - table.rows.vacant
    lines = [
        f"draws {table.sampler}, removes {table.remover}",
        f"holds {len(table):,} of {table.size:,} items ({len(table) / table.size:.0%}) in {table.bytes / 1e6:,.1f} MB",
        f"window: {table.account()}",
    ]
    if table.signature.length:
        lines.append(
            f"rows: {used:,} of {table.rows.count - 1:,} in use, {len(there) / max(1, used):.2f} items per row"
        )
    if not len(there):
        return [*lines, "no items"]
    numbers = table.numbers(table.key[there])
    ages = table.counters[NEXT] - numbers
    lines += [
        f"numbers: {numbers.min():,} (oldest) to {numbers.max():,} (newest)",
        f"ages in inserts: {_spread(ages)}",
        f"times drawn: {_spread(table.times[there])}; never drawn {np.mean(table.times[there] == 0):.0%}",
        f"policy versions: {_spread(table.version[there])}; the learner is at {version:,}",
        "priorities:",
        *_histogram(table.priority[there]),
    ]
    return lines


def describe_item(table: Table, number: int) -> list[str]:
    """Lines on one item, by the number of its insert; negative numbers count from the newest. A queue and a replay
    beside it number their items alike, because every item is inserted into both."""
    lines, spans = [], []
    for name, one in table.tables().items():
        where = f"{name}: " if name else ""
        there = np.flatnonzero(one.key >= 0)
        numbers, inserts = one.numbers(one.key[there]), int(one.counters[NEXT])
        wanted = number if number >= 0 else inserts + number
        for place in there[numbers == wanted].tolist():
            first, *rest = _leaves(one, place, wanted)
            lines += [where + first, *rest]
        spans.append(
            where + (f"{numbers.min():,} to {numbers.max():,} are there" if len(there) else "the table is empty")
        )
    if not lines:
        raise UserError(f"There is no item {number}: {'; '.join(spans)}.")
    return lines


def _leaves(table: Table, place: int, number: int) -> list[str]:
    """Lines on the item in this place of the table, and on each of its arrays."""
    lines = [
        f"item {number:,}: priority {table.priority[place]:.4g}, drawn {table.times[place]} times",
        f"  made by policy version {table.version[place]:,}, {int(table.counters[NEXT]) - number:,} inserts ago",
    ]
    slots = table.slots[place].copy()
    if len(slots):
        lines += _origin(table, slots[slots > 0])
    own = table.own.read(np.array([place], np.int32))
    for name, leaf in named(table.signature.build(table.rows, slots[None], own)):
        lines.append(f"  {name}: {_values(leaf[0])}")
    return lines


def _origin(table: Table, slots: np.ndarray) -> list[str]:
    """Lines on the episodes and steps that the rows of an item come from."""
    origin = table.rows.seen.read(slots, names=(ORIGIN,))[ORIGIN]
    lines = []
    for environment, episode in dict.fromkeys(map(tuple, origin[:, :2].tolist())):
        steps = origin[(origin[:, :2] == (environment, episode)).all(axis=1), 2]
        lines.append(f"  environment {environment}, episode {episode}, steps {steps.min()} to {steps.max()}")
    return lines


def _spread(values: np.ndarray) -> str:
    low, median, high = np.percentile(values, [0, 50, 100])
    return f"{low:,.0f} to {high:,.0f}, median {median:,.0f}"


def _histogram(values: np.ndarray) -> list[str]:
    """Lines with a bar each; the axis is logarithmic if the values span more than a factor of 100."""
    low, high = float(values.min()), float(values.max())
    if low == high:
        return [f"  all {len(values):,} are {low:.4g}"]
    wide = low > 0 and high / low > 100
    edges = np.geomspace(low, high, BARS + 1) if wide else np.linspace(low, high, BARS + 1)
    edges[-1] = high
    counts, _ = np.histogram(values, edges)
    return [
        f"  {start:>10.4g} to {end:<10.4g} {count:>9,}  {'#' * round(WIDTH * count / max(counts))}"
        for start, end, count in zip(edges, edges[1:], counts)
    ]


def _values(array: np.ndarray) -> str:
    """The values of a small array, or the shape and range of a large one."""
    if array.size > 32:
        about = array.astype(np.float64)
        return f"{array.dtype} {list(array.shape)}, {about.min():.4g} to {about.max():.4g}, mean {about.mean():.4g}"
    return np.array2string(array, precision=4, separator=", ", max_line_width=200)
