"""Checkpoints beside the run: a copy is what counts, errors are not lost, and slow disks are spared."""

import threading
import time

import numpy as np
import pytest

import cavalcade
from cavalcade.checkpoints import checkpoint
from cavalcade.checkpoints.saver import Pace, Saver
from cavalcade.errors import UserError
from cavalcade.table import table as table_module


def test_what_changes_after_the_hand_over_is_not_saved(tmp_path):
    saver = Saver(tmp_path)
    state = {"inner": {"list": [1, 2]}, "array": np.arange(3)}
    saver.save(state, 5)
    state["inner"]["list"].append(3)
    state["inner"]["new"] = 1
    saver.wait()
    found, step, _ = checkpoint.load_latest(tmp_path)
    assert step == 5 and found["inner"] == {"list": [1, 2]}


def test_an_error_of_the_writer_reaches_the_run(tmp_path):
    (tmp_path / "file").write_text("in the way")
    saver = Saver(tmp_path / "file" / "checkpoints")
    saver.save({}, 1)
    with pytest.raises(UserError, match="No checkpoint could be written"):
        saver.wait()
    saver.wait()  # told once


def test_the_caller_goes_on_while_a_checkpoint_is_written(tmp_path, monkeypatch):
    gate, original = threading.Event(), checkpoint.save

    def slow(*arguments):
        gate.wait(10)
        return original(*arguments)

    monkeypatch.setattr(checkpoint, "save", slow)
    saver = Saver(tmp_path)
    saver.save({"a": 1}, 1)
    assert not list(tmp_path.glob("step-*")) and not saver.finished()
    gate.set()
    saver.wait()
    assert saver.finished()
    assert checkpoint.load_latest(tmp_path)[0] == {"a": 1}


def test_a_checkpoint_that_takes_long_is_followed_by_a_long_pause():
    pace = Pace(0.0)
    time.sleep(0.01)
    assert pace.due(saved=True)
    pace.start()
    pace.began -= 2.0  # it took two seconds
    assert not pace.due(saved=True)
    pace.began -= 60.0
    assert pace.due(saved=True)


def test_a_table_too_large_for_a_copy_is_saved_all_the_same(tmp_path, monkeypatch):
    settings = {"backend": "numpy", "hidden": (8,), "envs": 2, "evaluations": 0, "display": False, "replay_start": 100}
    runs = []
    for name, free in (("copied", 1 << 40), ("not", 0)):
        monkeypatch.setattr(table_module, "available", lambda free=free: free)
        runs.append(
            cavalcade.train("dqn", "CartPole-v1", steps=400, checkpoint_seconds=0.0, out=tmp_path / name, **settings)
        )
    states = [checkpoint.load_latest(run.checkpoints)[0]["nodes"]["table"] for run in runs]
    for part in ("seen", "done"):
        for number, plane in states[0]["rows"][part].items():
            assert np.array_equal(plane["bytes"], states[1]["rows"][part][number]["bytes"])
