"""How a driver connects to Ray: it starts Ray here and stops it in the end, joins a cluster, or uses the caller's."""

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

REACH = 5.0  # seconds in which an address must accept a connection


def connect(address: str, processes: int) -> tuple[bool, bool]:
    """Connect to Ray, unless the caller has. Returns whether we have connected, and whether we have started Ray
    here."""
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
            count = max(os.cpu_count() or 1, processes)  # so that Ray starts all; on a small machine they share cores
            ray.init("local", num_cpus=count, include_dashboard=False, _node_ip_address="127.0.0.1", **quiet)
            return True, True
        _require_reachable(address)
        try:
            ray.init(address, **quiet)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise UserError(f"No Ray cluster answers at --address {address} ({error}).") from error
    return True, False


def _require_reachable(address: str) -> None:
    """Raise a UserError if nothing answers at the address; Ray itself would try for a long time."""
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
    """Keep the signal handlers: Ray sets its own for SIGTERM, but the session has already decided what it means."""
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
    """A shell that kills Ray's helper processes when the driver ends (Linux only). Without it they would outlive a
    killed driver by a minute, in which they try to report to a Ray server that has died as well."""
    if sys.platform != "linux":
        return None
    helpers = [pid for raylet in _children(os.getpid(), "raylet") for pid in _children(raylet)]
    command = f"read nothing; kill -9 {' '.join(map(str, helpers))}"
    nowhere = subprocess.DEVNULL
    return subprocess.Popen(
        ["sh", "-c", command], stdin=subprocess.PIPE, stdout=nowhere, stderr=nowhere, start_new_session=True
    )


def _children(parent: int, name: str = "") -> list[int]:
    """Process numbers of the children of `parent` whose name ends with `name`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            before, _, after = path.read_text().rpartition(")")  # the name may hold spaces and parentheses
            if int(after.split()[1]) == parent and before.endswith(name):
                found.append(int(path.parent.name))
    return found
