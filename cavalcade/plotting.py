"""Pictures of runs: how the return grew, for one run or for several systems over several seeds.

A line is a median and a band is the quartiles around it. Within one run they are over its latest episodes;
within a group of runs that differ only in their seed they are over the runs, because the episodes of one run
are not independent and a band over them would look far too sure.
Figures are made directly, without pyplot, so that drawing changes nothing outside. Importing matplotlib takes
half a second and more, which nobody should wait for before training begins: it happens in `_figure`.
"""

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from cavalcade.disk import write_atomically
from cavalcade.errors import UserError
from cavalcade.runs import Run, write_failure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which colour-blind readers can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#666666")
INK, FAINT = "#333333", "#DDDDDD"
SIZE, DOTS_PER_INCH = (8.0, 4.5), 120
GRID_POINTS = 400
GROUPED_BY = ("system", "environment", "backend")  # keys of a run's config
UNITS = ((3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))


@dataclass(frozen=True)
class Curve:
    """Return against steps or seconds, ascending. All are [N] float64."""

    x: np.ndarray
    raw: np.ndarray
    median: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @classmethod
    def of(cls, rows: Iterable[dict[str, Any]], by: str = "step") -> "Curve":
        """Rows without a return, written before the first episode ended, are passed over."""
        known = sorted((row for row in rows if {by, "return"} <= row.keys()), key=lambda row: row[by])
        raw = _column(known, "return")
        median = _column(known, "return_median", raw)
        if any("return_low" in row for row in known):
            low, high = _column(known, "return_low", median), _column(known, "return_high", median)
        else:
            low, median, high = _running_quartiles(raw)
        return cls(_column(known, by), raw, _smooth(median), _smooth(low), _smooth(high))


def draw_curve(run: Run) -> Path:
    """Draw `curve.png` of one run: returns, their median and quartiles, evaluations and the target."""
    rows = run.rows()
    curve = Curve.of(rows)
    evaluated = {row.get("evaluation_step", row.get("step")): row["evaluation"] for row in rows if "evaluation" in row}
    figure, axes = _figure()
    if curve.x.size:
        blue = COLOURS[0]
        axes.plot(curve.x, curve.raw, color=blue, alpha=0.25, linewidth=0.8, label="return")
        axes.fill_between(curve.x, curve.low, curve.high, color=blue, alpha=0.15, linewidth=0, label="quartiles")
        axes.plot(curve.x, curve.median, color=blue, linewidth=2, label="median, smoothed")
    if evaluated:
        at, values = zip(*sorted(evaluated.items()))
        axes.plot(
            at,
            values,
            "o",
            color=COLOURS[1],
            markerfacecolor="white",
            markeredgewidth=1.6,
            label="evaluation",
        )
    if not curve.x.size and not evaluated:
        axes.text(0.5, 0.5, "no episode has ended yet", transform=axes.transAxes, ha="center", color=INK)
        axes.set_xticks([])
        axes.set_yticks([])
    elif (target := run.config.get("target")) is not None:
        axes.axhline(target, color=INK, linewidth=1, linestyle="--", label=f"target {target:g}")
    names = [str(run.config[key]) for key in ("system", "environment") if key in run.config]
    seed = f", seed {run.config['seed']}" if "seed" in run.config else ""
    _finish(axes, (" on ".join(names) or run.path.name) + seed, "step")
    return _write(figure, run.curve)


def draw_runs(paths: Sequence[str | Path], out: Path, by: Literal["step", "time"] = "step") -> Path:
    """Compare runs in one picture: one line for each system, environment and backend, over all its seeds."""
    if by not in ("step", "time"):
        raise UserError(f"Runs are drawn by 'step' or by 'time', not by '{by}'.")
    if not paths:
        raise UserError("There is nothing to draw: name one run folder or more.")
    groups: dict[tuple[str, ...], list[Run]] = {}
    curves: dict[tuple[str, ...], list[Curve]] = {}  # of those runs in which an episode has ended
    for run in map(Run.open, paths):
        key = tuple(str(run.config.get(name, "")) for name in GROUPED_BY)
        groups.setdefault(key, []).append(run)
        curve = Curve.of(run.rows(), by)
        curves.setdefault(key, []).extend([curve] if curve.x.size else [])
    if not any(curves.values()):
        raise UserError("There is nothing to draw: no episode has ended in any of these runs.")

    seconds = max(curve.x[-1] for members in curves.values() for curve in members)
    fitting = next((unit for unit in UNITS if seconds >= 2 * unit[0]), UNITS[-1])
    unit, unit_name = fitting if by == "time" else (1.0, "step")
    # What all groups share is the title, what tells them apart is the legend.
    differing = [n for n, values in enumerate(zip(*groups)) if len(set(values)) > 1] or [0]
    shared = [n for n in (0, 1) if n not in differing or len(groups) == 1]
    figure, axes = _figure()
    for n, (key, runs) in enumerate(groups.items()):
        name = ", ".join(key[i] for i in differing if key[i]) or runs[0].path.name
        style = {"color": COLOURS[n % len(COLOURS)], "linestyle": "-" if n < len(COLOURS) else "--"}
        style["label"] = f"{name} ({_count(runs, len(curves[key]))})"
        _draw_group(axes, curves[key], unit, style, shade=0.18 if len(groups) < 5 else 0.08)
    _finish(axes, " on ".join(key[i] for i in shared if key[i]), unit_name)
    return _write(figure, Path(out))


