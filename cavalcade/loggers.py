"""Callbacks that show a run in Weights & Biases or in MLflow.

    cavalcade.train("ppo", "CartPole-v1", callbacks=[WandbLogger(project="poles", mode="offline")])

Both log the config, the rows of metrics by the tags of `metric_names.py`, evaluations, and at the end the best score.
The package is imported when a logger is made, so that a missing one is noticed before anything is written. A resumed
run goes on in the same place of W&B or MLflow: `loggers.json` in the run folder keeps its id there. Rows of metrics
that a resumed run makes again are logged again, because neither service can delete rows. A failure of logging during a
run is noted and the run goes on (`on_error`); a failure at the start ends the run.
"""

import json
import os
import re
import time
from typing import Any

from cavalcade.checkpoints import write_atomically
from cavalcade.errors import UserError, nearest
from cavalcade.records import Run, tagged
from cavalcade.runs.callbacks import Callback, Evaluation

BEST, ENDED = "best_evaluation", "ended"  # keys of the report, and of the summary in W&B or MLflow
MODES = ("online", "offline", "disabled")  # of W&B
MOST_PARAMS = 100  # that one call to MLflow takes
STATES = {"finished": "FINISHED", "stopped": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}  # for MLflow


class _Logger(Callback):
    """What both have in common: rows and evaluations as numbers by tag."""

    on_error = "continue"

    def on_metrics(self, run: Run, row: dict[str, Any]) -> None:
        self.log(tagged(row), row["step"])

    def on_evaluation(self, run: Run, evaluation: Evaluation) -> None:
        returns, lengths = evaluation.returns, evaluation.lengths
        spread = {"median": evaluation.median, "min": min(returns), "max": max(returns)}
        spread["length"] = sum(lengths) / len(lengths)
        self.log({f"evaluation/{name}": float(x) for name, x in spread.items()}, evaluation.step)

    def log(self, values: dict[str, float], step: int) -> None:
        """Log numbers by tag at this count of environment steps."""
        raise NotImplementedError


class WandbLogger(_Logger):
    """Shows a run in Weights & Biases. `options` are passed to `wandb.init`: entity, group, name, tags and so on."""

    def __init__(self, project: str = "cavalcade", mode: str | None = None, **options: Any):
        """`mode`: one of `MODES`; offline writes into the run folder, from where `wandb sync` sends it. None: as the
        environment variable WANDB_MODE says."""
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # else W&B sends its own errors to its makers
        try:
            from wandb import Settings, init
        except ImportError as error:
            raise _missing("Weights & Biases", "wandb", error) from error
        if mode not in (None, *MODES):
            raise UserError(f"The mode of W&B is '{mode}'; choose one of {', '.join(MODES)}.{nearest(mode, MODES)}")
        self.init: Any = init
        self.project, self.mode, self.options = project, mode, options
        self.settings = Settings(console="off")  # else W&B would log the display
        self.wandb: Any = None

    def on_start(self, run: Run) -> None:
        place = "/".join(["wandb", self.options.get("entity") or "", self.project])
        known = _known(run, place)
        online = (self.mode or os.environ.get("WANDB_MODE", "online")) == "online"
        given = {
            "name": run.path.name,
            "dir": str(run.path),
            "settings": self.settings,
            "config": run.config,
            "allow_val_change": True,  # a run may be resumed for more steps
            "reinit": "create_new",  # a W&B run that the user has open stays as it is
            **({"resume": "allow"} if online else {}),  # offline the same id is enough to go on with a run
            **({"id": known} if known else {}),
        }
        self.wandb = self.init(project=self.project, mode=self.mode, **{**given, **self.options})
        _keep(run, place, self.wandb.id)
        self.wandb.define_metric("step", hidden=True)
        self.wandb.define_metric("*", step_metric="step")  # our own axis: steps may go back when a run is resumed

    def log(self, values: dict[str, float], step: int) -> None:
        self.wandb.log({**values, "step": step})

    def on_end(self, run: Run, report: dict[str, Any]) -> None:
        self.wandb.summary.update({BEST: report[BEST], ENDED: report[ENDED]})
        self.wandb.finish(exit_code=int(report[ENDED] == "failed"))


