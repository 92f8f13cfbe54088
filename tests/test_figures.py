import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from synthetic_results import lower_triangle, make_result

from benchmarks import figures
from benchmarks.experiments import EXPERIMENTS
from benchmarks.figures import (
    confusion_figure,
    confusion_shares,
    costs_figure,
    curves_figure,
    experiment_pictures,
    linear_probe_figure,
    loss_surfaces_figure,
    matrices_figure,
    over_time_figure,
    sensitivity_figure,
    setting_pictures,
)
from benchmarks.methods import METHODS

NAN = float("nan")
LAB = "lab-cifar100-10"


def panels(figure):
    """Axes without colour bars."""
    return [ax for ax in figure.axes if ax.get_label() != "<colorbar>"]


def legend(figure):
    (found,) = figure.legends
    return [text.get_text() for text in found.get_texts()]


def legends(figure):
    """Those of the parts of a figure, from top to bottom."""
    return [legend(part) for part in figure.subfigs]


def test_curves_are_means_over_seeds_with_a_band_of_the_sample_deviation():
    results = [make_result("ewc", seed=s, class_il=value) for s, value in enumerate((0.2, 0.4))]
    results.append(make_result("naive", class_il=0.1))
    figure = curves_figure(results, ["class_il", "task_il"])
    left, right = panels(figure)
    assert [left.get_title(), right.get_title()] == ["Class-IL", "Task-IL"]
    ewc, naive = left.lines
    assert np.allclose(ewc.get_ydata(), 30)
    assert np.allclose(naive.get_ydata(), 10)
    (band,) = left.collections  # Naive has one seed and none
    heights = band.get_paths()[0].vertices[:, 1]
    deviation = 100 * np.std([0.2, 0.4], ddof=1)
    assert np.allclose([heights.min(), heights.max()], [30 - deviation, 30 + deviation])
    assert np.allclose(right.lines[0].get_ydata(), 75)
    assert legend(figure) == ["EWC", "Naive"]
    assert left.get_legend() is None
    assert left.get_ylim() == pytest.approx((0, 1.07 * (30 + deviation)))


def look_of(line):
    return (
        line.get_color(), line.get_marker(), line.get_linestyle(), line.get_fillstyle(),
    )  # fmt: skip


def test_a_method_looks_alike_on_all_figures_and_unlike_all_others():
    def looks(*results):
        lines = [line for ax in panels(curves_figure(results, ["class_il"])) for line in ax.lines]
        found = {(line.get_label(), look_of(line)) for line in lines}
        assert len(found) == len(dict(found))  # on all panels alike
        return dict(found)

    every = looks(*(make_result(method, LAB) for method in METHODS))
    assert len(set(every.values())) == len(METHODS)
    titles = {METHODS[method].title for method in EXPERIMENTS["grid"].methods}
    assert len({(every[t][0], every[t][2]) for t in titles}) == len(titles)
    for experiment in EXPERIMENTS.values():
        drawn = [METHODS[method].title for method in experiment.methods if method in METHODS]
        assert len(drawn) > 7 or len({every[title][0] for title in drawn}) == len(drawn)
    changed = [make_result("lwf", LAB, changes={"ssl": ssl}) for ssl in ("byol", "mocov2")]
    few = looks(make_result("dlcpa-mocov2", LAB), make_result("lwf", LAB), *changed)
    assert few["LwF"] == every["LwF"]
    assert few["DLCPA + MoCoV2"] == every["DLCPA + MoCoV2"]
    byol, mocov2 = few["LwF, ssl byol"], few["LwF, ssl mocov2"]
    assert byol[:3] == mocov2[:3] == every["LwF"][:3]
    assert len({byol[3], mocov2[3], every["LwF"][3]}) == 3


@pytest.mark.parametrize("num_methods", [6, 8])
def test_runs_with_changes_are_drawn_where_there_are_few_curves(num_methods, tmp_path, monkeypatch):
    drawn = {}
    monkeypatch.setattr(figures, "_save", lambda figure, *words: drawn.setdefault(words, figure))
    methods = ("naive", "ewc", "lwf", "mas", "si", "der", "gem", "agem")[:num_methods]
    changes = ({}, {"ssl": "byol"}) if num_methods == 6 else ({}, {"lr": 1.0}, {"lr": 2.0})
    results = [make_result(m, LAB, changes=change) for change in changes for m in methods]
    setting_pictures(LAB, results, tmp_path)
    curves, costs = drawn
    assert len(legend(drawn[curves])) == (12 if num_methods == 6 else 8)
    assert bool(drawn[curves].get_supxlabel()) == (num_methods == 8)
    assert len(panels(drawn[costs])[0].patches) == len(results)


