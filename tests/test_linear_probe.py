import copy
import dataclasses
import functools
import itertools
import json

import numpy as np
import pytest
import torch
from torch import nn

from avalanche_dlcpa.streams import split_digits
from benchmarks import linear_probe
from benchmarks.linear_probe import linear_probe_accuracy, probe_extractor_, probe_matrix
from benchmarks.networks import ThreeLayerCNN
from benchmarks.settings import SETTINGS
from benchmarks.single_task_training import flat_parameters, mean_extractor, train_single_tasks

DIGITS = dataclasses.replace(
    SETTINGS["digits"],
    make_network=functools.partial(ThreeLayerCNN, width=8),
    num_experiences=3,
    epochs=3,
)


def clusters(labels, *, num_features=5, scale=1.0, seed=0):
    """Features far apart for each class, in the first of `num_features` directions."""
    noise = np.random.default_rng(seed).normal(size=(len(labels), num_features))
    noise[:, 0] += 20 * np.asarray(labels)
    return scale * noise


def test_separable_features_are_all_told_apart_whatever_their_scale():
    train, test = np.arange(60) % 3, np.arange(30) % 3
    for scale in (1e-6, 1.0, 1e6):
        features = clusters(train, scale=scale), clusters(test, scale=scale, seed=1)
        assert linear_probe_accuracy(features[0], train, features[1], test) == 1.0


def test_features_without_information_are_near_chance():
    generator = np.random.default_rng(0)
    train, test = generator.normal(size=(2000, 4)), generator.normal(size=(2000, 4))
    labels = generator.integers(0, 4, size=(2, 2000))
    accuracy = linear_probe_accuracy(train, labels[0], test, labels[1])
    assert accuracy == pytest.approx(0.25, abs=0.05)


def test_accuracy_is_judged_on_the_test_features_as_a_fraction():
    train = np.arange(40) % 2
    wrong = np.array([0, 0, 0, 0, 1, 1, 1, 0])  # the last one lies among class 1
    lies_in = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    accuracy = linear_probe_accuracy(clusters(train), train, clusters(lies_in), wrong)
    assert accuracy == 7 / 8


def test_a_probe_that_needs_a_curve_fails():
    x = np.linspace(-1, 1, 201)[:, None]
    inside = (np.abs(x[:, 0]) < 0.5).astype(int)
    assert linear_probe_accuracy(x, inside, x, inside) < 0.6


def test_one_class_is_refused():
    with pytest.raises(ValueError, match=r"Expected `train_labels` to be of at least 2.*got \[4\]"):
        linear_probe_accuracy([[0.0], [1.0]], [4, 4], [[0.0]], [4])


def test_classes_of_another_task_are_refused():
    with pytest.raises(ValueError, match=r"Expected `test_labels` .*\[0, 1\].*got \[2\]"):
        linear_probe_accuracy([[0.0], [1.0]], [0, 1], [[0.0], [1.0]], [0, 2])


def test_rows_are_the_extractors_then_the_best_of_each_column_then_the_mean():
    own = [[0.9, 0.3, 0.7], [0.2, 0.8, 0.1], [0.4, 0.5, 0.6]]
    matrix = probe_matrix(own, [0.85, 0.75, 0.65])
    assert matrix.tolist() == [*own, [0.9, 0.8, 0.7], [0.85, 0.75, 0.65]]


@pytest.mark.parametrize(
    ("own", "mean", "message"),
    [
        ([[0.9, 0.3]], [0.5, 0.5], r"Expected `accuracies` to be of shape \(T, T\)"),
        ([[90.0]], [0.5], r"Expected `accuracies` to be fractions in \[0, 1\], got 90"),
        ([[0.9]], [50], r"Expected `mean` to be fractions in \[0, 1\], got 50"),
        ([[0.9]], [0.5, 0.5], r"Expected `mean` to be of shape \(1,\), .* got \(2,\)"),
    ],
)
def test_other_matrices_are_refused(own, mean, message):
    with pytest.raises(ValueError, match=message):
        probe_matrix(own, mean)


def test_the_mean_extractor_has_the_mean_of_the_parameters_and_leaves_the_others_alone():
    extractors = [nn.Linear(3, 2) for _ in range(3)]
    before = copy.deepcopy(extractors)
    mean = mean_extractor(extractors)
    expected = torch.stack([layer.weight for layer in before]).mean(0)
    assert torch.allclose(mean.weight, expected, atol=1e-7)
    for extractor, old in zip(extractors, before, strict=True):
        assert torch.equal(flat_parameters(extractor), flat_parameters(old))


def test_a_probe_does_not_depend_on_the_statistics_that_an_extractor_comes_with():
    stream = split_digits(5)
    experiences = stream.train_stream[0], stream.test_stream[0]
    one = ThreeLayerCNN(width=4).features
    other = copy.deepcopy(one)
    for layer in other:
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean.fill_(1e4)  # every ReLU behind it would be 0
    accuracies = [
        probe_extractor_(e, *experiences, device=torch.device("cpu")) for e in (one, other)
    ]
    assert accuracies[0] == accuracies[1] > 0.9


@pytest.fixture(scope="module")
def result():
    return linear_probe.run(DIGITS, seed=1, lr=0.02)


def test_a_run_on_digits_gives_the_whole_figure(result):
    matrix = np.array(result["matrix"])
    assert matrix.shape == (5, 3)
    assert result["row_labels"] == ["task 1", "task 2", "task 3", "STL", "STL-me"]
    assert result["column_labels"] == ["task 1", "task 2", "task 3"]
    assert len(result["axes"]) == 2
    assert np.array_equal(matrix[3], matrix[:3].max(axis=0))
    assert matrix.diagonal().min() > 0.9  # two digits each, with the extractor trained on them
    assert matrix[4].min() > 0.8
    assert json.loads(json.dumps(result)) == result


def test_the_numbers_of_a_run_are_those_of_its_extractors(result):
    learned = train_single_tasks(
        DIGITS, seed=1, ssl=None, dataset_root=None, device="cpu", num_experiences=3, lr=0.02
    )
    stream = learned.stream
    for row, extractor in zip(result["matrix"], learned.extractors, strict=False):
        for task, accuracy in enumerate(row):
            experiences = stream.train_stream[task], stream.test_stream[task]
            alone = probe_extractor_(extractor, *experiences, device=torch.device("cpu"))
            assert alone == accuracy
    vectors = [flat_parameters(e) for e in [learned.start, *learned.extractors]]
    assert all(not torch.equal(a, b) for a, b in itertools.pairwise(vectors))


def test_the_self_supervised_loss_changes_what_is_learned():
    words = {"seed": 1, "dataset_root": None, "device": "cpu", "num_experiences": 1, "lr": 0.02}
    short = dataclasses.replace(DIGITS, epochs=1)
    plain, again = (train_single_tasks(short, ssl=None, **words).extractors[0] for _ in range(2))
    both = train_single_tasks(short, ssl="simclr", **words).extractors[0]
    assert torch.equal(flat_parameters(plain), flat_parameters(again))
    assert not torch.equal(flat_parameters(plain), flat_parameters(both))
