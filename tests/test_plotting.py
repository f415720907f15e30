"""Pictures: valid, of a sensible size, true to the data, and without a trace outside."""

import math
import random
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

from cavalcade import plotting
from cavalcade.errors import UserError
from cavalcade.plotting import Curve, draw_curve, draw_runs
from cavalcade.recording import Recorder
from cavalcade.runs import Run


def make(folder: Path, seed: int = 0, rows: int = 60, bonus: float = 0.0, quartiles: bool = True, **config) -> Run:
    config = {
        "system": "dqn",
        "environment": "CartPole-v1",
        "backend": "torch",
        "seed": seed,
        "target": 475,
    } | config
    name = "-".join(str(config[key]) for key in ("system", "environment", "backend", "seed"))
    run = Run.create(folder / name, config)
    recorder = Recorder(run, None)
    noise = random.Random(seed)
    for n in range(rows):
        value = 500 / (1 + math.exp(3 - n / 8)) + noise.gauss(0, 20) + bonus
        row = {"step": n * 500, "time": n * 4.0, "updates": 0}
        if n > 2:
            row["return"] = value
            if quartiles:
                row |= {"return_median": value + 1, "return_low": value - 30, "return_high": value + 25}
        if n and n % 10 == 0:
            row |= {"evaluation": value + 20, "evaluation_step": n * 500}
        recorder.write(row)
    recorder._events._waiting.clear()  # no TensorBoard here
    recorder.close()
    return run


def png_size(path: Path) -> tuple[int, int]:
    """Width and height, after checking every chunk of the file."""
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, kinds = 8, []
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at : at + 8])
        body = data[at + 4 : at + 8 + length]
        assert zlib.crc32(body) == struct.unpack(">I", data[at + 8 + length : at + 12 + length])[0]
        kinds.append(kind)
        at += 12 + length
    assert kinds[0] == b"IHDR" and kinds[-1] == b"IEND"
    return struct.unpack(">II", data[16:24])


def test_a_curve_is_drawn_and_changes_with_the_data(tmp_path):
    run = make(tmp_path)
    already = "matplotlib.pyplot" in sys.modules
    assert draw_curve(run) == run.curve
    assert png_size(run.curve) == (960, 540) and 10_000 < run.curve.stat().st_size < 300_000
    before = run.curve.read_bytes()
    draw_curve(run)
    assert run.curve.read_bytes() == before
    run.truncate(10_000)
    draw_curve(run)
    assert run.curve.read_bytes() != before
    assert ("matplotlib.pyplot" in sys.modules) == already  # no global figures, no display to find


def test_a_run_without_any_episode_still_has_a_picture(tmp_path):
    empty = make(tmp_path, rows=2)
    assert png_size(draw_curve(empty)) == (960, 540)
    with pytest.raises(UserError, match="no episode has ended"):
        draw_runs([empty.path], tmp_path / "out.png")
    bare = Run.create(tmp_path / "bare", {})
    assert png_size(draw_curve(bare)) == (960, 540)


def test_one_single_row(tmp_path):
    run = make(tmp_path, rows=4)
    assert Curve.of(run.rows()).x.tolist() == [1500.0]
    draw_curve(run)
    draw_runs([run.path], tmp_path / "out.png")


@pytest.mark.parametrize("by", ["step", "time"])
def test_several_runs(tmp_path, by):
    runs = [make(tmp_path, seed, bonus=10 * seed) for seed in range(3)]
    runs += [make(tmp_path, 0, system="ppo"), make(tmp_path, 1, system="ppo", rows=40)]
    out = draw_runs([run.path for run in runs], tmp_path / "new" / "runs.png", by=by)
    assert png_size(out) == (960, 540)
    fewer = draw_runs([run.path for run in runs[:3]], tmp_path / "fewer.png", by=by)
    assert fewer.read_bytes() != out.read_bytes()


