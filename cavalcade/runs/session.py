"""Driving a run: lets the program go on, writes rows of metrics, checkpoints and the best policy, and ends cleanly."""

import shlex
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cavalcade.assembly import bytes_of
from cavalcade.checkpoints import Pace
from cavalcade.errors import UserError
from cavalcade.experiment import Experiment
from cavalcade.failures import Tries
from cavalcade.programs import ProgramFailed
from cavalcade.records import Recorder, Run, draw_curve, score
from cavalcade.runs import report
from cavalcade.runs.budget import Bottleneck, Budget, bottleneck, cores_here
from cavalcade.runs.callbacks import Callbacks, Evaluation
from cavalcade.runs.display import Display
from cavalcade.runs.interruption import Interruption
from cavalcade.runs.metrics import Metrics
from cavalcade.runs.resuming import Kept, is_finished, last_checkpoint, made_with

RELAUNCHES = 5  # of the whole program in one sitting, after which the run is given up


class Session:
    """One sitting of a run, from its start or its last checkpoint to its budget, its target or an interruption."""

    def __init__(
        self,
        experiment: Experiment,
        run: Run,
        display: bool | None,
        callbacks: Sequence[Any] = (),
        resume: bool = False,
        kept: Kept | None = None,
    ):
        """`display`: as in `Display`. `resume`: go on with a run, from the checkpoint `kept` or, if there is none yet,
        from the beginning."""
        s = experiment.settings
        self.experiment, self.run, self.settings = experiment, run, s
        places = {node.name: group for group, nodes in experiment.program().groups().items() for node in nodes}
        self.places = places if s.runtime != "inprocess" else None
        self.metrics = self._new_metrics()
        self.pace = Pace(s.checkpoint_seconds)
        self.best: float | None = None  # the best evaluation so far
        self.finished = False  # its steps are done, or its target is reached
        self.saving: int | None = None  # the step of the checkpoint that is being written
        self.relaunches, self.tries = 0, Tries()  # of the whole program, in this sitting
        parts = experiment.parts
        title = f"{experiment.system} on {experiment.spec.environment}"
        self.display = Display(title, s.steps, s.target, display)
        self.callbacks = Callbacks(callbacks, run, self._note_callback)
        self.policy = parts.policy()
        self.made_with = made_with(experiment)
        self.levers = {*vars(s), *vars(experiment.algorithm)}  # settings that may be advised against a bottleneck
        if parts.model.small:  # more threads would make it slower
            self.levers.discard("threads")
        if s.address:
            self.levers.discard("address")
        restore = self._put_back(kept) if resume else None
        self.runtime = experiment.launch(restore)
        for remark in self.runtime.remarks:
            self.display.note(f"step {restore[1] if restore else 0:,}: {remark}")
        self.recorder = Recorder(run, self.metrics.step if resume else None, self.display.note)
        if experiment.preset.settings:
            self.display.note(f"{experiment.preset.told}; --preset none leaves it out")
        seen = f"{parts.model.sees}; " if parts.model.sees else ""
        self.display.note(
            f"{seen}{self.policy.layout.size:,} parameters; learns in {s.backend}, acts in {self.policy.acts_in}; "
            f"{s.actors} x {s.envs} environments{experiment.copies.told}; table of {bytes_of(parts) / 1e6:,.2f} MB"
        )

    def _new_metrics(self) -> Metrics:
        store = self.experiment.parts.experience.store
        return Metrics(self.places, self.experiment.spec.frame_skip, store.replay_share)

    def _put_back(self, kept: Kept | None) -> tuple[Path, int, dict] | None:
        """Restore the session's part of a checkpoint, or begin anew if there is none; gives the runtime's part."""
        if kept is None:
            self.display.note("No checkpoint was written yet; the run starts again from its beginning.")
            self.metrics, self.best, self.finished = self._new_metrics(), None, False
            return None
        for note in kept.notes:
            self.display.note(note)
        self.metrics.restore(kept.state["metrics"])
        self.best, self.finished = kept.state["best"], is_finished(kept, self.settings)
        return kept.restore

    def drive(self) -> None:
        """Run to the end of this sitting; the program is started again when it fails, and closed in any case."""
        try:
            with Interruption() as interruption:
                self.callbacks.start()
                while True:
                    try:
                        self._go_on(interruption)
                        self._end()
                        break
                    except ProgramFailed as failure:  # in `_end` too
                        self._relaunch(failure)
        except BaseException as error:
            if isinstance(error, UserError):
                self._note_faults("given up")
            self._tell_end("interrupted" if isinstance(error, KeyboardInterrupt) else "failed")
            raise
        finally:
            self.recorder.close()
            self.display.close([])
            self.runtime.close()
        if self.callbacks.error:
            raise self.callbacks.error

    def _go_on(self, interruption: Interruption) -> None:
        """Give the program turns, record rows and save checkpoints, until the run is finished or has to stop."""
        s = self.settings
        every = max(1.0, s.steps / s.rows)
        next_row = every * (int(self.metrics.step / every) + 1)
        while not (self.finished or interruption.asked or self.callbacks.ending):
            self.runtime.round()
            steps = self.runtime.steps()
            spent = steps >= s.steps
            if spent and not self.runtime.settled():
                continue  # experience that waits is learned from, and a due evaluation made, before the end
            if spent or steps >= next_row or self._just_judged():
                self._record()  # changes `metrics.step`: other processes have gone on since `steps`
                next_row = every * (int(self.metrics.step / every) + 1)
                self.finished |= spent
            if self.pace.due(self._finish_saving()):
                self._save()

    def _relaunch(self, failure: ProgramFailed) -> None:
        """Start the program again from the last checkpoint, as `resume` does; after `RELAUNCHES` times, or if it would
        not help, raise the failure."""
        if failure.cause.mishap is not None:
            self.tries.finished |= self.metrics.episodes > 0
            self.tries.count("program", failure.cause.mishap)
            self.tries.check("program", failure.node)
        self.relaunches += 1
        given_up = failure.final or self.relaunches > RELAUNCHES
        self._note_faults("given up" if given_up else "started again, with the program, from the last checkpoint")
        self.runtime.close()
        if given_up:
            raise failure
        self.display.note("The program starts again from its last checkpoint.")
        self.recorder.close()
        self.runtime = self.experiment.launch(self._put_back(last_checkpoint(self.run)))
        self.recorder = Recorder(self.run, self.metrics.step, self.display.note)
        self.pace, self.saving = Pace(self.settings.checkpoint_seconds), None  # what was being written is lost

    def _note_faults(self, recovery: str = "started again") -> None:
        """Record and show new faults. `recovery`: what is done about the last of them; after earlier ones only the node
        was started again."""
        for n, fault in enumerate(self.runtime.faults, 1):
            done = recovery if n == len(self.runtime.faults) else "started again"
            self.recorder.fault({"step": self.runtime.steps(), **fault, "recovery": done})
            self.display.note(f"{fault['node']} failed ({fault['cause']}); {done}.")
            if done == "given up" and "traceback" in fault:
                self.display.note(f"The whole traceback is in {self.run.faults_file}.")
        self.runtime.faults.clear()

    def _note_callback(self, name: str, cause: str, first: bool) -> None:
        """Record that a callback failed and the run goes on; show it the first time only."""
        self.recorder.fault({"step": self.metrics.step, "node": name, "cause": cause, "recovery": "the run goes on"})
        if first:
            self.display.note(f"{cause} The run goes on.")

    def _bottleneck(self, budget: Budget) -> Bottleneck | None:
        return bottleneck(budget, self.runtime.cores or cores_here(), self.levers)

    def _just_judged(self) -> bool:
        """Whether an evaluation was made in this turn, if all is in one process: there it is recorded in the same turn,
        so that equal runs give equal rows."""
        evaluator = getattr(self.runtime, "objects", {}).get("evaluator")
        return evaluator is not None and evaluator.result is not None

    def _record(self) -> None:
        """Write and show a row; if it has an evaluation, save the policy if it is the best, and look at the target."""
        self._note_faults()
        known = set(self.metrics.remarks)
        reports = self.runtime.reports()
        row = self.recorder.write(self.metrics.row(reports))
        for remark in (text for field, text in self.metrics.remarks.items() if field not in known):
            self.display.note(f"warning: {remark}")
        for sentence in row.get("adjusted", ()):
            self.display.note(f"step {row['step']:,}: {sentence}")
        self.display.update(row, self._bottleneck(self.metrics.recent))
        self.callbacks.tell("on_metrics", dict(row))
        if "evaluation" not in row:
            return
        found = row["evaluation"]
        if self.best is None or found >= self.best:
            self.best = found
            params = self.runtime.call("evaluator", "judged")
            about = {"evaluation": found, "evaluation_step": row["evaluation_step"]}
            self._save_policy(params, {**about, "evaluation_sampled": self.settings.evaluation_sampled})
        if self.settings.target is not None and found >= self.settings.target:
            self.finished = True
        judged = reports["evaluator"]["evaluation"]
        evaluation = Evaluation(judged["step"], tuple(judged["returns"]), tuple(judged["lengths"]))
        self.callbacks.tell("on_evaluation", evaluation)

    def _save_policy(self, params: tuple, about: dict) -> None:
        """Write these params (version, vector, statistics) to the run's policy folder."""
        version, vector, statistics = params
        self.policy.load(vector, statistics, version)
        self.policy.environment, self.policy.options = self.run.config["environment"], self.experiment.options
        origin = {
            "system": self.experiment.system,
            "backend": self.settings.backend,
            "custom_network": self.experiment.network is not None,
        }
        self.policy.save(self.run.policy, {**origin, **about})

    def _save(self) -> None:
        """Begin to write a checkpoint."""
        state = {"metrics": self.metrics.state(), "best": self.best, "finished": self.finished}
        state["made_with"] = self.made_with
        self.pace.start()
        self.saving = self.runtime.steps()
        self.runtime.save(self.run.checkpoints, self.saving, state)

    def _finish_saving(self) -> bool:
        """Go on with writing; whether nothing is being written any more. Callbacks are told of what is complete."""
        saved = self.runtime.finish_saving()
        if saved and self.saving is not None:
            step, self.saving = self.saving, None
            self.callbacks.tell("on_checkpoint", step)
        return saved

    def _wait_until_saved(self) -> None:
        while not self._finish_saving():
            self.runtime.tend()

    def _end(self) -> None:
        """The last policy if none was judged, a last checkpoint, the report, the closing lines and the curve."""
        self._note_faults()
        if self.best is None:  # no policy was judged, so the last one is saved
            self._save_policy(self.runtime.call("learner", "latest", -1), {})
        self._wait_until_saved()
        self._save()
        self._wait_until_saved()
        lines = self._report()
        if not self.finished:
            step, why = self.runtime.steps(), self.callbacks.ending or "Interrupted"
            lines += [
                f"{why} at step {step:,}; a checkpoint is saved.",
                f"cavalcade resume {shlex.quote(str(self.run.path))}",
            ]
        else:
            sampled = " (sampled)" if self.settings.evaluation_sampled else ""
            best = "" if self.best is None else f", best evaluation {score(self.best)}{sampled}"
            lines += [
                f"Done: {self.metrics.step:,} steps in {self.metrics.elapsed:.1f} s{best}",
                f"run folder: {self.run.path}",
            ]
        drawn = find_spec("matplotlib") is not None
        if not drawn:
            lines.append("matplotlib is not installed, so no curve is drawn (pip install 'cavalcade[record]').")
        self.display.close(lines)
        if drawn:
            draw_curve(self.run)
        stopped = "failed" if self.callbacks.error else "stopped" if self.callbacks.ending else "interrupted"
        self._tell_end("finished" if self.finished else stopped)

    def _tell_end(self, ended: str) -> None:
        """Tell callbacks, once, that the run is over and how it has ended."""
        if self.callbacks.started:
            self.callbacks.end({**self._made_report(), "ended": ended})

    def _report(self) -> list[str]:
        """Write the report; its lines to show. If nothing was done in this sitting, neither."""
        made = self._made_report()
        if not made["budget"]:
            return []
        report.write(made, self.run.report_file)
        return report.lines(made, self.display.interactive)

    def _made_report(self) -> dict[str, Any]:
        budget = self.metrics.budget()
        return report.make(self.run, self.metrics, self._bottleneck(budget) if budget else None, self.best)
