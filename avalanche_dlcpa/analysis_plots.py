"""Figures of the appendix (Figures 5 and 6): arrays -> Axes. Nothing is computed here.

As in `avalanche_dlcpa.plots`, `ax=None` draws on a new figure, found as `ax.figure`; pyplot is
never touched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm
from matplotlib.patheffects import withStroke
from numpy.typing import ArrayLike

from avalanche_dlcpa.accuracy_matrix import check_fractions
from avalanche_dlcpa.plot_style import font_size, new_axes, print_values

__all__ = ["loss_levels", "plot_linear_probe", "plot_loss_surface"]

_NUM_LEVELS = 13
_SMALLEST_SHARE = 1e-3  # of the largest loss; what is below shares the darkest colour


def plot_linear_probe(
    accuracies: ArrayLike, row_labels: Sequence[str], *, ax: Axes | None = None
) -> Axes:
    """Draw linear-probe accuracies as a heat map in percent, with their values.

    The colours reach from the least value to the largest: differences matter.

    Args:
        accuracies: Accuracy of each feature extractor on each task, shape (rows, T), fractions;
            NaN cells stay blank.
        row_labels: Name of the extractor of each row.
        ax: Where to draw. None makes a new figure that grows with T.

    Returns:
        The axes, the first row on top, columns "task j", counted from 1. A line parts the rows of
        the T task-specific extractors from those that follow.

    Raises:
        ValueError: If `accuracies` are no fractions of shape (rows, T), or the labels do not match.

    Example:
        >>> matrix = [[0.9, 0.3], [0.2, 0.8], [0.9, 0.8], [0.85, 0.75]]
        >>> ax = plot_linear_probe(matrix, ["task 1", "task 2", "STL", "STL-me"])
        >>> [text.get_text() for text in ax.texts][-2:]
        ['85.0', '75.0']
    """
    percent = 100 * _check_rows(accuracies, row_labels)
    num_rows, num_tasks = percent.shape
    if ax is None:
        ax = new_axes(width=2.6 + 0.48 * num_tasks, height=1.2 + 0.48 * num_rows)
    image = ax.imshow(percent, cmap="cividis")  # its own range: differences matter
    ax.figure.colorbar(image, ax=ax, label="linear-probe accuracy (%)")
    ax.set(xlabel="images of task", ylabel="feature extractor")
    cells = max(num_rows, num_tasks)
    size = font_size(ax, num_tasks=cells, num_characters=len(str(num_tasks)))
    ax.set_xticks(range(num_tasks), [str(task + 1) for task in range(num_tasks)], fontsize=size)
    ax.set_yticks(range(num_rows), row_labels, fontsize=size)
    if num_tasks < num_rows:
        ax.axhline(num_tasks - 0.5, color="white", linewidth=3)
    print_values(ax, percent, image=image)
    return ax


def loss_levels(losses: ArrayLike) -> np.ndarray:
    """Contour levels, logarithmic, that suit one loss surface or several side by side.

    Args:
        losses: One surface or more, of any shape; not finite values do not count.

    Returns:
        Rising levels, shape (13,). Below a thousandth of the largest loss there is none.

    Raises:
        ValueError: If no loss is finite, or one is negative.

    Example:
        >>> loss_levels([[0.01, 1.0], [10.0, float("inf")]])[[0, 6, 12]].round(3)
        array([ 0.01 ,  0.316, 10.   ])
    """
    finite = np.asarray(losses, dtype=float)
    finite = finite[np.isfinite(finite)]
    if finite.size == 0 or finite.min() < 0:
        found = "none that is finite" if finite.size == 0 else f"{finite.min():g}"
        raise ValueError(f"Expected `losses` to be cross-entropies of at least 0, got {found}.")
    highest = max(finite.max(), np.finfo(np.float32).tiny)
    lowest = np.clip(finite.min(), _SMALLEST_SHARE * highest, highest / 1.01)
    return np.geomspace(lowest, highest, _NUM_LEVELS)


def plot_loss_surface(
    losses: ArrayLike,
    x: ArrayLike,
    y: ArrayLike,
    *,
    points: Mapping[str, tuple[float, float]],
    levels: ArrayLike | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw a loss over a plane of parameters as filled contours, with marked points.

    Args:
        losses: The loss at each grid point, shape (len(y), len(x)); what is not finite stays blank.
        x: First coordinates of the grid, rising, shape (X,).
        y: Second coordinates of the grid, rising, shape (Y,).
        points: Coordinates (x, y) of each marked point by its name.
        levels: Contour levels, rising. Give several panels that are to be compared the same ones,
            ``loss_levels`` of all their surfaces. None: those of this surface.
        ax: Where to draw. None makes a new figure.

    Returns:
        The axes; a unit is as long in both directions.

    Raises:
        ValueError: If `losses` is not of shape (len(y), len(x)), the grid has fewer than 2 x 2
            points, or, without `levels`, no loss is finite or one is negative.

    Example:
        >>> grid = [0.0, 1.0, 2.0]
        >>> bowl = [[0.1 + a * a + b * b for a in grid] for b in grid]
        >>> ax = plot_loss_surface(bowl, grid, grid, points={"task 1": (0.0, 0.0)})
        >>> [text.get_text() for text in ax.texts]
        ['task 1']
    """
    values, x, y = _check_surface(losses, x, y)
    levels = loss_levels(values) if levels is None else np.asarray(levels, dtype=float)
    if ax is None:
        ax = new_axes(width=5.6, height=4.4)
    norm = BoundaryNorm(levels, ncolors=256, extend="both")
    drawn = np.ma.masked_invalid(values)
    contours = ax.contourf(x, y, drawn, levels, cmap="viridis", norm=norm, extend="both")
    ax.contour(contours, colors="white", linewidths=0.4, alpha=0.5)
    bar = ax.figure.colorbar(contours, ax=ax, label="cross-entropy loss")
    ticks = levels[::2].tolist()
    bar.set_ticks(ticks, labels=[f"{level:.3g}" for level in ticks])
    bar.minorticks_off()
    ax.set(xlabel="along the first axis", ylabel="along the second axis")
    ax.set_aspect("equal")
    ax.locator_params(nbins=6)  # else their number, and with it the layout, follows the size
    _mark(ax, points)
    return ax


