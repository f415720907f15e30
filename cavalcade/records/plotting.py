"""Pictures of runs: the course of the return, or of another metric, of one run or of several settings and seeds.

A line shows the mean in each stretch of the run (`curves.py`). Runs that differ only in their seed are one line with a
band from the lowest of them to the highest (`comparison.py`). Evaluations are markers in the line's colour. Figures are
made without pyplot, so that drawing changes no global state. Importing matplotlib takes half a second or more, so it is
imported in `_figure` and not before training begins.
"""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cavalcade.checkpoints import write_atomically
from cavalcade.errors import UserError, nearest
from cavalcade.records.comparison import Line, lines
from cavalcade.records.curves import Curve, Points, bins, evaluations
from cavalcade.records.figures import is_number, number, score
from cavalcade.records.folder import Run, write_failure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which colour-blind readers can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#666666")
INK, FAINT = "#333333", "#DDDDDD"
SIZE, DOTS_PER_INCH = (8.0, 4.5), 120
LEGEND_ROW, ROWS_THAT_FIT = 0.19, 3  # inches of a row of the legend; more rows make the picture higher
UNITS = ((3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))
EVALUATION: dict[str, Any] = {"linestyle": "", "markerfacecolor": "white", "markeredgewidth": 1.4}


def draw_curve(run: Run) -> Path:
    """Draw `curve.png` of one run: the return of each row (faint), means over bins, evaluations and the target."""
    rows = run.rows()
    points = Points.of(rows)
    edges = bins([points])
    at, values = evaluations(rows)
    figure, axes = _figure()
    if points.x.size:
        axes.plot(points.x, points.value, color=COLOURS[0], alpha=0.3, linewidth=0.8, label="return of each row")
        _draw_line(axes, Curve.of([points], edges), 1.0, {"color": COLOURS[0], "label": "mean return"}, shade=0.0)
    if at:
        axes.plot(at, values, marker="o", color=COLOURS[1], label="evaluation", **EVALUATION)
    if not points.x.size and not at:
        axes.text(0.5, 0.5, "no episode has ended yet", transform=axes.transAxes, ha="center", color=INK)
        axes.set_xticks([])
        axes.set_yticks([])
    else:
        _draw_target(axes, [run])
    seed = f", seed {run.config['seed']}" if "seed" in run.config else ""
    _finish(figure, axes, (_title([run]) or run.path.name) + seed, "steps", _what("return", edges[1]))
    return _write(figure, run.curve)


def draw_runs(
    paths: Sequence[str | Path], out: Path, by: str = "step", metric: str = "return", labels: Sequence[str] = ()
) -> Path:
    """Compare runs in one picture, with one line for each combination of settings over all its seeds. `by`: the
    horizontal axis, 'step' or 'time'. `labels`: names for the lines, one for each run or one for each line."""
    if by not in ("step", "time"):
        raise UserError(f"Runs are drawn by 'step' or by 'time', not by '{by}'.")
    if not paths:
        raise UserError("There is nothing to draw: name one run folder or more.")
    runs = [Run.open(path) for path in paths]
    rows = {run: run.rows() for run in runs}
    points = {run: Points.of(rows[run], by, metric) for run in runs}
    judged = {run: evaluations(rows[run], by) if metric == "return" else ([], []) for run in runs}
    if not any(found.x.size for found in points.values()) and not any(at for at, _ in judged.values()):
        raise UserError(_nothing(metric, rows.values()))
    edges = bins(list(points.values()))
    unit, unit_name = _unit(edges[-1], by)
    figure, axes = _figure()
    found = lines(runs, labels)
    for n, line in enumerate(found):
        colour, late = COLOURS[n % len(COLOURS)], n >= len(COLOURS)
        known = [points[run] for run in line.runs if points[run].x.size]
        style = {"color": colour, "linestyle": "--" if late else "-", "label": line.label + _count(line, len(known))}
        _draw_line(axes, Curve.of(known, edges), unit, style, shade=0.18 if len(found) < 5 else 0.08)
        for at, values in (judged[run] for run in line.runs):
            where = np.array(at) / unit
            axes.plot(where, values, marker="s" if late else "o", markersize=4, color=colour, zorder=3, **EVALUATION)
    if metric == "return":
        _draw_target(axes, runs)
    _explain(axes, judged=any(at for at, _ in judged.values()))
    _finish(figure, axes, _title(runs), unit_name, _what(metric, edges[1], by))
    return _write(figure, Path(out))


def _draw_line(axes: "Axes", curve: Curve, unit: float, style: dict[str, Any], shade: float) -> None:
    """Draw a line: solid where all runs have a value; dotted where only some have, so that the mean is of fewer."""
    x, solid = curve.x / unit, np.where(curve.whole, curve.mean, np.nan)
    if shade and (curve.high > curve.low).any():
        axes.fill_between(x, curve.low, curve.high, where=curve.whole, color=style["color"], alpha=shade, linewidth=0)
    alone = "." if np.isfinite(curve.mean).sum() == 1 else ""  # a line of one point would be invisible
    axes.plot(x, solid, linewidth=2, marker=alone, **style)
    if (np.isfinite(curve.mean) & ~curve.whole).any():
        axes.plot(x, curve.mean, linewidth=1.2, linestyle=":", color=style["color"])


