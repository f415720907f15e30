"""Bells: one process rests until another process rings.

Waking a halted core takes longer than copying a message. So ringing costs a system call only while somebody rests, and
one end of an edge rings only when the other end has something to do.
"""

import numpy as np

from cavalcade.transport import _words

WORDS = 2  # of one bell: how often it was rung, and 1 while somebody rests by it


class Bell:
    """Calling a bell rings it. `words`: [n] int64 in shared memory; the two from index `at` on belong to this bell."""

    def __init__(self, words: np.ndarray, at: int):
        self.words, self.at = words, at

    def __call__(self) -> None:
        _words.ring(self.words, self.at)

    def rung(self) -> int:
        """How often the bell was rung since it was made."""
        return _words.load(self.words, self.at)

    def rest(self, rung: int, seconds: float) -> None:
        """Sleep until the bell was rung more often than `rung` times, at most for `seconds`. One process at a time."""
        _words.rest(self.words, self.at, rung, seconds)


def nobody() -> None:
    """The bell of an edge whose other end needs no waking: ringing it does nothing."""
