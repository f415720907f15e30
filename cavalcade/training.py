"""Driving a run: turns of the program, rows of metrics, checkpoints, the best policy, and a clean end.

run = cavalcade.train("ppo", "CartPole-v1", steps=100_000, seed=1)
"""

import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cavalcade import checkpoint, report
from cavalcade.budget import Bottleneck, Budget, bottleneck, cores_here
from cavalcade.callbacks import Callbacks, Evaluation, require_callbacks
from cavalcade.display import Display
from cavalcade.errors import UserError
from cavalcade.experiment import Experiment, Settings
from cavalcade.interruption import Interruption
from cavalcade.metrics import Metrics
from cavalcade.plotting import draw_curve
from cavalcade.program import ProgramFailed
from cavalcade.recording import Recorder
from cavalcade.runs import Run, default_path
from cavalcade.saving import Pace

RELAUNCHES = 5  # of the whole program in one sitting, before its failure is taken for permanent


def train(
    system: str,
    environment: Any,
    *,
    out: str | Path | None = None,
    options: dict | None = None,
    network: Any = None,
    display: bool | None = None,
    callbacks: Sequence[Any] = (),
    **overrides: Any,
) -> Run:
    """Train `system` on `environment` and return the run; every setting of the run and the algorithm is a keyword.
    `callbacks` hear what happens, and may end it (see `callbacks.py`)."""
    callbacks = require_callbacks(callbacks)
    run_fields = {field.name for field in dataclasses.fields(Settings)}
    settings = Settings(**{k: v for k, v in overrides.items() if k in run_fields})
    rest = {k: v for k, v in overrides.items() if k not in run_fields}
    experiment = Experiment.create(system, environment, settings, rest, options, network)
    return _start(experiment, out, display, callbacks)


def resume(
    path: str | Path,
    *,
    environment: Any = None,
    network: Any = None,
    display: bool | None = None,
    callbacks: Sequence[Any] = (),
) -> Run:
    """Go on with a run that was interrupted or killed, from its last checkpoint."""
    callbacks = require_callbacks(callbacks)
    run = Run.open(Path(path))
    experiment = Experiment.from_config(run.config, environment, network)
    Session(experiment, run, display, callbacks, resume=True).drive()
    return run


def repeat(config: dict, *, out: str | Path | None = None, display: bool | None = None) -> Run:
    """The run of a config.json once more, from its beginning."""
    experiment = Experiment.from_config(config)
    return _start(experiment, out, display)


def _start(experiment: Experiment, out: str | Path | None, display: bool | None, callbacks: Sequence[Any] = ()) -> Run:
    name, seed = experiment.spec.environment, experiment.settings.seed
    path = Path(out) if out else default_path(experiment.system, name, seed)
    run = Run.create(path, experiment.config())
    Session(experiment, run, display, callbacks).drive()
    return run


