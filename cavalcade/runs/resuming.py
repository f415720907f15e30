"""Going on with a run: from which checkpoint, whether settings have changed since, and whether anything is left to do.

A checkpoint holds the settings that the run had. Those in config.json have to be the same when it goes on, because the
state in the checkpoint depends on them; except for `FREE`, which change how the run goes on and not what it is.
"""

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cavalcade.acting import check_same_spaces
from cavalcade.checkpoints import checkpoint
from cavalcade.errors import UserError
from cavalcade.experiment import Experiment, Settings
from cavalcade.records import Run
from cavalcade.specs import EnvSpec
from cavalcade.tree import Layout

# `steps` is among them: schedules that span the run are then stretched to the new number.
FREE = ("steps", "target", "rows", "checkpoint_seconds", "address", "device", "threads", "versions")


@dataclass(frozen=True)
class Kept:
    """A checkpoint that was read."""

    folder: Path
    step: int
    state: dict  # of the session and, if the run had one process, of all nodes
    notes: list[str]  # sentences on newer checkpoints that were damaged

    @property
    def restore(self) -> tuple[Path, int, dict]:
        """What a runtime needs to go on."""
        return self.folder, self.step, self.state


def last_checkpoint(run: Run) -> Kept | None:
    """The newest intact checkpoint; None if none was written yet. If all of them are damaged it raises."""
    folder = run.checkpoints
    try:
        state, step, notes = checkpoint.load_latest(folder)
    except UserError:
        if any(folder.glob("step-*")):
            raise
        return None
    return Kept(folder, step, state, notes)


def made_with(experiment: Experiment) -> dict[str, Any]:
    """Settings, spec and shapes of the params, which a checkpoint keeps so that `check_unchanged` can compare them."""
    layout = Layout.of(experiment.model.init(np.random.default_rng(0)))
    shapes = {path: list(shape) for path, shape in zip(layout.paths, layout.shapes)}
    config = json.loads(json.dumps(experiment.config()))
    return {"config": config, "spec": experiment.spec.to_json(), "shapes": shapes}


def check_unchanged(kept: Kept, experiment: Experiment) -> None:
    """Refuse to go on with other settings, spaces or shapes of params than the checkpoint has; says which differs."""
    before, now = kept.state["made_with"], made_with(experiment)
    check_same_spaces(EnvSpec.from_json(before["spec"]), experiment.spec)
    then, given = _flat(before["config"]), _flat(now["config"])
    for name in sorted({*then, *given}.difference(FREE)):
        had, has = then.get(name), given.get(name)
        if had != has and not _as_good(name, had, has):
            raise UserError(
                f"The run was made with {name} {_shown(had)} and cannot go on with {_shown(has)}; change it back, or "
                "begin a new run from this one's policy with `cavalcade train ... --from`."
            )
    for path in sorted({*before["shapes"], *now["shapes"]}):
        had, has = before["shapes"].get(path), now["shapes"].get(path)
        if had != has:
            raise UserError(
                f"The network is not the one that the run was made with: {path} had the shape {had} and has {has} now; "
                "give the same network."
            )


def _as_good(name: str, had: Any, has: Any) -> bool:
    """Whether a setting may differ: an environment that only code can make was given again, or the runtime is another
    one of many processes, which write the same checkpoints."""
    if name == "environment":
        return had.startswith("<")
    return name == "runtime" and "inprocess" not in (had, has)


def is_finished(kept: Kept, settings: Settings) -> bool:
    """Whether a run has nothing left to do: it has done its steps, or it was finished at the checkpoint (its target was
    reached) and neither `steps` nor `target` have changed since."""
    then, s = kept.state["made_with"]["config"], settings
    if kept.state["metrics"]["step"] >= s.steps:
        return True
    return kept.state["finished"] and (s.steps, s.target) == (then["steps"], then["target"])


def nothing_left(kept: Kept, settings: Settings, path: Path) -> str:
    """A sentence if the run in `path` is finished; empty if something is left to do."""
    done, best, s = kept.state["metrics"]["step"], kept.state["best"], settings
    if s.steps < done and s.steps != kept.state["made_with"]["config"]["steps"]:
        raise UserError(f"--steps {s.steps:,} are fewer than the {done:,} that the run has done; give more.")
    if not is_finished(kept, s):
        return ""
    reached = s.target is not None and best is not None and best >= s.target
    how = f"reached its target of {s.target:g} at step {done:,}" if reached else f"has done {done:,} steps"
    extend = f"cavalcade resume {shlex.quote(str(path))} --steps N"
    return f"The run is finished: it {how} of {s.steps:,}. Extend it with: {extend}"


def _flat(config: dict) -> dict[str, Any]:
    """The settings of the run and of its algorithm in one dict."""
    return {**{name: value for name, value in config.items() if name != "algorithm"}, **config["algorithm"]}


def _shown(value: Any) -> str:
    return json.dumps(value) if isinstance(value, (list, dict)) or value is None else str(value)
