"""What users call: begin a run (`train`), go on with one (`resume`), run a config.json once more (`repeat`).

run = cavalcade.train("ppo", "CartPole-v1", steps=100_000, seed=1)
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cavalcade import envs
from cavalcade.config import described
from cavalcade.errors import UserError
from cavalcade.experiment import Experiment, Settings, run_settings, settings_of
from cavalcade.records import Run, default_path
from cavalcade.runs.callbacks import require_callbacks
from cavalcade.runs.resuming import check_unchanged, last_checkpoint, nothing_left
from cavalcade.runs.session import Session
from cavalcade.runs.starting import check_start, require_extras


def train(
    system: str,
    environment: Any,
    *,
    out: str | Path | None = None,
    options: dict | None = None,
    actor_options: dict[str, list] | None = None,
    network: Any = None,
    display: bool | None = None,
    from_run: str | Path | None = None,
    settings: Settings | None = None,
    callbacks: Sequence[Any] = (),
    **overrides: Any,
) -> Run:
    """Train `system` on `environment` and return the run. Every setting of the run and of the algorithm is a keyword.
    `settings`: all of them in one object (`cavalcade.settings`), of which keywords change some. `from_run`: the run
    folder whose policy the run begins from. `actor_options`: by name of an option of the environment, the values that
    actors take in turn. `display`: True draws a panel, False prints nothing, None chooses.
    `callbacks`: are told what happens and may end the run (`callbacks.py`)."""
    callbacks = require_callbacks(callbacks)
    given = {"options": options, "network": network, "from_run": from_run, "settings": settings}
    experiment = planned(system, environment, actor_options=actor_options, **given, **overrides)
    return _start(experiment, out, display, callbacks)


def planned(
    system: str,
    environment: Any,
    *,
    options: dict | None = None,
    network: Any = None,
    from_run: str | Path | None = None,
    settings: Settings | None = None,
    actor_options: dict | None = None,
    **overrides: Any,
) -> Experiment:
    """What `train` would run with the same arguments, with every setting decided; nothing is written or started."""
    if settings is not None and "preset" in overrides:
        raise UserError(
            "The settings object holds every value already, so preset has nothing left to choose; give it to "
            f"cavalcade.settings('{system}', ENVIRONMENT, preset=...)."
        )
    values = {**(settings_of(system, settings) if settings is not None else {}), **overrides}
    if (count := envs.held(environment)) is not None:
        values.setdefault("envs", count)
    ours = {name: values.pop(name) for name in described(Settings) if name in values}
    origin = "" if from_run is None else str(Path(from_run).resolve())
    chosen = run_settings(system, environment, ours)
    return Experiment.create(system, environment, chosen, values, options, network, origin, actor_options)


def resume(
    path: str | Path,
    *,
    steps: int | None = None,
    environment: Any = None,
    network: Any = None,
    display: bool | None = None,
    callbacks: Sequence[Any] = (),
) -> Run:
    """Go on with a run from its last checkpoint, if something is left to do. `steps`: a new total, which extends the
    run; schedules that span the run are stretched to it."""
    callbacks = require_callbacks(callbacks)
    run = Run.open(Path(path))
    config = run.config if steps is None else {**run.config, "steps": steps}
    experiment = Experiment.from_config(config, environment, network)
    require_extras(experiment)
    session = _sit_down_again(experiment, run, display, callbacks)
    if session is not None:
        if run.config["steps"] != experiment.settings.steps:
            run.change(steps=experiment.settings.steps)
        session.drive()
    return run


def _sit_down_again(experiment: Experiment, run: Run, display: bool | None, callbacks: Sequence[Any]) -> Session | None:
    """The session that goes on; None, and a sentence is printed, if the run is finished. The checkpoint is read in this
    function, so that its memory is free again when the session is driven."""
    kept = last_checkpoint(run)
    if kept is not None:
        check_unchanged(kept, experiment)
        if finished := nothing_left(kept, experiment.settings, run.path):
            if display is not False:
                print(finished)
            return None
    return Session(experiment, run, display, callbacks, True, kept)


def repeat(
    config: dict,
    *,
    out: str | Path | None = None,
    environment: Any = None,
    network: Any = None,
    display: bool | None = None,
) -> Run:
    """Run a config.json once more, from the beginning, in a new folder."""
    return _start(Experiment.from_config(config, environment, network), out, display)


def _start(experiment: Experiment, out: str | Path | None, display: bool | None, callbacks: Sequence[Any] = ()) -> Run:
    """Make the run folder and drive the run; if it fails before its first row, the folder is removed again."""
    check_start(experiment)
    name, seed = experiment.spec.environment, experiment.settings.seed
    path = Path(out) if out else default_path(experiment.system, name, seed)
    run = Run.create(path, experiment.config())
    try:
        Session(experiment, run, display, callbacks).drive()
    except BaseException:
        run.discard()
        raise
    return run
