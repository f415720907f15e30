"""How many predictors, trainers and agents are active, adjusted while a run goes on (GA3C, Babaeizadeh 2017). Trainers
are learners, agents are environment workers.

All are launched; the valves, words in shared memory, say how many of each kind are active, always the first ones. Every
`every` seconds these numbers change by at most one, at random. A change is kept if more steps per second were learned
from than before it, and taken back if not. Time is that of the wall clock, so two runs are never the same to the bit.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from cavalcade.transport import SharedWords, Signpost, WordsAddress

NAMES = ("predictors", "trainers", "agents")
Numbers = tuple[int, int, int]  # active ones, in the order of NAMES


class Decision(NamedTuple):
    """What one trial has shown."""

    before: Numbers
    after: Numbers
    steps_before: float  # learned from per second
    steps_after: float
    kept: bool

    @property
    def sentence(self) -> str:
        changes = zip(NAMES, self.before, self.after)
        shown = ", ".join(f"{name} {old}" if old == new else f"{name} {old} -> {new}" for name, old, new in changes)
        rates = f"{self.steps_before:,.0f} -> {self.steps_after:,.0f} steps/s"
        return f"adjusted: {shown}: {rates}, {'kept' if self.kept else 'taken back'}"

    def plain(self) -> dict[str, Any]:
        """As JSON values."""
        numbers = {"before": list(self.before), "after": list(self.after), "kept": self.kept}
        steps = {"steps_before": self.steps_before, "steps_after": self.steps_after}
        return {**numbers, **steps, "sentence": self.sentence}


class Rule:
    """A random walk that keeps only changes for the better. Each trial is compared with the period right before it:
    after a change was taken back the old numbers are measured anew, because the machine may be busier or idler now."""

    def __init__(self, most: Numbers, rng: np.random.Generator):
        """`most`: how many of each kind were launched."""
        self.most, self.rng = most, rng
        self.numbers = most  # the numbers of the period that is being measured
        self.before: tuple[Numbers, float] | None = None  # what a trial is compared with; None if it is no trial

    def measured(self, steps: float) -> Decision | None:
        """Take the steps per second of `numbers`, choose the next `numbers`; gives the decision if it was a trial."""
        decision = None
        if self.before is not None:
            decision = Decision(self.before[0], self.numbers, self.before[1], steps, steps > self.before[1])
        if decision is not None and not decision.kept:
            self.numbers, self.before = decision.before, None
        else:
            self.before, self.numbers = (self.numbers, steps), self._neighbour()
        return decision

    def _neighbour(self) -> Numbers:
        """Other numbers, each at most one away, from 1 to `most`."""
        while True:
            changes = self.rng.integers(-1, 2, len(NAMES)).tolist()
            a, b, c = (min(most, max(1, n + change)) for n, change, most in zip(self.numbers, changes, self.most))
            if (a, b, c) != self.numbers:
                return a, b, c


class Valves:
    """Which predictors, trainers and agents are active, as any process can read it."""

    ring = None

    def __init__(self, words: np.ndarray):
        self.words = words

    def predictor_for(self, agent: int) -> int | None:
        """The predictor that an agent asks; None while the agent rests."""
        predictors, _, agents = self.words.tolist()
        return agent % predictors if agent < agents else None

    def trains(self, trainer: int) -> bool:
        """Whether this trainer is active."""
        return trainer < int(self.words[1])


class Adjuster(Valves):
    """Worker in the process of the training queue: measures, decides, and sets the valves."""

    def __init__(self, table: Any, length: int, most: Sequence[int], every: float, seed: int):
        """`length`: steps in each item of the table. `most`: how many of each kind are launched. `every`: seconds."""
        self.table, self.length, self.every = table, length, every
        predictors, trainers, agents = most
        self.rule = Rule((predictors, trainers, agents), np.random.default_rng((seed, 2)))
        self.shared = SharedWords((len(NAMES),))
        super().__init__(self.shared.array)
        self.words[:] = self.rule.numbers
        self.decisions: list[Decision] = []  # since the last report
        self.began: tuple[float, int] | None = None  # of the period: seconds, and items drawn until then

    def share(self, consumer: str) -> Signpost:
        return Signpost(ValvesAddress(self.shared.address))

    def step(self) -> bool:
        now, drawn = time.monotonic(), self.table.limiter.samples
        if self.began is None:
            if drawn:  # the first period begins with the first draw: by then all processes are there
                self.began = (now, drawn)
            return False
        since, drawn_then = self.began
        if now - since < self.every:
            return False
        if decision := self.rule.measured((drawn - drawn_then) * self.length / (now - since)):
            self.decisions.append(decision)
        self.words[:] = self.rule.numbers
        self.began = (now, drawn)
        return drawn > drawn_then  # else the run may be over: nobody waits for one who only looks on

    def report(self) -> dict:
        decisions, self.decisions = self.decisions, []
        return {"active": dict(zip(NAMES, self.words.tolist())), "adjusted": [made.plain() for made in decisions]}

    def state(self) -> dict:
        """The numbers kept so far; a trial under way is forgotten."""
        kept = self.rule.before[0] if self.rule.before else self.rule.numbers
        return {"numbers": list(kept), "rng": self.rule.rng.bit_generator.state}

    def restore(self, state: dict) -> None:
        predictors, trainers, agents = state["numbers"]
        self.rule.numbers, self.rule.before, self.began = (predictors, trainers, agents), None, None
        self.rule.rng.bit_generator.state = state["rng"]
        self.words[:] = self.rule.numbers

    def close(self) -> None:
        self.shared.close()


@dataclass(frozen=True)
class ValvesAddress:
    """What another process needs to read the valves; plain data."""

    words: WordsAddress

    def connect(self) -> Valves:
        return Valves(self.words.connect())