def test_twelve_methods_fit_beside_the_panels(tmp_path):
    results = [make_result(method, LAB) for method in EXPERIMENTS["grid"].methods[:12]]
    figure = curves_figure(results, ["class_il", "task_il"])
    figure.savefig(tmp_path / "curves.png")
    box = figure.legends[0].get_window_extent()
    assert len(legend(figure)) == len(results) == 12
    assert all(ax.get_window_extent().x1 < box.x0 for ax in figure.axes)
    assert box.y0 >= 0
    assert box.x1 <= figure.bbox.x1


def test_more_methods_have_panels_by_their_kind_and_dlcpa_is_on_all_of_them(tmp_path):
    heights = {"stl": 0.6, "joint": 0.9, "dlcpa-mocov2": 0.3}
    names = EXPERIMENTS["grid"].methods
    results = [make_result(m, LAB, class_il=heights.get(m, 0.1)) for m in names]
    figure = curves_figure(results, ["class_il", "task_il"])
    figure.savefig(tmp_path / "curves.png")
    titles = {name: METHODS[name].title for name in names}
    ours = {title for name, title in titles.items() if name.startswith("dlcpa")}
    keeping = {title for name, title in titles.items() if METHODS[name].keeps_samples}
    others = set(titles.values()) - ours - keeping
    shared = {"DLCPA + MoCoV2"}
    assert [set(found) for found in legends(figure)] == [ours, others | shared, keeping | shared]
    assert [ax.get_title() for ax in panels(figure)] == [
        f"{scenario}, {kind}"
        for kind in ("DLCPA", "methods that keep no samples", "methods that keep samples")
        for scenario in ("Class-IL", "Task-IL")
    ]
    top = 1.07 * 90  # of Joint, for all panels of the scenario
    assert [ax.get_ylim()[1] for ax in panels(figure)[::2]] == pytest.approx([top] * 3)
    for part in figure.subfigs:
        box = part.legends[0].get_window_extent()
        assert all(ax.get_window_extent().x1 < box.x0 for ax in part.axes)
        assert box.x1 <= figure.bbox.x1


def test_costs_are_seconds_and_megabytes_and_show_who_keeps_samples():
    def memory(size, keeps=False):
        return {"kept_bytes": size, "peak_bytes": 5 * size, "keeps_samples": keeps}

    results = [
        make_result("replay", training_seconds=10.0, memory=memory(3_000_000, True)),
        make_result("naive", seed=0, training_seconds=20.0, memory=memory(1_000_000)),
        make_result("naive", seed=1, training_seconds=40.0, memory=memory(1_000_000)),
        make_result("ewc", training_seconds=5.0, memory=None),  # an old result
    ]
    figure = costs_figure(results)
    seconds, megabytes, peaks = panels(figure)
    FigureCanvasAgg(figure).draw()
    for label in (seconds.xaxis.label, megabytes.xaxis.label, peaks.xaxis.label):
        extent = label.get_window_extent()
        assert figure.bbox.x0 <= extent.x0 <= extent.x1 <= figure.bbox.x1
    assert [bar.get_width() for bar in seconds.patches] == [10, 30, 5]
    widths = [bar.get_width() for bar in megabytes.patches]
    assert np.allclose(widths, [3, 1, NAN], equal_nan=True)
    widths = [bar.get_width() for bar in peaks.patches]
    assert np.allclose(widths, [15, 5, NAN], equal_nan=True)
    assert [bar.get_hatch() for bar in megabytes.patches] == ["////", None, None]
    assert [t.get_text() for t in seconds.get_yticklabels()] == ["Replay", "Naive", "EWC"]
    (error,) = seconds.collections
    deviation = np.std([20, 40], ddof=1)
    assert np.allclose(error.get_segments()[0][:, 0], [30 - deviation, 30 + deviation])


def test_confusion_is_in_the_order_of_learning_and_summed_over_seeds():
    counts = np.zeros((4, 4), dtype=int)
    counts[3] = [0, 0, 2, 6]
    counts[0] = [5, 0, 0, 5]
    counts[2] = [0, 4, 4, 0]  # class 1 was never learned
    runs = [
        {"classes": [[3], [0, 2]], "class_il": {"confusion_matrix": (counts * n).tolist()}}
        for n in (1, 3)
    ]
    shares, sizes = confusion_shares(runs)
    assert sizes == [1, 2]
    assert np.allclose(shares, [[0.75, 0, 0.25], [0.5, 0.5, 0], [0, 0, 0.5]])


