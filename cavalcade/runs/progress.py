"""Progress of an evaluation, printed on standard error, because standard output is for results."""

import sys
import time

REWRITTEN_EVERY = 0.2  # seconds, on a terminal
PRINTED_EVERY = 5.0  # seconds, in a log
CLEARED = "\r\x1b[K"  # moves to the beginning of the line and clears it


class EpisodesPlayed:
    """Prints how many episodes have ended: on a terminal in one line that is rewritten, elsewhere in a new line every
    few seconds. An evaluation that ends before the first line is due prints nothing."""

    def __init__(self, episodes: int):
        self.episodes, self.watched = episodes, sys.stderr.isatty()
        self.every = REWRITTEN_EVERY if self.watched else PRINTED_EVERY
        self.said_at, self.said = time.monotonic(), False

    def __call__(self, done: int, steps: int) -> None:
        """`done`: episodes that have ended. `steps`: environment steps so far."""
        now = time.monotonic()
        if now - self.said_at < self.every:
            return
        self.said_at, self.said = now, True
        line = f"{done} of {self.episodes} episodes, {steps:,} steps"
        print(CLEARED + line if self.watched else line, end="" if self.watched else "\n", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Clear the line, so that the result takes its place."""
        if self.said and self.watched:
            print(CLEARED, end="", file=sys.stderr, flush=True)
