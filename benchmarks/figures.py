"""Figures from results, as PNG; `avalanche_dlcpa`'s plots draw them."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, FigureBase

from avalanche_dlcpa.analysis_plots import loss_levels, plot_linear_probe, plot_loss_surface
from avalanche_dlcpa.comparison_plots import plot_bars, plot_confusion_matrix, plot_sensitivity
from avalanche_dlcpa.plot_style import line_look
from avalanche_dlcpa.plots import (
    plot_accuracy_matrix,
    plot_accuracy_over_experiences,
    plot_task_accuracies_over_experiences,
)
from benchmarks.cells import Cell, Result
from benchmarks.experiments import EXPERIMENTS, SCENARIOS, title_of
from benchmarks.loading import by_method, cell_of
from benchmarks.methods import METHODS
from benchmarks.settings import SETTINGS, at_scale
from benchmarks.summaries import Summary, measure_of, summarize
from benchmarks.whole_files import whole_file

MEGABYTE = 10**6
MOST_CURVES = 12  # of a panel
_NO_SAMPLES, _SAMPLES = "methods that keep no samples", "methods that keep samples"
# The order of the looks: so no two methods of a table of up to seven share a colour, and none of
# the grid both colour and line.
_FIRST = (
    *("naive", "ewc", "lwf", "dlcpa-mocov2", "dlcpa-a", "dlcpa-b", "dlcpa-c", "dlcpa-d", "dlcpa-e"),
    *("dlcpa-simclr", "stl", "stl-me", "stl-me-finetuned", "dlcpa-byol", "joint", "gem", "der++"),
    *("cumulative", "packnet"),
)
_FILLS = ("none", "left", "right", "top", "bottom")  # of the markers of runs with changes


class Picture(NamedTuple):
    """A figure on disk and what it shows."""

    path: Path
    caption: str


def experiment_pictures(
    name: str, scale: str, results: Sequence[Result], folder: Path
) -> list[Picture]:
    """Draw what belongs to a table or figure of the paper.

    Args:
        name: Of `EXPERIMENTS`.
        scale: "paper", "lab" or "digits".
        results: Its own at that scale, at least one.
        folder: Where the figures go.
    """
    experiment = EXPERIMENTS[name]
    drawn: dict[str, Figure] = {}
    if name == "lambda":
        drawn[f"{experiment.title}, {scale} scale"] = sensitivity_figure(results)
    elif experiment.has_row_a_setting:
        (method,) = experiment.methods
        drawn[f"Mean accuracy over the tasks learned: {METHODS[method].title}"] = curves_figure(
            results, _judged(results, SCENARIOS), by_setting=True
        )
    else:
        draw = _DRAWINGS.get(name)
        scenarios = {column.scenario for column in experiment.columns}
        for setting in (at_scale(paper, scale) for paper in experiment.settings):
            runs = [result for result in results if result["setting"] == setting]
            if not runs:
                continue
            if draw is not None:
                drawn[f"{experiment.title}: {SETTINGS[setting].title}"] = draw(runs)
            elif judged := _judged(runs, [x for x in SCENARIOS if x in scenarios]):
                title = f"Mean accuracy over the tasks learned: {SETTINGS[setting].title}"
                drawn[title] = curves_figure(runs, judged)
    return [
        _save(figure, folder, f"{name}_{scale}_{number}", caption)
        for number, (caption, figure) in enumerate(drawn.items(), start=1)
    ]


def analysis_picture(results: Sequence[Result], caption: str, folder: Path) -> Picture:
    """Draw an analysis of one setting, with one change."""
    draw = _DRAWINGS[results[0]["method"]]
    return _save(draw(results), folder, name_of(results), caption)


def setting_pictures(setting: str, results: Sequence[Result], folder: Path) -> list[Picture]:
    """Draw all methods of a setting: accuracies over experiences, then time and memory.

    Of more than `MOST_CURVES` curves, those of runs with changes are left out: they are in the
    table, and in the figures of the tables that they belong to. Time and memory of a single method
    are nothing to compare: its table has them.
    """
    title = SETTINGS[setting].title
    unchanged = [result for result in results if not result["changes"]]
    chosen = unchanged if unchanged and len(by_method(results)) > MOST_CURVES else results
    curves = curves_figure(chosen, _judged(chosen, SCENARIOS))
    if len(chosen) < len(results):
        curves.supxlabel("Runs with changed hyperparameters are in the table alone.", fontsize=9)
    pictures = {"accuracies": (f"Mean accuracy over the tasks learned: {title}", curves)}
    if len(by_method(results)) > 1:
        costs = (
            f"Training time, memory held between tasks and peak of memory: {title}",
            costs_figure(results),
        )
        pictures["costs"] = costs
    return [
        _save(figure, folder, f"{setting}_{kind}", caption)
        for kind, (caption, figure) in pictures.items()
    ]


def method_picture(runs: Sequence[Result], folder: Path) -> Picture:
    """Draw accuracy matrices and confusion matrix of a method, as means over its runs."""
    first = runs[0]
    title = title_of(first["method"], first["changes"])
    caption = f"{title}: accuracy matrices and Class-IL confusion matrix"
    return _save(matrices_figure(runs), folder, name_of(runs), caption)


def name_of(runs: Sequence[Result]) -> str:
    """The name of what shows runs that differ in the seed alone: that of their files without it."""
    return cell_of(runs[0]).name.rpartition("_seed")[0]


def curves_figure(
    results: Sequence[Result], scenarios: Sequence[str], *, by_setting: bool = False
) -> Figure:
    """A panel a scenario with a line a method and, of several seeds, a band around it.

    Of more than `MOST_CURVES` methods each kind has panels of its own.

    Args:
        results: Of one setting, or of one method.
        scenarios: In the order of the panels.
        by_setting: Whether the results are of one method, and a line is a setting.
    """
    cells = by_method(results)
    name = _setting_title if by_setting else _title
    looks = {} if by_setting else dict(zip(map(name, cells.values()), _looks(cells), strict=True))
    kinds: Mapping[str, Sequence[Sequence[Result]]] = {"": list(cells.values())}
    if not by_setting and len(cells) > MOST_CURVES:
        kinds = _kinds(cells)
    heights = [max(4.2, 0.8 + 0.21 * len(groups)) for groups in kinds.values()]
    figure = Figure(figsize=(2.4 + 4.7 * len(scenarios), sum(heights)), layout="constrained")
    parts: Sequence[FigureBase] = [figure]
    if len(kinds) > 1:
        grid = figure.add_gridspec(len(kinds), 1, height_ratios=heights)
        parts = [figure.add_subfigure(grid[row, 0]) for row in range(len(kinds))]
    rows = []
    for part, (title, groups) in zip(parts, kinds.items(), strict=True):
        rows.append(part.subplots(1, len(scenarios), squeeze=False)[0])
        for axes, scenario in zip(rows[-1], scenarios, strict=True):
            _draw_curves(axes, {name(runs): runs for runs in groups}, scenario, looks)
            axes.set_title(", ".join(filter(None, [SCENARIOS[scenario], title])))
        _share_legend(part, rows[-1], best_first=not by_setting)
    for panels in zip(*rows, strict=True):
        _begin_at_zero(*panels)
    return figure


def _draw_curves(
    axes: Axes, runs_of: Mapping[str, Sequence[Result]], scenario: str, looks: Mapping[str, Any]
) -> None:
    curves, bands = {}, {}
    for name, runs in runs_of.items():
        found = np.array([r[scenario]["accuracy_over_experiences"] for r in runs], dtype=float)
        curves[name] = found.mean(axis=0)
        if len(runs) > 1:
            bands[name] = found.std(axis=0, ddof=1)
    plot_accuracy_over_experiences(curves, deviations=bands, looks=looks, ax=axes)


def _kinds(cells: Mapping[Cell, Sequence[Result]]) -> dict[str, list[Sequence[Result]]]:
    """Runs by the kind of their method; DLCPA with its default loss is beside all others."""
    kinds: dict[str, list[Sequence[Result]]] = {"DLCPA": [], _NO_SAMPLES: [], _SAMPLES: []}
    for cell, runs in cells.items():
        keeping = _SAMPLES if METHODS[cell.method].keeps_samples else _NO_SAMPLES
        kinds["DLCPA" if cell.method.startswith("dlcpa") else keeping].append(runs)
    shared = [runs for cell, runs in cells.items() if cell.method == "dlcpa-mocov2"]
    for name in (_NO_SAMPLES, _SAMPLES):
        if kinds[name]:
            kinds[name].extend(shared)
    return {name: groups for name, groups in kinds.items() if groups}


def _judged(results: Sequence[Result], scenarios: Iterable[str]) -> list[str]:
    """Those of the scenarios in which any of the results has accuracies."""
    return [scenario for scenario in scenarios if measure_of(results, scenario, "ACC")]


def _looks(cells: Iterable[Cell]) -> list[dict[str, Any]]:
    """Looks of lines: of a method alike on all figures, but for the markers of runs with changes.

    Those are not filled, or by half.
    """
    methods = list(dict.fromkeys([*_FIRST, *METHODS]))
    looks, changed = [], Counter[str]()
    for cell in cells:
        look = line_look(methods.index(cell.method))
        look["linewidth"] = 2.4 if METHODS[cell.method].draws_views else 1.2
        if cell.changes:
            look["fillstyle"] = _FILLS[changed[cell.method] % len(_FILLS)]
            changed[cell.method] += 1
        looks.append(look)
    return looks


def _begin_at_zero(*panels: Axes) -> None:
    """Let the y axes reach from 0 to above all data, so that no small difference looks large."""
    for axes in panels:
        axes.set_ylim(0, max(1.0, *(1.07 * other.dataLim.y1 for other in panels)))


def _share_legend(figure: FigureBase, panels: Iterable[Axes], *, best_first: bool = False) -> None:
    """Put one legend beside all panels, in the place of one each.

    Args:
        figure: Of the panels.
        panels: With the same lines.
        best_first: By where the lines of the last panel end; else as they were drawn.
    """
    for axes in panels:
        legend = axes.get_legend()
        if legend is not None:
            legend.remove()
    handles, labels = axes.get_legend_handles_labels()
    if best_first:
        ends = [
            np.nan_to_num(np.asarray(line.get_ydata())[-1], nan=-1.0) for line in axes.get_lines()
        ]
        order = sorted(range(len(ends)), key=ends.__getitem__, reverse=True)
        handles, labels = ([found[i] for i in order] for found in (handles, labels))
    figure.legend(handles, labels, loc="outside right upper", handlelength=3.5, fontsize=9)


def costs_figure(results: Sequence[Result]) -> Figure:
    """Training time, memory that is held from task to task and the peak of it, of each method.

    Some of the second is scratch of Avalanche's plugins, such as GEM's and A-GEM's gradients.
    """
    groups = by_method(results).values()
    height = 1.4 + 0.3 * len(groups)
    figure = Figure(figsize=(14, height), layout="constrained")
    left, middle, right = figure.subplots(1, 3, sharey=True)
    seconds = {_title(runs): summarize(r["training_seconds"] for r in runs) for runs in groups}
    held, peak = (
        {
            _title(runs): summarize(
                r["memory"][name] / MEGABYTE for r in runs if r.get("memory") is not None
            )
            for runs in groups
        }
        for name in ("kept_bytes", "peak_bytes")
    )
    keeping = {
        _title(runs) for runs in groups if (runs[0].get("memory") or {}).get("keeps_samples")
    }
    for axes, found, hatched, label in (
        (left, seconds, set(), "training time (s)"),
        (middle, held, keeping, "memory held, without samples (MB)\nhatched: samples besides"),
        (right, peak, set(), "peak memory of the process (MB)"),
    ):
        means = {name: np.nan if one is None else one.mean for name, one in found.items()}
        bars = {name: one.deviation for name, one in found.items() if one and one.deviation}
        plot_bars(means, deviations=bars, hatched=hatched, ax=axes, xlabel=label)
    return figure


def matrices_figure(runs: Sequence[Result]) -> Figure:
    """Accuracy matrices, accuracy of each task and confusion matrix of a method.

    Without Class-IL, those of Task-IL.
    """
    scenarios = _judged(runs, SCENARIOS)
    num_rows = len(scenarios)
    size = min(5.4, 2.4 + 0.35 * runs[0]["num_experiences"])
    figure = Figure(figsize=(2 * (size + 0.9), num_rows * size), layout="constrained")
    panels = list(figure.subplots(num_rows, 2).flat)
    if "class_il" in scenarios:
        confusion = panels.pop()
        plot_confusion_matrix(*confusion_shares(runs), ax=confusion)
        confusion.set_title("confusion, Class-IL")
    for axes, scenario in zip(panels, scenarios, strict=False):
        plot_accuracy_matrix(mean_matrix(runs, scenario), ax=axes, title=SCENARIOS[scenario])
    lines = panels[num_rows]
    if METHODS[runs[0]["method"]].learns_at_once:
        lines.set_axis_off()  # no task has a line
        return figure
    title = f"each task, {SCENARIOS[scenarios[0]]}"
    plot_task_accuracies_over_experiences(mean_matrix(runs, scenarios[0]), ax=lines, title=title)
    _begin_at_zero(lines)
    return figure


def mean_matrix(runs: Iterable[Result], scenario: str) -> np.ndarray:
    """Mean accuracy matrix over runs, shape (T, T)."""
    return np.mean([_array(run[scenario]["accuracy_matrix"]) for run in runs], axis=0)


def confusion_shares(runs: Sequence[Result]) -> tuple[np.ndarray, list[int]]:
    """The confusion matrix over all runs of a method, in the order of learning.

    Returns:
        Share of the images of true class i that were taken for class j, shape (K, K), K the
        classes learned; and the number of classes of each task. A row sums to less than 1 where
        classes were predicted that were never learned.
    """
    classes = runs[0]["classes"]
    order = [label for task in classes for label in task]
    counts = np.sum([_array(run["class_il"]["confusion_matrix"]) for run in runs], axis=0)
    totals = counts.sum(axis=1, keepdims=True)
    shares = np.divide(counts, totals, out=np.zeros_like(counts), where=totals > 0)
    return shares[np.ix_(order, order)], [len(task) for task in classes]


def over_time_figure(results: Sequence[Result]) -> Figure:
    """Accuracy of each task over time: a column a method, a row a scenario."""

    def draw(axes: Axes, runs: Sequence[Result], scenario: str) -> None:
        title = f"{_title(runs)}, {SCENARIOS[scenario]}"
        plot_task_accuracies_over_experiences(mean_matrix(runs, scenario), ax=axes, title=title)

    num_tasks = results[0]["num_experiences"]
    size = 2.8 + 0.16 * num_tasks, max(3.5, 0.11 * num_tasks)
    figure = _method_panels(results, list(SCENARIOS), draw, size)
    num_methods = len(figure.axes) // len(SCENARIOS)
    for first in range(0, len(figure.axes), num_methods):
        _begin_at_zero(*figure.axes[first : first + num_methods])
    _share_legend(figure, figure.axes)
    return figure


def confusion_figure(results: Sequence[Result]) -> Figure:
    """Confusion matrices side by side, a column a method."""

    def draw(axes: Axes, runs: Sequence[Result], scenario: str) -> None:
        plot_confusion_matrix(*confusion_shares(runs), ax=axes)
        axes.set_title(_title(runs))

    return _method_panels(results, ["class_il"], draw, (5.6, 4.6))


def _method_panels(
    results: Sequence[Result],
    scenarios: Sequence[str],
    draw: Callable[..., None],
    size: tuple[float, float],
) -> Figure:
    groups = list(by_method(results).values())
    shape = len(scenarios), len(groups)
    figure = Figure(figsize=(size[0] * shape[1], size[1] * shape[0]), layout="constrained")
    panels = figure.subplots(*shape, squeeze=False, sharey="row")
    for scenario, row in zip(scenarios, panels, strict=True):
        for runs, axes in zip(groups, row, strict=True):
            draw(axes, runs, scenario)
    return figure


def sensitivity_figure(results: Sequence[Result]) -> Figure:
    """ACC over the weight of the supervised loss, a panel a setting."""
    settings = list(dict.fromkeys(result["setting"] for result in results))
    figure = Figure(figsize=(1.2 + 5.2 * len(settings), 3.9), layout="constrained")
    panels = figure.subplots(1, len(settings), squeeze=False)[0]
    for axes, setting in zip(panels, settings, strict=True):
        runs = [result for result in results if result["setting"] == setting]
        weights = sorted({run["changes"]["supervised_weight"] for run in runs})
        found = {
            SCENARIOS[scenario]: [
                measure_of(
                    [r for r in runs if r["changes"]["supervised_weight"] == weight],
                    scenario,
                    "ACC",
                )
                or Summary(math.nan, None, 0)
                for weight in weights
            ]
            for scenario in SCENARIOS
        }
        plot_sensitivity(
            weights,
            {name: [x.mean for x in row] for name, row in found.items()},
            deviations={
                name: [math.nan if x.deviation is None else x.deviation for x in row]
                for name, row in found.items()
                if any(x.deviation is not None for x in row)  # else whiskers of no length
            },
            ax=axes,
            xlabel="weight of the supervised loss, λ",
        )
        axes.set_title(SETTINGS[setting].title, fontsize=10)
        _begin_at_zero(axes)
    _share_legend(figure, panels)
    return figure


def linear_probe_figure(results: Sequence[Result]) -> Figure:
    """Linear-probe accuracy of every extractor on every task, mean over seeds."""
    matrix = np.mean([_array(result["matrix"]) for result in results], axis=0)
    figure = plot_linear_probe(matrix, results[0]["row_labels"]).figure
    assert isinstance(figure, Figure)
    return figure


def loss_surfaces_figure(results: Sequence[Result]) -> Figure:
    """Loss of each task over the plane, a row a self-supervised loss or none.

    Each seed has a plane of its own, of which there is no mean: the lowest seed is shown.
    """
    order = EXPERIMENTS["loss-surface"].changes
    shown = sorted(
        (min(runs, key=lambda r: r["seed"]) for runs in by_method(results).values()),
        key=lambda r: order.index(r["changes"]) if r["changes"] in order else len(order),
    )
    levels = loss_levels([list(result["losses"].values()) for result in shown])
    num_tasks = len(shown[0]["losses"])
    size = 5.2 * num_tasks, 3.9 * len(shown)
    figure = Figure(figsize=size, layout="constrained")
    for result, row in zip(
        shown, figure.subplots(len(shown), num_tasks, squeeze=False), strict=True
    ):
        kind = _loss_of(result["changes"])
        for axes, (task, losses) in zip(row, result["losses"].items(), strict=True):
            points: Mapping[str, tuple[float, float]] = result["points"]
            plot_loss_surface(
                losses, result["x"], result["y"], points=points, levels=levels, ax=axes
            )
            axes.set_title(f"{task}, {kind}, seed {result['seed']}", fontsize=10)
    return figure


def _loss_of(changes: Mapping[str, Any]) -> str:
    """What the extractors of a loss surface were trained with."""
    if "ssl" not in changes:
        return "supervised loss"
    if changes.get("ssl_weight") == 0:
        return "supervised loss on two views"
    return f"with self-supervised loss ({changes['ssl']})"


_DRAWINGS: dict[str, Callable[[Sequence[Result]], Figure]] = {
    "over-time": over_time_figure,
    "confusion": confusion_figure,
    "linear-probe": linear_probe_figure,
    "loss-surface": loss_surfaces_figure,
}


def _title(runs: Sequence[Result]) -> str:
    return title_of(runs[0]["method"], runs[0]["changes"])


def _setting_title(runs: Sequence[Result]) -> str:
    """What is split, and in which order, without images and network."""
    return ", ".join(SETTINGS[runs[0]["setting"]].title.split(", ")[:2])


def _array(values: Sequence[Sequence[float | None]]) -> np.ndarray:
    return np.array(values, dtype=float)  # None becomes NaN


def _save(figure: Figure, folder: Path, name: str, caption: str) -> Picture:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{re.sub(r'[^a-zA-Z0-9_.=+-]', '-', name)}.png"
    with whole_file(path) as draft:
        figure.savefig(draft, dpi=110)
    return Picture(path, caption)