def _mark(ax: Axes, points: Mapping[str, tuple[float, float]]) -> None:
    """Mark points, each with its name: readable on every colour, away from its neighbours."""
    places = np.array(list(points.values())).reshape(-1, 2)
    for name, (x, y) in points.items():
        side = _side(x, places[:, 0])
        is_above = side == 0 or y > places[:, 1].mean()
        ax.plot(x, y, "o", color="black", markeredgecolor="white", markersize=7)
        ax.annotate(
            name,
            (x, y),
            xytext=(-4 * side, 7 if is_above else -7),
            textcoords="offset points",
            ha={-1: "right", 0: "center", 1: "left"}[side],
            va="bottom" if is_above else "top",
            path_effects=[withStroke(linewidth=3, foreground="white")],
        )


def _side(x: float, among: np.ndarray) -> int:
    """-1, 0 or 1: whether x lies in the left, middle or right third of what others span."""
    third = (among.max() - among.min()) / 3
    return int(x > among.max() - third) - int(x < among.min() + third)


def _check_rows(accuracies: ArrayLike, row_labels: Sequence[str]) -> np.ndarray:
    fractions = check_fractions(accuracies, name="accuracies")
    if fractions.ndim != 2 or fractions.size == 0:
        raise ValueError(
            f"Expected `accuracies` to be of shape (rows, T), got {fractions.shape}; one row an "
            "extractor, one column a task."
        )
    if len(row_labels) != len(fractions):
        raise ValueError(
            f"Expected `row_labels` to be one for each of the {len(fractions)} rows, got "
            f"{len(row_labels)}."
        )
    return fractions


def _check_surface(
    losses: ArrayLike, x: ArrayLike, y: ArrayLike
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    values, x, y = (np.asarray(part, dtype=float) for part in (losses, x, y))
    if values.shape != (y.size, x.size) or min(x.size, y.size) < 2:
        raise ValueError(
            f"Expected `losses` to be of shape (len(y), len(x)) = {(y.size, x.size)}, each at "
            f"least 2, got {values.shape}."
        )
    return values, x, y
