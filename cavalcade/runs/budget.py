"""The time budget: what each kind of process spends its time on, which kind bounds the run, and which options help.

Nodes book seconds by role (`stopwatch.py`), and a runtime books how long each process had nothing to do as waiting. The
kind of process that waits least is the one that the others wait for: the bottleneck, mostly for its largest role.
"""

import os
from collections import Counter
from collections.abc import Iterable, Set
from typing import NamedTuple

from cavalcade.programs import WALL

ALONE = "process"  # the kind of a process that holds all nodes
CORES = "cores"  # as a bottleneck: too few of them
BESIDE = "evaluator"  # the kind of process for which nobody waits
MUCH = 0.3  # share of its time: a kind of process that waits as much waits for another
LARGE = 0.25  # share of the time: work that is worth a process of its own
FREE = 0.5  # idle cores: enough for another actor or thread
NAMED = 3  # options that are advised, at most

# role -> options that make it cheaper or spread it over processes, the strongest first
LEVERS = {
    "environment": (("actors", "more"),),
    "acting": (("envs", "more"), ("actors", "more"), ("acts_in", "another")),
    "pulling": (("pull_every", "larger"), ("unroll", "longer")),
    "storing": (("flush", "larger"), ("updates_per_draw", "larger"), ("envs", "more")),
    "learning": (
        ("update_every", "larger"),
        ("epochs", "fewer"),
        ("batch", "larger"),
        ("unroll", "longer"),
        ("threads", "more"),
    ),
    "evaluating": (("evaluations", "fewer"), ("evaluation_episodes", "fewer")),
}
NEED_CORES = ("actors", "threads")  # options that only help on idle cores
SLACK = (("queue_batches", "more"), ("tolerance", "larger"))  # options that let actors and learner be further apart


class Spent(NamedTuple):
    """The time of all processes of one kind."""

    processes: int
    wall: float  # seconds, summed over the processes
    shares: dict[str, float]  # of `wall`, by role; time that no node booked is missing to 1

    @property
    def waiting(self) -> float:
        return self.shares.get("waiting", 0.0)

    @property
    def work(self) -> dict[str, float]:
        return {role: share for role, share in self.shares.items() if role != "waiting" and share > 0}

    @property
    def busy(self) -> float:
        """How many of the processes are at work at the same time, in the mean."""
        return self.processes * sum(self.work.values())


Budget = dict[str, Spent]  # by kind of process: actor, learner, evaluator, ...


class Bottleneck(NamedTuple):
    """What bounds the speed of a run."""

    who: str  # a kind of process, or CORES
    role: str  # the largest share of its time
    share: float  # of that role
    advice: tuple[str, ...]  # options that help, as words
    evidence: str = ""  # in words, such as who waits for it

    @property
    def where(self) -> str:
        whose = "all" if self.who == CORES else "its"
        evidence = f", {self.evidence}" if self.evidence else ""
        return f"{self.who}, mostly {self.role} ({self.share * 100:.0f} % of {whose} time){evidence}"

    @property
    def short(self) -> str:
        """A few words for a line of a log."""
        return f"{CORES}: {self.evidence}" if self.who == CORES else f"{self.who} {self.share * 100:.0f} % {self.role}"

    @property
    def sentence(self) -> str:
        return f"{self.where}; moved by {', '.join(self.advice)}" if self.advice else self.where


class Ledger:
    """Adds up the seconds that nodes report, by kind of process."""

    def __init__(self, places: dict[str, str] | None = None):
        """`places`: node -> process; None if one process holds all nodes."""
        self.places = places or {}
        self.processes = Counter(map(_kind, set(self.places.values()))) if places else Counter({ALONE: 1})
        self.seconds: dict[str, dict[str, float]] = {}  # kind of process -> role, or WALL -> seconds

    def book(self, reports: dict[str, dict]) -> None:
        """Add the seconds of one round of reports, by node."""
        walls: dict[str, float] = {}
        for name, report in reports.items():
            process = self.places.get(name, name) if self.places else ALONE
            for role, amount in report.get("seconds", {}).items():
                if role == WALL:  # nodes of one process share its time: counted once
                    walls[process] = max(walls.get(process, 0.0), amount)
                else:
                    self._add(process, role, amount)
        for process, wall in walls.items():
            self._add(process, WALL, wall)

    def _add(self, process: str, role: str, amount: float) -> None:
        booked = self.seconds.setdefault(_kind(process), {})
        booked[role] = booked.get(role, 0.0) + amount

    def copy(self) -> dict[str, dict[str, float]]:
        return {kind: dict(booked) for kind, booked in self.seconds.items()}

    def since(self, then: dict[str, dict[str, float]]) -> Budget:
        """The budget of the time since a `copy` was taken."""
        budget = {}
        for kind, booked in self.seconds.items():
            spent = {role: amount - then.get(kind, {}).get(role, 0.0) for role, amount in booked.items()}
            wall = spent.pop(WALL, 0.0)
            if wall > 0:
                shares = {role: amount / wall for role, amount in spent.items()}
                budget[kind] = Spent(self.processes.get(kind, 1), wall, shares)
        return budget


