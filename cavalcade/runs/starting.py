"""Checks before a run begins and before anything is written: missing packages, too few steps for one update, a policy
to begin from that does not fit."""

from importlib.util import find_spec
from math import ceil

from cavalcade.assembly import Parts, storage_of
from cavalcade.backends import PACKAGES
from cavalcade.errors import UserError
from cavalcade.experiment import Experiment


def check_start(experiment: Experiment) -> None:
    """All checks before a run begins; each refuses with a sentence."""
    require_extras(experiment)
    require_an_update(experiment.parts)
    experiment.load_origin()


def require_extras(experiment: Experiment) -> None:
    """Refuse settings that need a package that is not installed. Packages are looked for and not imported: perhaps only
    another process needs them."""
    s = experiment.settings
    needed = [(f"--backend {s.backend}", package, s.backend) for package in PACKAGES[s.backend]]
    if s.runtime == "ray":
        needed.append(("--runtime ray", "ray", "ray"))
    if storage_of(experiment.parts) == "compressed":
        needed.append(("--storage compressed", "lz4", "compression"))
    for what, package, extra in needed:
        if find_spec(package) is None:
            raise UserError(f"{what} needs {package}; install it with pip install 'cavalcade[{extra}]'.")


def require_an_update(x: Parts) -> None:
    """Refuse a run whose steps end before its learners can draw for the first time, if all actors are equally fast."""
    one, bundles = x.of_one_learner, x.wiring.learners if x.wiring.experience == "bundled" else 1
    store, item, batch = one.experience.store, one.experience.item, one.experience.batch
    if not store.drawn_once:
        needed = store.first_draw(batch)  # items, and so steps: each step begins one item at most
        why = f"--replay-start {needed} transitions have to be there"
        remedy = "--replay-start"
    else:
        environments = x.envs * x.actors // bundles
        length = item.steps
        needed = ceil(store.first_draw(batch) / environments) * environments * length
        declared = x.algorithm.experience().batch
        what = f"--batch {declared}" if declared else f"--envs {x.envs} x --actors {x.actors // bundles}"
        why = f"{what} unrolls of --unroll {length} steps have to be there"
        remedy = "--unroll or --batch" if declared else "--unroll, --envs or --actors"
    if x.steps < needed * bundles:
        each = f" for each of {bundles} learners" if bundles > 1 else ""
        raise UserError(
            f"--steps {x.steps} ends before the first update: {why}{each}, which takes {needed * bundles} steps. "
            f"Give more --steps, or lower {remedy}."
        )