def legend_and_lines(monkeypatch, paths, tmp_path, **options):
    """What was put on the axes, read from the figure before it becomes a picture."""
    figures = []
    write = plotting._write
    monkeypatch.setattr(plotting, "_write", lambda figure, path: (figures.append(figure), write(figure, path))[1])
    draw_runs(paths, tmp_path / "out.png", **options)
    axes = figures[0].axes[0]
    return axes.get_title(loc="left"), axes.get_legend_handles_labels()[1], axes


def test_runs_are_grouped_over_their_seeds(tmp_path, monkeypatch):
    runs = [make(tmp_path, seed, bonus=100 * seed) for seed in (0, 1, 2)] + [make(tmp_path, 5, system="ppo")]
    title, labels, axes = legend_and_lines(monkeypatch, [run.path for run in runs], tmp_path)
    assert title == "CartPole-v1" and labels == ["dqn (3 seeds)", "ppo (1 seed)"]
    x, y = (np.asarray(values, float) for values in axes.lines[0].get_data())
    middle = Curve.of(runs[1].rows())
    np.testing.assert_allclose(y, np.interp(x, middle.x, middle.median), atol=60)  # seeds lie 100 apart
    assert np.isfinite(y).all()


def test_a_different_backend_or_environment_is_another_line(tmp_path, monkeypatch):
    runs = [make(tmp_path, 0), make(tmp_path, 1, backend="jax"), make(tmp_path, 2, backend="jax")]
    title, labels, _ = legend_and_lines(monkeypatch, [run.path for run in runs], tmp_path)
    assert title == "dqn on CartPole-v1" and labels == ["torch (1 seed)", "jax (2 seeds)"]
    runs.append(make(tmp_path, 0, environment="Pendulum-v1", rows=2))
    _, labels, _ = legend_and_lines(monkeypatch, [run.path for run in runs], tmp_path)
    assert labels[-1] == "Pendulum-v1, torch (0 of 1 seed)"


def test_where_a_seed_is_missing_the_line_is_dotted(tmp_path, monkeypatch):
    runs = [make(tmp_path, 0), make(tmp_path, 1, rows=30)]
    _, labels, axes = legend_and_lines(monkeypatch, [run.path for run in runs], tmp_path, by="time")
    assert labels == ["dqn (2 seeds)"] and axes.get_xlabel() == "time in minutes"
    whole, partial = axes.lines
    assert partial.get_linestyle() == ":"
    x, solid, dotted = whole.get_xdata(), np.isfinite(whole.get_ydata()), np.isfinite(partial.get_ydata())
    assert (solid != dotted).all() and x[solid].max() <= 29 * 4 / 60 <= x[dotted].max()


def test_quartiles_are_made_when_rows_have_none(tmp_path):
    curve = Curve.of(make(tmp_path, quartiles=False, rows=200).rows())
    assert (curve.low <= curve.median).all() and (curve.median <= curve.high).all() and (curve.low < curve.high).any()
    assert len(curve.x) == 197 and (np.diff(curve.x) > 0).all()


def test_smoothing_keeps_a_constant_and_cuts_the_ends():
    np.testing.assert_allclose(plotting._smooth(np.full(200, 3.0)), 3.0)
    line = np.arange(200.0)
    np.testing.assert_allclose(plotting._smooth(line)[10:-10], line[10:-10])


def test_bad_requests_are_one_sentence(tmp_path):
    run = make(tmp_path)
    with pytest.raises(UserError, match="'step' or by 'time'"):
        draw_runs([run.path], tmp_path / "out.png", by="epoch")
    with pytest.raises(UserError, match="name one run folder"):
        draw_runs([], tmp_path / "out.png")
    with pytest.raises(UserError, match="not a run folder"):
        draw_runs([tmp_path], tmp_path / "out.png")
    with pytest.raises(UserError, match=r"\.png, \.svg or \.pdf"):
        draw_runs([run.path], tmp_path / "out.docx")
    assert draw_runs([run.path], tmp_path / "out.svg").read_text().startswith("<?xml")
