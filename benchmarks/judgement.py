"""What can be judged, what follows from an accuracy matrix, and whether a result says so."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from avalanche.training.templates import SupervisedTemplate

from avalanche_dlcpa import NonFiniteLossError
from avalanche_dlcpa.accuracy_matrix import (
    accuracy_over_experiences,
    average_incremental_accuracy,
    backward_transfer,
    final_accuracy,
    forgetting,
)
from avalanche_dlcpa.divergence import all_finite

ROUNDING = 1e-9
_KINDS = {"hyperparameters": dict, "provenance": dict, "num_experiences": int}
_KINDS_OF_METHODS = {"class_il": dict, "task_il": dict, "classes": list}
_ORIGIN = ("command", "versions", "python", "commit", "device", "processor", "threads", "date")


def expect_finite(strategy: SupervisedTemplate, learned: int) -> None:
    """Refuse to judge weights that are not finite: their accuracy would look like chance."""
    if not all_finite([*strategy.model.parameters(), *strategy.model.buffers()]):
        raise NonFiniteLossError(
            f"Expected finite weights after {learned} experiences, got NaN or infinite ones: the "
            "training diverged. Choose a lower learning rate or strength."
        )


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


def expect_sound(
    result: dict[str, Any], expect_found: Callable[[dict[str, Any]], None] | None
) -> None:
    """Refuse a result that was altered, or that no code of this version has written.

    Args:
        result: Of `benchmarks.run`.
        expect_found: Looks at what an analysis has found; None: the result is of a method.

    Raises:
        ValueError: A part of another kind, or a number that does not follow from its matrix.
    """
    try:
        _expect_kinds(result, _KINDS)
        _expect_kinds(result["provenance"], dict.fromkeys(_ORIGIN, object) | {"versions": dict})
        if expect_found is None:
            _expect_kinds(result, _KINDS_OF_METHODS)
            _expect_found(result)
        else:
            expect_found(result)
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(
            f"Expected a result as this version writes it, got one with other contents "
            f"({type(error).__name__}: {error}): it was altered."
        ) from error


def _expect_kinds(values: dict[str, Any], kinds: Mapping[str, type]) -> None:
    for name, kind in kinds.items():
        if not isinstance(values[name], kind):
            raise ValueError(f"Expected {name} to be a {kind.__name__}, got {values[name]!r}.")


def _expect_found(result: dict[str, Any]) -> None:
    """Look at what a method has found."""
    array_of("training_seconds", result["training_seconds"], ())
    if result.get("memory") is not None:
        array_of("kept_bytes", result["memory"]["kept_bytes"], ())
    classes, num_tasks = result["classes"], result["num_experiences"]
    labels = [label for task in classes for label in task]
    if len(classes) != num_tasks or len(set(labels)) != len(labels):
        raise ValueError(f"Expected classes of {num_tasks} tasks, each once, got {classes}.")
    for scenario in ("class_il", "task_il"):
        _expect_sound_matrix(scenario, result[scenario], num_tasks)
    counts = result["class_il"]["confusion_matrix"]
    num_labels = max(max(labels) + 1, len(counts))
    counts = array_of("confusion_matrix", counts, (num_labels, num_labels))
    last = np.array(result["class_il"]["accuracy_matrix"][-1], dtype=float)
    if np.isnan(last).any():
        return  # it is told the task, and its answers are not among all classes
    told = [np.diag(counts)[task].sum() / max(1, counts[task].sum()) for task in classes]
    if not np.allclose(told, last, rtol=0, atol=ROUNDING):
        raise ValueError(
            f"Expected a confusion_matrix with the accuracies {last.tolist()} of the last row of "
            f"the accuracy_matrix, got {told}: the file was altered."
        )


def array_of(
    name: str, values: Any, shape: tuple[int, ...], *, most: float = math.inf
) -> np.ndarray:
    """Return numbers of a result as an array of float64.

    Args:
        name: What they are.
        values: As JSON gave them.
        shape: That they have to have.
        most: The largest; the smallest is 0.

    Raises:
        ValueError: Others.

    Example:
        >>> array_of("seconds", 3, ())
        array(3.)
    """
    try:
        found = np.array(values)
    except ValueError:  # rows of several lengths
        found = np.array(None)
    if found.dtype.kind not in "iuf" or found.shape != shape:
        raise ValueError(f"Expected {name} to be numbers of shape {shape}, got {found.shape}.")
    if not (np.isfinite(found).all() and (found >= 0).all() and (found <= most).all()):
        raise ValueError(f"Expected {name} to be from 0 to {most}, got others: it was altered.")
    return found.astype(float)


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
    undefined = np.isnan(matrix[-1])
    if undefined.any() and (scenario == "task_il" or not undefined.all()):
        raise ValueError(
            f"Expected the last row of the accuracy_matrix in {scenario} to be numbers, got "
            f"{found['accuracy_matrix'][-1]}: every method is judged on all tasks in the end."
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