def _draw_group(axes: "Axes", curves: list[Curve], unit: float, style: dict[str, Any], shade: float) -> None:
    if len(curves) < 2:
        only = curves[0] if curves else Curve.of(())
        x, low, median, high, everyone = only.x, only.low, only.median, only.high, np.ones(only.x.size, bool)
    else:
        x = np.linspace(min(c.x[0] for c in curves), max(c.x[-1] for c in curves), GRID_POINTS)
        each = [np.interp(x, c.x, c.median, left=np.nan, right=np.nan) for c in curves]
        x, lines = x[~np.isnan(each).all(axis=0)], np.array(each)[:, ~np.isnan(each).all(axis=0)]  # [runs, x]
        everyone = ~np.isnan(lines).any(axis=0)
        low, median, high = np.nanpercentile(lines, (25, 50, 75), axis=0)
    x = x / unit
    axes.fill_between(x, low, high, where=everyone, color=style["color"], alpha=shade, linewidth=0)
    axes.plot(x, np.where(everyone, median, np.nan), linewidth=2, **style)
    # Where some runs have not begun or have ended, the median is of fewer seeds: dotted says so.
    axes.plot(x, np.where(everyone, np.nan, median), linewidth=1.2, linestyle=":", color=style["color"])


def _count(runs: list[Run], drawn: int) -> str:
    seeds = {str(run.config.get("seed")) for run in runs}
    noun = "seed" if len(seeds) == len(runs) else "run"
    partly = f"{drawn} of " if drawn < len(runs) else ""
    return f"{partly}{len(runs)} {noun}{'' if len(runs) == 1 else 's'}"


def _column(rows: list[dict[str, Any]], key: str, default: np.ndarray | None = None) -> np.ndarray:
    """One number of every row, [N]; where a row lacks it, the default's."""
    found = np.array([row.get(key, np.nan) for row in rows], np.float64)
    return found if default is None else np.where(np.isfinite(found), found, default)


def _width(count: int) -> int:
    return max(count // 40, 1) | 1  # odd, so that a window has a middle


def _smooth(values: np.ndarray) -> np.ndarray:
    """A centred running mean; at the ends the window is cut off, not padded."""
    if not values.size:
        return values
    window = np.ones(_width(values.size))
    return np.convolve(values, window, "same") / np.convolve(np.ones(values.size), window, "same")


def _running_quartiles(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(low, median, high) of a centred window, for rows that carry no quartiles of their own."""
    half = max(_width(values.size), 5) // 2
    windows = [values[max(n - half, 0) : n + half + 1] for n in range(values.size)]
    found = np.array([np.percentile(window, (25, 50, 75)) for window in windows]).reshape(-1, 3)
    return found[:, 0], found[:, 1], found[:, 2]


def _figure() -> tuple["Figure", "Axes"]:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError("Drawing needs matplotlib: install it with `pip install cavalcade[record]`.") from error
    figure = Figure(figsize=SIZE, dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()


def _finish(axes: "Axes", title: str, unit: str) -> None:
    from matplotlib.ticker import EngFormatter, StrMethodFormatter

    axes.set_xlabel("environment steps" if unit == "step" else f"time in {unit}", color=INK)
    axes.set_ylabel("episode return", color=INK)
    if unit == "step":
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(colors=INK, length=0)
    axes.grid(color=FAINT, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.margins(x=0.02)
    axes.set_xlim(left=0)
    _, labels = axes.get_legend_handles_labels()
    rows = 0
    if labels:  # above the axes, where it can never lie on a line, in as many columns as its longest entry lets
        columns = max(1, min(5, 110 // (max(map(len, labels)) + 6)))
        rows = -(-len(labels) // columns)
        legend = axes.legend(loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=columns, fontsize=9)
        legend.set_frame_on(False)
    axes.set_title(title, loc="left", fontsize=13, fontweight="bold", color=INK, pad=10 + 13.5 * rows)


def _write(figure: "Figure", path: Path) -> Path:
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
