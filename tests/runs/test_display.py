"""The display fits, shows a dash for what it does not know, and leaves the terminal as it was."""

import io
import os
import pty
import re
import select
import subprocess
import sys
import xml.dom.minidom
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from cavalcade.records import figures
from cavalcade.records.figures import History
from cavalcade.runs import display
from cavalcade.runs.budget import Bottleneck
from cavalcade.runs.display import Display, Picture, export_svg

ROOT = Path(__file__).parents[2]
LEARNER = Bottleneck("learner", "learning", 0.87, ("larger --update-every", "smaller --batch"), "actor waits 60 %")


def full_row(step: int, total: int = 100_000) -> dict:
    row = {
        "step": step,
        "time": step / 1000,
        "return": step / 1000,
        "return_median": 40.0,
        "return_low": 30.5,
    }
    row |= {"return_high": 61.25, "episodes": 1200, "steps_per_second": 5312.4, "updates": step // 4}
    row |= {
        "frames_per_second": 5312.4,
        "updates_per_second": 1328.0,
        "loss": 0.1234,
        "policy_lag": 1.5,
        "table_size": step / 2,
    }
    row |= {"table_capacity": total, "evaluation": 52.0, "evaluation_step": 40_000, "time_environment": 0.2}
    row |= {"time_acting": 0.1, "time_storing": 0.05, "time_learning": 0.5, "time_waiting": 0.1}
    row |= {"time_pulling": 0.02, "time_in_table_seconds": 1.25, "time_actor_environment": 0.9}
    return row | {"time_evaluating": 0.03}


def drawn(picture: Picture, width: int) -> str:
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(picture.panel(width))
    return console.export_text()


@pytest.mark.parametrize("width", [80, 100, 120])
def test_the_panel_says_everything_and_fits(width):
    picture = Picture("apex-dqn on [CartPole-v1]", 100_000, 475.0)
    for step in range(1000, 51_000, 1000):
        picture.add(full_row(step), LEARNER)
    text = drawn(picture, width)
    words = re.sub(r"\s+", " ", text)
    for part in (
        *("apex-dqn on [CartPole-v1]", "50,000 of 100,000 50 %", "0:50 elapsed", "0:50 left 1,200 episodes"),
        *("50 quartiles of the last 100: 30.5 .. 61.25", "52 at step 40,000 target 475"),
        *(
            "5,312 steps/s 1,328 updates/s",
            "loss 0.123 12,500 updates policy lag 1.5",
            "25,000 of 100,000, 1.25 s old 25 %",
        ),
        "bottleneck learner, mostly learning (87 % of its time), actor waits 60 %",
        "moved by larger --update-every, smaller --batch",
        *("■ environment 20 %", "■ pulling 2 %", "■ storing 5 %", "■ evaluating 3 %", "■ waiting 10 %"),
    ):
        assert part in words, part
    lines = text.splitlines()
    assert {len(line) for line in lines} == {min(width, display.WIDEST_PANEL)} and len(lines) <= 20
    assert "…" not in text and "▁" in text and "█" in text


@pytest.mark.parametrize("row", [{}, {"step": 5, "return": float("nan"), "loss": None, "time": np.float32("inf")}])
def test_what_is_unknown_is_a_dash(row):
    picture = Picture("x", 100, None)
    picture.add(row)
    text = drawn(picture, 80) + picture.line()
    assert "nan" not in text.lower() and "inf" not in text and "None" not in text
    assert "return –" not in text and "loss –" in text and "loss -" in picture.line()
    assert picture.line().isascii()


def test_frames_are_shown_where_they_are_not_steps_and_the_age_of_what_is_replayed():
    picture = Picture("dqn on ALE/Pong-v5", 100_000, None)
    row = {**full_row(1000), "frames_per_second": 21_249.6, "replay_age": 6552.3}
    del row["policy_lag"]
    picture.add(row)
    words = re.sub(r"\s+", " ", drawn(picture, 80))
    assert "5,312 steps/s 21,250 frames/s 1,328 updates/s" in words and "…" not in words
    assert "data 6,552 updates old" in words and "lag" not in words
    assert "  5,312 steps/s  21,250 frames/s  1,328 updates/s  " in picture.line()


def test_what_environments_tell_is_shown():
    picture = Picture("x", 100_000, None)
    assert "environment " not in re.sub(r"■ environment", "", drawn(picture, 80))
    picture.add({**full_row(1000), "env/won": 0.25, "env/height": 2.0})
    assert "height 2 won 0.25" in re.sub(r"\s+", " ", drawn(picture, 80))
    assert "  height 2  won 0.25  " in picture.line() and picture.line().isascii()


def test_long_scores_fit():
    picture = Picture("x", 100, -1234.5)
    scores = {"return": -1234.56, "return_low": -1444.44, "return_high": -0.012345}
    picture.add({"step": 1, **scores, "evaluation": -1234.54, "evaluation_step": 123_456_789})
    text = drawn(picture, 80)
    assert "-1,234.6   quartiles of the last 100: -1,444.4 .. -0.012345" in text and "…" not in text
    assert "-1,234.5 at step 123,456,789   target -1,234.5" in text


def test_a_value_stays_until_there_is_a_newer_one():
    picture = Picture("x", 100, 10.0)
    picture.add({"step": 1, "evaluation": 12.0})
    picture.add({"step": 2, "evaluation": float("nan")})
    assert "12 target 10 reached" in re.sub(r"\s+", " ", drawn(picture, 80))


def test_a_long_bottleneck_takes_two_lines():
    picture = Picture("x", 100, None)
    advice = ("larger --update-every", "smaller --batch", "more --threads on more cores")
    found = Bottleneck("learner", "environment", 1.0, advice, "predictor waits 100 %")
    picture.add({"step": 1}, found)
    text = drawn(picture, 80)
    assert "…" not in text and {len(line) for line in text.splitlines()} == {80}
    words = " ".join(text.replace("│", "").split())
    assert f"bottleneck {found.where} moved by {', '.join(advice)} time" in words
    picture.add({"step": 2})
    assert picture.bottleneck == found  # until there is a newer one


def test_time_left_follows_the_present_pace_of_a_resumed_run():
    picture = Picture("x", 1000, None)
    picture.add({"step": 600, "time": 5000.0})
    assert picture.seconds_left() is None
    picture.add({"step": 700, "time": 5010.0})
    assert picture.seconds_left() == pytest.approx(30)
    picture.add({"step": 1001, "time": 5020.0})
    assert picture.seconds_left() == 0


def test_history_is_bounded_and_keeps_its_shape():
    history = History(64)
    assert history.sparkline(10) == "–"
    for n in range(10_000):
        history.add(n)
    assert len(history._values) <= 64
    line = history.sparkline(16)
    assert len(line) == 16 and list(line) == sorted(line) and line[0] == "▁" and line[-1] == "█"
    flat = History(8)
    flat.add(3.0)
    flat.add(3.0)
    assert flat.sparkline(20) == "▁▁"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (87.24, "87.2"), (999.7, "1,000"), (12345.6, "12,346"), (0.1234, "0.123"), (1e-5, "1.0e-05")]
    + [(-3.5, "-3.5"), (99.96, "100"), (61.0, "61")],
)
def test_numbers_are_short(value, text):
    assert figures.number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.955, "0.955"), (-0.04, "-0.04"), (-0.0, "0"), (0.0, "0"), (500.0, "500"), (487.3333, "487.33"), (20, "20")]
    + [(499.96, "499.96"), (-20.4, "-20.4"), (12345.678, "12,346"), (99999.9, "100,000"), (1234.56, "1,234.6")]
    + [(-0.00012345678, "-0.00012346"), (1e-9, "1e-09"), (-1e-9, "-1e-09"), (1e9, "1,000,000,000")],
)
def test_scores_have_as_many_digits_as_they_need(value, text):
    assert figures.score(value) == text and figures.number(-0.0) == "0"


