import itertools

import matplotlib.colors
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from avalanche_dlcpa.comparison_plots import plot_bars, plot_confusion_matrix, plot_sensitivity
from avalanche_dlcpa.plots import (
    plot_accuracy_matrix,
    plot_accuracy_over_experiences,
    plot_task_accuracies_over_experiences,
)

NAN = float("nan")
R = np.array([[0.9, NAN, 0.0], [0.7, 0.8, NAN], [0.6049, 0.9, 1.0]])


def tick_labels(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def luminance(colour):
    rgb = np.array(matplotlib.colors.to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(one, other):
    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


def test_matrix_image_and_values_are_the_data():
    ax = plot_accuracy_matrix(R, title="DLCPA")
    (image,) = ax.images
    drawn = np.ma.filled(np.ma.masked_invalid(image.get_array()), np.nan)
    assert np.allclose(drawn, 100 * R, equal_nan=True)
    texts = {text.get_position(): text.get_text() for text in ax.texts}
    # (x, y) = (task, after learning); NaN cells have no text.
    assert texts == {
        (0, 0): "90.0",
        (2, 0): "0.0",
        (0, 1): "70.0",
        (1, 1): "80.0",
        (0, 2): "60.5",
        (1, 2): "90.0",
        (2, 2): "100.0",
    }
    assert ax.get_title() == "DLCPA"


def test_matrix_axes_count_tasks_from_one_with_the_first_row_on_top():
    ax = plot_accuracy_matrix(R)
    assert tick_labels(ax.xaxis) == tick_labels(ax.yaxis) == ["1", "2", "3"]
    assert ax.get_xlabel() == "task"
    assert ax.get_ylabel() == "after learning task"
    assert ax.get_title() == ""
    bottom, top = ax.get_ylim()
    assert bottom > top


def test_matrix_range_is_fixed_and_nan_is_blank():
    low = plot_accuracy_matrix([[0.1, NAN], [0.1, 0.2]]).images[0]
    high = plot_accuracy_matrix(R).images[0]
    assert low.get_clim() == high.get_clim() == (0, 100)
    assert low.get_cmap()(np.ma.masked_invalid([NAN]))[0, 3] == 0  # transparent
    shades = [luminance(low.get_cmap()(value)[:3]) for value in np.linspace(0, 1, 21)]
    assert shades == sorted(shades)  # higher is lighter, in grey print and to every eye


def test_matrix_values_are_readable_on_every_shade():
    accuracies = np.linspace(0, 1, 100).reshape(10, 10)
    ax = plot_accuracy_matrix(accuracies)
    (image,) = ax.images
    for text in ax.texts:
        j, i = text.get_position()
        background = image.get_cmap()(image.norm(100 * accuracies[i, j]))
        # 4.5 is WCAG's bound for text.
        assert contrast(text.get_color(), background[:3]) >= 4.5, text.get_text()


@pytest.mark.parametrize("num_tasks", [1, 2, 5, 10, 20])
@pytest.mark.parametrize("own_figure", [True, False])
def test_matrix_values_fit_their_cells(num_tasks, own_figure):
    ax = None if own_figure else Figure(figsize=(5, 4)).subplots()
    ax = plot_accuracy_matrix(np.ones((num_tasks, num_tasks)), ax=ax)
    FigureCanvasAgg(ax.figure).draw()
    cell = ax.get_window_extent().width / num_tasks
    widths = [text.get_window_extent().width for text in ax.texts]
    assert len(widths) == num_tasks**2
    assert max(widths) <= cell
    labels = [label.get_window_extent().width for label in ax.get_xticklabels()]
    assert max(labels) < cell
    assert {text.get_text() for text in ax.texts} == {"100.0" if num_tasks <= 10 else "100"}


def test_curves_are_the_data_in_percent():
    curves = {"DLCPA": np.array([0.9, 0.8, 0.75]), "EWC": [0.9, NAN, 0.3], "short": [0.5]}
    ax = plot_accuracy_over_experiences(curves)
    assert [line.get_label() for line in ax.lines] == list(curves)
    for line, curve in zip(ax.lines, curves.values(), strict=True):
        assert np.array_equal(line.get_xdata(), np.arange(1, len(curve) + 1))
        assert np.allclose(line.get_ydata(), 100 * np.array(curve), equal_nan=True)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == list(curves)
    assert tick_labels(ax.xaxis) == ["1", "2", "3"]
    assert ax.get_xlabel() == "number of tasks learned"
    assert "(%)" in ax.get_ylabel()


def test_curve_label_can_be_set():
    ax = plot_accuracy_over_experiences({"a": [0.5]}, ylabel="Task-IL (%)")
    assert ax.get_ylabel() == "Task-IL (%)"


@pytest.mark.parametrize(("length", "ticks"), [(1, 1), (20, 20), (21, 11), (50, 17)])
def test_curve_ticks_are_whole_numbers_and_few_enough(length, ticks):
    labels = tick_labels(plot_accuracy_over_experiences({"a": np.full(length, 0.5)}).xaxis)
    assert len(labels) == ticks
    assert labels[0] == "1"
    assert all(label.isdigit() for label in labels)


def test_no_two_methods_look_alike():
    ax = plot_accuracy_over_experiences({str(k): [0.1, 0.2] for k in range(40)})
    looks = [(ln.get_color(), ln.get_marker(), ln.get_linestyle()) for ln in ax.lines]
    assert len(set(looks)) == 40
    # Where a colour comes again, the line style is another one.
    colour_and_style = [(colour, style) for colour, _, style in looks[:28]]
    assert len(set(colour_and_style)) == 28
    # Up to ten methods, the marker alone tells them apart, in grey print too.
    assert len({marker for _, marker, _ in looks[:10]}) == 10
    assert all(contrast(colour, "white") >= 2 for colour, _, _ in looks)


def test_a_method_may_be_given_a_look():
    looks = {"b": {"color": "#123456", "marker": "x"}, "of no curve": {"color": "red"}}
    ax = plot_accuracy_over_experiences({"a": [0.5], "b": [0.6]}, looks=looks)
    plain = plot_accuracy_over_experiences({"a": [0.5], "b": [0.6]})
    assert (ax.lines[1].get_color(), ax.lines[1].get_marker()) == ("#123456", "x")
    assert ax.lines[0].get_color() == plain.lines[0].get_color()


@pytest.mark.parametrize("num_methods", [1, 4, 10])
def test_legend_covers_no_data(num_methods):
    curves = {f"method {k}": [0.9, 0.9 - 0.05 * k] for k in range(num_methods)}
    ax = plot_accuracy_over_experiences(curves)
    FigureCanvasAgg(ax.figure).draw()
    legend = ax.get_legend().get_window_extent()
    assert legend.x0 >= ax.get_window_extent().x1
    assert legend.x1 <= ax.figure.bbox.x1


def test_given_axes_are_drawn_on_and_returned():
    left, right = Figure().subplots(1, 2)
    assert plot_accuracy_matrix(R, ax=left) is left
    assert plot_accuracy_over_experiences({"a": [0.1]}, ax=right) is right
    assert left.images
    left.set_title("mine")
    assert plot_accuracy_matrix(R, ax=left).get_title() == "mine"
    assert right.lines


def test_pyplot_is_not_touched(tmp_path):
    before = plt.get_fignums()
    plot_accuracy_matrix(R).figure.savefig(tmp_path / "matrix.png")
    plot_accuracy_over_experiences({"a": [0.5]}).figure.savefig(tmp_path / "curves.pdf")
    assert plt.get_fignums() == before


def test_new_figures_are_separate():
    assert plot_accuracy_matrix(R).figure is not plot_accuracy_matrix(R).figure


@pytest.mark.parametrize(
    ("accuracies", "message"),
    [
        ([[0.5, 0.5]], r"Expected `accuracies` to be of shape \(T, T\)"),
        ([[50.0]], "Expected `accuracies` to be fractions in .0, 1., got 50"),
    ],
)
def test_matrix_refuses_other_input(accuracies, message):
    with pytest.raises(ValueError, match=message):
        plot_accuracy_matrix(accuracies)


@pytest.mark.parametrize(
    ("curves", "message"),
    [
        ({}, r"Expected `curves` to be at least one curve, got \{\}"),
        ({"EWC": [[0.5]]}, r"Expected `curves\['EWC'\]` to be of shape \(T,\)"),
        ({"EWC": []}, r"Expected `curves\['EWC'\]` to be of shape \(T,\)"),
        ({"EWC": [50]}, r"Expected `curves\['EWC'\]` to be fractions in \[0, 1\], got 50"),
    ],
)
def test_curves_refuse_other_input(curves, message):
    with pytest.raises(ValueError, match=message):
        plot_accuracy_over_experiences(curves)


def test_bands_reach_a_deviation_above_and_below_their_curve():
    curves = {"DLCPA": [0.9, 0.8], "EWC": [0.9, 0.5], "one seed": [0.4, 0.3]}
    ax = plot_accuracy_over_experiences(
        curves, deviations={"DLCPA": [0.05, 0.1], "EWC": [0.0, NAN]}
    )
    band, _ = ax.collections
    vertices = {tuple(np.round(v, 6)) for v in band.get_paths()[0].vertices}
    assert vertices == {(1, 85), (1, 95), (2, 70), (2, 90)}
    assert matplotlib.colors.same_color(band.get_facecolor()[0][:3], ax.lines[0].get_color())
    assert band.get_zorder() < ax.lines[0].get_zorder()


@pytest.mark.parametrize(
    ("deviations", "message"),
    [
        ({"LwF": [0.1, 0.1]}, r"`deviations\['LwF'\]` to be of a curve"),
        ({"EWC": [0.1]}, r"`deviations\['EWC'\]` to be \(2,\), .* got \(1,\)"),
        ({"EWC": [2, 0.1]}, r"`deviations\['EWC'\]` to be fractions"),
    ],
)
def test_bands_refuse_other_input(deviations, message):
    with pytest.raises(ValueError, match=message):
        plot_accuracy_over_experiences({"EWC": [0.5, 0.5]}, deviations=deviations)


def test_twenty_lines_look_different():
    ax = plot_accuracy_over_experiences({f"m{k}": [0.5, 0.4] for k in range(20)})
    looks = {(ln.get_color(), ln.get_marker(), ln.get_linestyle()) for ln in ax.lines}
    assert len(looks) == 20


def test_task_lines_begin_where_the_task_is_learned_and_carry_its_number():
    ax = plot_task_accuracies_over_experiences(R, title="DLCPA")
    assert [line.get_label() for line in ax.lines] == ["task 1", "task 2", "task 3"]
    assert [line.get_xdata().tolist() for line in ax.lines] == [[1, 2, 3], [2, 3], [3]]
    drawn = [line.get_ydata() for line in ax.lines]
    assert np.allclose(drawn[0], [90, 70, 60.49])
    assert np.allclose(drawn[1], [80, 90])
    assert np.allclose(drawn[2], [100])
    numbers = {text.get_text(): text.xy for text in ax.texts}
    assert numbers == {"1": (1, 90), "2": (2, 80), "3": (3, 100)}
    assert tick_labels(ax.xaxis) == ["1", "2", "3"]
    assert ax.get_title() == "DLCPA"


def test_task_lines_leave_out_what_was_never_evaluated():
    joint = np.full((2, 2), NAN)
    joint[-1] = [0.5, 0.6]
    ax = plot_task_accuracies_over_experiences(joint)
    assert [text.get_text() for text in ax.texts] == ["2"]
    assert np.isnan(ax.lines[0].get_ydata()[0])


@pytest.mark.parametrize("num_tasks", [5, 10, 20, 25])
def test_ticks_of_task_lines_do_not_touch(num_tasks):
    ax = plot_task_accuracies_over_experiences(np.full((num_tasks, num_tasks), 0.5))
    FigureCanvasAgg(ax.figure).draw()
    boxes = [label.get_window_extent() for label in ax.get_xticklabels()]
    assert 5 <= len(boxes) <= 10
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))


