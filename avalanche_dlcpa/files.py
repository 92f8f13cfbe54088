"""Files that are there whole or not at all, whatever happens while they are written."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO


def write_draft(draft: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file under a name that nobody reads, and see to it that it is on the disk.

    Args:
        draft: In the folder of the file that it will become; the folder is made if need be.
        write: Writes into the open file.
    """
    draft.parent.mkdir(parents=True, exist_ok=True)
    with draft.open("wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())


def put_in_place(draft: Path, path: Path) -> None:
    """Give a draft its name, in place of what had it, and make that survive a crash."""
    draft.replace(path)
    if os.name == "posix":  # elsewhere folders cannot be synced
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            with contextlib.suppress(OSError):  # nor do all file systems: the file is in its place
                os.fsync(descriptor)
        finally:
            os.close(descriptor)


def remove_draft(draft: Path) -> None:
    """Remove a draft if it is still there and can be removed; left over, nobody reads it."""
    try:
        draft.unlink(missing_ok=True)
    except OSError:
        return


def first_line(error: Exception) -> str:
    """What an error says, without the pages that may follow."""
    return next(iter(str(error).splitlines()), type(error).__name__)
