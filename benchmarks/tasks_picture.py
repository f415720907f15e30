"""The picture of all curves of `make tasks`: a row of the picture for each task, presets at its left, defaults at its
right, a colour for each system. Thick lines are medians over seeds, thin ones the seeds."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cavalcade.records.plotting import COLOURS, INK, style_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from tasks_table import Line

WIDTH, ROW, MARGIN = 11.0, 2.6, 1.2  # inches: of the picture, of a task, of legend and title
Course = list[tuple[int, float]]  # the evaluations of a run: environment steps, mean return
SIDES = {"preset": "presets", "default": "defaults"}


def median(runs: Sequence[Course]) -> tuple[np.ndarray, np.ndarray]:
    """Steps and, at each of them, the median over the runs of their evaluations. Between two evaluations a run's are
    interpolated; the steps are those of the first run, as far as all runs have come."""
    found = [tuple(zip(*run)) for run in runs]
    first, last = max(at[0] for at, _ in found), min(at[-1] for at, _ in found)
    steps = np.array([step for step in found[0][0] if first <= step <= last])
    return steps, np.median([np.interp(steps, at, values) for at, values in found], axis=0)


def picture(lines: Sequence["Line"]) -> "Figure | None":
    """What is done, tasks without runs left out; None if there is nothing."""
    from matplotlib.figure import Figure

    drawn = [(line, runs) for line in lines if (runs := _judged(line))]
    tasks = list(dict.fromkeys(line.rows[0].task for line, _ in drawn))
    if not tasks:
        return None
    systems = list(dict.fromkeys(line.rows[0].system for line in lines))
    styles = {name: _style(n, name) for n, name in enumerate(systems)}
    figure = Figure(figsize=(WIDTH, ROW * len(tasks) + MARGIN), dpi=100, layout="constrained")
    grid = figure.subplots(len(tasks), len(SIDES), sharey="row", squeeze=False)
    for task, row in zip(tasks, grid):
        for side, axes in zip(SIDES, row):
            here = [(one.rows[0].system, runs) for one, runs in drawn if _belongs(one, task, side)]
            for system, runs in here:
                _draw_line(axes, runs, styles[system])
            axes.set_visible(bool(here))
            axes.tick_params(labelleft=axes is row[0] or not row[0].get_visible())
            axes.set_title(f"{task}, {SIDES[side]}", loc="left", fontsize=10, fontweight="bold", color=INK)
            style_axes(axes)
    shown = {line.rows[0].system for line, _ in drawn}
    handles = [grid[0][0].plot([], [], **styles[name])[0] for name in systems if name in shown]
    title = "evaluations during training by environment steps; thick: median over seeds"
    figure.legend(handles=handles, loc="outside upper left", ncols=6, frameon=False, title=title, alignment="left")
    return figure


def draw(lines: Sequence["Line"], out: Path) -> bool:
    """Write the picture; whether there was something to draw."""
    if figure := picture(lines):
        figure.savefig(out)
    return figure is not None


def _judged(line: "Line") -> list[Course]:
    """The runs of a line that are done and were judged while they learned."""
    return [result.evaluations for result in line.results if result.evaluations]


def _belongs(line: "Line", task: str, side: str) -> bool:
    return line.rows[0].task == task and any(row.settings == side for row in line.rows)


def _style(n: int, name: str) -> dict[str, Any]:
    again, colour = divmod(n, len(COLOURS))
    return {"color": COLOURS[colour], "linestyle": ("-", "--", ":", "-.")[again], "label": name}


def _draw_line(axes: "Axes", runs: Sequence[Course], style: dict[str, Any]) -> None:
    for run in runs if len(runs) > 1 else ():
        axes.plot(*zip(*run), linewidth=0.6, alpha=0.5, color=style["color"])
    steps, values = median(runs)
    axes.plot(steps, values, linewidth=1.8, marker="." if len(steps) == 1 else "", **style)
