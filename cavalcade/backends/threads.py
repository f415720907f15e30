"""How many threads a backend computes with where the user does not say, and how they wait for each other.

Each operation of an update is shared among the threads by itself, and they meet after it: dozens of times in an update
of a small network. That pays where an operation takes longer than the meeting. XLA always has threads for all cores and
decides for each operation how many of them to use; the rule here is for libraries that do as they are told.
"""

import os

# Multiply-adds of one pass of a minibatch through a small network from which all cores are faster than one. Measured
# with torch on two cores that others used as well, in seconds of the thread that waits for the other: two networks of
# 64x64 broke even at 37 million (4,096 steps) and gained 1.3 at 75, two of 128x128 broke even at 18.
WORTH_SHARING = 32_000_000

# How often a thread of GNU's OpenMP, which torch uses on Linux, looks for work before it sleeps. Left alone it looks
# for milliseconds; where other processes want the cores, it looks at the expense of the thread that it waits for.
# Beside two busy processes updates then took ten times as long as with one thread, and with this number 1.5 times.
LOOKS = "1000"


def chosen(small: bool, multiply_adds: float, turns: bool, cores: int) -> int:
    """`turns`: acting and learning take turns in one process, so that nobody else of this run wants a core."""
    if small:
        return cores if turns and multiply_adds >= WORTH_SHARING else 1
    return max(1, cores - 1)


def wait_briefly() -> None:
    """Has to be called before the library is loaded; who has chosen a number in the environment keeps it."""
    os.environ.setdefault("GOMP_SPINCOUNT", LOOKS)
