"""What follows from an accuracy matrix, and whether a result says what follows from its own."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from avalanche_dlcpa.accuracy_matrix import (
    accuracy_over_experiences,
    average_incremental_accuracy,
    backward_transfer,
    final_accuracy,
    forgetting,
)

ROUNDING = 1e-9
_ORIGIN = ("command", "versions", "python", "commit", "device", "processor", "threads", "date")


def summary_of(matrix: np.ndarray) -> dict[str, Any]:
    """An accuracy matrix (T, T) and what follows from it, as JSON takes it."""
    return {
        "accuracy_matrix": [_numbers(row) for row in matrix],
        "ACC": _number(final_accuracy(matrix)),
        "AverageIncrementalACC": _number(average_incremental_accuracy(matrix)),
        "BWT": _number(backward_transfer(matrix)),
        "Forgetting": _number(forgetting(matrix)),
        "accuracy_over_experiences": _numbers(accuracy_over_experiences(matrix)),
    }


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(value)  # NaN is no JSON


def _numbers(values: Any) -> list[float | None]:
    return [_number(value) for value in values]


def expect_sound(result: dict[str, Any], *, has_matrices: bool) -> None:
    """Refuse a result of a method that was altered, or that no code of this version has written.

    Args:
        result: Of `benchmarks.run`.
        has_matrices: Whether it is of a method, not of an analysis, whose own page looks at it.

    Raises:
        ValueError: A part of another kind, or a number that does not follow from its matrix.
    """
    try:
        _expect_sound(result, has_matrices=has_matrices)
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"Expected a result as this version writes it, got one with other contents "
            f"({type(error).__name__}: {error}): it was altered."
        ) from error


def _expect_sound(result: dict[str, Any], *, has_matrices: bool) -> None:
    _expect_kinds(result, has_matrices=has_matrices)
    if not has_matrices:
        return
    classes = result["classes"]
    num_tasks = result["num_experiences"]
    labels = [label for task in classes for label in task]
    if len(classes) != num_tasks or len(set(labels)) != len(labels):
        raise ValueError(f"Expected classes of {num_tasks} tasks, each once, got {classes}.")
    for scenario in ("class_il", "task_il"):
        _expect_sound_matrix(scenario, result[scenario], num_tasks)
    counts = np.array(result["class_il"].get("confusion_matrix"), dtype=float)
    if counts.ndim != 2 or counts.shape[0] != counts.shape[1] or max(labels) >= len(counts):
        raise ValueError(
            f"Expected a confusion_matrix of all labels up to {max(labels)}, got {counts.shape}."
        )


def _expect_kinds(result: dict[str, Any], *, has_matrices: bool) -> None:
    kinds = {"hyperparameters": dict, "provenance": dict, "seed": int}
    if has_matrices:
        kinds |= {"class_il": dict, "task_il": dict, "classes": list, "num_experiences": int}
    for name, kind in kinds.items():
        if not isinstance(result[name], kind):
            raise ValueError(f"Expected {name} to be a {kind.__name__}, got {result[name]!r}.")
    missing = [name for name in _ORIGIN if name not in result["provenance"]]
    if missing:
        raise ValueError(f"Expected a provenance with {', '.join(missing)}, got one without.")


def _expect_sound_matrix(scenario: str, found: dict[str, Any], num_tasks: int) -> None:
    try:
        matrix = np.array(found["accuracy_matrix"], dtype=float)  # None becomes NaN
        expected = summary_of(matrix)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"Expected an accuracy_matrix in {scenario}, got none: {error}.") from None
    if matrix.shape != (num_tasks, num_tasks):
        raise ValueError(
            f"Expected an accuracy_matrix of {num_tasks} tasks in {scenario}, got {matrix.shape}."
        )
    for name in ("ACC", "BWT", "accuracy_over_experiences"):
        own, said = (np.array(one.get(name, []), dtype=float) for one in (expected, found))
        follows = own.shape == said.shape and np.allclose(
            own, said, rtol=0, atol=ROUNDING, equal_nan=True
        )
        if not follows:
            raise ValueError(
                f"Expected {name} in {scenario} to be {expected[name]}, which follows from the "
                f"accuracy_matrix, got {found.get(name)}: the file was altered."
            )
