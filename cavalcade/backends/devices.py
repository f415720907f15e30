"""Which device a backend computes on: what `--device` may say, and which device of a machine it means.

A backend says how many devices of each kind its library can use; here one of them is chosen, for all backends. Copies
to and from a device are in each backend.
"""

from cavalcade.errors import UserError, nearest

KINDS = ("cpu", "cuda", "mps")
CHOICES = ("auto", *KINDS)


def check(asked: str) -> None:
    """Raise a UserError if `asked` names no device of any machine."""
    kind, colon, number = asked.partition(":")
    if kind not in CHOICES or (colon and (kind == "auto" or not number.isdecimal())):
        raise UserError(
            f"--device '{asked}' is not one of {', '.join(CHOICES)}; a number may follow, as in cuda:1."
            f"{nearest(kind, CHOICES)}"
        )


def choose(asked: str, there: dict[str, int], library: str) -> tuple[str, int]:
    """Kind and number of the device asked for. `there`: how many devices of each kind the library can use, the fastest
    kind first; `auto` is the first kind of which there is a device."""
    check(asked)
    kind, _, number = asked.partition(":")
    if kind == "auto":
        return next(kind for kind, count in there.items() if count), 0
    if int(number or 0) < there.get(kind, 0):
        return kind, int(number or 0)
    names = [f"{kind}:0 to {count - 1}" if count > 1 else kind for kind, count in there.items() if count]
    what = f"{kind.upper()} device{' ' + number if number else ''}"
    raise UserError(
        f"--device {asked}: this machine has no {what} that {library} can use; use --device {', '.join(names)} or auto."
    )
