"""Callbacks: objects of the user's that are told what a run does, and may end it.

    class Patience(cavalcade.Callback):
        def on_evaluation(self, run, evaluation):
            if evaluation.median > 400:
                return cavalcade.STOP

Callbacks are called between two turns of the program, on every runtime in the process that called `cavalcade.train`.
They never travel to other processes. While one of them runs, only the work of that process waits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from cavalcade.errors import UserError, nearest
from cavalcade.failures import Failure
from cavalcade.records import Run

STOP = "stop"  # a hook returns it to end the run with a checkpoint, from which `resume` goes on
HOOKS = ("on_start", "on_metrics", "on_evaluation", "on_checkpoint", "on_end")


@dataclass(frozen=True)
class Evaluation:
    """The result of judging a policy, episode by episode."""

    step: int  # environment steps that the run had done
    returns: tuple[float, ...]
    lengths: tuple[int, ...]  # in steps

    @property
    def mean(self) -> float:
        return fmean(self.returns)

    @property
    def median(self) -> float:
        return float(median(self.returns))


class Callback:
    """Override the hooks that you need. Any object with one of these methods is a callback too."""

    # if a hook raises: "stop" ends the run with a checkpoint and that error; "continue" notes the error and goes on
    on_error = "stop"

    def on_start(self, run: Run) -> str | None:
        """Training begins, or goes on after `resume`. An exception here ends the run before it begins."""

    def on_metrics(self, run: Run, row: dict[str, Any]) -> str | None:
        """This row was written to `metrics.jsonl`."""

    def on_evaluation(self, run: Run, evaluation: Evaluation) -> str | None:
        """A policy was judged. If it is the best so far, it was saved in `run.policy` before this call."""

    def on_checkpoint(self, run: Run, step: int) -> str | None:
        """The checkpoint of this step is completely written."""

    def on_end(self, run: Run, report: dict[str, Any]) -> None:
        """The run is over, for whatever reason: nothing is called after this. `report` is that of `report.json` with
        `ended`, which is "finished", "stopped" (by a callback), "interrupted" or "failed"."""


class Callbacks:
    """All callbacks of a run. The session tells them what happens, and looks at `ending` after each turn."""

    def __init__(self, callbacks: Sequence[Any], run: Run, note: Callable[[str, str, bool], None]):
        """`note`: called if a callback failed and the run goes on, with the hook's name, the sentence, and whether this
        callback failed for the first time."""
        self.callbacks, self.run, self.note = callbacks, run, note
        self.started = False  # `start` was called, and `end` not yet
        self.ending: str | None = None  # why the run has to end, as the beginning of a sentence; None: it goes on
        self.error: UserError | None = None  # the error to raise after the end, if a failure ended the run
        self.unreliable: list[Any] = []  # callbacks that failed while the run went on

    def start(self) -> None:
        """Call `on_start`. A callback that fails here, such as a logger without its server, ends the run before it
        begins, whatever its `on_error` says; of the end, only those that started before it are told."""
        self.started = bool(self.callbacks)
        for number, callback in enumerate(self.callbacks):
            if failure := self._call(callback, "on_start"):
                self.callbacks = self.callbacks[:number]
                raise failure

    def tell(self, hook: str, *given: Any) -> None:
        """Call one hook of every callback."""
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
        """Call one hook of one callback; gives the error if it failed, as a sentence."""
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
    """Refuse objects that have no hooks, or whose methods would never be called."""
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
