"""The display: what a user watches while training runs, from the same rows that are recorded.

On a terminal it is one panel that is redrawn in place; in a log file or in CI, a plain line now and then.
Both are drawn from inside `update`, so no thread is left behind by a signal, a fork or a debugger.
A value that is not known yet is a dash, never NaN. `Picture` is what is shown, `Display` is where and when.
"""

import atexit
import functools
import io
import math
import numbers
import os
import sys
import time
from collections import deque
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # rich takes 50 ms and is needed only where somebody watches
    from rich.panel import Panel
    from rich.text import Text

REDRAWN_EVERY = 0.2  # seconds, on a terminal
PRINTED_EVERY = 5.0  # seconds, in a log
WIDEST_PANEL = 100  # columns: longer lines are harder to read
LABEL_WIDTH = 12
ROLES = {"environment": "green", "acting": "cyan", "storing": "blue"}  # in the order experience flows
ROLES |= {"learning": "magenta", "waiting": "yellow", "evaluating": "red"}


class Display:
    """Shows progress to a person (a live panel) or to a log (plain lines); `interactive=None` finds out."""

    def __init__(self, title: str, total_steps: int, target: float | None, interactive: bool | None = None):
        self.interactive = _somebody_watches() if interactive is None else interactive
        self._picture = Picture(title, total_steps, target)
        self._drawn_at = -math.inf
        self._undrawn = False  # whether something has arrived since it was last drawn
        self._closed = False
        self._live: Any = None
        if self.interactive:
            from rich.console import Console
            from rich.live import Live

            # It redirects standard output and error, so whatever anybody prints appears above the panel.
            self._live = Live(console=Console(force_terminal=True), auto_refresh=False)
            atexit.register(self._live.stop)  # a crash must not leave the user without a cursor
        else:
            goal = "" if target is None else f", target {_number(target)}"
            self._print(f"{title}: {total_steps:,} steps{goal}")

    def update(self, row: dict[str, Any]) -> None:
        """Take in one row of metrics, and draw if the last drawing is old enough."""
        self._picture.add(row)
        self._undrawn = True
        pause = REDRAWN_EVERY if self.interactive else PRINTED_EVERY
        if time.monotonic() - self._drawn_at >= pause:
            self._draw()

    def note(self, text: str) -> None:
        """A message that stays, above the panel."""
        self._print(text)

    def close(self, summary_lines: Iterable[str] = ()) -> None:
        """Draw the last state, give the terminal back and print the summary. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        if self._undrawn:
            self._draw()
        if self._live is not None:
            self._live.stop()
            atexit.unregister(self._live.stop)
        for line in summary_lines:
            self._print(line)

    def _draw(self) -> None:
        self._drawn_at = time.monotonic()
        self._undrawn = False
        if self._live is None:
            self._print(self._picture.line())
            return
        self._live.start()  # does nothing if it is started
        self._live.update(self._picture.panel(self._live.console.width), refresh=True)

    def _print(self, line: str) -> None:
        try:
            print(line, flush=True)
        except BrokenPipeError:  # `cavalcade train ... | head`: whoever read has gone, but training goes on
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (open until the process ends)


class Picture:
    """The latest value of everything, a short history, and how to write them as a line or as a panel."""

    def __init__(self, title: str, total_steps: int, target: float | None):
        self.title = title
        self.total = max(total_steps, 1)
        self.target = target
        self.latest: dict[str, float] = {}
        self.returns = History(512)
        self.recent: deque[tuple[float, float]] = deque(maxlen=50)  # (seconds, step), for the time left
        self._started = time.monotonic()

    def add(self, row: dict[str, Any]) -> None:
        known = {key: float(value) for key, value in row.items() if _is_number(value)}
        self.latest.update(known)  # a row without an evaluation does not make the last evaluation unknown
        if "return" in known:
            self.returns.add(known["return"])
        if "step" in known:
            self.recent.append((known.get("time", time.monotonic() - self._started), known["step"]))

    def show(self, key: str, missing: str = "–") -> str:
        return _number(self.latest[key]) if key in self.latest else missing

    def seconds_left(self) -> float | None:
        """From the pace of the latest rows, so that a run that was resumed is judged by what it does now."""
        if len(self.recent) < 2:
            return None
        (earlier, before), (later, now) = self.recent[0], self.recent[-1]
        if later <= earlier or now <= before:
            return None
        return max(self.total - now, 0) * (later - earlier) / (now - before)

    def shares(self) -> list[tuple[str, float]]:
        """(role, fraction of wall time), largest first."""
        found = [(role, self.latest.get(f"time_{role}", 0.0)) for role in ROLES]
        return sorted((pair for pair in found if pair[1] > 0), key=lambda pair: -pair[1])

    def line(self) -> str:
        """One line for a log, in ASCII because a log's encoding is anybody's guess."""
        show, step = functools.partial(self.show, missing="-"), self.latest.get("step", 0)
        parts = [
            f"step {step:,.0f}/{self.total:,} ({100 * step / self.total:.0f} %)",
            f"return {show('return')} [{show('return_low')} .. {show('return_high')}]",
            f"{show('frames_per_second')} frames/s",
            f"{show('updates_per_second')} updates/s",
            f"loss {show('loss')}",
        ]
        if "evaluation" in self.latest:
            parts.append(f"evaluation {show('evaluation')}")
        if shares := self.shares():
            parts.append(f"mostly {shares[0][0]} {shares[0][1] * 100:.0f} %")
        return "  ".join([*parts, f"left {_duration(self.seconds_left(), '-')}"])

    def panel(self, width: int) -> "Panel":
        """Everything, in a frame that is at most `width` columns wide."""
        from rich.panel import Panel
        from rich.table import Table

        width = min(width, WIDEST_PANEL)
        room = width - 4 - LABEL_WIDTH  # the frame and its padding take four columns
        grid = Table.grid()
        grid.add_column(width=LABEL_WIDTH, style="dim")
        grid.add_column(width=room, no_wrap=True, overflow="ellipsis")
        for label, text in self._panel_lines(room):
            grid.add_row(label, text)
        title = _text((self.title, "bold"))
        return Panel(grid, title=title, title_align="left", width=width, border_style="blue")

    def _panel_lines(self, room: int) -> "Iterable[tuple[str, Text]]":
        show, step = self.show, self.latest.get("step", 0)
        yield "progress", _bar(step / self.total, "green", f"{step:,.0f} of {self.total:,}", room)
        elapsed, left = _duration(self.latest.get("time")), _duration(self.seconds_left())
        yield "", _words(f"*{elapsed}* elapsed   *{left}* left")
        quartiles = f"{show('return_low')} .. {show('return_high')}"
        words = f"*{show('return')}*   median *{show('return_median')}*   quartiles *{quartiles}*"
        yield "return", _words(f"{words}   *{show('episodes')}* episodes")
        yield "", _text((self.returns.sparkline(room), "green"))
        yield "evaluation", _words(self._evaluation())
        words = f"*{show('frames_per_second')}* frames/s   *{show('updates_per_second')}* updates/s"
        yield "speed", _words(words)
        words = f"loss *{show('loss')}*   *{show('updates')}* updates   policy lag *{show('policy_lag')}*"
        yield "learning", _words(words)
        size, capacity = self.latest.get("table_size"), self.latest.get("table_capacity")
        if size is None or not capacity:
            yield "table", _words(f"*{show('table_size')}*")
        else:
            yield "table", _bar(size / capacity, "blue", f"{size:,.0f} of {capacity:,.0f}", room)
        yield from self._time(room)

    def _evaluation(self) -> str:
        words = f"*{self.show('evaluation')}*"
        if "evaluation_step" in self.latest:
            words += f" at step *{self.show('evaluation_step')}*"
        if self.target is not None:
            reached = self.latest.get("evaluation", -math.inf) >= self.target
            words += f"   target *{_number(self.target)}*" + (" reached" if reached else "")
        return words

    def _time(self, room: int) -> "Iterable[tuple[str, Text]]":
        """Where the wall time goes: the largest share, a bar, and a legend whose entries stay in place."""
        if not self.shares():
            yield "time", _words("*–*")
            return
        largest, share = self.shares()[0]
        yield "time", _words(f"mostly *{largest}* ({share * 100:.0f} %)")
        shares = [self.latest.get(f"time_{role}", 0.0) for role in ROLES]
        whole = max(sum(shares), 1.0)  # what no role claims stays grey
        ends = [round(room * sum(shares[: n + 1]) / whole) for n in range(len(shares))]
        spans = zip([0, *ends], ends, ROLES.values())
        blocks = [("█" * (end - start), colour) for start, end, colour in spans]
        yield "", _text(*blocks, ("░" * (room - ends[-1]), "dim"))
        legend = []
        for (role, colour), share in zip(ROLES.items(), shares):
            legend += [("■", colour), (f" {role:<11}{share * 100:3.0f} %  ", "")]
        yield "", _text(*legend[:6])
        yield "", _text(*legend[6:])


class History:
    """A whole run's values in bounded memory: when full, neighbours are averaged, and so are newcomers."""

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
        """At most `width` blocks, from the lowest value to the highest."""
        count = len(self._values)
        width = min(width, count)
        cuts = [count * i // width for i in range(width + 1)] if width else [0]
        means = [fmean(self._values[a:b]) for a, b in pairwise(cuts)]
        low, high = min(means, default=0.0), max(means, default=0.0)
        scale = 7 / (high - low) if high > low else 0.0
        return "".join("▁▂▃▄▅▆▇█"[round((mean - low) * scale)] for mean in means) or "–"


def export_svg(rows: Iterable[dict], title: str, total: int, target: float | None, path: Path) -> None:
    """Draw the panel as it looks after `rows` into an SVG file, for a page or a README."""
    from rich.console import Console

    picture = Picture(title, total, target)
    for row in rows:
        picture.add(row)
    page = Console(record=True, width=80, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    page.print(picture.panel(80))
    page.save_svg(str(path), title="cavalcade")


def _somebody_watches() -> bool:
    encoding = (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "")
    dumb = os.environ.get("TERM") == "dumb" or "CI" in os.environ
    return sys.stdout.isatty() and not dumb and encoding == "utf8"


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and math.isfinite(value)


def _number(value: float) -> str:
    """Three digits or so: 0.0123, 8.72, 87.2, 872, 87,213."""
    size = abs(value)
    if value == int(value) or size >= 100:
        return f"{value:,.0f}"
    if size < 0.001:
        return f"{value:.1e}"
    return f"{value:.3g}"


def _duration(seconds: float | None, missing: str = "–") -> str:
    if seconds is None:
        return missing
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


def _text(*pieces: tuple[str, str]) -> "Text":
    from rich.text import Text

    return Text.assemble(*pieces)


def _words(line: str) -> "Text":
    """A line whose values stand between asterisks: `*5,312* frames/s`."""
    return _text(*((piece, "dim" if n % 2 == 0 else "bold") for n, piece in enumerate(line.split("*"))))


def _bar(fraction: float, colour: str, words: str, room: int) -> "Text":
    """A bar, then words and the percentage, which line up on the right of all bars."""
    words = f"  {words}  {fraction * 100:3.0f} %"
    width = max(room - len(words), 1)
    full = round(min(max(fraction, 0.0), 1.0) * width)
    return _text(("━" * full, colour), ("─" * (width - full), "dim"), (words, ""))
