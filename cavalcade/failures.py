"""What fails in a run: whose line it was, and when it is not worth another try.

An exception of a user's own environment is told in one sentence with the user's own file and line, wherever the
environment runs; the whole traceback is in `faults.jsonl`.
"""

import os
import sysconfig
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cavalcade.errors import BadEnvironment, UserError

TRIES = 3  # failures of a process in a row, at the same moment and line, with an episode between them at most
ANYWHERE = 6  # or at any place, as long as nobody has finished an episode
OURS = str(Path(__file__).parent)
INSTALLED = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
LONGEST = 300  # letters of an exception's own words in a sentence


@dataclass(frozen=True)
class Mishap:
    """An exception of a user's environment, as plain data."""

    environment: str
    moment: str  # "in step 3 of an episode"
    cause: str  # the exception in a line
    file: str  # whose line raised it; empty if nobody knows
    line: int
    finished: int  # episodes of these copies of the environment since they were made
    passed: bool  # whether another copy has got through the same moment

    @property
    def place(self) -> tuple[str, str, int, str]:
        """By which two of them are the same, whatever numbers are in their messages."""
        return self.moment, self.file, self.line, self.cause.partition(":")[0]

    @property
    def short(self) -> str:
        return self.cause + _at(self.file, self.line)


class EnvironmentFailed(BadEnvironment):
    """A user's environment raised an exception."""

    def __init__(self, mishap: Mishap, who: str = "", often: str = ""):
        """`who`: the process, if it was another; `often`: how many times, if it was more than once."""
        said = f"The environment '{mishap.environment}' failed {often}{mishap.moment}: {mishap.short}."
        super().__init__(f"{who}: {said}" if who else said)
        self.mishap = mishap

    @classmethod
    def by(
        cls, error: Exception, environment: str, moment: str, finished: int = 0, passed: bool = False
    ) -> "EnvironmentFailed":
        """`finished`, `passed`: as in `Mishap`."""
        return cls(Mishap(environment, moment, in_a_line(error), *own_line(error), finished, passed))


@dataclass(frozen=True)
class Failure:
    """Why a process has ended; plain data, told by itself or by whoever found it."""

    cause: str  # whole: a traceback, a sentence for the user, or what the system says
    short: str  # in a line
    for_user: bool = False  # to start again would only say it again
    about: dict[str, Any] = field(default_factory=dict)  # for faults.jsonl: file, line and traceback
    mishap: Mishap | None = None  # if it was the environment

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        if isinstance(error, UserError) and not isinstance(error, EnvironmentFailed):
            return cls(str(error), f"{type(error).__name__}: {error}", for_user=True)
        mishap = error.mishap if isinstance(error, EnvironmentFailed) else None
        raised = error.__cause__ or error if mishap else error
        whole, (file, line) = "".join(traceback.format_exception(raised)), own_line(raised)
        about = {"file": file, "line": line, "traceback": whole}
        return cls(whole, in_a_line(raised) + _at(file, line), about=about, mishap=mishap)

    @classmethod
    def found(cls, cause: str) -> "Failure":
        """Of a process that can say nothing any more."""
        return cls(cause, cause)

    def fault(self, node: str, **more: Any) -> dict[str, Any]:
        """For faults.jsonl."""
        known = {name: value for name, value in self.about.items() if value}
        return {"node": node, "cause": self.short, **more, **known}

    def __str__(self) -> str:
        return self.short if self.cause == self.short else f"{self.short}\n\n{self.cause}"


class Tries:
    """Counts failures of environments, and says when to stop trying. One that fails now and then fails at another
    moment each time, or other copies get further, or episodes are finished in between."""

    def __init__(self) -> None:
        self.last: dict[str, tuple[Mishap, int]] = {}  # of each process, and how many like it in a row
        self.all: dict[str, int] = {}  # of each process
        self.finished = False  # whether any episode was, anywhere

    def count(self, who: str, mishap: Mishap) -> int:
        """How many like it there were in a row."""
        before, times = self.last.get(who, (mishap, 0))
        times = times + 1 if mishap.place == before.place else 1
        if mishap.finished > 1 or mishap.passed:
            times = 0  # what others get through, or what is seldom come to, does not fail always
        self.last[who], self.all[who] = (mishap, times), self.all.get(who, 0) + 1
        self.finished |= mishap.finished > 0
        return max(1, times)

    def check(self, who: str, node: str = "") -> None:
        """Raises what is to be said when enough has been tried. `node`: the process that is to be named."""
        mishap, times = self.last[who]
        if times >= TRIES:
            raise EnvironmentFailed(mishap, node or who, f"{times} times in a row ")
        if self.all[who] >= ANYWHERE and not self.finished:
            often = f"{self.all[who]} times before any episode was finished, the last time "
            raise EnvironmentFailed(mishap, node or who, often)


def in_a_line(error: BaseException) -> str:
    said = " ".join(str(error).split()).rstrip(".")
    said = said if len(said) <= LONGEST else f"{said[:LONGEST]} ..."
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def own_line(error: BaseException) -> tuple[str, int]:
    """File and line of the user's own code that raised: the innermost that is neither ours nor installed; else of the
    innermost package that is not Gymnasium; else nothing."""
    if isinstance(error, SyntaxError) and error.filename:
        return _nearby(error.filename), error.lineno or 0
    lines = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    theirs = [(file, line) for file, line in lines if not file.startswith((OURS, "<frozen"))]
    own = [(file, line) for file, line in theirs if not file.startswith(INSTALLED)]
    packages = [(file, line) for file, line in theirs if f"{os.sep}gymnasium{os.sep}" not in file]
    file, line = (own or packages or [("", 0)])[-1]
    return _nearby(file), line


def _nearby(file: str) -> str:
    """Relative to the working directory if it is inside."""
    inside = os.path.relpath(file) if os.path.isabs(file) else file
    return file if inside.startswith("..") else inside


def _at(file: str, line: int) -> str:
    return f" ({file}, line {line})" if file else ""
