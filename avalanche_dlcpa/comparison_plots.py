"""Figures of comparisons beside the accuracies: arrays -> Axes. Nothing is computed here.

As in `avalanche_dlcpa.plots`, `ax=None` draws on a new figure, found as `ax.figure`; pyplot is
never touched.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from numpy.typing import ArrayLike

from avalanche_dlcpa.accuracy_matrix import check_fractions
from avalanche_dlcpa.plot_style import (
    COLOURS,
    check_curve,
    check_deviations,
    line_look,
    new_axes,
)

__all__ = ["plot_bars", "plot_confusion_matrix", "plot_sensitivity"]


def plot_confusion_matrix(
    shares: ArrayLike, classes_per_task: Sequence[int], *, ax: Axes | None = None
) -> Axes:
    """Draw a confusion matrix as a heat map in percent, with lines between the tasks.

    The colours follow the square root, so that the few errors a cell that many classes leave stay
    visible.

    Args:
        shares: Share of the images of true class i that were taken for class j, shape (K, K), the
            classes in the order of learning.
        classes_per_task: How many classes each task has, in the order of learning.
        ax: Where to draw. None makes a new figure.

    Returns:
        The axes, rows "true class" from the top, columns "predicted class"; each task's number
        stands in the middle of its classes.

    Raises:
        ValueError: If `shares` are no fractions of shape (K, K), or the tasks have other than K
            classes in all.

    Example:
        >>> ax = plot_confusion_matrix([[1, 0, 0], [0.5, 0.5, 0], [0, 0, 1]], [2, 1])
        >>> ax.get_xticks().tolist()
        [0.5, 2.0]
    """
    fractions = check_fractions(shares, name="shares")
    num_classes = sum(classes_per_task)
    if fractions.shape != (num_classes, num_classes):
        raise ValueError(
            f"Expected `shares` to be of shape (K, K), K = {num_classes} as the tasks say, got "
            f"{fractions.shape}."
        )
    if ax is None:
        ax = new_axes(width=5.4, height=4.4)
    norm = PowerNorm(0.5, vmin=0, vmax=100)
    image = ax.imshow(100 * fractions, cmap="cividis", norm=norm, interpolation="nearest")
    ticks = [0, 1, 5, 10, 25, 50, 100]
    ax.figure.colorbar(image, ax=ax, label="share of the true class (%)", ticks=ticks)
    ends = np.cumsum(classes_per_task)
    middles = ends - np.array(classes_per_task) / 2 - 0.5
    labels = [str(task) for task in range(1, len(ends) + 1)]
    size = 10 if len(ends) <= 10 else 7
    ax.set_xticks(middles, labels, fontsize=size)
    ax.set_yticks(middles, labels, fontsize=size)
    ax.tick_params(length=0)
    ax.set(xlabel="predicted class, by task", ylabel="true class, by task")
    for end in ends[:-1]:
        ax.axhline(end - 0.5, color="white", linewidth=0.6)
        ax.axvline(end - 0.5, color="white", linewidth=0.6)
    return ax


def plot_sensitivity(
    weights: Sequence[float],
    curves: Mapping[str, ArrayLike],
    *,
    deviations: Mapping[str, ArrayLike] | None = None,
    ax: Axes | None = None,
    xlabel: str = "weight of the supervised loss",
) -> Axes:
    """Draw accuracies in percent over a hyperparameter, on a logarithmic axis that has a zero.

    Args:
        weights: Values of the hyperparameter, rising and at least 0, shape (N,).
        curves: Accuracies by the name of their line, shape (N,), fractions; NaN leaves a gap.
        deviations: Half the length of the error bars, by the name of their line, shape (N,),
            fractions; NaN draws none.
        ax: Where to draw. None makes a new figure. The legend stands to the right of the axes.
        xlabel: Label of the x axis.

    Returns:
        The axes, a tick at each weight.

    Raises:
        ValueError: If the weights do not rise, or one is negative or NaN, or a curve is no
            fractions of shape (N,).

    Example:
        >>> ax = plot_sensitivity([0.0, 1.0, 10.0], {"Class-IL": [0.2, 0.3, 0.4]})
        >>> [label.get_text() for label in ax.get_xticklabels()]
        ['0', '1', '10']
    """
    places = np.asarray(weights, dtype=float)
    if not (places.size > 0 and places[0] >= 0 and (np.diff(places) > 0).all()):
        raise ValueError(
            f"Expected `weights` to be at least one, rising and not negative, got {list(weights)}."
        )
    if ax is None:
        ax = new_axes(width=4.8, height=3.6)
    percents = {name: 100 * check_curve(name, curve) for name, curve in curves.items()}
    widths = check_deviations(deviations or {}, percents)
    for i, (name, percent) in enumerate(percents.items()):
        if percent.shape != places.shape:
            raise ValueError(
                f"Expected `curves[{name!r}]` to be of shape {places.shape}, one a weight, got "
                f"{percent.shape}."
            )
        ax.errorbar(places, percent, yerr=widths.get(name), label=name, capsize=3, **line_look(i))
    smallest = np.min(places[places > 0], initial=places[-1] or 1.0)
    ax.set_xscale("symlog", linthresh=smallest)  # 0 lies one decade below the smallest
    ax.set_xticks(places, [f"{weight:g}" for weight in places])
    ax.minorticks_off()
    ax.set(xlabel=xlabel, ylabel="ACC (%)")
    ax.grid(alpha=0.3)
    ax.set_ylim(bottom=0)
    ax.legend(loc="upper left", bbox_to_anchor=(1.02, 1), borderaxespad=0)
    return ax


def plot_bars(
    values: Mapping[str, float],
    *,
    deviations: Mapping[str, float] | None = None,
    hatched: Collection[str] = (),
    ax: Axes | None = None,
    xlabel: str = "",
) -> Axes:
    """Draw one horizontal bar a name, the first on top, with its value at its end.

    Args:
        values: At least 0, by name; NaN leaves the place empty.
        deviations: Half the length of the error bar, by name; a name may be missing.
        hatched: Names whose bars are hatched.
        ax: Where to draw. None makes a new figure that grows with the number of names.
        xlabel: What the values are, with their unit.

    Returns:
        The axes.

    Raises:
        ValueError: If there is no value, one is negative or infinite, or a deviation has no bar.

    Example:
        >>> ax = plot_bars({"EWC": 30.0, "LwF": 20.0}, xlabel="training time (s)")
        >>> [float(bar.get_width()) for bar in ax.patches]
        [30.0, 20.0]
    """
    lengths = np.array(list(values.values()), dtype=float)
    if lengths.size == 0 or (lengths < 0).any() or np.isinf(lengths).any():
        raise ValueError(
            f"Expected `values` to be at least one, none negative or infinite, got {values}."
        )
    for name in (deviations or {}).keys() - values.keys():
        raise ValueError(
            f"Expected `deviations[{name!r}]` to be of a bar, got no bar of this name: there are "
            f"{', '.join(values)}."
        )
    if ax is None:
        ax = new_axes(width=5.6, height=0.8 + 0.28 * len(lengths))
    longest = np.nanmax(lengths, initial=0.0)
    for i, (name, length) in enumerate(values.items()):
        hatch = "////" if name in hatched else None
        width = np.nan_to_num((deviations or {}).get(name, 0.0))
        ax.barh(
            i,
            length,
            xerr=width or None,
            height=0.7,
            color=COLOURS[0],
            edgecolor="white",
            hatch=hatch,
            linewidth=0,
            capsize=2,
        )
        if not np.isnan(length):
            end = length + width + 0.015 * longest
            ax.text(end, i, f"{length:.3g}" if length < 100 else f"{length:.0f}", va="center")
    ax.set_yticks(range(len(lengths)), list(values))
    ax.set_ylim(len(lengths) - 0.5, -0.5)
    ax.margins(x=0.15)
    ax.set_xlim(left=0)
    ax.set_xlabel(xlabel)
    ax.grid(axis="x", alpha=0.3)
    ax.set_axisbelow(True)
    return ax
