"""How far something has come, said on standard error while it is waited for: standard output is for results."""

import sys
import time

REWRITTEN_EVERY = 0.2  # seconds, on a terminal
PRINTED_EVERY = 5.0  # seconds, in a log
CLEARED = "\r\x1b[K"


class EpisodesPlayed:
    """One line that is rewritten on a terminal, a new one now and then elsewhere. What is over soon says nothing."""

    def __init__(self, episodes: int):
        self.episodes, self.watched = episodes, sys.stderr.isatty()
        self.every = REWRITTEN_EVERY if self.watched else PRINTED_EVERY
        self.said_at, self.said = time.monotonic(), False

    def __call__(self, done: int, steps: int) -> None:
        now = time.monotonic()
        if now - self.said_at < self.every:
            return
        self.said_at, self.said = now, True
        line = f"{done} of {self.episodes} episodes, {steps:,} steps"
        print(CLEARED + line if self.watched else line, end="" if self.watched else "\n", file=sys.stderr, flush=True)

    def close(self) -> None:
        """The line goes, and the result takes its place."""
        if self.said and self.watched:
            print(CLEARED, end="", file=sys.stderr, flush=True)
