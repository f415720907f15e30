"""Wake-ups between processes: a word in shared memory that can be rung, and by which one process rests.

A halted core takes longer to wake than a message takes to copy, so nobody is woken who is not asleep, and an end of an
edge rings only when the other end has something to do.
"""

import numpy as np

from cavalcade.transport import _words

WORDS = 2  # how often it was rung, and whether somebody rests


class Bell:
    """`words`: shared [n] int64, of which two at `at` are this bell's."""

    def __init__(self, words: np.ndarray, at: int):
        self.words, self.at = words, at

    def __call__(self) -> None:
        _words.ring(self.words, self.at)

    def rung(self) -> int:
        return _words.load(self.words, self.at)

    def rest(self, rung: int, seconds: float) -> None:
        """Until it was rung more often than `rung`, or the time is up."""
        _words.rest(self.words, self.at, rung, seconds)


def nobody() -> None:
    """The bell of an edge whose other end needs no waking."""
