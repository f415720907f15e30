"""What the table and its peers are measured by, for whichever Python runs them."""

import time

BATCH, DRAW = 64, 512  # items of an insert and of a draw
SIZES = {"small": 1_000_000, "frames": 100_000}
FILLED = {"small": 1_000_000, "frames": 30_000}  # before anything is measured
SECONDS = 2.0


def rate(call, items: int) -> float:
    """Items per second of repeated calls."""
    call()
    began, calls = time.perf_counter(), 0
    while (spent := time.perf_counter() - began) < SECONDS:
        call()
        calls += 1
    return calls * items / spent
