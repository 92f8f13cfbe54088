"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from avalanche_dlcpa.files import put_in_place, remove_draft, write_draft


def expect_writable(folder: Path) -> Path:
    """Make a folder where it is missing, and return it if files can be written to it.

    Raises:
        OSError: They cannot.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:  # without a name that a kill would leave
        file.write(b" ")
    return folder


def save_json(content: Any, path: Path) -> Path:
    """Write a file, whole or not at all, and return its path."""
    return save_text(_text(content), path)


def save_text(text: str, path: Path) -> Path:
    """Write a file, whole or not at all, and return its path."""
    with whole_file(path) as draft:
        write_draft(draft, lambda file: file.write(text.encode()))
    return path


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A draft to write to, which becomes the file where nothing is raised."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Which nobody takes for a result, and no other process of whatever machine writes.
    draft = path.with_name(f".{uuid.uuid4().hex}.draft{path.suffix}")
    try:
        yield draft
        put_in_place(draft, path)
    finally:
        remove_draft(draft)


def _text(content: Any) -> str:
    """JSON with a line for each innermost list, to be read by people, too."""
    text = json.dumps(content, indent=1, allow_nan=False)
    return re.sub(r"\[[^\[\]{}\"]*\]", lambda found: " ".join(found[0].split()), text)