def test_matrices_of_a_method_are_means_over_seeds():
    runs = [
        make_result("ewc", seed=s, class_il=lower_triangle("digits", 0.8, value), task_il=0.9)
        for s, value in enumerate((0.2, 0.6))
    ]
    class_il, task_il, lines, confusion = panels(matrices_figure(runs))
    assert np.allclose(class_il.images[0].get_array()[-1], 40)
    assert np.allclose(task_il.images[0].get_array()[-1], 90)
    assert np.allclose(lines.lines[0].get_ydata(), [80, 80, 80, 80, 40])
    shares = confusion.images[0].get_array()
    assert np.allclose(np.diag(shares), 40)
    assert np.allclose(shares.sum(axis=1), 100)


def test_a_method_without_class_il_has_no_confusion():
    run = make_result("packnet", class_il=np.full((5, 5), NAN), task_il=0.9)
    matrix, lines = panels(matrices_figure([run]))
    assert matrix.get_title() == "Task-IL"
    assert np.allclose(lines.lines[0].get_ydata(), 90)


def test_no_panel_is_empty_where_nothing_has_class_il(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(figures, "_save", lambda figure, *words: drawn.append(figure))
    run = make_result("packnet", "lab-tiny-10", class_il=np.full((10, 10), NAN))
    experiment_pictures("table8", "lab", [run], tmp_path)
    setting_pictures("lab-tiny-10", [run], tmp_path)
    assert [[ax.get_title() for ax in panels(figure)] for figure in drawn] == [["Task-IL"]] * 2


@pytest.mark.parametrize("setting", ["digits", "lab-tiny-10", "lab-cifar100-20"])
def test_over_time_has_a_column_a_method_and_a_line_a_task(setting):
    results = [make_result("der++", setting, class_il=0.8), make_result("dlcpa-mocov2", setting)]
    figure = over_time_figure(results)
    axes = panels(figure)
    assert [ax.get_title() for ax in axes] == [
        "DER++, Class-IL",
        "DLCPA + MoCoV2, Class-IL",
        "DER++, Task-IL",
        "DLCPA + MoCoV2, Task-IL",
    ]
    num_tasks = results[0]["num_experiences"]
    assert {len(ax.lines) for ax in axes} == {num_tasks}
    assert np.allclose(axes[0].lines[0].get_ydata(), 80)
    assert np.allclose(axes[1].lines[0].get_ydata(), 50)
    assert axes[0].get_ylim() == axes[1].get_ylim() == pytest.approx((0, 1.07 * 80))
    assert legend(figure) == [f"task {n}" for n in range(1, num_tasks + 1)]


def test_confusions_stand_side_by_side():
    figure = confusion_figure([make_result("der++"), make_result("dlcpa-mocov2")])
    assert [ax.get_title() for ax in panels(figure)] == ["DER++", "DLCPA + MoCoV2"]


def test_sensitivity_has_a_panel_a_setting_and_both_scenarios():
    values = {0.0: (0.1, 0.3), 10.0: (0.4, 0.4), 1000.0: (0.2, 0.2)}
    results = [
        make_result(
            "dlcpa-mocov2", setting, seed, class_il=pair[seed], changes={"supervised_weight": w}
        )
        for setting in (LAB, "lab-tiny-10")
        for w, pair in reversed(values.items())
        for seed in (0, 1)
    ]
    figure = sensitivity_figure(results)
    left, right = panels(figure)
    assert "CIFAR-100" in left.get_title()
    assert "Tiny-ImageNet" in right.get_title()
    class_il = left.containers[0].lines[0]
    assert class_il.get_xdata().tolist() == [0, 10, 1000]
    assert np.allclose(class_il.get_ydata(), [20, 40, 20])
    task_il = left.containers[1].lines[0]
    assert np.allclose(task_il.get_ydata(), 75)
    segment = left.collections[0].get_segments()[0]
    deviation = 100 * np.std([0.1, 0.3], ddof=1)
    assert np.allclose(segment[:, 1], [20 - deviation, 20 + deviation])
    assert legend(figure) == ["Class-IL", "Task-IL"]


def test_sensitivity_of_one_seed_has_no_whiskers_and_none_in_its_legend():
    results = [
        make_result("dlcpa-mocov2", LAB, class_il=0.3, changes={"supervised_weight": weight})
        for weight in (0.0, 10.0)
    ]
    figure = sensitivity_figure(results)
    (axes,) = panels(figure)
    assert [bars.has_yerr for bars in axes.containers] == [False, False]
    assert legend(figure) == ["Class-IL", "Task-IL"]
    assert axes.get_ylim() == pytest.approx((0, 1.07 * 75))  # no marker on the edge


def test_linear_probe_is_the_mean_over_seeds():
    runs = [{"matrix": [[v, 0.5]] * 4, "row_labels": ["a", "b", "STL", "STL-me"]} for v in (0, 1)]
    (axes,) = panels(linear_probe_figure(runs))
    assert np.allclose(axes.images[0].get_array(), 50)
    assert [t.get_text() for t in axes.get_yticklabels()] == ["a", "b", "STL", "STL-me"]


def surface(seed, height=1.0, **changes):
    grid = [[height, 2.0], [3.0, 4.0]]
    return {
        "method": "loss-surface",
        "setting": LAB,
        "seed": seed,
        "changes": changes,
        "losses": {"task 1": grid, "task 2": grid},
        "x": [0.0, 1.0],
        "y": [0.0, 1.0],
        "points": {"start": [0.5, 1.0]},
    }


def test_loss_surfaces_are_of_the_lowest_seed_on_one_scale():
    views = surface(1, ssl="mocov2", ssl_weight=0.0)
    loss = surface(2, ssl="mocov2", height=0.1)
    figure = loss_surfaces_figure([surface(3), surface(1), loss, views])
    axes = panels(figure)
    assert [ax.get_title() for ax in axes] == [
        "task 1, supervised loss, seed 1",
        "task 2, supervised loss, seed 1",
        "task 1, supervised loss on two views, seed 1",
        "task 2, supervised loss on two views, seed 1",
        "task 1, with self-supervised loss (mocov2), seed 2",
        "task 2, with self-supervised loss (mocov2), seed 2",
    ]
    levels = [ax.collections[0].levels.tolist() for ax in axes]
    assert all(found == levels[0] for found in levels)
    assert levels[0][0] == pytest.approx(0.1)
    assert [text.get_text() for text in axes[0].texts] == ["start"]


def test_the_legend_begins_with_the_line_that_ends_highest():
    heights = {"naive": 0.2, "dlcpa-mocov2": 0.5, "ewc": 0.3}
    results = [make_result(m, LAB, task_il=value) for m, value in heights.items()]
    figure = curves_figure(results, ["task_il"])
    assert legend(figure) == ["DLCPA + MoCoV2", "EWC", "Naive"]
    widths = [line.get_linewidth() for line in figure.legends[0].get_lines()]
    assert widths[0] > widths[1] == widths[2]


def test_the_orders_of_one_method_are_the_lines_of_one_figure(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(
        figures, "_save", lambda figure, folder, name, caption: drawn.append((figure, caption))
    )
    settings = [f"lab-cifar100-10-order{order}" for order in (1, 2, 3)]
    results = [make_result("dlcpa-mocov2", setting) for setting in settings]
    experiment_pictures("table10", "lab", results, tmp_path)
    ((figure, caption),) = drawn
    assert caption == "Mean accuracy over the tasks learned: DLCPA + MoCoV2"
    names = [f"10-split CIFAR-100, order {order}" for order in (1, 2, 3)]
    assert all([line.get_label() for line in ax.lines] == names for ax in panels(figure))


def test_pictures_are_files_with_captions(tmp_path):
    results = [make_result(m, LAB, seed) for m in ("dlcpa-a", "dlcpa-mocov2") for seed in (0, 1)]
    pictures = experiment_pictures("table4", "lab", results, tmp_path / "figures")
    assert [p.path.name for p in pictures] == ["table4_lab_1.png"]  # Tiny-ImageNet has no results
    assert "10-split CIFAR-100" in pictures[0].caption
    (alone,) = setting_pictures(LAB, results[:2], tmp_path)  # two seeds of one method
    assert alone.path.name == f"{LAB}_accuracies.png"
    pictures += setting_pictures(LAB, results, tmp_path / "figures")
    assert len({p.path for p in pictures}) == 3
    for picture in pictures:
        assert picture.path.read_bytes().startswith(b"\x89PNG")


def test_a_method_that_learns_at_once_has_no_line_a_task():
    last = np.full((10, 10), NAN)
    last[-1] = 0.5
    joint = make_result("joint", LAB, class_il=last, task_il=last)
    assert [ax.axison for ax in panels(matrices_figure([joint]))].count(False) == 1
    assert all(ax.axison for ax in panels(matrices_figure([make_result("naive", LAB)])))