def _draw_target(axes: "Axes", runs: Sequence[Run]) -> None:
    """A horizontal line at the target, if all runs have the same."""
    targets = {run.config.get("target") for run in runs}
    if len(targets) == 1 and (target := targets.pop()) is not None:
        axes.axhline(target, color=INK, linewidth=1, linestyle="--", label=f"target {score(target)}")


def _explain(axes: "Axes", judged: bool) -> None:
    """Add the entries of the legend that explain markers, bands and dots of all lines."""
    if judged:
        axes.plot([], [], marker="o", markersize=4, color=INK, label="evaluation", **EVALUATION)
    if axes.collections:
        axes.fill_between([], [], color=INK, alpha=0.18, linewidth=0, label="band: lowest to highest run")
    if any(line.get_linestyle() == ":" for line in axes.lines):
        axes.plot([], [], linewidth=1.2, linestyle=":", color=INK, label="dotted: only some of the runs")


def _title(runs: Sequence[Run]) -> str:
    """System and environment, as far as all runs share them; differences are in the legend."""
    known = [{str(run.config.get(key, "")) for run in runs} for key in ("system", "environment")]
    return " on ".join(name for values in known if len(values) == 1 for name in values if name)


def _count(line: Line, drawn: int) -> str:
    """How many runs or seeds a line has, and how many of them have something to draw, for its label."""
    if len(line.runs) == 1:
        return "" if drawn else " (nothing yet)"
    seeds = {str(run.config.get("seed")) for run in line.runs}
    noun = "seeds" if len(seeds) == len(line.runs) else "runs"
    return f" ({f'{drawn} of ' if drawn < len(line.runs) else ''}{len(line.runs)} {noun})"


def _unit(size: float, by: str) -> tuple[float, str]:
    """What numbers of this size on the horizontal axis are divided by, and the name of that unit."""
    return next((unit for unit in UNITS if size >= 2 * unit[0]), UNITS[-1]) if by == "time" else (1.0, "steps")


def _what(metric: str, width: float, by: str = "step") -> str:
    """The label of the vertical axis: the metric, and over how many steps or how much time each point is a mean."""
    name = {"return": "episode return"}.get(metric, metric.replace("_", " "))
    unit, unit_name = _unit(width, by)
    return f"{name}\nmean of every {number(width / unit)} {unit_name}"


def _nothing(metric: str, rows: Any) -> str:
    """The message for a metric that no row has."""
    known = {name for each in rows for row in each for name, value in row.items() if is_number(value)}
    if metric == "return":
        return "There is nothing to draw: no episode has ended in any of these runs."
    return f"No row of these runs has a metric '{metric}'.{nearest(metric, known)}"


def _figure() -> tuple["Figure", "Axes"]:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError("Drawing needs matplotlib: install it with `pip install cavalcade[record]`.") from error
    figure = Figure(figsize=SIZE, dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()


def _finish(figure: "Figure", axes: "Axes", title: str, unit: str, what: str) -> None:
    """Label the axes, style them, and put legend and title above them."""
    axes.set_xlabel("environment steps" if unit == "steps" else f"time in {unit}", color=INK)
    axes.set_ylabel(what, color=INK)
    style_axes(axes, steps=unit == "steps")
    _, labels = axes.get_legend_handles_labels()
    rows = 0
    if labels:  # above the axes, where it covers no line, in as many columns as its longest entry allows
        columns = max(1, min(5, 100 // (max(map(len, labels)) + 6)))
        rows = -(-len(labels) // columns)
        figure.set_size_inches(SIZE[0], SIZE[1] + LEGEND_ROW * max(0, rows - ROWS_THAT_FIT))
        legend = axes.legend(loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=columns, fontsize=9)
        legend.set_frame_on(False)
    axes.set_title(title, loc="left", fontsize=13, fontweight="bold", color=INK, pad=10 + 13.5 * rows)


def style_axes(axes: "Axes", steps: bool = True) -> None:
    """The look of all our pictures. `steps`: the horizontal axis counts environment steps."""
    from matplotlib.ticker import EngFormatter, StrMethodFormatter

    if steps:
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(colors=INK, length=0)
    axes.grid(color=FAINT, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.margins(x=0.02)
    axes.set_xlim(left=0)


def _write(figure: "Figure", path: Path) -> Path:
    """Write the picture in the format of the path's suffix."""
    form = path.suffix.removeprefix(".").lower()
    if form not in figure.canvas.get_supported_filetypes():
        raise UserError(f"{path} is not the name of a picture: let it end in .png, .svg or .pdf.")
    buffer = io.BytesIO()
    figure.savefig(buffer, format=form)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, buffer.getvalue())
    except OSError as error:
        raise UserError(write_failure(path, error)) from error
    return path
