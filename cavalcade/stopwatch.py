"""Where the time goes, by role."""

from time import perf_counter


class Stopwatch:
    """`lap("acting")` books the time since the last lap or start."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.last = perf_counter()

    def start(self) -> None:
        self.last = perf_counter()

    def lap(self, role: str) -> None:
        now = perf_counter()
        self.seconds[role] = self.seconds.get(role, 0.0) + now - self.last
        self.last = now

    def drain(self) -> dict[str, float]:
        drained, self.seconds = self.seconds, {}
        return drained
