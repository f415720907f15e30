"""Looking into a run's table, as its last checkpoint kept it: fill, window, ages, priorities, and single items."""

from pathlib import Path
from typing import Any

import numpy as np

from cavalcade import checkpoint
from cavalcade.errors import UserError
from cavalcade.experiment import Experiment
from cavalcade.runs import Run
from cavalcade.table import Table
from cavalcade.table.rows import ORIGIN
from cavalcade.table.store import NEXT
from cavalcade.tree import named

BARS = 10  # of a histogram
WIDTH = 40


def load_table(path: str | Path, environment: Any = None, network: Any = None) -> tuple[Table, int, int]:
    """The table of a run, the environment step it was saved at, and the version of the policy by then."""
    run = Run.open(Path(path))
    state, step, _ = checkpoint.load_latest(run.checkpoints)
    # of a run in processes, table and learner have saved themselves
    nodes = state["nodes"] if "nodes" in state else checkpoint.load_step(run.checkpoints / "learner", step)
    table = Experiment.from_config(run.config, environment, network).parts.table()
    table.restore(nodes["table"])
    return table, step, int(nodes["learner"]["state"]["updates"])


def describe(table: Table, version: int) -> list[str]:
    """Lines for a person to read."""
    there = np.flatnonzero(table.key >= 0)
    used = table.rows.count - 1 - table.rows.vacant
    lines = [
        f"draws {_chooser(table.sampler)}, removes {_chooser(table.remover)}",
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
    """One item by the number of its insert; negative numbers count from the newest."""
    there = np.flatnonzero(table.key >= 0)
    numbers, inserts = table.numbers(table.key[there]), int(table.counters[NEXT])
    wanted = number if number >= 0 else inserts + number
    found = there[numbers == wanted]
    if not len(found):
        span = f"{numbers.min():,} to {numbers.max():,} are there" if len(there) else "the table is empty"
        raise UserError(f"There is no item {number}: {span}.")
    place = int(found[0])
    lines = [
        f"item {wanted:,}: priority {table.priority[place]:.4g}, drawn {table.times[place]} times",
        f"  made by policy version {table.version[place]:,}, {inserts - wanted:,} inserts ago",
    ]
    slots = table.slots[place].copy()
    if len(slots):
        lines += _origin(table, slots[slots > 0])
    own = table.own.read(np.array([place], np.int32))
    for name, leaf in named(table.signature.build(table.rows, slots[None], own)):
        lines.append(f"  {name}: {_values(leaf[0])}")
    return lines


def _origin(table: Table, slots: np.ndarray) -> list[str]:
    """Episodes and steps that the rows of an item come from."""
    origin = table.rows.seen.read(slots, names=(ORIGIN,))[ORIGIN]
    lines = []
    for environment, episode in dict.fromkeys(map(tuple, origin[:, :2].tolist())):
        steps = origin[(origin[:, :2] == (environment, episode)).all(axis=1), 2]
        lines.append(f"  environment {environment}, episode {episode}, steps {steps.min()} to {steps.max()}")
    return lines


def _chooser(selector: Any) -> str:
    return f"{selector.kind} ({selector.exponent:g})" if selector.kind == "prioritised" else selector.kind


def _spread(values: np.ndarray) -> str:
    low, median, high = np.percentile(values, [0, 50, 100])
    return f"{low:,.0f} to {high:,.0f}, median {median:,.0f}"


def _histogram(values: np.ndarray) -> list[str]:
    """Bars over a logarithmic axis where the values span more than a factor of 100."""
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
    if array.size > 32:
        about = array.astype(np.float64)
        return f"{array.dtype} {list(array.shape)}, {about.min():.4g} to {about.max():.4g}, mean {about.mean():.4g}"
    return np.array2string(array, precision=4, separator=", ", max_line_width=200)
