"""One process at a time works in a folder of checkpoints; the lock ends with its process."""

from __future__ import annotations

import errno
import os
import socket
import warnings
import weakref
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

NAME = ".lock"

_held: weakref.WeakValueDictionary[tuple[int, int, int], FolderLock] = weakref.WeakValueDictionary()


class FolderLock:
    """A lock that this process has, until the last reference to this object is gone.

    It is a POSIX record lock: of a process, not inherited by loader workers, and released by the
    operating system however the process ends.
    """

    def __init__(self, descriptor: int):
        self._close = weakref.finalize(self, os.close, descriptor)


def lock_folder(folder: Path) -> FolderLock | None:
    """Make a folder, and lock it for this process; one that it has locked already it may share.

    Args:
        folder: Where checkpoints are kept.

    Returns:
        What holds the lock; None where there are no locks: on Windows, and, with a warning, where
        the folder cannot be written or its file system has none.

    Raises:
        ValueError: Another process has locked it.
    """
    if fcntl is None:
        return None
    path = folder / NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Closing any descriptor of the file would release the lock, so it is opened only once.
        held = _held.get(_key(path)) if path.exists() else None
        return held or _lock(path)
    except BlockingIOError:
        raise ValueError(
            f"Expected a folder for checkpoints that no other process uses, got '{folder}', where "
            f"{_owner(path)} is running: give each run a folder of its own, or let that one end."
        ) from None
    except OSError as error:
        warnings.warn(
            f"'{folder}' could not be locked ({error}): no other run may use it meanwhile.",
            stacklevel=2,
        )
        return None


def _lock(path: Path) -> FolderLock:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.truncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())
    except OSError as error:
        os.close(descriptor)
        if error.errno == errno.EACCES:  # POSIX leaves the choice between the two
            raise BlockingIOError(*error.args) from error
        raise
    lock = FolderLock(descriptor)
    _held[_key(path)] = lock
    return lock


def _key(path: Path) -> tuple[int, int, int]:
    """Of the file, and of the process: a forked one has not the locks of its parent."""
    status = path.stat()
    return os.getpid(), status.st_dev, status.st_ino


def _owner(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8") or "another process"
    except OSError:
        return "another process"
