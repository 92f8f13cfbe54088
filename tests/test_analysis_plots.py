import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from avalanche_dlcpa.analysis_plots import loss_levels, plot_linear_probe, plot_loss_surface

NAN = float("nan")
PROBE = np.array([[0.9, 0.3], [NAN, 0.8], [0.9, 1.0], [0.8549, 0.0]])
LABELS = ["task 1", "task 2", "STL", "STL-me"]
X, Y = np.linspace(-3, 7, 21), np.linspace(-2, 6, 17)
BOWL = 0.05 + 0.2 * (X[None, :] ** 2 + Y[:, None] ** 2)
POINTS = {"start": (-2.0, 4.0), "task 1": (0.0, 0.0), "mean": (2.5, 0.0), "task 2": (5.0, 0.0)}


def boxes(artists):
    """Where artists of a drawn figure are, in pixels."""
    return [artist.get_window_extent() for artist in artists]


def overlap(boxes):
    """Whether any two boxes overlap."""
    low, high = np.array([box.min for box in boxes]), np.array([box.max for box in boxes])
    meet = (low[:, None] < high[None]).all(axis=2)
    return (meet & meet.T).sum() > len(boxes)


def labels_of(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def test_probe_image_and_values_are_the_data():
    ax = plot_linear_probe(PROBE, LABELS)
    (image,) = ax.images
    drawn = np.ma.filled(np.ma.masked_invalid(image.get_array()), np.nan)
    assert np.allclose(drawn, 100 * PROBE, equal_nan=True)
    assert image.get_clim() == (0, 100)
    assert plot_linear_probe(0.2 + 0.5 * PROBE, LABELS).images[0].get_clim() == (20, 70)
    texts = {text.get_position(): text.get_text() for text in ax.texts}
    # (x, y) = (task, extractor); NaN cells have no text.
    assert texts == {
        (0, 0): "90.0",
        (1, 0): "30.0",
        (1, 1): "80.0",
        (0, 2): "90.0",
        (1, 2): "100.0",
        (0, 3): "85.5",
        (1, 3): "0.0",
    }


def test_probe_rows_have_their_names_the_first_on_top():
    ax = plot_linear_probe(PROBE, LABELS)
    assert labels_of(ax.yaxis) == LABELS
    assert labels_of(ax.xaxis) == ["1", "2"]
    bottom, top = ax.get_ylim()
    assert bottom > top
    assert "(%)" in ax.figure.axes[1].get_ylabel()


def test_a_line_parts_the_extractors_of_the_tasks_from_the_others():
    (line,) = plot_linear_probe(PROBE, LABELS).lines
    assert list(line.get_ydata()) == [1.5, 1.5]
    assert not plot_linear_probe(PROBE[:2], LABELS[:2]).lines


@pytest.mark.parametrize("num_tasks", [1, 2, 5, 10, 25])
@pytest.mark.parametrize("own_figure", [True, False])
def test_probe_values_and_labels_do_not_overlap(num_tasks, own_figure):
    ax = None if own_figure else Figure(figsize=(6, 5), layout="constrained").subplots()
    names = [*(f"task {task + 1}" for task in range(num_tasks)), "STL", "STL-me"]
    ax = plot_linear_probe(np.ones((num_tasks + 2, num_tasks)), names, ax=ax)
    FigureCanvasAgg(ax.figure).draw()
    rows = boxes(ax.get_yticklabels())
    for artists in (boxes(ax.texts), rows, boxes(ax.get_xticklabels())):
        assert not overlap(artists)
    assert min(box.x0 for box in rows) >= ax.yaxis.label.get_window_extent().x1
    if own_figure:
        assert min(text.get_fontsize() for text in ax.texts) >= 7


@pytest.mark.parametrize(
    ("accuracies", "labels", "message"),
    [
        ([0.5, 0.5], ["a", "b"], r"Expected `accuracies` to be of shape \(rows, T\), got \(2,\)"),
        ([[]], ["a"], r"Expected `accuracies` to be of shape \(rows, T\), got \(1, 0\)"),
        ([[50.0]], ["a"], r"Expected `accuracies` to be fractions in \[0, 1\], got 50"),
        ([[0.5], [0.5]], ["a"], "Expected `row_labels` to be one for each of the 2 rows, got 1"),
    ],
)
def test_probe_refuses_other_input(accuracies, labels, message):
    with pytest.raises(ValueError, match=message):
        plot_linear_probe(accuracies, labels)


def test_levels_are_logarithmic_from_the_lowest_to_the_highest():
    levels = loss_levels([[[0.1, 2.0]], [[NAN, 10.0]], [[float("inf"), 1.0]]])
    assert (levels[0], levels[-1]) == pytest.approx((0.1, 10.0))
    assert np.diff(np.log(levels)) == pytest.approx(np.full(12, np.log(100) / 12))


@pytest.mark.parametrize("losses", [[0.0, 5.0], [0.0, 0.0], [3.0, 3.0], [1e-12, 1.0]])
def test_levels_rise_for_every_surface(losses):
    levels = loss_levels(losses)
    assert (np.diff(levels) > 0).all()
    assert levels[0] >= levels[-1] / 1001
    assert levels[-1] >= max(losses)


@pytest.mark.parametrize(
    ("losses", "found"), [([NAN], "none that is finite"), ([], "none"), ([1.0, -0.5], "-0.5")]
)
def test_levels_refuse_what_is_no_cross_entropy(losses, found):
    with pytest.raises(ValueError, match=f"Expected `losses` to be cross-entropies.*got {found}"):
        loss_levels(losses)


def colour_at(ax, x, y):
    """The colour that the drawn figure has at a point of the data."""
    canvas = FigureCanvasAgg(ax.figure)
    canvas.draw()
    column, row = ax.transData.transform((x, y))
    pixels = np.asarray(canvas.buffer_rgba())
    return pixels[pixels.shape[0] - 1 - int(row), int(column), :3].astype(float)


def test_the_surface_is_drawn_where_it_is():
    losses = BOWL.copy()
    losses[:, X > 5] = 30.0
    losses[Y < -1.2] = NAN
    ax = plot_loss_surface(losses, X, Y, points={})
    dark, light, blank = (colour_at(ax, *at) for at in [(0.3, 0.2), (6.3, 3.0), (-1.0, -1.8)])
    assert dark.sum() < 300 < light.sum()  # viridis: low is dark
    assert blank.tolist() == [255, 255, 255]


def test_x_runs_along_the_columns_and_y_along_the_rows():
    losses = np.ones((len(Y), len(X)))
    losses[-1, 0] = losses[-2, 0] = losses[-1, 1] = losses[-2, 1] = 100.0  # top left
    ax = plot_loss_surface(losses, X, Y, points={})
    assert colour_at(ax, X[0] + 0.2, Y[-1] - 0.2).sum() > 350
    assert colour_at(ax, X[-1] - 0.2, Y[0] + 0.2).sum() < 250
    assert (ax.get_xlim(), ax.get_ylim()) == ((-3, 7), (-2, 6))
    assert ax.get_aspect() == 1


def test_given_levels_make_panels_comparable():
    levels = loss_levels([BOWL, 10 * BOWL])
    one = plot_loss_surface(BOWL, X, Y, points={}, levels=levels)
    ten = plot_loss_surface(10 * BOWL, X, Y, points={}, levels=levels)
    for ax in (one, ten):
        assert np.allclose(ax.figure.axes[1].get_yticks(), levels[::2])
    assert colour_at(ten, 0.2, 0.3).sum() > colour_at(one, 0.2, 0.3).sum() + 30
    alone = [plot_loss_surface(k * BOWL, X, Y, points={}) for k in (1, 10)]
    assert np.array_equal(*(colour_at(ax, 0.2, 0.3) for ax in alone))


def test_losses_beyond_given_levels_stay_coloured():
    ax = plot_loss_surface(BOWL, X, Y, points={}, levels=[1.0, 2.0, 3.0])
    assert colour_at(ax, 0.1, 0.1).tolist() == [68, 1, 84]  # viridis's ends
    assert colour_at(ax, 6.9, 5.9).tolist() == [253, 231, 37]


def test_points_are_marked_where_they_are_with_their_names():
    ax = plot_loss_surface(BOWL, X, Y, points=POINTS)
    assert [tuple(np.ravel(line.get_data())) for line in ax.lines] == list(POINTS.values())
    assert [text.get_text() for text in ax.texts] == list(POINTS)
    assert [text.xy for text in ax.texts] == list(POINTS.values())


@pytest.mark.parametrize("panels", [1, 2])
@pytest.mark.parametrize("width", [2.0, 5.0, 15.0])  # of the points; their height is 5
def test_names_of_points_overlap_nothing_and_stay_inside(panels, width):
    points = {"start": (0.1, 5), "task 1": (0, 0), "mean": (width / 2, 0), "task 2": (width, 0)}
    room = 0.2 * max(width, 5)
    x, y = np.linspace(-room, width + room, 21), np.linspace(-room, 5 + room, 17)
    figure = Figure(figsize=(5.2 * panels, 3.9 * panels), layout="constrained")
    ax = figure.subplots(panels, panels, squeeze=False)[0, 0]
    plot_loss_surface(BOWL, x, y, points=points, ax=ax)
    FigureCanvasAgg(ax.figure).draw()
    names = [text.get_tightbbox() for text in ax.texts]
    frame = ax.get_window_extent()
    assert not overlap([*names, *boxes(ax.lines)])
    assert all(frame.x0 <= box.x0 <= box.x1 <= frame.x1 for box in names)
    assert all(frame.y0 <= box.y0 <= box.y1 <= frame.y1 for box in names)
    assert ax.yaxis.label.get_window_extent().x0 >= 0
    bar = ax.figure.axes[-1]
    assert not overlap(boxes(bar.get_yticklabels()))


@pytest.mark.parametrize(
    ("losses", "x", "message"),
    [
        (BOWL.T, X, r"Expected `losses` to be of shape .* = \(17, 21\), .* got \(21, 17\)"),
        (BOWL[:, :1], X[:1], r"= \(17, 1\), each at least 2, got \(17, 1\)"),
        (-BOWL, X, "Expected `losses` to be cross-entropies of at least 0, got -"),
    ],
)
def test_surface_refuses_other_input(losses, x, message):
    with pytest.raises(ValueError, match=message):
        plot_loss_surface(losses, x, Y, points={})


def test_given_axes_are_drawn_on_and_pyplot_is_not_touched(tmp_path):
    before = plt.get_fignums()
    left, right = Figure(layout="constrained").subplots(1, 2)
    assert plot_linear_probe(PROBE, LABELS, ax=left) is left
    assert plot_loss_surface(BOWL, X, Y, points=POINTS, ax=right) is right
    left.figure.savefig(tmp_path / "both.pdf")
    assert plt.get_fignums() == before