def test_a_log_gets_the_first_and_last_line_and_one_now_and_then(capsys, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: now[0])
    shown = Display("dqn on CartPole-v1", 100_000, 475.0)
    for step in range(1000, 21_000, 1000):
        shown.update(full_row(step), LEARNER)
        now[0] += 1
    shown.note("Checkpoint [bold]saved")
    shown.close(["Finished."])
    shown.close(["Finished twice."])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "dqn on CartPole-v1: 100,000 steps, target 475"
    steps = [line.split()[1] for line in lines if line.startswith("step")]
    assert steps == [f"{n},000/100,000" for n in (1, 6, 11, 16, 20)]
    assert lines[-3] == "Checkpoint [bold]saved" and lines[-1] == "Finished."
    expected = "step 20,000/100,000 (20 %)  return 20 [30.5 .. 61.25]  5,312 steps/s  1,328 updates/s  loss 0.123"
    assert lines[-2].startswith(expected) and lines[-2].endswith("learner 87 % learning  left 1:20")


def test_nobody_watches_a_pipe_or_ci(monkeypatch):
    class Terminal:
        encoding = "UTF-8"

        def isatty(self):
            return True

    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert not display._somebody_watches()  # pytest captures
    monkeypatch.setattr(display.sys, "stdout", Terminal())
    assert display._somebody_watches()
    monkeypatch.setenv("CI", "true")
    assert not display._somebody_watches()
    monkeypatch.delenv("CI")
    monkeypatch.setenv("TERM", "dumb")
    assert not display._somebody_watches()


