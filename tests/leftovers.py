"""What a test may not leave behind."""

import multiprocessing
import os
import time

import psutil


def orphaned() -> set[str]:
    """Shared memory of ours whose owner is this process or has died; other workers' tests may have their own."""
    found = {name for name in os.listdir("/dev/shm") if name.startswith("cavalcade-")}
    owners = {name: int(name.split("-")[1]) for name in found}
    return {name for name, pid in owners.items() if pid == os.getpid() or not psutil.pid_exists(pid)}


def assert_nothing_is_left(before: set[str]) -> None:
    deadline = time.monotonic() + 5
    while (left := orphaned() - before) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left, "shared memory was left behind"
    assert not multiprocessing.active_children()
