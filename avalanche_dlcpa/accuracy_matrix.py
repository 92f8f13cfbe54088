"""Evaluation (Sec. 4.1 of the paper): ACC, BWT and their relatives from the accuracy matrix.

The accuracy matrix R has shape (T, T), both axes in the order of learning: R[i, j] is the accuracy
on task j after learning task i, a fraction in [0, 1], NaN where it was not evaluated. A missing
value that a number needs makes that number NaN: unlike 0, NaN cannot be mistaken for a result.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

__all__ = [
    "accuracy_matrix",
    "accuracy_over_experiences",
    "average_incremental_accuracy",
    "backward_transfer",
    "check_accuracy_matrix",
    "check_fractions",
    "final_accuracy",
    "forgetting",
]


def check_fractions(values: ArrayLike, *, name: str) -> np.ndarray:
    """Return `values` as a float array of the same shape, every entry in [0, 1] or NaN.

    Args:
        values: Accuracies as fractions, of any shape.
        name: What the error calls them.

    Returns:
        A float64 array.

    Raises:
        ValueError: If an entry lies outside [0, 1].

    Example:
        >>> check_fractions([0.5, float("nan")], name="accuracies")
        array([0.5, nan])
    """
    fractions = np.asarray(values, dtype=float)
    outside = fractions[(fractions < 0) | (fractions > 1)]
    if outside.size:
        raise ValueError(
            f"Expected `{name}` to be fractions in [0, 1], got {outside[0]:g}; "
            "divide percentages by 100."
        )
    return fractions


def check_accuracy_matrix(accuracies: ArrayLike) -> np.ndarray:
    """Return `accuracies` as a float array of shape (T, T) with T >= 1.

    Args:
        accuracies: The accuracy matrix R, shape (T, T).

    Returns:
        A float64 array of shape (T, T).

    Raises:
        ValueError: If the shape is not (T, T) or an entry lies outside [0, 1].

    Example:
        >>> check_accuracy_matrix([[0.9, 0.2], [0.7, 0.8]]).shape
        (2, 2)
    """
    matrix = check_fractions(accuracies, name="accuracies")
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.size == 0:
        raise ValueError(
            f"Expected `accuracies` to be of shape (T, T) with T >= 1, got {matrix.shape}; "
            "put NaN where a task was not evaluated."
        )
    return matrix


def accuracy_matrix(
    accuracies: Mapping[tuple[int, int], float], *, learned: Sequence[int]
) -> np.ndarray:
    """Arrange single accuracies as the accuracy matrix R, shape (T, T).

    Args:
        accuracies: Accuracy of every pair (experience learned last, experience evaluated).
        learned: The experiences in the order of learning. Any other experience in `accuracies`
            comes after them, in ascending order.

    Returns:
        R of shape (T, T), NaN where `accuracies` has no entry.

    Example:
        Experience 3 is learned before experience 1:

        >>> accuracy_matrix({(3, 3): 0.9, (1, 3): 0.7, (1, 1): 0.8}, learned=[3, 1])
        array([[0.9, nan],
               [0.7, 0.8]])
    """
    others = {experience for pair in accuracies for experience in pair} - set(learned)
    order = [*learned, *sorted(others)]
    rows = [[accuracies.get((last, task), np.nan) for task in order] for last in order]
    return np.array(rows, dtype=float).reshape(len(order), len(order))


def final_accuracy(accuracies: ArrayLike) -> float:
    """Mean accuracy over all T tasks after learning the last one: the paper's ACC.

    Args:
        accuracies: The accuracy matrix R, shape (T, T).

    Returns:
        A fraction in [0, 1], or NaN where the last row has a gap.

    Raises:
        ValueError: If `accuracies` is no accuracy matrix.

    Example:
        >>> round(final_accuracy([[0.9, 0.2], [0.7, 0.8]]), 4)  # (0.7 + 0.8) / 2
        0.75
    """
    return float(check_accuracy_matrix(accuracies)[-1].mean())


def accuracy_over_experiences(accuracies: ArrayLike) -> np.ndarray:
    """Mean accuracy over the tasks seen so far, after each task: mean over j <= i of R[i, j].

    Args:
        accuracies: The accuracy matrix R, shape (T, T).

    Returns:
        One fraction a row, shape (T,), NaN for a row with a gap at or below the diagonal.

    Raises:
        ValueError: If `accuracies` is no accuracy matrix.

    Example:
        >>> accuracy_over_experiences([[0.9, 0.2], [0.7, 0.8]])
        array([0.9 , 0.75])
    """
    matrix = check_accuracy_matrix(accuracies)
    return np.array([row[: i + 1].mean() for i, row in enumerate(matrix)])


def average_incremental_accuracy(accuracies: ArrayLike) -> float:
    """Mean over all i of the mean accuracy over the tasks seen after learning task i.

    Source: Rebuffi et al., "iCaRL", CVPR 2017 (average incremental accuracy).

    Args:
        accuracies: The accuracy matrix R, shape (T, T).

    Returns:
        A fraction in [0, 1], or NaN where an entry at or below the diagonal is missing.

    Raises:
        ValueError: If `accuracies` is no accuracy matrix.

    Example:
        >>> round(average_incremental_accuracy([[0.9, 0.2], [0.7, 0.8]]), 4)  # (0.9 + 0.75) / 2
        0.825
    """
    return float(accuracy_over_experiences(accuracies).mean())


def backward_transfer(accuracies: ArrayLike) -> float:
    """BWT = 1/(T-1) * sum over i < T of R[T, i] - R[i, i] (tasks counted from 1).

    Source: the paper's Sec. 4.1, after Lopez-Paz and Ranzato, "Gradient episodic memory", 2017.

    Args:
        accuracies: The accuracy matrix R, shape (T, T).

    Returns:
        A number in [-1, 1], negative where tasks were forgotten. NaN where an entry of the last
        row or of the diagonal is missing (the last column is not needed), and for T = 1.

    Raises:
        ValueError: If `accuracies` is no accuracy matrix.

    Example:
        >>> round(backward_transfer([[0.9, 0.2], [0.7, 0.8]]), 4)  # 0.7 - 0.9
        -0.2
    """
    matrix = check_accuracy_matrix(accuracies)
    if len(matrix) == 1:
        return float("nan")
    return float((matrix[-1] - matrix.diagonal())[:-1].mean())


def forgetting(accuracies: ArrayLike) -> float:
    """Mean over j < T of max over j <= l < T of R[l, j] - R[T, j] (tasks counted from 1).

    The best accuracy a task ever had since it was learned, less its accuracy at the end; at least
    -BWT, which looks at the accuracy just after learning instead.

    Source: Chaudhry et al., "Riemannian walk for incremental learning", ECCV 2018.

    Args:
        accuracies: The accuracy matrix R, shape (T, T).

    Returns:
        A number in [-1, 1]. NaN where an entry at or below the diagonal is missing (the last
        column is not needed), and for T = 1.

    Raises:
        ValueError: If `accuracies` is no accuracy matrix.

    Example:
        Task 1 falls from 0.9 to 0.5, task 2 from 0.8 to 0.7:

        >>> R = [[0.6, 0.1, 0.0], [0.9, 0.8, 0.1], [0.5, 0.7, 0.9]]
        >>> round(forgetting(R), 4)  # (0.4 + 0.1) / 2
        0.25
    """
    matrix = check_accuracy_matrix(accuracies)
    if len(matrix) == 1:
        return float("nan")
    best = np.array([matrix[j:-1, j].max() for j in range(len(matrix) - 1)])
    return float((best - matrix[-1, :-1]).mean())
