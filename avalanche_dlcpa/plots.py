"""Figures of the evaluation: accuracy arrays -> Axes. Nothing is computed here.

With `ax=None` each function draws on a new `matplotlib.figure.Figure` of its own, found as
`ax.figure`; pyplot and its current figure are never touched.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke
from numpy.typing import ArrayLike

from avalanche_dlcpa.accuracy_matrix import check_accuracy_matrix
from avalanche_dlcpa.plot_style import (
    check_curve,
    check_deviations,
    font_size,
    line_look,
    new_axes,
    print_values,
)

__all__ = [
    "plot_accuracy_matrix",
    "plot_accuracy_over_experiences",
    "plot_task_accuracies_over_experiences",
]


def plot_accuracy_matrix(
    accuracies: ArrayLike, *, ax: Axes | None = None, title: str | None = None
) -> Axes:
    """Draw the accuracy matrix as a heat map in percent, from 0 to 100, with its values.

    Args:
        accuracies: The accuracy matrix R, shape (T, T), fractions; NaN cells stay blank.
        ax: Where to draw. None makes a new figure that grows with T.
        title: Title of the axes.

    Returns:
        The axes, rows "after learning task i" and columns "task j", counted from 1.

    Raises:
        ValueError: If `accuracies` is no accuracy matrix.

    Example:
        >>> ax = plot_accuracy_matrix([[0.9, float("nan")], [0.7, 0.8]])
        >>> [text.get_text() for text in ax.texts]
        ['90.0', '70.0', '80.0']
    """
    percent = 100 * check_accuracy_matrix(accuracies)
    num_tasks = len(percent)
    if ax is None:
        ax = new_axes(width=2.2 + 0.48 * num_tasks, height=1.6 + 0.42 * num_tasks)
    image = ax.imshow(percent, cmap="cividis", vmin=0, vmax=100)
    ax.figure.colorbar(image, ax=ax, label="accuracy (%)")
    ticks = range(num_tasks)
    labels = [str(task + 1) for task in ticks]
    ax.set(xlabel="task", ylabel="after learning task")
    size = font_size(ax, num_tasks=num_tasks, num_characters=len(labels[-1]))
    ax.set_xticks(ticks, labels, fontsize=size)
    ax.set_yticks(ticks, labels, fontsize=size)
    if title is not None:
        ax.set_title(title)
    print_values(ax, percent, image=image)
    return ax


def plot_accuracy_over_experiences(
    curves: Mapping[str, ArrayLike],
    *,
    deviations: Mapping[str, ArrayLike] | None = None,
    looks: Mapping[str, Mapping[str, Any]] | None = None,
    ax: Axes | None = None,
    ylabel: str = "mean accuracy over the tasks learned (%)",
) -> Axes:
    """Draw one line a method: accuracy in percent over the number of experiences learned.

    Args:
        curves: For every method its curve, shape (T,), fractions, such as
            `accuracy_over_experiences` gives. T may differ; NaN leaves a gap.
        deviations: Half the height of a band around a curve, by method, shape (T,), fractions:
            say, the standard deviation over seeds. A method that is left out has no band.
        looks: What matplotlib draws the line of a method with (``color``, ``marker``), by method,
            so that it looks alike on several figures. One that is left out has the look of its
            place among the curves.
        ax: Where to draw. None makes a new figure. The legend stands to the right of the axes,
            so that it covers no data; save with `bbox_inches="tight"` where it does not fit.
        ylabel: Label of the y axis.

    Returns:
        The axes.

    Raises:
        ValueError: If there is no curve, or one is not of shape (T,) or has other values than
            fractions; or if a deviation belongs to no curve, or is not of its shape.

    Example:
        >>> ax = plot_accuracy_over_experiences({"DLCPA": [0.9, 0.75], "EWC": [0.9, 0.5]})
        >>> [line.get_label() for line in ax.lines]
        ['DLCPA', 'EWC']
    """
    if not curves:
        raise ValueError(f"Expected `curves` to be at least one curve, got {curves}.")
    percents = {name: 100 * check_curve(name, curve) for name, curve in curves.items()}
    widths = check_deviations(deviations or {}, percents)
    if ax is None:
        ax = new_axes(width=6.8, height=max(3.6, 0.6 + 0.2 * len(curves)))
    for i, (name, percent) in enumerate(percents.items()):
        learned = np.arange(1, len(percent) + 1)
        (line,) = ax.plot(learned, percent, label=name, **(looks or {}).get(name, line_look(i)))
        if name in widths:
            low, high = percent - widths[name], percent + widths[name]
            ax.fill_between(learned, low, high, color=line.get_color(), alpha=0.15, lw=0, zorder=1)
    longest = max(len(percent) for percent in percents.values())
    ax.set_xticks(range(1, longest + 1, -(-longest // 20)))  # at most 20 labels stay readable
    ax.set(xlabel="number of tasks learned", ylabel=ylabel)
    ax.grid(alpha=0.3)
    ax.legend(loc="upper left", bbox_to_anchor=(1.02, 1), borderaxespad=0, handlelength=3)
    return ax


def plot_task_accuracies_over_experiences(
    accuracies: ArrayLike, *, ax: Axes | None = None, title: str | None = None
) -> Axes:
    """Draw one line a task: its accuracy in percent from when it was learned to the end.

    A number at the beginning of each line says which task it is.

    Args:
        accuracies: The accuracy matrix R, shape (T, T), fractions; NaN leaves a gap.
        ax: Where to draw. None makes a new figure. No legend is drawn.
        title: Title of the axes.

    Returns:
        The axes, lines "task 1" to "task T".

    Raises:
        ValueError: If `accuracies` is no accuracy matrix.

    Example:
        >>> ax = plot_task_accuracies_over_experiences([[0.9, float("nan")], [0.7, 0.8]])
        >>> [line.get_xdata().tolist() for line in ax.lines]
        [[1, 2], [2]]
    """
    percent = 100 * check_accuracy_matrix(accuracies)
    num_tasks = len(percent)
    if ax is None:
        ax = new_axes(width=3.2 + 0.16 * num_tasks, height=3.6)
    for task in range(num_tasks):
        learned, drawn = np.arange(task + 1, num_tasks + 1), percent[task:, task]
        label, look = f"task {task + 1}", {**line_look(task), "markersize": 3.5}
        (line,) = ax.plot(learned, drawn, label=label, linewidth=1.2, **look)
        if not np.isnan(drawn[0]):
            ax.annotate(
                str(task + 1),
                (task + 1, drawn[0]),
                xytext=(0, 4),
                textcoords="offset points",
                ha="center",
                fontsize=8,
                color=line.get_color(),
                path_effects=[withStroke(linewidth=2, foreground="white")],
                zorder=4,  # above the lines
            )
    ax.set_xticks(range(1, num_tasks + 1, -(-num_tasks // 10)))
    ax.margins(y=0.1)  # room for the numbers
    ax.set(xlabel="number of tasks learned", ylabel="accuracy of each task (%)")
    ax.grid(alpha=0.3)
    if title is not None:
        ax.set_title(title)
    return ax
