"""How many threads a backend computes with if the user does not say, and how these threads wait for each other.

The threads share each operation of an update and wait for each other after it, dozens of times in an update of a small
network. This is faster than one thread if an operation takes longer than the waiting. The rule was measured with torch.
XLA decides for each operation how many of its threads to use, and has no more than it is told.
"""

import os

# If one pass of a minibatch through a small network has at least so many multiply-adds, all cores are faster than one.
# Measured with torch on two cores that other programs used as well: for two networks of 64x64, two threads were as fast
# as one at 37 million (4,096 steps) and 1.3 times as fast at 75 million; for two of 128x128, as fast at 18 million.
WORTH_SHARING = 32_000_000

# How often a thread of GNU's OpenMP, which torch uses on Linux, looks for work before it sleeps. By default it looks
# for milliseconds, and where other processes want the cores, it takes the core of the thread that it waits for: beside
# two busy processes, updates took ten times as long as with one thread, and with this number 1.5 times.
LOOKS = "1000"


def chosen(small: bool, multiply_adds: float, turns: bool, cores: int) -> int:
    """How many threads to use. `small`: see `Network`. `multiply_adds`: of one pass of a minibatch. `turns`: acting and
    learning take turns in one process, so that no other process of this run wants a core."""
    if small:
        return cores if turns and multiply_adds >= WORTH_SHARING else 1
    return max(1, cores - 1)


def wait_briefly() -> None:
    """Let waiting threads sleep soon. To be called before the library is imported. A number that the user has set in
    GOMP_SPINCOUNT stays."""
    os.environ.setdefault("GOMP_SPINCOUNT", LOOKS)


def tell_xla(threads: int) -> None:
    """How many threads XLA may use; 0 leaves its own choice, all cores. It reads the number from these variables when a
    process asks for its first device, and never again; what the user has set in them stays."""
    if threads:
        for variable in ("PJRT_NPROC", "NPROC"):  # of new and of older versions
            os.environ.setdefault(variable, str(threads))
