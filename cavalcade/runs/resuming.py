"""Going on with a run: from which checkpoint, whether the settings are those it was made with, and what is left to do.

A checkpoint knows what the run was made with. Whatever is in config.json by then has to be the same, because the state
in the checkpoint was shaped by it, except for `FREE`, which say how the run goes on and not what it is.
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

# The number of steps, too: schedules that span the run are laid out anew over it.
FREE = ("steps", "target", "rows", "checkpoint_seconds", "address", "device", "threads", "versions")


@dataclass(frozen=True)
class Kept:
    """A checkpoint, as runtimes and whoever drives them want it."""

    folder: Path
    step: int
    state: dict
    notes: list[str]  # about newer ones that were refused

    @property
    def restore(self) -> tuple[Path, int, dict]:
        return self.folder, self.step, self.state


def last_checkpoint(run: Run) -> Kept | None:
    """The newest that is intact; none if none was written yet."""
    folder = run.checkpoints
    try:
        state, step, notes = checkpoint.load_latest(folder)
    except UserError:
        if any(folder.glob("step-*")):
            raise
        return None
    return Kept(folder, step, state, notes)


def made_with(experiment: Experiment) -> dict[str, Any]:
    """What a checkpoint keeps, to be compared with later."""
    layout = Layout.of(experiment.model.init(np.random.default_rng(0)))
    shapes = {path: list(shape) for path, shape in zip(layout.paths, layout.shapes)}
    config = json.loads(json.dumps(experiment.config()))
    return {"config": config, "spec": experiment.spec.to_json(), "shapes": shapes}


def check_unchanged(kept: Kept, experiment: Experiment) -> None:
    """Refuse to go on with other settings, spaces or shapes than the checkpoint has, by name."""
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
    """An environment that only code can make was given again; runtimes of many processes write the same checkpoints."""
    if name == "environment":
        return had.startswith("<")
    return name == "runtime" and "inprocess" not in (had, has)


def is_finished(kept: Kept, settings: Settings) -> bool:
    """By its budget, or as it was when the checkpoint was written, unless budget or target have changed since."""
    then, s = kept.state["made_with"]["config"], settings
    if kept.state["metrics"]["step"] >= s.steps:
        return True
    return kept.state["finished"] and (s.steps, s.target) == (then["steps"], then["target"])


def nothing_left(kept: Kept, settings: Settings, path: Path) -> str:
    """A sentence if the run in `path` is finished, empty if there is something to do."""
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
    """Settings of the run and of its algorithm side by side."""
    return {**{name: value for name, value in config.items() if name != "algorithm"}, **config["algorithm"]}


def _shown(value: Any) -> str:
    return json.dumps(value) if isinstance(value, (list, dict)) or value is None else str(value)
