"""How a driver comes to Ray: one that is started here and goes with it, a cluster, or the caller's own."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cavalcade.errors import UserError

REACH = 5.0  # seconds to reach an address


def connect(address: str, processes: int) -> tuple[bool, bool]:
    """Whether we have connected to Ray, and whether it runs here alone, started by us."""
    try:
        import ray
    except ImportError as error:
        raise UserError("--runtime ray needs Ray; run: pip install 'cavalcade[ray]'.") from error
    if ray.is_initialized():
        return False, False
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    with _own_signals():
        if not address:
            count = max(os.cpu_count() or 1, processes)  # as Ray counts: on a small machine they take turns
            ray.init("local", num_cpus=count, include_dashboard=False, _node_ip_address="127.0.0.1", **quiet)
            return True, True
        _require_reachable(address)
        try:
            ray.init(address, **quiet)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise UserError(f"No Ray cluster answers at --address {address} ({error}).") from error
    return True, False


def _require_reachable(address: str) -> None:
    """Ray itself would try for a long time."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if address == "auto":
        return
    if not colon or not port.isdigit():
        raise UserError(f"--address '{address}' is not the address of a Ray cluster, like 10.0.0.1:6379, or auto.")
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACH).close()
    except (OSError, OverflowError) as error:
        raise UserError(
            f"Nothing answers at --address {address} ({error}); start a cluster there with `ray start --head`."
        ) from error


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Ray sets a handler of its own for SIGTERM; whoever drives the run has already decided what it means."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def guard() -> subprocess.Popen | None:
    """Helpers of a Ray that was started here outlive a killed driver by a minute, in which they try to report it to a
    server that has died as well. A shell that notices the end of the driver ends them (Linux)."""
    if sys.platform != "linux":
        return None
    helpers = [pid for raylet in _children(os.getpid(), "raylet") for pid in _children(raylet)]
    command = f"read nothing; kill -9 {' '.join(map(str, helpers))}"
    nowhere = subprocess.DEVNULL
    return subprocess.Popen(
        ["sh", "-c", command], stdin=subprocess.PIPE, stdout=nowhere, stderr=nowhere, start_new_session=True
    )


def _children(parent: int, name: str = "") -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            before, _, after = path.read_text().rpartition(")")  # the name may hold anything
            if int(after.split()[1]) == parent and before.endswith(name):
                found.append(int(path.parent.name))
    return found
