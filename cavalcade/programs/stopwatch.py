"""Where the time of a node goes: seconds by kind of work, which are called roles here."""

from time import perf_counter

# in the order in which experience flows: what a node books under each
ROLES = {
    "environment": "steps of environments",
    "acting": "actions from observations",
    "pulling": "newer parameters fetched",
    "storing": "experience written, sent, inserted and drawn",
    "learning": "updates, and parameters published",
    "evaluating": "episodes that judge the policy",
    "waiting": "nothing to do: for room, for experience, for work",
}
WALL = "wall"  # beside the roles: all seconds since the last `drain`


class Stopwatch:
    """`lap("acting")` books the seconds since the last `lap` or `start` under "acting"."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.last = self.drained = perf_counter()

    def start(self) -> None:
        self.last = perf_counter()

    def lap(self, role: str) -> None:
        now = perf_counter()
        self.seconds[role] = self.seconds.get(role, 0.0) + now - self.last
        self.last = now

    def drain(self) -> dict[str, float]:
        """Seconds by role since the last call, and all seconds that passed under WALL."""
        now = perf_counter()
        drained, self.seconds = {**self.seconds, WALL: now - self.drained}, {}
        self.drained = now
        return drained
