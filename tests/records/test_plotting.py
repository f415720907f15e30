"""Pictures: valid, of a sensible size, true to the data, and without a trace outside."""

import math
import random
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

from cavalcade.errors import UserError
from cavalcade.records import plotting
from cavalcade.records.curves import Curve, Points, bins
from cavalcade.records.folder import Run
from cavalcade.records.plotting import draw_curve, draw_runs
from cavalcade.records.recorder import Recorder


def make(folder: Path, seed: int = 0, rows: int = 60, bonus: float = 0.0, **config) -> Run:
    config = {
        "system": "dqn",
        "environment": "CartPole-v1",
        "backend": "torch",
        "seed": seed,
        "target": 475,
    } | config
    name = "-".join(str(config[key]) for key in ("system", "environment", "backend", "seed"))
    run = Run.create(folder / name, config)
    noise = random.Random(seed)
    made = []
    for n in range(rows):
        value = 500 / (1 + math.exp(3 - n / 8)) + noise.gauss(0, 20) + bonus
        made.append({"step": (n + 1) * 500, "time": (n + 1) * 4.0, "updates": 0, "loss": 1 / (n + 1)})
        if n > 2:
            made[-1] |= {"return": value, "episodes": 3 * n}
        if n and n % 10 == 0:
            made[-1] |= {"evaluation": value + 20, "evaluation_step": (n + 1) * 500}
    return written(run, made)


def written(run: Run, rows: list[dict]) -> Run:
    recorder = Recorder(run, None)
    for row in rows:
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


def test_one_single_row(tmp_path, monkeypatch):
    run = make(tmp_path, rows=4)
    draw_curve(run)
    _, _, axes = drawn(monkeypatch, [run.path], tmp_path)
    line = labelled(axes, "dqn")
    assert np.isfinite(line.get_ydata()).sum() == 1 and line.get_marker() == ".", "a line of one point is seen"


@pytest.mark.parametrize("by", ["step", "time"])
def test_several_runs(tmp_path, by):
    runs = [make(tmp_path, seed, bonus=10 * seed) for seed in range(3)]
    runs += [make(tmp_path, 0, system="ppo"), make(tmp_path, 1, system="ppo", rows=40)]
    out = draw_runs([run.path for run in runs], tmp_path / "new" / "runs.png", by=by)
    assert png_size(out) == (960, 540)
    fewer = draw_runs([run.path for run in runs[:3]], tmp_path / "fewer.png", by=by)
    assert fewer.read_bytes() != out.read_bytes()


def drawn(monkeypatch, paths, tmp_path, **options):
    """Title, legend and axes, read from the figure before it becomes a picture."""
    figures = []
    write = plotting._write
    with monkeypatch.context() as patch:
        patch.setattr(plotting, "_write", lambda figure, path: (figures.append(figure), write(figure, path))[1])
        if paths == "curve":
            draw_curve(options["run"])
        else:
            draw_runs(paths, tmp_path / "out.png", **options)
    axes = figures[0].axes[0]
    return axes.get_title(loc="left"), axes.get_legend_handles_labels()[1], axes


def data(line) -> tuple[np.ndarray, np.ndarray]:
    return tuple(np.asarray(values, float) for values in line.get_data())


def labelled(axes, label: str):
    return next(line for line in axes.lines if line.get_label() == label)


def episodes(lengths, every: int) -> list[dict]:
    """Rows as a run of one environment writes them, whose episodes are so long and pay one for each step."""
    rows, step, done, window = [], 0, 0, []
    ends = np.cumsum(list(lengths))
    for step in range(every, int(ends[-1]) + 1, every):
        finished = [length for length, end in zip(lengths, ends) if step - every < end <= step]
        done, window = done + len(finished), (window + finished)[-100:]
        row = {"step": step, "time": step / 1000, "episodes": done}
        row |= {"return": float(np.mean(finished))} if finished else {}
        row |= {"return_median": float(np.median(window))} if window else {}
        rows.append(row)
    return rows


@pytest.mark.parametrize("every", [200, 1_000, 10_000], ids=["many rows", "some rows", "few rows"])
def test_the_line_is_where_the_returns_are(every, tmp_path, monkeypatch):
    """A run that earned 20 and, from its middle on, 500, which is at most 100 episodes before its end."""
    run = written(
        Run.create(tmp_path / "run", {"system": "dqn", "seed": 1}), episodes([20] * 2500 + [500] * 100, every)
    )
    for paths, label, options in (("curve", "mean return", {"run": run}), ([run.path], "dqn", {})):
        _, _, axes = drawn(monkeypatch, paths, tmp_path, **options)
        x, y = data(labelled(axes, label))
        bin_width = x[1] - x[0]
        assert bin_width <= max(2 * every, 2_000)
        assert (y[x > 50_000 + bin_width] >= 490).all() and (y[x < 50_000] == 20).all()