def test_confusion_matrix_has_lines_between_tasks_and_their_numbers():
    shares = np.eye(5)
    shares[4] = [0.5, 0, 0, 0, 0.25]
    ax = plot_confusion_matrix(shares, [2, 2, 1])
    (image,) = ax.images
    assert np.allclose(image.get_array(), 100 * shares)
    assert image.get_clim() == (0, 100)
    across = [line for line in ax.lines if line.get_ydata()[0] == line.get_ydata()[1]]
    down = [line for line in ax.lines if line.get_xdata()[0] == line.get_xdata()[1]]
    assert [line.get_ydata()[0] for line in across] == [1.5, 3.5]
    assert [line.get_xdata()[0] for line in down] == [1.5, 3.5]
    assert ax.get_xticks().tolist() == ax.get_yticks().tolist() == [0.5, 2.5, 4]
    assert tick_labels(ax.xaxis) == tick_labels(ax.yaxis) == ["1", "2", "3"]
    assert ax.get_ylim() == (4.5, -0.5)
    assert "true" in ax.get_ylabel()


@pytest.mark.parametrize(
    ("shares", "tasks", "message"),
    [
        (np.eye(3), [2, 2], r"of shape \(K, K\), K = 4 as the tasks say, got \(3, 3\)"),
        (10 * np.eye(2), [1, 1], "Expected `shares` to be fractions"),
    ],
)
def test_confusion_matrix_refuses_other_input(shares, tasks, message):
    with pytest.raises(ValueError, match=message):
        plot_confusion_matrix(shares, tasks)


