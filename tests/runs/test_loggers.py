"""Loggers with the real packages: W&B offline, MLflow with a sqlite file; nothing here needs a network."""

import json
import os
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

import cavalcade
from cavalcade.errors import UserError
from cavalcade.loggers import MlflowLogger, WandbLogger
from cavalcade.records.folder import Run
from cavalcade.records.metric_names import tagged

SMALL = {"backend": "numpy", "hidden": (8,), "envs": 4, "unroll": 8, "epochs": 1, "display": False}
BRIEF = {**SMALL, "steps": 320, "rows": 4, "evaluations": 2, "evaluation_episodes": 2}


class Odd(cavalcade.Callback):
    """Stops a run at its second row, as if it was interrupted."""

    rows = 0

    def on_metrics(self, run, row):
        self.rows += 1
        return cavalcade.STOP if self.rows == 2 else None


def stopped_and_resumed(folder: Path, logger) -> Run:
    """A run of two sittings, logged in both by a logger of their own."""
    run = cavalcade.train("ppo", "CartPole-v1", out=folder / "pole", callbacks=[logger(), Odd()], **BRIEF)
    assert len(run.rows()) == 2
    time.sleep(1.1)  # W&B names the files of a sitting by the second in which it began
    return cavalcade.resume(run.path, callbacks=[logger()], display=False)


# --- Weights & Biases ---------------------------------------------------------------------------------------------


def records(path: Path):
    """What a file of W&B holds: LevelDB's log format, blocks of 32 KiB with pieces of records, of protobufs."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:  # no room for another header: the block is padded
            at += 32768 - at % 32768
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last piece
            record = Record()
            record.ParseFromString(whole)
            whole = b""
            yield record


def items(update) -> dict:
    return {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in update}


def test_wandb_offline(tmp_path, monkeypatch):
    import wandb

    for name in ("CACHE", "CONFIG", "DATA"):
        monkeypatch.setenv(f"WANDB_{name}_DIR", str(tmp_path / name))
    run = stopped_and_resumed(tmp_path, lambda: WandbLogger(project="poles", mode="offline", tags=["small"]))
    wandb.teardown()  # its process
    [(place, id_)] = json.loads(run.loggers_file.read_text()).items()
    assert place == "wandb//poles"
    files = sorted((run.path / "wandb").glob(f"offline-run-*-{id_}/run-{id_}.wandb"))
    first, second = ([*records(file)] for file in files)  # the same run in both sittings
    begun = next(record.run for record in first if record.WhichOneof("record_type") == "run")
    config = items(begun.config.update)
    assert (begun.run_id, begun.project, begun.display_name, list(begun.tags)) == (id_, "poles", "pole", ["small"])
    assert config["system"] == "ppo" and config["algorithm"]["unroll"] == 8 and config["steps"] == 320

    history = [items(record.history.item) for record in (*first, *second) if record.HasField("history")]
    rows = [line for line in history if "learning/updates" in line]
    assert [{k: v for k, v in line.items() if k[0] != "_"} for line in rows] == [
        pytest.approx({**tagged(row), "step": row["step"]}) for row in run.rows()
    ]
    judged = [line for line in history if "evaluation/median" in line]
    assert [line["step"] for line in judged] == [row["evaluation_step"] for row in run.rows() if "evaluation" in row]
    assert all(line["evaluation/min"] <= line["evaluation/median"] <= line["evaluation/max"] for line in judged)
    for half, ended in ((first, "stopped"), (second, "finished")):
        summary = {}
        for record in half:
            summary |= items(record.summary.update)
        assert summary["ended"] == ended
        assert [record.exit.exit_code for record in half if record.HasField("exit")] == [0]
    assert summary["best_evaluation"] == max(row["evaluation"] for row in run.rows() if "evaluation" in row)


# --- MLflow -------------------------------------------------------------------------------------------------------


def test_mlflow_with_a_sqlite_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where it would put what it was not told where to put
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    run = stopped_and_resumed(tmp_path, lambda: MlflowLogger(uri, experiment="poles"))
    from mlflow import MlflowClient

    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("poles")
    [found] = client.search_runs([experiment.experiment_id])  # one, of two sittings
    assert (found.info.run_name, found.info.status, found.data.tags["ended"]) == ("pole", "FINISHED", "finished")
    assert found.data.params["system"] == "ppo" and found.data.params["algorithm.unroll"] == "8"
    for name, tag in (("updates", "learning/updates"), ("return", "return/mean"), ("evaluation", "evaluation/mean")):
        logged = [(metric.step, metric.value) for metric in client.get_metric_history(found.info.run_id, tag)]
        assert sorted(logged) == [(row["step"], pytest.approx(row[name])) for row in run.rows() if name in row], name
    best = max(row["evaluation"] for row in run.rows() if "evaluation" in row)
    assert found.data.metrics["best_evaluation"] == pytest.approx(best) and "evaluation/median" in found.data.metrics

    logger = MlflowLogger(uri, experiment="poles")  # more steps, and an end by force
    longer = Run(run.path, {**run.config, "steps": 640})
    logger.on_start(longer)
    assert client.get_run(found.info.run_id).info.status == "RUNNING"
    logger.on_metrics(longer, {"step": 640, "env/lines (cleared)": 3.0, "adjusted": ["a sentence"]})
    logger.on_end(longer, {"ended": "interrupted", "best_evaluation": None, "steps": 640})
    again = client.get_run(found.info.run_id)
    assert again.info.status == "KILLED" and again.data.metrics["env/lines _cleared_"] == 3.0
    assert again.data.tags["changed.steps"] == "640" and "changed.system" not in again.data.tags
    assert not (tmp_path / "mlruns").exists()


# --- what is missing or wrong -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("logger", "package"), [(WandbLogger, "wandb"), (MlflowLogger, "mlflow")])
def test_a_missing_package_is_a_sentence_with_the_extra(logger, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=rf"needs {package}; install it with pip install 'cavalcade\[{package}\]'\.$"):
        logger()


def test_a_mode_that_wandb_does_not_have():
    with pytest.raises(UserError, match=r"'ofline'; choose one of online.*Did you mean 'offline'"):
        WandbLogger(mode="ofline")


def test_the_module_loads_neither_of_them():
    code = "import sys, cavalcade.loggers; print({'wandb', 'mlflow'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"
