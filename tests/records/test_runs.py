"""Run folders and what is recorded in them: nothing is overwritten, and nothing reported is lost."""

import builtins
import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cavalcade.errors import UserError
from cavalcade.records import recorder as recording
from cavalcade.records.folder import Run, default_path
from cavalcade.records.recorder import Recorder

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(tmp_path) -> Run:
    return Run.create(tmp_path / "run", {"system": "dqn", "environment": "CartPole-v1", "seed": 1})


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_a_run_is_opened_as_it_was_created(tmp_path):
    config = {"layers": (64, 64), "rate": np.float32(0.5), "where": Path("x"), "nested": {"a": None}}
    created = Run.create(tmp_path / "deep" / "run", config)
    opened = Run.open(str(tmp_path / "deep" / "run"))
    assert opened.config == created.config == {"layers": [64, 64], "rate": 0.5, "where": "x", "nested": {"a": None}}
    assert opened.checkpoints == created.path / "checkpoints" and opened.policy == created.path / "policy"
    assert opened.curve == created.path / "curve.png" and opened.rows() == []
    assert sorted(os.listdir(created.path)) == ["config.json"]


def test_a_run_is_never_overwritten(run):
    with pytest.raises(UserError, match=r"already holds a run.*cavalcade resume.*--out"):
        Run.create(run.path, {})
    assert Run.open(run.path).config["system"] == "dqn"