def test_sensitivity_has_a_tick_at_each_weight_in_equal_steps():
    weights = [0, 0.1, 1, 10]
    ax = plot_sensitivity(
        weights, {"Class-IL": [0.1, 0.2, 0.3, NAN]}, deviations={"Class-IL": [0, 0, 0.05, 0]}
    )
    assert tick_labels(ax.xaxis) == ["0", "0.1", "1", "10"]
    places = ax.transData.transform([(weight, 0) for weight in weights])[:, 0]
    steps = np.diff(places)
    assert np.allclose(steps, steps[-1], rtol=0.15)
    line = ax.lines[0]
    assert line.get_xdata().tolist() == weights
    assert np.allclose(line.get_ydata(), [10, 20, 30, NAN], equal_nan=True)
    (bars,) = ax.collections
    assert np.allclose(bars.get_segments()[2], [[1, 25], [1, 35]])
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["Class-IL"]


def test_sensitivity_of_zero_alone_is_drawn():
    assert tick_labels(plot_sensitivity([0.0], {"Class-IL": [0.1]}).xaxis) == ["0"]


@pytest.mark.parametrize(
    ("weights", "curve", "message"),
    [
        ([1, 0.1], [0.1, 0.1], "Expected `weights` to be at least one, rising and not negative"),
        ([-1, 1], [0.1, 0.1], "Expected `weights` to be at least one, rising and not negative"),
        ([0, NAN, 1], [0.1] * 3, "Expected `weights` to be at least one, rising and not negative"),
        ([], [], "Expected `weights` to be at least one, rising and not negative"),
        ([0, 1], [0.1], r"`curves\['a'\]` to be of shape \(2,\), one a weight, got \(1,\)"),
        ([0], [50], r"`curves\['a'\]` to be fractions"),
    ],
)
def test_sensitivity_refuses_other_input(weights, curve, message):
    with pytest.raises(ValueError, match=message):
        plot_sensitivity(weights, {"a": curve})