LIVE = """
import sys, threading, time
from cavalcade.runs.display import Display
shown = Display("dqn", 1000, 475.0)
assert shown.interactive
for step in range(1, 1001):
    if step == 300:
        shown.note("a [note] that stays")
    shown.update({"step": step, "return": step / 2, "time": step / 100})
    if step == 500 and sys.argv[1] == "crash":
        raise SystemExit("stopped by hand")
    time.sleep(0.001)
assert threading.active_count() == 1
shown.close(["all done"])
"""


def in_a_terminal(*arguments: str) -> str:
    """What a program writes to a terminal of 80 columns."""
    main, side = pty.openpty()
    environment = {k: v for k, v in os.environ.items() if k != "CI"}
    environment |= {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "40", "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-c", LIVE, *arguments]
    child = subprocess.Popen(command, stdout=side, stderr=side, stdin=side, env=environment, cwd=ROOT)
    os.close(side)
    written = b""
    while select.select([main], [], [], 30)[0]:
        try:
            chunk = os.read(main, 65536)
        except OSError:  # the other side was closed
            break
        if not chunk:
            break
        written += chunk
    os.close(main)
    child.wait()
    return written.decode()


def test_a_terminal_gets_a_panel_that_is_redrawn_a_few_times_a_second():
    text = in_a_terminal("finish")
    assert "1,000 of 1,000" in text and "a [note] that stays" in text
    assert text.rstrip().endswith("all done"), text[-500:]
    assert 3 <= text.count("╭─") <= 20  # 1000 updates in a second or two
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")  # the cursor is back


def test_a_crash_gives_the_cursor_back():
    text = in_a_terminal("crash")
    assert "stopped by hand" in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")


def test_training_goes_on_when_the_reader_of_its_log_has_gone():
    code = """
import sys
from cavalcade.runs.display import Display
shown = Display("dqn", 10, None)
sys.stdin.read()
shown.update({"step": 1})
shown.close(["done"])
print("survived", file=sys.stderr)
"""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    child = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, text=True, **pipes)
    child.stdout.readline()
    child.stdout.close()
    child.stdin.close()
    assert child.stderr.read() == "survived\n" and child.wait() == 0


def test_the_svg_is_a_picture_of_the_panel(tmp_path):
    rows = [full_row(step) for step in range(1000, 101_000, 1000)]
    export_svg(rows, "apex-dqn on CartPole-v1", 100_000, 475.0, tmp_path / "display.svg", LEARNER)
    text = (tmp_path / "display.svg").read_text()
    xml.dom.minidom.parseString(text)
    assert "apex-dqn" in text and "100,000" in text and "▁" in text and "--update-every" in text


def test_a_display_that_is_turned_off_says_nothing(capfd):
    shown = Display("dqn on CartPole-v1", 100_000, 475.0, interactive=False)
    shown.update(full_row(1000), LEARNER)
    shown.note("Checkpoint saved")
    shown.close(["Finished."])
    assert capfd.readouterr() == ("", "")
