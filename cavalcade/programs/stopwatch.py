"""Where the time of a node goes, by role."""

from time import perf_counter

# in the order experience flows; of each, what a node books under it
ROLES = {
    "environment": "steps of environments",
    "acting": "actions from observations",
    "pulling": "newer parameters fetched",
    "storing": "experience written, sent, inserted and drawn",
    "learning": "updates, and parameters published",
    "evaluating": "episodes that judge the policy",
    "waiting": "nothing to do: for room, for experience, for work",
}
WALL = "wall"  # beside the roles: seconds since the node was last asked, whatever it did


class Stopwatch:
    """`lap("acting")` books the time since the last lap or start."""

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
        """Seconds by role since the last time, and all that passed as WALL."""
        now = perf_counter()
        drained, self.seconds = {**self.seconds, WALL: now - self.drained}, {}
        self.drained = now
        return drained