def test_bars_are_the_values_from_the_top_down():
    ax = plot_bars(
        {"EWC": 30.0, "LwF": 2.5, "old": NAN},
        deviations={"EWC": 5.0},
        hatched={"LwF"},
        xlabel="time (s)",
    )
    lengths = {bar.get_y() + bar.get_height() / 2: bar.get_width() for bar in ax.patches}
    assert np.allclose(list(lengths), [0, 1, 2])
    assert np.allclose(list(lengths.values()), [30, 2.5, NAN], equal_nan=True)
    assert [bar.get_hatch() for bar in ax.patches] == [None, "////", None]
    assert tick_labels(ax.yaxis) == ["EWC", "LwF", "old"]
    bottom, top = ax.get_ylim()
    assert bottom > top
    assert [text.get_text() for text in ax.texts] == ["30", "2.5"]
    (error,) = ax.collections
    assert np.allclose(error.get_segments()[0], [[25, 0], [35, 0]])
    assert ax.get_xlim()[0] == 0
    assert ax.get_xlabel() == "time (s)"


@pytest.mark.parametrize("values", [{}, {"EWC": -1.0}, {"EWC": np.inf}])
def test_bars_refuse_other_input(values):
    with pytest.raises(ValueError, match="to be at least one, none negative or infinite, got"):
        plot_bars(values)


def test_deviations_of_no_curve_are_refused_and_unknown_ones_move_no_text():
    with pytest.raises(ValueError, match=r"Expected `deviations\['y'\]` to be of a curve"):
        plot_sensitivity([0.0, 1.0], {"x": [0.1, 0.2]}, deviations={"y": [0.1, 0.1]})
    with pytest.raises(ValueError, match=r"Expected `deviations\['b'\]` to be of a bar"):
        plot_bars({"a": 1.0}, deviations={"b": 0.1})
    ax = plot_bars({"a": 1.0}, deviations={"a": float("nan")})
    assert [text.get_position()[0] for text in ax.texts] == [pytest.approx(1.015)]
