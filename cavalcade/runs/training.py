"""Beginning a run, going on with one, and the run of a config.json once more: what users call.

run = cavalcade.train("ppo", "CartPole-v1", steps=100_000, seed=1)
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cavalcade import envs
from cavalcade.config import described
from cavalcade.experiment import Experiment, Settings, settings_of
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
    network: Any = None,
    display: bool | None = None,
    from_run: str | Path | None = None,
    settings: Settings | None = None,
    callbacks: Sequence[Any] = (),
    **overrides: Any,
) -> Run:
    """Train `system` on `environment` and return the run. Every setting of the run and the algorithm is a keyword;
    `settings` are all of them in one object (`cavalcade.settings`), and keywords change some of it. `from_run`: the run
    folder whose policy it begins from. `display`: True draws a panel, False prints nothing. `callbacks` hear what
    happens, and may end it (see `callbacks.py`)."""
    callbacks = require_callbacks(callbacks)
    values = {**(settings_of(system, settings) if settings is not None else {}), **overrides}
    if (count := envs.held(environment)) is not None:
        values.setdefault("envs", count)
    ours = {name: values.pop(name) for name in described(Settings) if name in values}
    origin = "" if from_run is None else str(Path(from_run).resolve())
    experiment = Experiment.create(system, environment, Settings(**ours), values, options, network, origin)
    return _start(experiment, out, display, callbacks)


def resume(
    path: str | Path,
    *,
    steps: int | None = None,
    environment: Any = None,
    network: Any = None,
    display: bool | None = None,
    callbacks: Sequence[Any] = (),
) -> Run:
    """Go on with a run from its last checkpoint, if there is something left to do. `steps`: a new total, by which a run
    is extended; schedules that span the run are laid out anew over it."""
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
    """None if the run is finished, which is said. The checkpoint is read here, and let go before the run goes on."""
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
    """The run of a config.json once more, from its beginning."""
    return _start(Experiment.from_config(config, environment, network), out, display)


def _start(experiment: Experiment, out: str | Path | None, display: bool | None, callbacks: Sequence[Any] = ()) -> Run:
    """A run that fails before its first row leaves nothing behind."""
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
