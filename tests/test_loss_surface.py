import copy
import dataclasses
import functools
import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim.swa_utils import update_bn
from torch.utils.data import DataLoader

from avalanche_dlcpa.streams import split_digits
from benchmarks import loss_surface
from benchmarks.loss_surface import loss_at_, loss_surface_, task_of
from benchmarks.networks import ThreeLayerCNN
from benchmarks.plane import coordinates, grid_axes, plane_axes, point_at
from benchmarks.settings import SETTINGS
from benchmarks.single_task_training import (
    flat_parameters,
    set_flat_parameters_,
    train_single_tasks,
)

DIGITS = dataclasses.replace(
    SETTINGS["digits"],
    make_network=functools.partial(ThreeLayerCNN, width=8),
    num_experiences=2,
    epochs=3,
)

# Three points in general position: seeds of random ones, at any place and scale.
general = st.tuples(
    st.integers(0, 10**6), st.integers(3, 40), st.floats(1e-3, 1e3), st.floats(-1e3, 1e3)
)
numbers = st.floats(-100, 100)


def three_points(seed, num_parameters, scale, shift):
    generator = torch.Generator().manual_seed(seed)
    return shift + scale * torch.randn(3, num_parameters, generator=generator).double()


@settings(max_examples=60, deadline=None)
@given(general)
def test_the_axes_are_orthonormal(words):
    _, u, v = plane_axes(*three_points(*words))
    axes = torch.stack([u, v])
    assert torch.allclose(axes @ axes.T, torch.eye(2).double(), atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(general)
def test_the_three_points_are_where_their_coordinates_say(words):
    points = three_points(*words)
    plane = plane_axes(*points)
    length = (points[1:] - points[0]).norm(dim=1)
    places = [coordinates(point, plane) for point in points]
    for point, (x, y) in zip(points, places, strict=True):
        assert torch.allclose(point_at(x, y, plane), point, rtol=1e-12, atol=1e-9 * words[2])
    assert places[0] == (0, 0)
    assert places[1] == pytest.approx((float(length[0]), 0), abs=1e-9 * words[2])
    assert places[2][1] > 0
    assert np.hypot(*places[2]) == pytest.approx(float(length[1]))  # distances are kept


@settings(max_examples=60, deadline=None)
@given(general, numbers, numbers)
def test_coordinates_undo_point_at_and_ignore_what_lies_beside_the_plane(words, x, y):
    plane = plane_axes(*three_points(*words))
    generator = torch.Generator().manual_seed(1)
    beside = torch.randn(len(plane.u), generator=generator).double()
    beside -= (beside @ plane.u) * plane.u + (beside @ plane.v) * plane.v
    point = point_at(x, y, plane) + beside
    assert coordinates(point, plane) == pytest.approx((x, y), abs=1e-8)


def test_the_axes_are_those_of_gram_and_schmidt():
    first, second, third = three_points(3, 10, 1.0, 0.0)
    origin, u, v = plane_axes(first, second, third)
    assert torch.equal(origin, first)
    expected_u = (second - first) / (second - first).norm()
    rest = (third - first) - ((third - first) @ expected_u) * expected_u
    assert torch.allclose(u, expected_u)
    assert torch.allclose(v, rest / rest.norm())


@pytest.mark.parametrize(
    "points",
    [
        [[0.0, 0, 0], [1, 1, 1], [3, 3, 3]],
        [[1.0, 2, 3], [1, 2, 3], [0, 0, 1]],
        [[1.0, 2, 3], [0, 0, 1], [1, 2, 3]],
        [[0.0, 0, 0], [float("nan"), 1, 1], [1, 0, 0]],
    ],
)
def test_points_that_span_no_plane_are_refused(points):
    with pytest.raises(ValueError, match="Expected the three points to span a plane, got points"):
        plane_axes(*torch.tensor(points).double())


def test_the_grid_leaves_the_same_room_on_all_sides_of_the_points():
    x, y = grid_axes([(1.0, 0.0), (-3.0, 0.5), (0.0, 1.0)], resolution=5, margin=0.25)
    assert x == pytest.approx([-4, -2.5, -1, 0.5, 2])
    assert y == pytest.approx([-1, -0.25, 0.5, 1.25, 2])


def test_a_grid_of_one_point_is_refused():
    with pytest.raises(ValueError, match="Expected `resolution` to be at least 2, got 1"):
        grid_axes([(0.0, 0.0), (1.0, 1.0)], resolution=1, margin=0.2)


def test_parameters_go_round_in_their_dtype():
    one, other = ThreeLayerCNN(width=2), ThreeLayerCNN(width=2)
    set_flat_parameters_(other, flat_parameters(one))
    for ours, theirs in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(ours, theirs)
        assert theirs.dtype == torch.float32


def digits_task(index=1, *, num_experiences=2, extractor=None):
    stream = split_digits(num_experiences, validation_fraction=0.1)
    network = ThreeLayerCNN(width=4)
    classifier = nn.Linear(32, 10 // num_experiences)
    task = task_of(stream.train_stream[index], stream.valid_stream[index], classifier)
    return stream, network.features, task


def direct_loss(extractor, stream, index, classifier):
    """Recalibrated, then the mean over single images of the cross-entropy: another way round."""
    extractor = copy.deepcopy(extractor)
    images = torch.stack([sample[0] for sample in stream.train_stream[index].dataset.eval()])
    update_bn(DataLoader(images, batch_size=len(images)), extractor)
    extractor.eval()
    classes = sorted(stream.train_stream[index].classes_in_this_experience)
    losses = []
    with torch.no_grad():
        for image, label, *_ in stream.valid_stream[index].dataset.eval():
            logits = classifier(extractor(image[None]))
            losses.append(F.cross_entropy(logits, torch.tensor([classes.index(label)])))
    return float(torch.stack(losses).mean())


def test_targets_are_the_columns_of_the_tasks_classes():
    _, _, task = digits_task(1)  # digits 5 to 9
    assert set(task.targets.tolist()) == {0, 1, 2, 3, 4}
    assert len(task.images) == len(task.targets) > 50


def test_calibration_images_are_spread_over_the_training_images(monkeypatch):
    monkeypatch.setattr(loss_surface, "CALIBRATION_IMAGES", 40)
    stream, _, task = digits_task(0)
    training = stream.train_stream[0].dataset.eval()
    assert len(task.calibration) == 40
    assert torch.equal(task.calibration[0][0], training[0][0])
    assert torch.equal(task.calibration[39][0], training[len(training) - 1][0])
    assert set(task.calibration.targets) == {0, 1, 2, 3, 4}


def test_the_loss_at_a_networks_parameters_is_that_of_the_network(monkeypatch):
    monkeypatch.setattr(loss_surface, "BATCH_SIZE", 10_000)
    monkeypatch.setattr(loss_surface, "CALIBRATION_IMAGES", 10_000)
    stream, extractor, task = digits_task(1)
    expected = direct_loss(extractor, stream, 1, task.classifier)
    scratch = ThreeLayerCNN(width=4).features
    for layer in scratch:
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean.fill_(7.0)  # statistics are those of the point, not of the scratch
    loss = loss_at_(scratch, flat_parameters(extractor), task)
    assert loss == pytest.approx(expected, rel=1e-4)


def test_the_surface_at_the_coordinates_of_three_networks_has_their_losses():
    _, _, task = digits_task(0)
    networks = [ThreeLayerCNN(width=4).features for _ in range(3)]
    vectors = [flat_parameters(network) for network in networks]
    plane = plane_axes(*vectors)
    places = [coordinates(vector, plane) for vector in vectors]
    x, y = [x for x, _ in places], [y for _, y in places]
    scratch = copy.deepcopy(networks[0])
    surface = loss_surface_(scratch, plane, x, y, task)
    alone = [loss_at_(scratch, vector, task) for vector in vectors]
    assert surface.diagonal() == pytest.approx(alone, rel=1e-4)
    assert len({round(loss, 3) for loss in alone}) == 3
    assert surface[0, 1] == pytest.approx(alone[1], rel=1e-4)  # row y = 0 holds the second point
    assert surface[1, 2] != pytest.approx(alone[2], rel=1e-2)  # below the third, at y = 0


@pytest.fixture(scope="module")
def result():
    return loss_surface.run(DIGITS, seed=1, resolution=4, lr=0.02)


def test_a_run_on_digits_gives_both_surfaces(result):
    assert result["losses"].keys() == {"task 1", "task 2"}
    for losses in result["losses"].values():
        assert np.shape(losses) == (4, 4)
        assert np.isfinite(losses).all()
    assert len(result["x"]) == len(result["y"]) == 4
    points = result["points"]
    assert points["task 1"] == [0, 0]
    assert points["task 2"][1] == pytest.approx(0, abs=1e-6)
    assert points["mean"] == pytest.approx([points["task 2"][0] / 2, 0], abs=1e-6)
    assert points["start"][1] > 0
    for x, y in points.values():
        assert result["x"][0] < x < result["x"][-1]
        assert result["y"][0] < y < result["y"][-1]
    assert json.loads(json.dumps(result)) == result


def test_each_task_is_best_at_its_own_extractor_and_worst_at_the_start(result):
    for name, losses in result["losses_at_points"].items():
        assert losses.keys() == {"start", "task 1", "mean", "task 2"}
        assert min(losses, key=losses.get) == name
        assert max(losses, key=losses.get) == "start"
        assert losses[name] < 0.2


def test_the_losses_of_a_run_are_those_of_what_stl_learned(result):
    learned = train_single_tasks(
        DIGITS,
        seed=1,
        ssl=None,
        dataset_root=None,
        device="cpu",
        num_experiences=2,
        validation_fraction=0.1,
        lr=0.02,
    )
    for index, (extractor, classifier) in enumerate(
        zip(learned.extractors, learned.classifiers, strict=True)
    ):
        name = f"task {index + 1}"
        expected = direct_loss(extractor, learned.stream, index, classifier)
        # Calibrated on whole batches of all but the last images, and not on all at once.
        assert result["losses_at_points"][name][name] == pytest.approx(expected, abs=0.05)
