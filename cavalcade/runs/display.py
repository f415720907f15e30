"""The display: what a user watches while training runs, from the same rows that are recorded.

On a terminal the display is one panel that is redrawn in place; in a log file or in CI, a plain line every few seconds.
Both are drawn inside `update`, without a thread that a signal, a fork or a debugger could leave behind. A value that is
not known yet is a dash, never NaN. `Picture` decides what is shown, `Display` where and when.
"""

import atexit
import functools
import io
import math
import os
import sys
import textwrap
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cavalcade.programs import ROLES
from cavalcade.records import History, duration, is_number, number, score
from cavalcade.runs.budget import Bottleneck
from cavalcade.runs.metrics import WINDOW

if TYPE_CHECKING:  # rich takes 50 ms to import and is needed only on a terminal
    from rich.panel import Panel
    from rich.text import Text

REDRAWN_EVERY = 0.2  # seconds, on a terminal
PRINTED_EVERY = 5.0  # seconds, in a log
WIDEST_PANEL = 100  # columns: longer lines are harder to read
LABEL_WIDTH = 12  # columns
ENVIRONMENT, SHOWN_OF_ENVIRONMENTS = "env/", 4  # of metrics: beginning of their names; how many
SCORES = ("return", "return_low", "return_high", "evaluation")  # metrics written by `score`; others by `number`
COLOURS = dict(zip(ROLES, ("green", "cyan", "bright_blue", "blue", "magenta", "red", "yellow"), strict=True))


class Display:
    """Shows progress to a person (a panel that changes) or writes it to a log (plain lines)."""

    def __init__(self, title: str, total_steps: int, target: float | None, interactive: bool | None = None):
        """`interactive`: True draws the panel, False prints nothing at all, None draws the panel on a terminal and
        prints lines elsewhere."""
        self.silent = interactive is False
        self.interactive = _somebody_watches() if interactive is None else interactive
        self._picture = Picture(title, total_steps, target)
        self._drawn_at = -math.inf
        self._undrawn = False  # whether a row has come since the last drawing
        self._closed = False
        self._live: Any = None
        if self.interactive:
            from rich.console import Console
            from rich.live import Live

            # `Live` redirects standard output and error, so everything that is printed appears above the panel.
            self._live = Live(console=Console(force_terminal=True), auto_refresh=False)
            atexit.register(self._live.stop)  # a crash must not leave the user without a cursor
        else:
            goal = "" if target is None else f", target {score(target)}"
            self._print(f"{title}: {total_steps:,} steps{goal}")

    def update(self, row: dict[str, Any], bottleneck: Bottleneck | None = None) -> None:
        """Take in one row of metrics; draw if the last drawing is long enough ago."""
        self._picture.add(row, bottleneck)
        self._undrawn = True
        pause = REDRAWN_EVERY if self.interactive else PRINTED_EVERY
        if time.monotonic() - self._drawn_at >= pause:
            self._draw()

    def note(self, text: str) -> None:
        """Print a message, which stays above the panel."""
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
        self._live.start()  # does nothing if it is running
        self._live.update(self._picture.panel(self._live.console.width), refresh=True)

    def _print(self, line: str) -> None:
        if self.silent:
            return
        try:
            print(line, flush=True)
        except BrokenPipeError:  # `cavalcade train ... | head`: the reader has gone, training goes on
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (open until the process ends)


