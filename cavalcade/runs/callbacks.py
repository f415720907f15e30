"""Callbacks: objects of the user's that hear what a run does, in the driver, and may end it.

    class Patience(cavalcade.Callback):
        def on_evaluation(self, run, evaluation):
            if evaluation.median > 400:
                return cavalcade.STOP

They are called between two turns of the program, on every runtime in the process that `cavalcade.train` was called in:
nothing of them travels to other processes, and the run waits for them only where all its work is done in that process.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from cavalcade.errors import UserError, nearest
from cavalcade.failures import Failure
from cavalcade.records import Run

STOP = "stop"  # what a hook returns to end the run, with a checkpoint; `resume` goes on from it
HOOKS = ("on_start", "on_metrics", "on_evaluation", "on_checkpoint", "on_end")


@dataclass(frozen=True)
class Evaluation:
    """What the policy of a moment earned, episode by episode."""

    step: int  # environment steps that had been made by then
    returns: tuple[float, ...]
    lengths: tuple[int, ...]  # in steps

    @property
    def mean(self) -> float:
        return fmean(self.returns)

    @property
    def median(self) -> float:
        return float(median(self.returns))


class Callback:
    """Override what you want to hear of. Any object with some of these methods is a callback too."""

    # when a hook raises: "stop" ends the run with a checkpoint and its error; "continue" notes it and goes on
    on_error = "stop"

    def on_start(self, run: Run) -> str | None:
        """Training begins, or goes on after `resume`. What is raised here ends the run before it begins."""

    def on_metrics(self, run: Run, row: dict[str, Any]) -> str | None:
        """A row was written to `metrics.jsonl`; the row."""

    def on_evaluation(self, run: Run, evaluation: Evaluation) -> str | None:
        """A policy was judged; if it is the best so far, it lies in `run.policy` already."""

    def on_checkpoint(self, run: Run, step: int) -> str | None:
        """A checkpoint of this step is whole on disk."""

    def on_end(self, run: Run, report: dict[str, Any]) -> None:
        """Nothing follows, however it came about: what `report.json` holds, and `ended`, which is "finished",
        "stopped" by a callback, "interrupted" or "failed"."""


class Callbacks:
    """All of a run. Whoever drives it tells them what happens, and looks whether it is to end."""

    def __init__(self, callbacks: Sequence[Any], run: Run, note: Callable[[str, str, bool], None]):
        """`note`: gets name, sentence and whether it is the first time, where one failed and the run goes on."""
        self.callbacks, self.run, self.note = callbacks, run, note
        self.started = False  # and not ended yet
        self.ending: str | None = None  # by whom the run is to be ended, to be followed by when
        self.error: UserError | None = None  # if it is because of a failure
        self.unreliable: list[Any] = []  # those that failed and let the run go on

    def start(self) -> None:
        """Who fails now, such as a logger without its server, ends the run before it begins, whatever `on_error`
        says; those before it are still told of the end."""
        self.started = bool(self.callbacks)
        for number, callback in enumerate(self.callbacks):
            if failure := self._call(callback, "on_start"):
                self.callbacks = self.callbacks[:number]
                raise failure

    def tell(self, hook: str, *given: Any) -> None:
        for callback in self.callbacks:
            failure = self._call(callback, hook, *given)
            if failure and getattr(callback, "on_error", "stop") == "stop":
                self.ending = self.ending or f"Stopped by an error in {_name(callback, hook)}"
                self.error = self.error or failure
            elif failure:
                self.note(_name(callback, hook), str(failure), callback not in self.unreliable)
                self.unreliable.append(callback)

    def end(self, report: dict[str, Any]) -> None:
        self.started = False
        self.tell("on_end", report)

    def _call(self, callback: Any, hook: str, *given: Any) -> UserError | None:
        """Why it failed, if it did."""
        method, name = getattr(callback, hook, None), _name(callback, hook)
        if method is None:
            return None
        try:
            answer = method(self.run, *given)
        except Exception as error:
            said = f"{error}" if isinstance(error, UserError) else f"{Failure.of(error).short}."
            failure = UserError(f"{name} failed: {said}")
            failure.__cause__ = error
            return failure
        if isinstance(answer, str) and answer == STOP:
            self.ending = self.ending or f"Stopped by {name}"
        elif answer is not None:
            return UserError(f"{name} returned {answer!r}; return cavalcade.STOP to end the run, or nothing to go on.")
        return None


def _name(callback: Any, hook: str) -> str:
    return f"{type(callback).__name__}.{hook}"


def require_callbacks(callbacks: Any) -> tuple:
    """Refuse what would never be called."""
    if not isinstance(callbacks, list | tuple):
        raise UserError(f"callbacks is a {type(callbacks).__name__}; give a list of callbacks.")
    for callback in callbacks:
        if isinstance(callback, type):
            raise UserError(f"The callback {callback.__name__} is a class; give an object: {callback.__name__}().")
        name, found = type(callback).__name__, [n for n in dir(callback) if n.startswith("on_") and n != "on_error"]
        if not set(HOOKS) & set(found):
            raise UserError(f"The callback {name} has none of the methods {', '.join(HOOKS)}.")
        if unknown := [hook for hook in found if hook not in HOOKS]:
            raise UserError(
                f"The callback {name} has a method {unknown[0]} that nobody calls; there are {', '.join(HOOKS)}."
                f"{nearest(unknown[0], HOOKS)}"
            )
        if getattr(callback, "on_error", "stop") not in ("stop", "continue"):
            raise UserError(f"{name}.on_error is {callback.on_error!r}; it has to be 'stop' or 'continue'.")
    return tuple(callbacks)
