"""Where arrays lie: in ordinary memory, in memory shared between processes, or in a file that may exceed memory.

Tables are allocated before the first step, and a table that does not fit is refused then: no run dies for want of
memory hours later.
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
RESERVE = 0.9  # the part of free memory that a table may take; the rest is for everything else


class Memory:
    """Hands out zeroed arrays of one kind (`KINDS`), and counts their bytes. `folder`: where a file is made."""

    def __init__(self, kind: str = "memory", folder: str | Path | None = None):
        if kind not in KINDS:
            raise UserError(f"There is no memory of the kind '{kind}'; choose one of {', '.join(KINDS)}.")
        self.kind, self.folder, self.bytes = kind, folder, 0
        self.segments: list[shared_memory.SharedMemory] = []

    def allocate(self, size: int) -> np.ndarray:
        """[size, but at least 64] uint8 of zeros that begin at a cache line (64 bytes)."""
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
        """Zeros in the shapes of `blank`, allocated leaf by leaf. `Attached` must allocate the same tree."""
        return rebuild(blank, (self.array(leaf.shape, leaf.dtype) for leaf in map(np.asarray, leaves(blank))))

    def _shared(self, size: int) -> np.ndarray:
        try:
            # the name has the owner's process number, so that `sweep_dead` finds segments whose owner has died
            name = f"cavalcade-{os.getpid()}-{NAMESPACE}{secrets.token_hex(6)}"
            segment = shared_memory.SharedMemory(name, create=True, size=size)
            self.segments.append(segment)
            if hasattr(os, "posix_fallocate"):  # without it a full /dev/shm would kill the run by a SIGBUS hours later
                os.posix_fallocate(segment._fd, 0, size)  # type: ignore[attr-defined]
        except OSError as error:
            self.close()
            raise UserError(
                f"{size / 1e9:.2f} GB of shared memory cannot be had ({error}); make the table smaller."
            ) from error
        return _mapped(segment)[:size]

    def _in_file(self, size: int) -> np.ndarray:
        # a temporary file has no name, so its disk space is freed when the process ends, even if it is killed
        try:
            with tempfile.TemporaryFile(dir=self.folder) as file:
                os.posix_fallocate(file.fileno(), 0, size) if hasattr(os, "posix_fallocate") else file.truncate(size)
                return np.frombuffer(mmap.mmap(file.fileno(), size), np.uint8)
        except OSError as error:
            raise UserError(f"The table's file of {size / 1e9:.2f} GB cannot be made ({error.strerror}).") from error

    @property
    def names(self) -> list[str]:
        """The names of the shared segments in the order of allocation, by which another process attaches to them."""
        return [segment.name for segment in self.segments]

    def close(self) -> None:
        """Remove the shared segments. Their memory is freed when no process holds an array in it any more."""
        for segment in self.segments:
            segment.unlink()
            segment.close()
        self.segments = []


class Attached(Memory):
    """The owner's shared arrays in another process, which allocates the same sizes in the same order as the owner."""

    def __init__(self, names: list[str]):
        super().__init__("shared")
        self.waiting = list(names)

    def allocate(self, size: int) -> np.ndarray:
        segment = _attach(self.waiting.pop(0))
        self.segments.append(segment)
        return _mapped(segment)[: max(size, 64)]

    def close(self) -> None:
        """Let go of the segments without removing them: that is the owner's part."""
        for segment in self.segments:
            segment.close()
        self.segments = []


@dataclass(frozen=True)
class WordsAddress:
    """What another process needs to reach a `SharedWords`; plain data."""

    shape: tuple[int, ...]
    names: list[str]

    def connect(self) -> np.ndarray:
        return Attached(self.names).array(self.shape, np.int64)


class SharedWords:
    """An int64 array that several processes read; each of its words is written by one process only."""

    def __init__(self, shape: tuple[int, ...]):
        self.memory = Memory("shared")
        self.array = self.memory.array(shape, np.int64)
        self.address = WordsAddress(shape, self.memory.names)

    def close(self) -> None:
        self.memory.close()


class Signpost:
    """The service of a node whose consumer reaches shared memory itself: it only says where that memory lies. It needs
    no steps here, and a consumer that dies leaves nothing behind."""

    def __init__(self, address: Any):
        self.address, self.ring = address, None

    def reclaim(self) -> None:
        """A consumer that dies has nothing under way here."""

    def close(self) -> None:
        """The node that made the memory removes it."""


def _mapped(segment: Any) -> np.ndarray:
    """[bytes] uint8: the segment's memory as an array that keeps it mapped by itself. It is taken out of the segment
    object, which would complain at exit about arrays that still refer to its memory."""
    mapping = segment._mmap
    segment._buf.release()
    segment._buf = segment._mmap = None
    return np.frombuffer(mapping, np.uint8)


def _attach(name: str) -> Any:
    """The shared segment of this name, without registering it for removal by this process: the owner removes it."""
    if sys.version_info >= (3, 13):
        return shared_memory.SharedMemory(name, track=False)
    register, resource_tracker.register = resource_tracker.register, lambda *_: None
    try:
        return shared_memory.SharedMemory(name)
    finally:
        resource_tracker.register = register


def sweep(pid: int) -> None:
    """Remove the shared memory of a dead process (on Linux, where segments are files in /dev/shm)."""
    for path in Path("/dev/shm").glob(f"cavalcade-{pid}-{NAMESPACE}*"):
        with contextlib.suppress(FileNotFoundError):
            segment = shared_memory.SharedMemory(path.name)
            segment.close()
            segment.unlink()


def sweep_dead() -> None:
    """Remove the shared memory of all dead processes, such as runs whose driver was killed."""
    for path in Path("/dev/shm").glob(f"cavalcade-*-{NAMESPACE}*") if NAMESPACE else ():
        owner = path.name.split("-")[1]
        if not Path(f"/proc/{owner}").exists():
            sweep(int(owner))


def available() -> int:
    """Bytes of memory that are free without swapping, within the container's limit if there is one."""
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
    """Raise a UserError if a table of `size` items and `needed` bytes does not fit; it names a size that would."""
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
    """Bytes that are free on the disk of `folder`."""
    if not hasattr(os, "statvfs"):
        return 1 << 62
    found = os.statvfs(folder or tempfile.gettempdir())
    return found.f_bavail * found.f_frsize
