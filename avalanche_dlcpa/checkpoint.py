"""Checkpoint files: plain data, written whole or not at all, the last two kept, each checked.

A checkpoint is an ordinary ``torch.save`` file that ``torch.load(path, weights_only=True)`` reads:
loading it runs no code from it. The name holds its number and the checksum of its bytes.
"""

from __future__ import annotations

import hashlib
import os
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from avalanche_dlcpa.files import first_line, put_in_place, remove_draft, write_draft
from avalanche_dlcpa.folder_lock import FolderLock, lock_folder

FORMAT = 3  # of what the file holds
NUM_KEPT = 2
_NAME = re.compile(r"checkpoint-(\d+)-([0-9a-f]{16})\.pt")
_DRAFT = re.compile(r"\.checkpoint-\d+\.tmp")

State = dict[str, Any]


class CheckpointFolder:
    """A folder with the last checkpoints of one run.

    Args:
        path: The folder; it is made by `lock`, or with the first checkpoint.

    Raises:
        ValueError: ``path`` is a file.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path).absolute()  # wherever the script goes later
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"Expected a folder for checkpoints, got the file '{self.path}'.")
        self._refused: set[Path] = set()
        self._lock: FolderLock | None = None

    def lock(self) -> None:
        """Keep other processes out as long as this object lives; see `lock_folder`.

        Raises:
            ValueError: Another process is working in the folder.
        """
        self._lock = lock_folder(self.path)

    def expect_writable(self) -> None:
        """Refuse to begin a run of which no checkpoint could be written.

        Raises:
            ValueError: Nothing can be written there.
        """
        draft = self._draft()
        try:
            write_draft(draft, lambda file: file.write(b"begun"))
        except OSError as error:
            raise ValueError(
                "Expected a folder for checkpoints that can be written, got "
                f"'{self.path}' ({first_line(error)}): name another."
            ) from None
        finally:
            remove_draft(draft)

    def _draft(self) -> Path:
        return self.path / f".checkpoint-{os.getpid()}.tmp"

    def write(self, state: State) -> Path | None:
        """Write a checkpoint, and remove those before the last two.

        Args:
            state: Nested dicts, lists and tuples of tensors, numbers and strings.

        Returns:
            The file; None, with a warning, where it could not be written (a full disk): those
            before it are left as they are.
        """
        draft = self._draft()
        try:
            write_draft(draft, lambda file: torch.save({"format": FORMAT, **state}, file))
            number = 1 + max((_number(path) for path in self._files()), default=0)
            path = self.path / f"checkpoint-{number:06d}-{_checksum(draft)}.pt"
            put_in_place(draft, path)
            self._remove_old()
        except (OSError, RuntimeError) as error:  # torch raises the latter where a write fails
            warnings.warn(
                f"No checkpoint could be written to '{self.path}' ({first_line(error)}): training "
                "goes on, and the last checkpoint stands.",
                stacklevel=2,
            )
            return None
        finally:
            remove_draft(draft)
        return path

    def read(self, check: Callable[[State], None] = lambda state: None) -> State | None:
        """Read the newest checkpoint that is sound.

        Args:
            check: Raises ValueError for a checkpoint of another run.

        Returns:
            What was written, on the CPU; None: there is no checkpoint yet.

        Raises:
            ValueError: There are checkpoints, and none is sound; says what is wrong with each.
        """
        for draft in [p for p in self._entries() if _DRAFT.fullmatch(p.name)]:
            remove_draft(draft)  # of a process that was killed while writing
        problems = []
        for path in sorted(self._files(), key=_number, reverse=True):
            try:
                state = _read(path)
                check(state)
            except ValueError as error:
                self._refused.add(path)
                problems.append(f"{path.name}: {error}")
                continue
            if problems:
                warnings.warn(
                    f"Going on from {path.name}, since a newer checkpoint was refused. "
                    + " ".join(problems),
                    stacklevel=2,
                )
            return state
        if problems:
            raise ValueError(
                f"Expected a checkpoint of this very run in '{self.path}', got "
                f"{len(problems)} that cannot be used. {' '.join(problems)} To start anew, name "
                "another folder or remove this one."
            )
        return None

    def _entries(self) -> list[Path]:
        return list(self.path.iterdir()) if self.path.is_dir() else []

    def _files(self) -> list[Path]:
        return [path for path in self._entries() if _NAME.fullmatch(path.name)]

    def _remove_old(self) -> None:
        sound = [path for path in self._files() if path not in self._refused]
        for path in sorted(sound, key=_number)[:-NUM_KEPT]:
            path.unlink()


def _read(path: Path) -> State:
    found = _NAME.fullmatch(path.name)
    assert found is not None
    try:
        if _checksum(path) != found[2]:
            raise ValueError("It was cut short or altered: its checksum is not that of its name.")
        state = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise ValueError(f"It cannot be read ({first_line(error)}).") from error
    except ValueError:
        raise
    except Exception as error:  # whatever a crafted file makes torch's reader stumble over
        raise ValueError(
            "It is no file of plain data, and was not loaded, so that no code in it could run "
            f"({first_line(error)})."
        ) from error
    version = state.get("format") if isinstance(state, dict) else None
    if version != FORMAT:
        raise ValueError(
            f"It has format {version}, and this version of the package reads {FORMAT}."
        )
    return state


def _number(path: Path) -> int:
    found = _NAME.fullmatch(path.name)
    assert found is not None
    return int(found[1])


def _checksum(path: Path) -> str:
    digest = hashlib.blake2b(digest_size=8)
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()
