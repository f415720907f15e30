"""Which algorithm runs under which wiring: found by building every program, not written by hand."""

from itertools import product

from cavalcade.assembly import CHOICES
from cavalcade.errors import UserError
from cavalcade.experiment.experiment import ALGORITHMS, Experiment, Settings
from cavalcade.experiment.systems import SYSTEMS, example

# algorithm -> the first system that uses it
HOME = {name: next(s for s, system in SYSTEMS.items() if system.algorithm == name) for name in ALGORITHMS}


def wirings() -> list[tuple[str, str, str]]:
    """All choices of acting, experience and updates."""
    return list(product(CHOICES["acting"], CHOICES["experience"], CHOICES["updates"]))


def why_not(algorithm: str, wiring: tuple[str, str, str]) -> str:
    """The sentence with which the algorithm is refused under this wiring; empty if it runs."""
    acting, experience, updates = wiring
    settings = Settings(
        actors=2, acting=acting, experience=experience, updates=updates, learners=1 if updates == "own" else 2
    )
    try:
        Experiment.create(HOME[algorithm], example(HOME[algorithm]), settings, {}).program().check()
    except UserError as error:
        return str(error)
    return ""


def table() -> list[str]:
    """The table of `cavalcade systems --matrix` as lines of text; numbers stand for the reasons below it."""
    reasons: dict[str, int] = {}
    lines = [f"{'acting':<9}{'experience':<12}{'updates':<18}" + "".join(f"{name:<8}" for name in ALGORITHMS)]
    for wiring in wirings():
        cells = []
        for algorithm in ALGORITHMS:
            why = why_not(algorithm, wiring)
            cells.append("yes" if not why else f"no ({reasons.setdefault(why, len(reasons) + 1)})")
        lines.append(f"{wiring[0]:<9}{wiring[1]:<12}{wiring[2]:<18}" + "".join(f"{cell:<8}" for cell in cells).rstrip())
    return [*lines, *(f"({number}) {why}" for why, number in reasons.items())]
