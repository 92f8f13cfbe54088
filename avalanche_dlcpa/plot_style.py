"""What the figures share: new axes, fonts that fit, looks of lines, checks of curves."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from numpy.typing import ArrayLike

from avalanche_dlcpa.accuracy_matrix import check_fractions

# Okabe and Ito's colours, which colour-blind readers tell apart, less yellow: too pale for a line.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")
_LINE_STYLES = ("-", "--", ":", "-.")


def new_axes(*, width: float, height: float) -> Axes:
    """Axes of a new figure of their own, in inches."""
    return Figure(figsize=(width, height), layout="constrained").subplots()


def print_values(ax: Axes, percent: np.ndarray, *, image: AxesImage) -> None:
    """Write each value into its cell, as large as the cell allows."""
    num_tasks = max(percent.shape)
    pattern = "{:.1f}" if num_tasks <= 10 else "{:.0f}"
    size = font_size(ax, num_tasks=num_tasks, num_characters=len(pattern.format(100)))
    for (i, j), value in np.ndenumerate(percent):
        if not np.isnan(value):
            red, green, blue, _ = image.cmap(image.norm(value))
            colour = _readable_on((red, green, blue))
            text = pattern.format(value)
            ax.text(j, i, text, ha="center", va="center", color=colour, fontsize=size)


def font_size(ax: Axes, *, num_tasks: int, num_characters: int) -> float:
    """Points at which so many characters fit into a cell, at most 10."""
    box = ax.get_window_extent()
    cell = 72 / ax.figure.dpi * min(box.width, box.height) / num_tasks
    # A digit is about 0.6 of the font size wide, and some air belongs around the number.
    return min(10.0, cell / (0.7 * num_characters))


def _readable_on(background: tuple[float, float, float]) -> str:
    """Black or white, whichever contrasts more (WCAG 2 relative luminance)."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in background]
    luminance = float(np.dot([0.2126, 0.7152, 0.0722], linear))
    return "black" if luminance > 0.179 else "white"


def line_look(i: int) -> dict[str, Any]:
    """Look of the i-th line: colour, marker and line style never repeat together in 70 lines."""
    return {
        "color": COLOURS[i % len(COLOURS)],
        "marker": _MARKERS[i % len(_MARKERS)],
        "linestyle": _LINE_STYLES[i // len(COLOURS) % len(_LINE_STYLES)],
        "markersize": 5,
    }


def check_curve(name: str, curve: ArrayLike) -> np.ndarray:
    """The fractions (T,) of a curve.

    Raises:
        ValueError: Another shape, or no fractions.
    """
    fractions = check_fractions(curve, name=f"curves[{name!r}]")
    if fractions.ndim != 1 or fractions.size == 0:
        raise ValueError(
            f"Expected `curves[{name!r}]` to be of shape (T,) with T >= 1, got {fractions.shape}; "
            "average over seeds first."
        )
    return fractions


def check_deviations(
    deviations: Mapping[str, ArrayLike], percents: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The deviations in percent, by the name of their curve."""
    widths = {}
    for name, deviation in deviations.items():
        width = 100 * check_fractions(deviation, name=f"deviations[{name!r}]")
        if name not in percents or width.shape != percents[name].shape:
            wanted = percents[name].shape if name in percents else "of a curve"
            raise ValueError(
                f"Expected `deviations[{name!r}]` to be {wanted}, as the curve of this name is, "
                f"got {width.shape}."
            )
        widths[name] = width
    return widths