def test_a_run_that_is_better_everywhere_lies_above_everywhere(tmp_path, monkeypatch):
    """By the median of its last hundred episodes B is the better one for half of the run: it has more of them."""
    a = written(Run.create(tmp_path / "a", {"system": "a"}), episodes([20] * 500 + [500] * 80, 500))
    b = written(Run.create(tmp_path / "b", {"system": "b"}), episodes([10] * 1000 + [95] * 420, 500))
    medians = [[row["return_median"] for row in run.rows()] for run in (a, b)]
    assert np.mean([one < other for one, other in zip(*medians)]) > 0.4
    _, _, axes = drawn(monkeypatch, [a.path, b.path], tmp_path)
    (x, above), (same, below) = (data(labelled(axes, name)) for name in "ab")
    np.testing.assert_array_equal(x, same)
    both = np.isfinite(above) & np.isfinite(below)
    assert both.sum() >= 48 and (above > below)[both].all()


def test_runs_are_grouped_over_their_seeds(tmp_path, monkeypatch):
    runs = [make(tmp_path, seed, bonus=100 * seed) for seed in (0, 1, 2)] + [make(tmp_path, 5, system="ppo")]
    title, labels, axes = drawn(monkeypatch, [run.path for run in runs], tmp_path)
    assert title == "CartPole-v1"
    assert labels == ["dqn (3 seeds)", "ppo", "target 475", "evaluation", "band: lowest to highest run"]
    _, y = data(labelled(axes, "dqn (3 seeds)"))
    points = [Points.of(run.rows()) for run in runs[:3]]
    expected = Curve.of(points, bins(points))
    np.testing.assert_allclose(y, expected.mean)
    band = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert band.max() == expected.high[expected.whole].max() and band.min() == expected.low[expected.whole].min()
    assert "every 600 steps" in axes.get_ylabel()


def test_evaluations_are_always_drawn(tmp_path, monkeypatch):
    runs = [make(tmp_path, 0), make(tmp_path, 1), make(tmp_path, 0, backend="jax")]
    _, labels, axes = drawn(monkeypatch, [run.path for run in runs], tmp_path)
    assert labels[:2] == ["torch (2 seeds)", "jax"] and "evaluation" in labels
    marks = [line for line in axes.lines if line.get_marker() == "o" and len(line.get_xdata())]
    assert [line.get_color() for line in marks] == [plotting.COLOURS[n] for n in (0, 0, 1)]
    for line, run in zip(marks, runs):
        judged = [(row["evaluation_step"], row["evaluation"]) for row in run.rows() if "evaluation" in row]
        assert len(judged) == 5 and list(zip(*data(line))) == judged
    only = written(
        Run.create(tmp_path / "only", {}), [{"step": 9, "time": 1.0, "evaluation": 3.0, "evaluation_step": 8}]
    )
    _, labels, _ = drawn(monkeypatch, [only.path], tmp_path)
    assert labels == ["only (nothing yet)", "evaluation"], "no episode has ended in training"


def test_a_different_backend_or_environment_is_another_line(tmp_path, monkeypatch):
    runs = [make(tmp_path, 0), make(tmp_path, 1, backend="jax"), make(tmp_path, 2, backend="jax")]
    title, labels, _ = drawn(monkeypatch, [run.path for run in runs], tmp_path)
    assert title == "dqn on CartPole-v1" and labels[:2] == ["torch", "jax (2 seeds)"]
    runs.append(make(tmp_path, 0, environment="Pendulum-v1", rows=2, target=-200))
    title, labels, _ = drawn(monkeypatch, [run.path for run in runs], tmp_path)
    assert labels[2] == "Pendulum-v1, torch (nothing yet)" and title == "dqn"
    assert not any("target" in label for label in labels), "they have no common one"


def test_another_metric(tmp_path, monkeypatch):
    run = make(tmp_path)
    _, labels, axes = drawn(monkeypatch, [run.path], tmp_path, metric="loss", labels=["mine"])
    assert (
        labels == ["mine"] and axes.get_ylabel() == "loss\nmean of every 600 steps" and data(axes.lines[0])[1][0] == 1.0
    )
    with pytest.raises(UserError, match=r"No row of these runs has a metric 'los'\. Did you mean 'loss'\?"):
        draw_runs([run.path], tmp_path / "out.png", metric="los")


def test_a_long_legend_makes_the_picture_higher(tmp_path):
    runs = [make(tmp_path, n, system=f"system-{n}-{'x' * 60}", rows=4) for n in range(8)]
    assert png_size(draw_runs([run.path for run in runs], tmp_path / "out.png"))[1] > 540


def test_where_a_seed_is_missing_the_line_is_dotted(tmp_path, monkeypatch):
    runs = [make(tmp_path, 0), make(tmp_path, 1, rows=30)]
    _, labels, axes = drawn(monkeypatch, [run.path for run in runs], tmp_path, by="time")
    assert labels[0] == "dqn (2 seeds)" and labels[-1] == "dotted: only some of the runs"
    assert axes.get_xlabel() == "time in minutes"
    (x, solid), (_, mean) = data(axes.lines[0]), data(axes.lines[1])
    assert axes.lines[1].get_linestyle() == ":" and np.isfinite(mean[5:]).all()
    assert x[np.isfinite(solid)].max() <= 30 * 4 / 60 <= x[np.isfinite(mean)].max()


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