class Session:
    """One sitting of a run, from its start or its last checkpoint to its budget, its target or an interruption."""

    def __init__(
        self,
        experiment: Experiment,
        run: Run,
        display: bool | None,
        callbacks: Sequence[Any] = (),
        resume: bool = False,
    ):
        s = experiment.settings
        self.experiment, self.run, self.settings = experiment, run, s
        places = {node.name: group for group, nodes in experiment.program().groups().items() for node in nodes}
        self.places = places if s.runtime != "inprocess" else None
        self.metrics = Metrics(self.places)
        self.pace = Pace(s.checkpoint_seconds)
        self.best: float | None = None
        self.finished = False
        self.saving: int | None = None  # the step of the checkpoint that is being written
        self.relaunches = 0
        parts = experiment.parts
        title = f"{experiment.system} on {experiment.spec.environment}"
        self.display = Display(title, s.steps, s.target, display)
        self.callbacks = Callbacks(callbacks, run, self._note_callback)
        self.policy = parts.policy()
        self.levers = {*vars(s), *vars(experiment.algorithm)}
        if parts.model.small:  # more threads would make it slower
            self.levers.discard("threads")
        if s.address:
            self.levers.discard("address")
        restore = self._last_checkpoint() if resume else None
        self.runtime = experiment.launch(restore)
        for remark in self.runtime.remarks:
            self.display.note(f"step {restore[1] if restore else 0:,}: {remark}")
        self.recorder = Recorder(run, self.metrics.step if resume else None, self.display.note)
        self.display.note(
            f"{self.policy.layout.size:,} parameters; learns in {s.backend}, acts in {self.policy.acts_in}; "
            f"{s.actors} x {s.envs} environments; table of {parts.table_bytes / 1e6:,.2f} MB"
        )

    def _last_checkpoint(self) -> tuple[Path, int, dict] | None:
        """Folder, step and state of the last checkpoint, with the run's own part put back already."""
        folder = self.run.checkpoints
        try:
            state, step, notes = checkpoint.load_latest(folder)
        except UserError:
            if folder.exists() and any(folder.glob("step-*")):
                raise
            self.display.note("No checkpoint was written yet; the run starts again from its beginning.")
            self.metrics, self.best, self.finished = Metrics(self.places), None, False
            return None
        for note in notes:
            self.display.note(note)
        self.metrics.restore(state["metrics"])
        self.best, self.finished = state["best"], state["finished"]
        return folder, step, state

    def drive(self) -> None:
        try:
            with Interruption() as interruption:
                self.callbacks.start()
                while True:
                    try:
                        self._go_on(interruption)
                        self._end()
                        break
                    except ProgramFailed as failure:  # at its end too
                        self._relaunch(failure)
        except BaseException as error:
            self._tell_end("interrupted" if isinstance(error, KeyboardInterrupt) else "failed")
            raise
        finally:
            self.recorder.close()
            self.display.close([])
            self.runtime.close()
        if self.callbacks.error:
            raise self.callbacks.error

    def _go_on(self, interruption: Interruption) -> None:
        s = self.settings
        every = max(1.0, s.steps / s.rows)
        next_row = every * (int(self.metrics.step / every) + 1)
        while not (self.finished or interruption.asked or self.callbacks.ending):
            self.runtime.round()
            steps = self.runtime.steps("actor")
            if steps >= next_row or steps >= s.steps or self._just_judged():
                self._record()
                steps = self.metrics.step  # more may have been done than at the last look
                next_row = every * (int(steps / every) + 1)
                self.finished |= steps >= s.steps
            if self.pace.due(self._saved()):
                self._save()

    def _relaunch(self, failure: ProgramFailed) -> None:
        """Everything once more, from the last checkpoint, as if the run had been resumed; not for ever."""
        self.relaunches += 1
        given_up = self.relaunches > RELAUNCHES
        self._note_faults("given up" if given_up else "started again, with the program, from the last checkpoint")
        self.runtime.close()
        if given_up:
            raise failure
        self.display.note("The program starts again from its last checkpoint.")
        self.recorder.close()
        self.runtime = self.experiment.launch(self._last_checkpoint())
        self.recorder = Recorder(self.run, self.metrics.step, self.display.note)
        self.pace, self.saving = Pace(self.settings.checkpoint_seconds), None  # what was being written is not

    def _note_faults(self, recovery: str = "started again") -> None:
        """`recovery`: what is done about the last one; those before it were started again alone."""
        for n, fault in enumerate(self.runtime.faults, 1):
            done = recovery if n == len(self.runtime.faults) else "started again"
            self.recorder.fault({"step": self.runtime.steps("actor"), **fault, "recovery": done})
            self.display.note(f"{fault['node']} failed ({fault['cause']}); {done}.")
        self.runtime.faults.clear()

    def _note_callback(self, name: str, cause: str, first: bool) -> None:
        """It failed and lets the run go on; said once."""
        self.recorder.fault({"step": self.metrics.step, "node": name, "cause": cause, "recovery": "the run goes on"})
        if first:
            self.display.note(f"{cause} The run goes on.")

    def _bottleneck(self, budget: Budget) -> Bottleneck | None:
        return bottleneck(budget, getattr(self.runtime, "cores", None) or cores_here(), self.levers)

    def _just_judged(self) -> bool:
        """In one process an evaluation is recorded in the turn that made it, so that equal runs give equal rows."""
        evaluator = getattr(self.runtime, "objects", {}).get("evaluator")
        return evaluator is not None and evaluator.result is not None

    def _record(self) -> None:
        self._note_faults()
        reports = self.runtime.reports()
        row = self.recorder.write(self.metrics.row(reports))
        for sentence in row.get("adjusted", ()):
            self.display.note(f"step {row['step']:,}: {sentence}")
        self.display.update(row, self._bottleneck(self.metrics.recent))
        self.callbacks.tell("on_metrics", dict(row))
        if "evaluation" not in row:
            return
        score = row["evaluation"]
        if self.best is None or score >= self.best:
            self.best = score
            judged = self.runtime.call("evaluator", "judged")
            self._save_policy(judged, {"evaluation": score, "evaluation_step": row["evaluation_step"]})
        if self.settings.target is not None and score >= self.settings.target:
            self.finished = True
        found = reports["evaluator"]["evaluation"]
        evaluation = Evaluation(found["step"], tuple(found["returns"]), tuple(found["lengths"]))
        self.callbacks.tell("on_evaluation", evaluation)

    def _save_policy(self, params: tuple, about: dict) -> None:
        version, vector, statistics = params
        self.policy.load(vector, statistics, version)
        self.policy.options = self.experiment.options
        origin = {
            "system": self.experiment.system,
            "backend": self.settings.backend,
            "custom_network": self.experiment.network is not None,
        }
        self.policy.save(self.run.policy, {**origin, **about})

    def _save(self) -> None:
        state = {"metrics": self.metrics.state(), "best": self.best, "finished": self.finished}
        self.pace.start()
        self.saving = self.runtime.steps("actor")
        self.runtime.save(self.run.checkpoints, self.saving, state)

    def _saved(self) -> bool:
        """Whether nothing is being written; a checkpoint is told of when it is whole."""
        saved = self.runtime.saved()
        if saved and self.saving is not None:
            step, self.saving = self.saving, None
            self.callbacks.tell("on_checkpoint", step)
        return saved

    def _wait_until_saved(self) -> None:
        while not self._saved():
            self.runtime.tend()

    def _end(self) -> None:
        self._note_faults()
        if self.best is None:  # nothing was judged: the last policy it is
            self._save_policy(self.runtime.call("learner", "latest", -1), {})
        self._wait_until_saved()
        self._save()
        self._wait_until_saved()
        lines = self._report()
        if not self.finished:
            step, why = self.runtime.steps("actor"), self.callbacks.ending or "Interrupted"
            lines += [
                f"{why} at step {step:,}; a checkpoint is saved.",
                f"cavalcade resume {shlex.quote(str(self.run.path))}",
            ]
        else:
            score = "" if self.best is None else f", best evaluation {self.best:.1f}"
            lines += [
                f"Done: {self.metrics.step:,} steps in {self.metrics.elapsed:.1f} s{score}",
                f"run folder: {self.run.path}",
            ]
        self.display.close(lines)
        draw_curve(self.run)
        stopped = "failed" if self.callbacks.error else "stopped" if self.callbacks.ending else "interrupted"
        self._tell_end("finished" if self.finished else stopped)

    def _tell_end(self, ended: str) -> None:
        if self.callbacks.started:
            self.callbacks.end({**self._made_report(), "ended": ended})

    def _report(self) -> list[str]:
        """Written and to be shown, unless nothing was done in this sitting."""
        made = self._made_report()
        if not made["budget"]:
            return []
        report.write(made, self.run.report_file)
        return report.lines(made, self.display.interactive)

    def _made_report(self) -> dict[str, Any]:
        budget = self.metrics.budget()
        return report.make(self.run, self.metrics, self._bottleneck(budget) if budget else None, self.best)