class Picture:
    """The latest value of every metric and a short history, written as a line or drawn as a panel."""

    def __init__(self, title: str, total_steps: int, target: float | None):
        self.title = title
        self.total = max(total_steps, 1)
        self.target = target
        self.latest: dict[str, float] = {}
        self.bottleneck: Bottleneck | None = None
        self.returns = History(512)
        self.recent: deque[tuple[float, float]] = deque(maxlen=50)  # (seconds, step), for the time left
        self._started = time.monotonic()

    def add(self, row: dict[str, Any], bottleneck: Bottleneck | None = None) -> None:
        self.bottleneck = bottleneck or self.bottleneck
        known = {key: float(value) for key, value in row.items() if is_number(value)}
        self.latest.update(known)  # a row without an evaluation does not make the last evaluation unknown
        if "return" in known:
            self.returns.add(known["return"])
        if "step" in known:
            self.recent.append((known.get("time", time.monotonic() - self._started), known["step"]))

    def show(self, key: str, missing: str = "–") -> str:
        """The latest value of a metric, for a person."""
        if key not in self.latest:
            return missing
        return score(self.latest[key]) if key in SCORES else number(self.latest[key])

    def seconds_left(self) -> float | None:
        """Seconds to the end at the speed of the latest rows, not counting earlier sittings; None if not known yet."""
        if len(self.recent) < 2:
            return None
        (earlier, before), (later, now) = self.recent[0], self.recent[-1]
        if later <= earlier or now <= before:
            return None
        return max(self.total - now, 0) * (later - earlier) / (now - before)

    def _speeds(self) -> list[str]:
        """What is shown per second; frames only where a step plays several of them."""
        frames = self.latest.get("frames_per_second") != self.latest.get("steps_per_second")
        return ["steps", *(["frames"] if frames else []), "updates"]

    def line(self) -> str:
        """One line for a log, in ASCII because the encoding of a log is not known."""
        show, step = functools.partial(self.show, missing="-"), self.latest.get("step", 0)
        parts = [
            f"step {step:,.0f}/{self.total:,} ({100 * step / self.total:.0f} %)",
            f"return {show('return')} [{show('return_low')} .. {show('return_high')}]",
            *(f"{show(f'{what}_per_second')} {what}/s" for what in self._speeds()),
            f"loss {show('loss')}",
        ]
        if "evaluation" in self.latest:
            parts.append(f"evaluation {show('evaluation')}")
        parts += [f"{name} {show(key)}" for name, key in self._of_environments()]
        if self.bottleneck:
            parts.append(self.bottleneck.short)
        return "  ".join([*parts, f"left {duration(self.seconds_left(), '-')}"])

    def panel(self, width: int) -> "Panel":
        """The panel, at most `width` columns wide."""
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
        """Label and text of every line of the panel; a text has `room` columns."""
        show, step = self.show, self.latest.get("step", 0)
        yield "progress", _bar(step / self.total, "green", f"{step:,.0f} of {self.total:,}", room)
        elapsed, left = duration(self.latest.get("time")), duration(self.seconds_left())
        yield "", _words(f"*{elapsed}* elapsed   *{left}* left   *{show('episodes')}* episodes")
        quartiles = f"{show('return_low')} .. {show('return_high')}"
        yield "return", _words(f"*{show('return')}*   quartiles of the last {WINDOW}: *{quartiles}*")
        yield "", _text((self.returns.sparkline(room), "green"))
        yield "evaluation", _words(self._evaluation())
        if told := [f"{name} *{show(key)}*" for name, key in self._of_environments()]:
            yield "environment", _words("   ".join(told))
        yield "speed", _words("   ".join(f"*{show(f'{what}_per_second')}* {what}/s" for what in self._speeds()))
        replayed = "replay_age" in self.latest
        age = f"data *{show('replay_age')}* updates old" if replayed else f"policy lag *{show('policy_lag')}*"
        yield "learning", _words(f"loss *{show('loss')}*   *{show('updates')}* updates   {age}")
        size, capacity = self.latest.get("table_size"), self.latest.get("table_capacity")
        if size is None or not capacity:
            yield "table", _words(f"*{show('table_size')}*")
        else:
            age = f", {show('time_in_table_seconds')} s old" if "time_in_table_seconds" in self.latest else ""
            yield "table", _bar(size / capacity, "blue", f"{size:,.0f} of {capacity:,.0f}{age}", room)
        yield from self._time(room)

    def _of_environments(self) -> list[tuple[str, str]]:
        """Name and key of the first few metrics that environments put into their infos."""
        keys = sorted(key for key in self.latest if key.startswith(ENVIRONMENT))
        return [(key.removeprefix(ENVIRONMENT), key) for key in keys[:SHOWN_OF_ENVIRONMENTS]]

    def _evaluation(self) -> str:
        words = f"*{self.show('evaluation')}*"
        if "evaluation_step" in self.latest:
            words += f" at step *{self.show('evaluation_step')}*"
        if self.target is not None:
            reached = self.latest.get("evaluation", -math.inf) >= self.target
            words += f"   target *{score(self.target)}*" + (" reached" if reached else "")
        return words

    def _time(self, room: int) -> "Iterable[tuple[str, Text]]":
        """Lines on the bottleneck, a bar of where the time of all processes goes, and its legend in a fixed order."""
        found = self.bottleneck
        facts = {"bottleneck": found.where, "moved by": ", ".join(found.advice)} if found else {"bottleneck": "–"}
        for label, words in facts.items():
            for n, line in enumerate(textwrap.wrap(words, room)):
                yield "" if n else label, _text((line, ""))
        shares = [self.latest.get(f"time_{role}", 0.0) for role in ROLES]
        whole = max(sum(shares), 1.0)  # time that no role has booked stays grey
        ends = [round(room * sum(shares[: n + 1]) / whole) for n in range(len(shares))]
        spans = zip([0, *ends], ends, COLOURS.values())
        blocks = [("█" * (end - start), colour) for start, end, colour in spans]
        yield "time", _text(*blocks, ("░" * (room - ends[-1]), "dim"))
        for first in range(0, len(ROLES), 3):
            entries = [*zip(COLOURS.items(), shares)][first : first + 3]
            pieces = [(("■", colour), (f" {role:<11}{x * 100:3.0f} %  ", "")) for (role, colour), x in entries]
            yield "", _text(*(piece for pair in pieces for piece in pair))


def export_svg(
    rows: Iterable[dict],
    title: str,
    total: int,
    target: float | None,
    path: Path,
    bottleneck: Bottleneck | None = None,
) -> None:
    """Draw the panel as it looks after these rows into an SVG file, for a page or a README."""
    from rich.console import Console

    picture = Picture(title, total, target)
    for row in rows:
        picture.add(row, bottleneck)
    page = Console(record=True, width=80, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    page.print(picture.panel(80))
    page.save_svg(str(path), title="cavalcade")


def _somebody_watches() -> bool:
    """Whether standard output is a terminal that can show the panel."""
    encoding = (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "")
    dumb = os.environ.get("TERM") == "dumb" or "CI" in os.environ
    return sys.stdout.isatty() and not dumb and encoding == "utf8"


def _text(*pieces: tuple[str, str]) -> "Text":
    from rich.text import Text

    return Text.assemble(*pieces)


def _words(line: str) -> "Text":
    """A line in which what stands between asterisks is bold: `*5,312* steps/s`."""
    return _text(*((piece, "dim" if n % 2 == 0 else "bold") for n, piece in enumerate(line.split("*"))))


def _bar(fraction: float, colour: str, words: str, room: int) -> "Text":
    """A bar, then words and the percentage, which ends at the right edge."""
    words = f"  {words}  {fraction * 100:3.0f} %"
    width = max(room - len(words), 1)
    full = round(min(max(fraction, 0.0), 1.0) * width)
    return _text(("━" * full, colour), ("─" * (width - full), "dim"), (words, ""))