def together(budget: Budget) -> dict[str, float]:
    """Shares of the time of all processes together, by role."""
    wall = sum(spent.wall for spent in budget.values())
    shares: dict[str, float] = {}
    for spent in budget.values():
        for role, share in spent.shares.items():
            shares[role] = shares.get(role, 0.0) + share * spent.wall / wall
    return shares


def bottleneck(budget: Budget, cores: int, options: Set[str]) -> Bottleneck | None:
    """What bounds the run, and which of `options` (the settings that this system has) help; None if nobody works."""
    budget = {kind: spent for kind, spent in budget.items() if spent.work}
    if not budget:
        return None
    busy = sum(spent.busy for spent in budget.values())
    if ALONE in budget:
        who, advice = ALONE, _way_out_of_one_process(budget[ALONE].shares, cores, options)
        role, share = _largest(budget[ALONE].work)
        return Bottleneck(who, role, share, _named(advice + _levers(role, options)))
    others = [kind for kind in budget if kind != BESIDE] or [BESIDE]
    waits = {kind: budget[kind].waiting for kind in others}
    if busy > cores and max(waits.values()) < MUCH:
        return _short_of_cores(budget, busy, cores, options)
    who = min(waits, key=lambda kind: waits[kind])
    role, share = _largest(budget[who].work)
    advice = _more(SLACK, options) if waits[who] >= MUCH and len(others) > 1 else []  # all wait: they take turns
    advice += _levers(role, options, " on more cores" if cores - busy < FREE else "")
    longest = max(waits, key=lambda kind: waits[kind])
    evidence = f"{longest} waits {waits[longest] * 100:.0f} %" if longest != who else ""
    return Bottleneck(who, role, share, _named(advice), evidence)


def cores_here() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _short_of_cores(budget: Budget, busy: float, cores: int, options: Set[str]) -> Bottleneck:
    """The bottleneck if more processes are at work than there are cores and no kind waits much: the largest role."""
    shares = together(budget)
    role, share = _largest({role: shares[role] for spent in budget.values() for role in spent.work})
    advice = ["more cores", *(["--runtime ray --address"] if "address" in options else []), *_levers(role, options)]
    return Bottleneck(CORES, role, share, _named(advice), f"{busy:.1f} busy on {cores}")


def _way_out_of_one_process(shares: dict[str, float], cores: int, options: Set[str]) -> list[str]:
    """Advice to use several processes, if acting and learning could overlap or acting could be spread."""
    if cores < 2 or "runtime" not in options:
        return []
    acting = shares.get("environment", 0.0) + shares.get("acting", 0.0)
    if min(acting, shares.get("learning", 0.0)) >= LARGE and _more(SLACK, options):
        return ["--runtime process"]  # acting and learning overlap
    return ["--runtime process", "more --actors"] if acting >= 2 * LARGE else []


def _levers(role: str, options: Set[str], where: str | None = None) -> list[str]:
    """Advice for a role. `where` another actor or thread would run (in words, or empty for here); None if more of them
    would not help."""
    levers = [(name, how) for name, how in LEVERS.get(role, ()) if where is not None or name not in NEED_CORES]
    if "update_every" in options:  # with replay an environment step costs batch / update_every samples
        levers = [(name, "smaller" if name == "batch" else how) for name, how in levers]
    return _more(levers, options, where or "")


def _more(levers: Iterable[tuple[str, str]], options: Set[str], where: str = "") -> list[str]:
    """Those (option, how) that this system has, as words: "more --actors"."""
    named = [(name, f"{how} --{name.replace('_', '-')}") for name, how in levers if name in options]
    return [words + where if name in NEED_CORES else words for name, words in named]


def _named(advice: list[str]) -> tuple[str, ...]:
    """The first few, each once."""
    return tuple(dict.fromkeys(advice))[:NAMED]


def _largest(shares: dict[str, float]) -> tuple[str, float]:
    role = max(shares, key=lambda role: shares[role])
    return role, shares[role]


def _kind(process: str) -> str:
    """The kind of a process: its name without its number."""
    return process.split("/")[0]
