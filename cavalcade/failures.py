"""Failures in a run: which line of the user's caused them, and when a process is not started again.

An exception of a user's environment becomes one sentence with the user's own file and line, in whatever process the
environment runs; the whole traceback goes to `faults.jsonl`.
"""

import os
import sysconfig
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cavalcade.errors import BadEnvironment, UserError

# failures of one process after which the run ends: in a row, at the same moment and line, with one finished episode
# between two of them at most
TRIES = 3
ANYWHERE = 6  # the same at any moment and line, as long as no process has finished an episode
OURS = str(Path(__file__).parent)
INSTALLED = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
LONGEST = 300  # the most characters of an exception's message that a sentence repeats


@dataclass(frozen=True)
class Mishap:
    """An exception of a user's environment, as plain data."""

    environment: str
    moment: str  # when it happened: "in step 3 of an episode"
    cause: str  # the exception in one line
    file: str  # of the line that raised it; empty if unknown
    line: int
    finished: int  # episodes that these copies of the environment have finished since they were made
    passed: bool  # whether another copy of the environment got past the same moment

    @property
    def place(self) -> tuple[str, str, int, str]:
        """Two mishaps with the same place count as the same failure. It leaves out the message, which may hold
        numbers."""
        return self.moment, self.file, self.line, self.cause.partition(":")[0]

    @property
    def short(self) -> str:
        return self.cause + _at(self.file, self.line)


class EnvironmentFailed(BadEnvironment):
    """A user's environment raised an exception."""

    def __init__(self, mishap: Mishap, who: str = "", often: str = ""):
        """`who`: the process, if it was another one; `often`: how many times it failed, as words for the sentence."""
        said = f"The environment '{mishap.environment}' failed {often}{mishap.moment}: {mishap.short}."
        super().__init__(f"{who}: {said}" if who else said)
        self.mishap = mishap

    @classmethod
    def by(
        cls, error: Exception, environment: str, moment: str, finished: int = 0, passed: bool = False
    ) -> "EnvironmentFailed":
        """The failure of an environment that raised `error`; `moment`, `finished`, `passed`: as in `Mishap`."""
        return cls(Mishap(environment, moment, in_a_line(error), *own_line(error), finished, passed))


@dataclass(frozen=True)
class Failure:
    """Why a process has ended; plain data, made by the process itself or by the driver that found it dead."""

    cause: str  # a traceback, a sentence for the user, or what the system says
    short: str  # the same in one line
    for_user: bool = False  # a mistake of the user (`UserError`), which starting again would only repeat
    about: dict[str, Any] = field(default_factory=dict)  # for faults.jsonl: file, line and traceback
    mishap: Mishap | None = None  # set if an environment failed

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        """The failure of a process in which `error` was raised."""
        if isinstance(error, UserError) and not isinstance(error, EnvironmentFailed):
            return cls(str(error), f"{type(error).__name__}: {error}", for_user=True)
        mishap = error.mishap if isinstance(error, EnvironmentFailed) else None
        raised = error.__cause__ or error if mishap else error
        whole, (file, line) = "".join(traceback.format_exception(raised)), own_line(raised)
        about = {"file": file, "line": line, "traceback": whole}
        return cls(whole, in_a_line(raised) + _at(file, line), about=about, mishap=mishap)

    @classmethod
    def found(cls, cause: str) -> "Failure":
        """The failure of a process that ended without a word."""
        return cls(cause, cause)

    def fault(self, node: str, **more: Any) -> dict[str, Any]:
        """The failure of `node` as a line for faults.jsonl."""
        known = {name: value for name, value in self.about.items() if value}
        return {"node": node, "cause": self.short, **more, **known}

    def __str__(self) -> str:
        return self.short if self.cause == self.short else f"{self.short}\n\n{self.cause}"


class Tries:
    """Counts failures of environments, and ends a run whose environment always fails. An environment that fails only
    now and then is borne: it fails at different moments, or other copies get past them, or it finishes episodes
    between."""

    def __init__(self) -> None:
        self.last: dict[str, tuple[Mishap, int]] = {}  # by process: its last mishap, and how many like it in a row
        self.all: dict[str, int] = {}  # by process: how many in all
        self.finished = False  # whether any process has finished an episode

    def count(self, who: str, mishap: Mishap) -> int:
        """Count a mishap of the process `who`; returns how many like it there were in a row."""
        before, times = self.last.get(who, (mishap, 0))
        times = times + 1 if mishap.place == before.place else 1
        if mishap.finished > 1 or mishap.passed:
            times = 0  # another copy got past this moment, or it is seldom reached: it does not always fail there
        self.last[who], self.all[who] = (mishap, times), self.all.get(who, 0) + 1
        self.finished |= mishap.finished > 0
        return max(1, times)

    def check(self, who: str, node: str = "") -> None:
        """Raise `EnvironmentFailed` if the process `who` has failed too often. `node`: the name for the message, if it
        is another."""
        mishap, times = self.last[who]
        if times >= TRIES:
            raise EnvironmentFailed(mishap, node or who, f"{times} times in a row ")
        if self.all[who] >= ANYWHERE and not self.finished:
            often = f"{self.all[who]} times before any episode was finished, the last time "
            raise EnvironmentFailed(mishap, node or who, often)


def in_a_line(error: BaseException) -> str:
    """`ValueError: its message`, in one line and cut after `LONGEST` characters."""
    said = " ".join(str(error).split()).rstrip(".")
    said = said if len(said) <= LONGEST else f"{said[:LONGEST]} ..."
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def own_line(error: BaseException) -> tuple[str, int]:
    """File and line of the user's code that raised the error: the innermost frame that is neither of Cavalcade nor
    installed; else the innermost of a package other than Gymnasium; else ("", 0)."""
    if isinstance(error, SyntaxError) and error.filename:
        return _nearby(error.filename), error.lineno or 0
    lines = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    theirs = [(file, line) for file, line in lines if not file.startswith((OURS, "<frozen"))]
    own = [(file, line) for file, line in theirs if not file.startswith(INSTALLED)]
    packages = [(file, line) for file, line in theirs if f"{os.sep}gymnasium{os.sep}" not in file]
    file, line = (own or packages or [("", 0)])[-1]
    return _nearby(file), line


def _nearby(file: str) -> str:
    """The path of a file, relative to the working directory if the file is inside it."""
    inside = os.path.relpath(file) if os.path.isabs(file) else file
    return file if inside.startswith("..") else inside


def _at(file: str, line: int) -> str:
    return f" ({file}, line {line})" if file else ""
