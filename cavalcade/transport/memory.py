"""Where arrays lie: in ordinary memory, in memory shared between processes, or in a file larger than memory.

Everything is allocated before the first step, so a run that starts does not die of memory hours later: what does not
fit is refused at once.
"""

import contextlib
import math
import mmap
import os
import secrets
import sys
import tempfile
from dataclasses import dataclass
from multiprocessing import resource_tracker, shared_memory
from pathlib import Path
from typing import Any

import numpy as np

from cavalcade.errors import UserError
from cavalcade.tree import Tree, leaves, rebuild

KINDS = ("memory", "shared", "file")
PIDS = Path("/proc/self/ns/pid")
NAMESPACE = f"{PIDS.stat().st_ino}-" if PIDS.exists() else ""  # containers may share memory, but not process numbers
RESERVE = 0.9  # of what is free: the rest is for everything that is not a table


class Memory:
    """Hands out zeroed byte arrays of one kind and remembers what it handed out."""

    def __init__(self, kind: str = "memory", folder: str | Path | None = None):
        if kind not in KINDS:
            raise UserError(f"There is no memory of the kind '{kind}'; choose one of {', '.join(KINDS)}.")
        self.kind, self.folder, self.bytes = kind, folder, 0
        self.segments: list[shared_memory.SharedMemory] = []

    def allocate(self, size: int) -> np.ndarray:
        """[size] uint8, zero, beginning at a multiple of a cache line."""
        self.bytes += size
        size = max(size, 64)
        if self.kind == "shared":
            return self._shared(size)
        if self.kind == "file":
            return self._in_file(size)
        block = np.zeros(size + 64, np.uint8)
        start = -block.ctypes.data % 64
        return block[start : start + size]

    def array(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Zeros of this shape."""
        size = np.dtype(dtype).itemsize * math.prod(shape)
        return self.allocate(size)[:size].view(dtype).reshape(shape)

    def tree(self, blank: Tree) -> Tree:
        """Zeros in the shapes of `blank`, leaf after leaf; who attaches to it asks for the same."""
        return rebuild(blank, (self.array(leaf.shape, leaf.dtype) for leaf in map(np.asarray, leaves(blank))))

    def _shared(self, size: int) -> np.ndarray:
        try:
            # named after its owner, so that whoever finds one knows whether it is still of use
            name = f"cavalcade-{os.getpid()}-{NAMESPACE}{secrets.token_hex(6)}"
            segment = shared_memory.SharedMemory(name, create=True, size=size)
            self.segments.append(segment)
            if hasattr(os, "posix_fallocate"):  # else a full /dev/shm would be noticed by a SIGBUS, hours later
                os.posix_fallocate(segment._fd, 0, size)  # type: ignore[attr-defined]
        except OSError as error:
            self.close()
            raise UserError(
                f"{size / 1e9:.2f} GB of shared memory cannot be had ({error}); make the table smaller."
            ) from error
        return _mapped(segment)[:size]

    def _in_file(self, size: int) -> np.ndarray:
        # the file has no name any more: whatever ends the process also frees the disk
        try:
            with tempfile.TemporaryFile(dir=self.folder) as file:
                os.posix_fallocate(file.fileno(), 0, size) if hasattr(os, "posix_fallocate") else file.truncate(size)
                return np.frombuffer(mmap.mmap(file.fileno(), size), np.uint8)
        except OSError as error:
            raise UserError(f"The table's file of {size / 1e9:.2f} GB cannot be made ({error.strerror}).") from error

    @property
    def names(self) -> list[str]:
        """Of the shared segments, in the order of allocation: another process attaches to them by these."""
        return [segment.name for segment in self.segments]

    def close(self) -> None:
        """Take the names of shared memory away; it goes when no process has an array in it any more."""
        for segment in self.segments:
            segment.unlink()
            segment.close()
        self.segments = []


class Attached(Memory):
    """The same arrays in another process: allocates what the owner allocated, in the same order."""

    def __init__(self, names: list[str]):
        super().__init__("shared")
        self.waiting = list(names)

    def allocate(self, size: int) -> np.ndarray:
        segment = _attach(self.waiting.pop(0))
        self.segments.append(segment)
        return _mapped(segment)[: max(size, 64)]

    def close(self) -> None:
        """The names are the owner's to take away."""
        for segment in self.segments:
            segment.close()
        self.segments = []


@dataclass(frozen=True)
class WordsAddress:
    shape: tuple[int, ...]
    names: list[str]

    def connect(self) -> np.ndarray:
        return Attached(self.names).array(self.shape, np.int64)


class SharedWords:
    """A few integers that several processes look at; each is written by one of them."""

    def __init__(self, shape: tuple[int, ...]):
        self.memory = Memory("shared")
        self.array = self.memory.array(shape, np.int64)
        self.address = WordsAddress(shape, self.memory.names)

    def close(self) -> None:
        self.memory.close()


class Signpost:
    """What a node gives to one in another process that helps itself: where things lie. Nothing has to be done for it
    here, and who dies leaves nothing."""

    def __init__(self, address: Any):
        self.address, self.ring = address, None

    def reclaim(self) -> None:
        """Nothing was under way here."""

    def close(self) -> None:
        """Who made the things takes them away."""


def _mapped(segment: Any) -> np.ndarray:
    """The segment's memory as an array that keeps it mapped, whatever becomes of the segment object: that one would
    complain at exit about arrays that still look at it."""
    mapping = segment._mmap
    segment._buf.release()
    segment._buf = segment._mmap = None
    return np.frombuffer(mapping, np.uint8)


def _attach(name: str) -> Any:
    """Look at a segment without becoming responsible for its end: that is the owner's."""
    if sys.version_info >= (3, 13):
        return shared_memory.SharedMemory(name, track=False)
    register, resource_tracker.register = resource_tracker.register, lambda *_: None
    try:
        return shared_memory.SharedMemory(name)
    finally:
        resource_tracker.register = register


def sweep(pid: int) -> None:
    """Give back the shared memory of a process that died without doing so (where segments are files)."""
    for path in Path("/dev/shm").glob(f"cavalcade-{pid}-{NAMESPACE}*"):
        with contextlib.suppress(FileNotFoundError):
            segment = shared_memory.SharedMemory(path.name)
            segment.close()
            segment.unlink()


def sweep_dead() -> None:
    """Give back the shared memory of runs of which nobody was left to do it."""
    for path in Path("/dev/shm").glob(f"cavalcade-*-{NAMESPACE}*") if NAMESPACE else ():
        owner = path.name.split("-")[1]
        if not Path(f"/proc/{owner}").exists():
            sweep(int(owner))


def available() -> int:
    """Bytes that can be had without swapping, within the container's limit if there is one."""
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 1 << 62
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        if limit != "max":
            free = min(free, int(limit) - int(Path("/sys/fs/cgroup/memory.current").read_text()))
    except (OSError, StopIteration, ValueError):
        pass  # not Linux, or no such limit
    return free


def require(needed: int, size: int, kind: str, folder: str | Path | None = None) -> None:
    """Refuse a table of `size` items and `needed` bytes that does not fit, with a size that would."""
    if kind == "file":
        where, free = "on this disk", _disk(folder)
    elif kind == "shared":
        where, free = "in shared memory", min(available(), _disk("/dev/shm") if Path("/dev/shm").exists() else 1 << 62)
    else:
        where, free = "in memory", available()
    if needed <= RESERVE * free:
        return
    fits = int(size * RESERVE * free / needed)
    digits = max(0, len(str(fits)) - 2)
    fits = fits // 10**digits * 10**digits
    other = "" if kind == "file" else ", or keep it in a file with --storage file"
    raise UserError(
        f"A table of {size:,} items needs {needed / 1e9:.1f} GB, but only {free / 1e9:.1f} GB are free {where}: "
        f"{fits:,} items would fit{other}."
    )


def _disk(folder: str | Path | None) -> int:
    if not hasattr(os, "statvfs"):
        return 1 << 62
    found = os.statvfs(folder or tempfile.gettempdir())
    return found.f_bavail * found.f_frsize