class MlflowLogger(_Logger):
    """Shows a run in MLflow."""

    def __init__(self, tracking_uri: str | None = None, experiment: str = "cavalcade"):
        """`tracking_uri`: a server, or a file such as sqlite:///mlflow.db, which takes some seconds to be made; None:
        as MLflow's environment variables say."""
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # else MLflow reports its use to its makers
        try:
            from mlflow import MlflowClient, entities
        except ImportError as error:
            raise _missing("MLflow", "mlflow", error) from error
        self.connect, self.entities = MlflowClient, entities
        self.tracking_uri, self.experiment = tracking_uri, experiment
        self.id = ""

    def on_start(self, run: Run) -> None:
        self.client = self.connect(tracking_uri=self.tracking_uri)
        place = f"mlflow/{self.client.tracking_uri}/{self.experiment}"
        params = {name: str(value) for name, value in _flat(run.config).items()}
        if known := _known(run, place):
            self._go_on(known, params)
        else:
            self._begin(run.path.name, params)
            _keep(run, place, self.id)

    def _begin(self, name: str, params: dict[str, str]) -> None:
        """Make a new run of MLflow, with the settings as its params."""
        found = self.client.get_experiment_by_name(self.experiment)
        experiment = found.experiment_id if found else self.client.create_experiment(self.experiment)
        self.id = self.client.create_run(experiment, run_name=name).info.run_id
        given = [self.entities.Param(name, value) for name, value in params.items()]
        for first in range(0, len(given), MOST_PARAMS):
            self.client.log_batch(self.id, params=given[first : first + MOST_PARAMS])

    def _go_on(self, known: str, params: dict[str, str]) -> None:
        """Go on with the run of the id `known`. Params of MLflow cannot be changed, so settings that were changed, such
        as the number of steps, become tags."""
        self.id = known
        before = self.client.get_run(known).data.params
        self.client.update_run(known, status="RUNNING")
        for name, value in params.items():
            if before.get(name) != value:
                self.client.set_tag(known, f"changed.{name}", value)

    def log(self, values: dict[str, float], step: int) -> None:
        now = int(time.time() * 1000)
        allowed = {re.sub(r"[^\w./: -]", "_", name, flags=re.ASCII): value for name, value in values.items()}
        self.client.log_batch(
            self.id, metrics=[self.entities.Metric(name, value, now, step) for name, value in allowed.items()]
        )

    def on_end(self, run: Run, report: dict[str, Any]) -> None:
        if report[BEST] is not None:
            self.log({BEST: report[BEST]}, report["steps"])
        self.client.set_tag(self.id, ENDED, report[ENDED])
        self.client.set_terminated(self.id, STATES[report[ENDED]])


def _missing(name: str, extra: str, error: ImportError) -> UserError:
    return UserError(f"Logging to {name} needs {error.name}; install it with pip install 'cavalcade[{extra}]'.")


def _known(run: Run, place: str) -> str | None:
    """The id that the run has in `place`, or None if it was not logged there before."""
    return _all_known(run).get(place)


def _keep(run: Run, place: str, name: str) -> None:
    """Remember the id `name` that the run has in `place`."""
    write_atomically(run.loggers_file, json.dumps({**_all_known(run), place: name}, indent=2).encode())


def _all_known(run: Run) -> dict[str, str]:
    return json.loads(run.loggers_file.read_text()) if run.loggers_file.exists() else {}


def _flat(config: dict[str, Any], beginning: str = "") -> dict[str, Any]:
    """Nested settings by names with dots, such as `algorithm.unroll`."""
    flat: dict[str, Any] = {}
    for name, value in config.items():
        inside = isinstance(value, dict) and value
        flat |= _flat(value, f"{beginning}{name}.") if inside else {f"{beginning}{name}": value}
    return flat
