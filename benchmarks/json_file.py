"""JSON files, written whole or not at all."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any


def save_json(content: Any, path: Path) -> Path:
    """Write a file, whole or not at all, and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with draft.open("w", encoding="utf-8") as file:
            file.write(_text(content))
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return path


def _text(content: Any) -> str:
    """JSON with a line for each innermost list, to be read by people, too."""
    text = json.dumps(content, indent=1, allow_nan=False)
    return re.sub(r"\[[^\[\]{}\"]*\]", lambda found: " ".join(found[0].split()), text)
