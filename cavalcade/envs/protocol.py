"""What Gymnasium asks `reset` and `step` to return, and a sentence for an environment that returns something else."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from cavalcade.errors import BadEnvironment

Place = Callable[[int], str]  # row -> "environment 3, episode 5, step 17"

STEP = "(observation, reward, terminated, truncated, info)"
RESET = "(observation, info)"
NUMBERS, FLAGS = (float, int, np.float64, np.float32), (bool, np.bool_)  # types that most environments give
# by the number of values that Gymnasium failed to unpack
ASKED = {"5": f"step() to return {STEP}", "2": f"reset() to return {RESET}"}


def check_reset(result: Any, environment: str, place: Place, row: int) -> None:
    """Refuse what `reset` returned unless it is a pair of an observation and a dict."""
    if type(result) is tuple and len(result) == 2 and isinstance(result[1], dict):
        return
    raise BadEnvironment(
        f"The reset() of '{environment}' returned {_described(result)} in {place(row)}; return {RESET}."
    )


def check_step(result: Any, environment: str, place: Place, row: int) -> None:
    """Refuse what `step` of a single environment returned unless it is five values of the right kinds."""
    if not isinstance(result, tuple) or len(result) != 5:
        old = "; old Gym's `done` is two now" if isinstance(result, tuple) and len(result) == 4 else ""
        raise BadEnvironment(
            f"The step() of '{environment}' returned {_described(result)} in {place(row)}; return {STEP}{old}."
        )
    _, reward, terminated, truncated, info = result
    if type(reward) not in NUMBERS and not _is_number(reward):
        raise BadEnvironment(
            f"The environment '{environment}' gave the reward {reward!r} in {place(row)}; give one number."
        )
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if type(flag) not in FLAGS and (np.ndim(flag) or flag not in (0, 1)):
            raise BadEnvironment(
                f"The environment '{environment}' gave {name}={flag!r} in {place(row)}; give True or False."
            )
    if not isinstance(info, dict):
        raise BadEnvironment(f"The environment '{environment}' gave the info {info!r} in {place(row)}; give a dict.")


def check_vector_step(result: Any, count: int, environment: str, place: str) -> None:
    """The same for a vector environment: reward and flags have to be arrays [count]."""
    if not isinstance(result, tuple) or len(result) != 5:
        raise BadEnvironment(
            f"The step() of the vector environment '{environment}' returned {_described(result)} in {place}; "
            f"return {STEP}."
        )
    for name, value, kinds in zip(("reward", "terminated", "truncated"), result[1:4], ("biuf", "biu", "biu")):
        array = np.asarray(value)
        if array.shape != (count,) or array.dtype.kind not in kinds:
            raise BadEnvironment(
                f"The vector environment '{environment}' gave {name} as {array.dtype} of shape {array.shape} in "
                f"{place}; give one {'number' if name == 'reward' else 'bool'} for each of its {count} environments."
            )


def explain(error: Exception, environment: str, place: str) -> None:
    """Raise a sentence if `error` comes from an environment that does not keep to the protocol; else return.

    Wrappers and vector environments of Gymnasium unpack what an environment returns, so a tuple of the wrong length
    fails in Gymnasium's files. An error in the user's own files is left as it is.
    """
    text = str(error)
    if isinstance(error, TypeError) and (found := re.search(r"reset\(\) got an unexpected keyword .*?'(\w+)'", text)):
        raise BadEnvironment(
            f"The reset() of '{environment}' takes no '{found[1]}'; "
            "write it as reset(self, *, seed=None, options=None)."
        ) from error
    found = re.search(r"values to unpack \(expected (\d)(?:, got (\d+))?", text)
    if isinstance(error, ValueError) and found and found[1] in ASKED and _raised_in(error, "gymnasium."):
        raise BadEnvironment(
            f"The environment '{environment}' returned {found[2] or 'more'} values in {place}, but Gymnasium asks its "
            f"{ASKED[found[1]]}."
        ) from error


def _raised_in(error: Exception, package: str) -> bool:
    """Whether the innermost frame of the error is in a module whose name begins so."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith(package)


def _is_number(value: Any) -> bool:
    try:
        array = np.asarray(value)
    except ValueError:
        return False
    return array.size == 1 and array.dtype.kind in "biuf"


def _described(result: Any) -> str:
    if isinstance(result, tuple):
        return f"{len(result)} values" if len(result) != 2 else f"a pair with a {type(result[1]).__name__}"
    return f"a {type(result).__name__}"
