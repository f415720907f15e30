"""Writing that survives a crash: afterwards a file has its old content or all of the new, and nothing between."""

import contextlib
import errno
import os
from pathlib import Path
from typing import BinaryIO


def write_atomically(path: Path, data: bytes) -> None:
    """Replace one file by a rename, so that a reader, even after a crash, sees the old content or all of the new."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            sync_file(file)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def is_disk_full(error: BaseException) -> bool:
    """Whether the error says that there is no space, no quota, or that a file exceeds the system's limit."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def sync_file(file: BinaryIO) -> None:
    """Wait until the file's content is on the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until renames in the folder are on the disk."""
    if os.name == "nt":  # Windows cannot open a folder; its renames are journaled
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
