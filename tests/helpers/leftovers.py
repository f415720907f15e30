"""What a test may not leave behind."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from cavalcade.checkpoints import checkpoint


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


@pytest.fixture(autouse=True)
def nothing_is_left():
    """For every test of a module that imports it."""
    before = orphaned()
    yield
    assert_nothing_is_left(before)


def end_a_driver(folder: Path, number: int, *options: str, to_all: bool = False) -> list[str]:
    """Begin a run that would go on for ever and signal its driver, or all of its processes. None of them may be left,
    and a checkpoint must be, unless there was no time for it. The commands of the processes that were there."""
    run = folder / "run"
    command = "train impala CartPole-v1 --steps 100000000 --rows 100000 --evaluations 0 --backend numpy"
    arguments = [sys.executable, "-m", "cavalcade", *command.split(), *options, "--out", str(run)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    driver = subprocess.Popen(arguments, cwd=folder, start_new_session=True, **quiet)
    metrics, deadline = run / "metrics.jsonl", time.monotonic() + 60
    while not metrics.exists() or not metrics.stat().st_size:
        assert time.monotonic() < deadline and driver.poll() is None
        time.sleep(0.05)
    children = psutil.Process(driver.pid).children(recursive=True)
    commands = [" ".join(child.cmdline()) for child in children]
    os.killpg(driver.pid, number) if to_all else driver.send_signal(number)
    driver.wait(30)
    _, alive = psutil.wait_procs(children, timeout=5)
    assert not alive
    if number != signal.SIGKILL:
        assert checkpoint.load_latest(run / "checkpoints")[1] > 0
    return commands
