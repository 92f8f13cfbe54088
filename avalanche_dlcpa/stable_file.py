"""The file of a stable learner to take away: plain tensors and what they mean, in safetensors.

Reading it runs no code from it: safetensors holds numbers, their names and text. The checksum is
that of the tensors and of everything that the file says about them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from avalanche_dlcpa.files import first_line, put_in_place, remove_draft, write_draft

PRODUCER = "avalanche-dlcpa"
FORMAT_VERSION = "1"
_LARGEST_LABEL = 2**31

Tensors = dict[str, Tensor]


@dataclasses.dataclass(frozen=True)
class StableInfo:
    """What the file of a stable learner says about its tensors.

    A column k < K of the logits is a class. Columns are in the order of class labels, so that the
    column is the label where all labels from 0 to K - 1 have been learned.

    Attributes:
        labels: Class label of each column.
        names: Class name of each column.
        task_labels: Task label of each column, as the stream had it; 0 where it had none.
        classifiers: Number of the classifier of each column, from 0 in the order of learning.
        kind: What the last layer holds: the trained "linear" classifiers or a "gaussian" one.
        num_averaged: Number of experiences in the average, t.
        architecture: Class of the network.
        head: Name of its last linear layer.
        image_shape: Shape of one input, (C, H, W), if that is known.
        normalization: Mean and deviation of each channel that inputs are normalised with, if known.
        probe: Logits (K,) of a fixed input of ``image_shape``; None without it.
    """

    labels: tuple[int, ...]
    names: tuple[str, ...]
    task_labels: tuple[int, ...]
    classifiers: tuple[int, ...]
    kind: str
    num_averaged: int
    architecture: str
    head: str
    image_shape: tuple[int, ...] | None
    normalization: tuple[tuple[float, ...], tuple[float, ...]] | None
    probe: tuple[float, ...] | None

    @property
    def tasks(self) -> tuple[int, ...]:
        """Task of each column: its task label, or its classifier where tasks share a label."""
        is_shared = len(set(self.task_labels)) == 1 and len(set(self.classifiers)) > 1
        has_none = not any(self.task_labels)
        return self.classifiers if is_shared or has_none else self.task_labels

    def columns(self, task: int) -> list[int]:
        """Columns among which the samples of a task compete in Task-IL.

        A class that came in several experiences is of the first: there the file cannot tell the
        classes of a later one, whose columns are those of its labels.

        Args:
            task: Task label; without task labels the number of the classifier, which is that of the
                experience where each brought classes of its own.

        Raises:
            ValueError: No class is of that task.
        """
        found = [column for column, its_task in enumerate(self.tasks) if its_task == task]
        if not found:
            raise ValueError(f"Expected `task` to be one of {sorted(set(self.tasks))}, got {task}.")
        return found


def write_stable(path: str | os.PathLike[str], tensors: Tensors, info: StableInfo) -> None:
    """Write tensors and what they mean, whole or not at all.

    Raises:
        OSError: The file cannot be written; what was there before stays as it was.
    """
    path = Path(path)
    metadata = {name: json.dumps(value) for name, value in dataclasses.asdict(info).items()}
    metadata |= {"producer": PRODUCER, "format_version": FORMAT_VERSION}
    metadata["checksum"] = checksum_of_tensors(tensors, metadata)
    data = safetensors.torch.save(tensors, metadata)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write_draft(draft, lambda file: file.write(data))
        put_in_place(draft, path)
    finally:
        remove_draft(draft)


def read_stable(path: str | os.PathLike[str]) -> tuple[Tensors, StableInfo]:
    """Read what `write_stable` wrote.

    Raises:
        ValueError: A damaged file, one of another kind or format; says which.
        OSError: There is no such file, or it cannot be read.
    """
    data = Path(path).read_bytes()
    try:
        tensors = safetensors.torch.load(data)
    except (SafetensorError, KeyError) as error:
        raise _refusal(
            path,
            f"no whole safetensors file ({first_line(error)}), which was not loaded: it was cut "
            "short, or is something else",
        ) from error
    header_end = 8 + int.from_bytes(data[:8], "little")
    metadata = json.loads(data[8:header_end]).get("__metadata__", {})
    if metadata.get("producer") != PRODUCER:
        raise _refusal(path, "a safetensors file that was written by something else")
    version = metadata.get("format_version")
    if version != FORMAT_VERSION:
        raise ValueError(
            f"Expected '{path}' to have format {FORMAT_VERSION}, got format {version}: read it "
            "with the version of avalanche-dlcpa that wrote it, or export the model again with "
            "this one."
        )
    if metadata.pop("checksum", None) != checksum_of_tensors(tensors, metadata):
        raise _refusal(path, "a file that was altered: its checksum is not that of its content")
    try:
        return tensors, _info_of(metadata)
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        raise _refusal(path, f"a description that makes no sense ({first_line(error)})") from error


def _refusal(path: str | os.PathLike[str], problem: str) -> ValueError:
    """The error for a file that cannot be used as it is."""
    return ValueError(
        f"Expected '{path}' to be a file of DualLearner.export, got {problem}. Copy it again from "
        "where it is whole, or export the model anew."
    )


def checksum_of_tensors(tensors: Tensors, metadata: dict[str, str] | None = None) -> str:
    """Checksum of tensors, their names, types and shapes, and of text about them."""
    digest = hashlib.blake2b(json.dumps(sorted((metadata or {}).items())).encode(), digest_size=16)
    for name, tensor in sorted(tensors.items()):
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _info_of(metadata: dict[str, str]) -> StableInfo:
    """The description in a file, if it is one; a right checksum does not say that it is."""
    fields = {f.name: json.loads(metadata[f.name]) for f in dataclasses.fields(StableInfo)}
    info = StableInfo(**{name: _as_tuples(value) for name, value in fields.items()})
    num_columns = len(info.labels)
    for name in ("labels", "task_labels", "classifiers"):
        _expect(_are_counts(getattr(info, name), num_columns), name)
    keys = list(zip(info.labels, info.task_labels, strict=True))
    _expect(num_columns > 0 and keys == sorted(set(keys)), "labels")
    numbers = sorted(set(info.classifiers))
    _expect(numbers == list(range(len(numbers))), "classifiers")
    _expect(info.kind in ("linear", "gaussian"), "kind")
    _expect(_are(str, info.names, num_columns), "names")
    _expect(_are_counts((info.num_averaged,), 1) and info.num_averaged > 0, "num_averaged")
    _expect(_are(str, (info.architecture, info.head), 2), "architecture")
    if info.image_shape is not None:
        _expect(_are_counts(info.image_shape, len(info.image_shape)), "image_shape")
        _expect(_are(float, info.probe, num_columns), "probe")
    if info.normalization is not None:
        mean, deviation = info.normalization
        _expect(_are(float, mean + deviation, 2 * len(mean)), "normalization")
    return info


def _expect(is_right: bool, name: str) -> None:
    if not is_right:
        raise ValueError(f"in its '{name}'")


def _as_tuples(value: Any) -> Any:
    return tuple(_as_tuples(part) for part in value) if isinstance(value, list) else value


def _are(kind: type, values: Any, number: int) -> bool:
    return len(values) == number and all(type(value) is kind for value in values)


def _are_counts(values: Any, number: int) -> bool:
    return _are(int, values, number) and all(0 <= value < _LARGEST_LABEL for value in values)