def test_other_files_in_the_folder_do_no_harm(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    assert Run.create(tmp_path, {"a": 1}).config == {"a": 1}


def test_what_is_no_run_folder_is_said_clearly(tmp_path):
    with pytest.raises(UserError, match="no run folder"):
        Run.open(tmp_path / "absent")
    with pytest.raises(UserError, match=r"not a run folder.*no config\.json"):
        Run.open(tmp_path)
    for damaged in ("{", "[]"):
        (tmp_path / "config.json").write_text(damaged)
        with pytest.raises(UserError, match=r"config\.json"):
            Run.open(tmp_path)
    with pytest.raises(UserError, match="is a file"):
        Run.create(tmp_path / "config.json", {})
    with pytest.raises(UserError, match="cannot hold"):
        Run.create(tmp_path / "new", {"bad": object()})
    assert not (tmp_path / "new").exists()


def test_default_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = default_path("apex-dqn", "ALE/Pong-v5", 3)
    assert first == Path("runs/apex-dqn-ALE-Pong-v5-s3")
    for expected in ("", "-2", "-3"):
        path = default_path("apex-dqn", "ALE/Pong-v5", 3)
        assert str(path) == f"runs/apex-dqn-ALE-Pong-v5-s3{expected}"
        Run.create(path, {})
    assert default_path("ppo", "my_module:Env-v0", 0) == Path("runs/ppo-my_module-Env-v0-s0")


def test_rows_are_strict_json_and_what_is_not_known_is_left_out(run):
    recorder = Recorder(run, None)
    row = {"step": np.int64(5), "return": float("nan"), "loss": np.float32(0.5), "gap": -np.inf, "low": None}
    recorder.write({**row, "text": "ok", "list": [1.0, float("inf")], "ints": np.arange(3)})
    assert run.rows() == [{"step": 5, "loss": 0.5, "text": "ok", "ints": [0, 1, 2]}]  # before closing
    recorder.close()
    recorder.close()
    json.loads(run.metrics_file.read_text(), parse_constant=pytest.fail)
    with pytest.raises(UserError, match="'step'"):
        Recorder(run, None).write({"loss": 1.0})
    with pytest.raises(UserError, match="'odd' is a set"):
        Recorder(run, None).write({"step": 1, "odd": {1}})


def test_a_torn_last_line_is_passed_over_and_dropped_on_resume(run):
    run.metrics_file.write_bytes(b'{"step": 1}\n{"step": 2}\n{"step": 3}\n{"step": 4, "ret')
    assert [row["step"] for row in run.rows()] == [1, 2, 3]
    run.truncate(2)
    assert run.metrics_file.read_bytes() == b'{"step": 1}\n{"step": 2}\n'
    recorder = Recorder(run, 2)
    recorder.write({"step": 3, "return": 7.0})
    recorder.close()
    assert [row["step"] for row in run.rows()] == [1, 2, 3]
    assert not [name for name in os.listdir(run.path) if name.startswith(".")]


def test_truncating_a_run_without_metrics(run):
    run.truncate(10)
    assert run.rows() == []


def test_tensorboard_reads_the_events_and_forgets_what_was_undone(run):
    first = Recorder(run, None)
    for step in (10, 20, 30, 40):
        first.write({"step": step, "return": step / 2, "text": "skipped"})
    first.close()
    assert scalars(run.path)["return/mean"] == [(10, 5.0), (20, 10.0), (30, 15.0), (40, 20.0)]
    second = Recorder(run, 20)
    for step in (25, 35):
        second.write({"step": step, "return": 1.0, "loss": 2.0})
    second.close()
    assert scalars(run.path)["return/mean"] == [(10, 5.0), (20, 10.0), (25, 1.0), (35, 1.0)]
    assert scalars(run.path)["loss/total"] == [(25, 2.0), (35, 2.0)]
    assert [row["step"] for row in run.rows()] == [10, 20, 25, 35]


def test_tensorboard_waits_for_the_first_update(run):
    recorder = Recorder(run, None)
    recorder.write({"step": 1, "updates": 0})
    assert not list(run.path.glob("events.*"))
    recorder.write({"step": 2, "updates": 5})
    assert list(run.path.glob("events.*"))
    recorder.close()
    assert scalars(run.path)["learning/updates"] == [(1, 0.0), (2, 5.0)]


def test_nothing_heavy_is_imported_before_it_is_needed():
    code = """
import sys
import cavalcade.checkpoints, cavalcade.records.recorder, cavalcade.runs.display, cavalcade.records.plotting
heavy = {"matplotlib", "tensorboard", "torch", "rich"} & set(sys.modules)
sys.exit(str(heavy) if heavy else 0)
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_without_tensorboard_there_is_one_notice_and_all_rows(run, monkeypatch):
    real = builtins.__import__

    def without(name, *arguments, **options):
        if name.startswith("tensorboard"):
            raise ImportError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    notices: list[str] = []
    recorder = Recorder(run, None, notify=notices.append)
    for step in (1, 2, 3):
        recorder.write({"step": step})
    recorder.close()
    assert len(notices) == 1 and "TensorBoard is not installed" in notices[0]
    assert len(run.rows()) == 3


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_sentence(run):
    run.metrics_file.symlink_to("/dev/full")
    recorder = Recorder(run, None)
    with pytest.raises(UserError, match=r"^The disk is full, so .*metrics\.jsonl could not be written: free"):
        recorder.write({"step": 1})
    recorder.close()


def test_a_full_disk_under_tensorboard_is_one_sentence_too(run, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    recorder = Recorder(run, None)
    recorder.write({"step": 1})
    monkeypatch.setattr(recorder._events._writer, "close", fail)
    with pytest.raises(UserError, match="The disk is full"):
        recorder.close()
    monkeypatch.setattr(recording._Events, "add", fail)
    with pytest.raises(UserError, match="The disk is full"):
        Recorder(run, None).write({"step": 2})


RECORD_FOREVER = """
import sys
from itertools import count
from cavalcade.records import Recorder
from cavalcade.records import Run
recorder = Recorder(Run.open(sys.argv[1]), None)
for step in count():
    recorder.write({"step": step, "updates": 0})
    print(step, flush=True)
"""


def test_kill_9_loses_no_row_that_was_written(run):
    child = subprocess.Popen(
        [sys.executable, "-c", RECORD_FOREVER, str(run.path)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    for _ in range(50):
        child.stdout.readline()
    child.kill()
    said = [int(line) for line in child.stdout.read().split()]
    child.wait()
    steps = [row["step"] for row in run.rows()]
    assert steps == list(range(len(steps))) and steps[-1] >= max(said, default=49)
