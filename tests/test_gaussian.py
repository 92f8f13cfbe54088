import math
import statistics
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge
from test_class_statistics import cloud
from torch import nn

from avalanche_dlcpa.class_statistics import ClassStatistics, class_statistics, new_half
from avalanche_dlcpa.gaussian import (
    DriftMap,
    drift_map,
    followed,
    linear_discriminants,
    moved,
    ridge_of,
    shrinkage_of,
)
from avalanche_dlcpa.task_classifiers import frozen_classifiers


def posteriors(layer, features):
    weight, bias = layer
    return torch.softmax(features.double() @ weight.T + bias, dim=1)


def of_classes(features, columns):
    return class_statistics(features, columns, num_classes=int(columns.max()) + 1)


def pairs_of(old, new):
    """Statistics of old and new features side by side, of one class."""
    columns = torch.zeros(len(old), dtype=torch.long)
    return class_statistics(torch.cat([old, new], dim=1), columns, num_classes=1)


# Discriminant analysis ---------------------------------------------------------------------------


@pytest.mark.parametrize("solver", ["lsqr", "eigen"])
@pytest.mark.parametrize("shrinkage", [0.0, 0.01, 0.3, 1.0])
@pytest.mark.parametrize("num_classes", [2, 3, 7])
def test_posteriors_are_those_of_scikit_learn(solver, shrinkage, num_classes):
    features, columns = cloud(12 * num_classes, num_classes=num_classes + 1)
    columns = torch.arange(12 * num_classes) % num_classes  # as many of each
    theirs = LinearDiscriminantAnalysis(solver=solver, shrinkage=shrinkage)
    theirs.fit(features.double().numpy(), columns.numpy())
    test, _ = cloud(20, seed=1)
    expected = torch.from_numpy(theirs.predict_proba(test.double().numpy()))
    ours = linear_discriminants(of_classes(features, columns), shrinkage=shrinkage)
    torch.testing.assert_close(posteriors(ours, test), expected, rtol=1e-8, atol=1e-10)


def test_with_uneven_classes_it_differs_from_scikit_learn_by_the_priors_alone():
    features, columns = cloud(60)
    statistics_ = of_classes(features, columns)
    theirs = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.2)
    theirs.fit(features.double().numpy(), columns.numpy())
    weight, bias = linear_discriminants(statistics_, shrinkage=0.2)
    bias = bias + (statistics_.counts / 60).log()
    expected = torch.from_numpy(theirs.predict_proba(features.double().numpy()))
    torch.testing.assert_close(posteriors((weight, bias), features), expected)


def test_posteriors_are_those_of_gaussian_densities():
    features, columns = cloud(50)
    found = of_classes(features, columns)
    covariance = 0.7 * found.scatter / 50
    covariance += 0.3 * torch.trace(found.scatter / 50) / 5 * torch.eye(5).double()
    densities = torch.stack(
        [
            torch.distributions.MultivariateNormal(mean, covariance).log_prob(features.double())
            for mean in found.means
        ],
        dim=1,
    )
    ours = posteriors(linear_discriminants(found, shrinkage=0.3), features)
    torch.testing.assert_close(ours, torch.softmax(densities, dim=1))


def test_a_rare_class_is_as_likely_as_a_frequent_one():
    columns = torch.tensor([0] * 100 + [1] * 4)
    features = torch.randn(104, 2, generator=torch.Generator().manual_seed(0))
    features[columns == 1] += 5
    found = of_classes(features, columns)
    between = found.means.mean(dim=0, keepdim=True)
    ours = posteriors(linear_discriminants(found, shrinkage=0.1), between)
    torch.testing.assert_close(ours, torch.full((1, 2), 0.5).double())


def test_full_shrinkage_is_the_nearest_class_mean():
    features, columns = cloud(60)
    found = of_classes(features, columns)
    weight, bias = linear_discriminants(found, shrinkage=1.0)
    nearest = torch.cdist(features.double(), found.means).argmin(dim=1)
    assert torch.equal((features.double() @ weight.T + bias).argmax(dim=1), nearest)


@pytest.mark.parametrize("num", [1, 2, 6])
def test_fewer_images_than_dimensions(num):
    generator = torch.Generator().manual_seed(0)
    columns = torch.arange(2 * num) % 2
    features = torch.randn(2 * num, 20, generator=generator)
    features[:, 0] = 10.0 * columns
    weight, bias = linear_discriminants(of_classes(features, columns), shrinkage=0.1)
    assert weight.isfinite().all()
    assert torch.equal((features.double() @ weight.T + bias).argmax(dim=1), columns)


def test_one_class_always_wins_and_equal_features_are_at_their_mean():
    features = torch.ones(3, 4)
    weight, bias = linear_discriminants(of_classes(features, torch.tensor([0, 0, 0])), shrinkage=1)
    assert weight.tolist() == [[0.0] * 4]
    assert bias.tolist() == [0.0]


def test_dead_features_do_no_harm():
    features, columns = cloud(60)
    dead = torch.cat([features, torch.zeros(60, 2)], dim=1)
    weight, _ = linear_discriminants(of_classes(dead, columns), shrinkage=0.1)
    assert weight.isfinite().all()
    assert weight[:, 5:].abs().max() < 1e-12


def test_without_shrinkage_too_few_images_are_refused():
    columns = torch.tensor([0, 0, 1, 1])
    features = torch.eye(8)[:4]
    with pytest.raises(ValueError, match=r"Expected a `shrinkage` .* 8 dimensions"):
        linear_discriminants(of_classes(features, columns), shrinkage=0.0)


# The map -----------------------------------------------------------------------------------------


def linear_drift(size=5, seed=3):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.eye(size) + 0.3 * torch.randn(size, size, generator=generator)
    bias = torch.randn(size, generator=generator).double()
    return DriftMap(weight.double(), bias, torch.zeros(size, size).double())


def apply(drift, features):
    return features.double() @ drift.weight.T + drift.bias


def test_a_linear_drift_is_found_and_moves_the_statistics_exactly():
    drift = linear_drift()
    old_images, columns = cloud(60)
    images, _ = cloud(40, seed=1)
    found = drift_map(pairs_of(images.double(), apply(drift, images)), ridge=1e-12)
    torch.testing.assert_close(found.weight, drift.weight, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(found.bias, drift.bias, rtol=1e-6, atol=1e-8)
    assert found.residual.abs().max() < 1e-9
    ours = moved(of_classes(old_images, columns), found)
    expected = of_classes(apply(drift, old_images), columns)
    torch.testing.assert_close(ours.means, expected.means, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(ours.scatter, expected.scatter, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("ridge", [1e-3, 0.1, 10.0])
def test_it_is_ridge_regression_of_the_drift(ridge):
    old, new = cloud(40)[0].double(), cloud(40, seed=5)[0].double()
    found = drift_map(pairs_of(old, new), ridge=ridge)
    strength = ridge * ((old - old.mean(0)) ** 2).sum(0).mean().item()
    theirs = Ridge(alpha=strength).fit(old.numpy(), (new - old).numpy())
    identity = torch.eye(5).double()
    torch.testing.assert_close(found.weight, identity + torch.from_numpy(theirs.coef_))
    torch.testing.assert_close(found.bias, torch.from_numpy(theirs.intercept_))


@pytest.mark.parametrize("ridge", [0.1, math.inf])
def test_the_residual_is_the_covariance_of_what_the_map_leaves(ridge):
    old, new = cloud(40)[0].double(), cloud(40, seed=5)[0].double()
    found = drift_map(pairs_of(old, new), ridge=ridge)
    left = (new - apply(found, old)).numpy()
    torch.testing.assert_close(found.residual, torch.from_numpy(np.cov(left.T, bias=True)))


def test_the_covariance_follows_a_drift_that_is_not_linear():
    generator = torch.Generator().manual_seed(0)

    def features(num):
        old = torch.randn(num, 3, generator=generator).double()
        noise = torch.randn(num, 3, generator=generator).double()
        return old, apply(linear_drift(3), old) + noise * torch.tensor([0.1, 1.0, 3.0])

    found = drift_map(pairs_of(*features(20_000)), ridge=1e-9)
    old, new = (of_classes(part, torch.zeros(5000).long()) for part in features(5000))
    follows = moved(old, found).scatter / 5000
    torch.testing.assert_close(follows, new.scatter / 5000, rtol=0.1, atol=0.15)


def test_classes_do_not_matter_to_the_map():
    old, columns = cloud(40)
    new = cloud(40, seed=5)[0]
    both = class_statistics(torch.cat([old, new], dim=1), columns, num_classes=4)
    one, other = drift_map(pairs_of(old, new), ridge=0.1), drift_map(both, ridge=0.1)
    torch.testing.assert_close(one.weight, other.weight)
    torch.testing.assert_close(one.bias, other.bias)


def test_the_unit_of_the_features_does_not_matter():
    old, new = cloud(40)[0].double(), cloud(40, seed=5)[0].double()
    plain = drift_map(pairs_of(old, new), ridge=0.1)
    scaled = drift_map(pairs_of(1000 * old, 1000 * new), ridge=0.1)
    torch.testing.assert_close(scaled.weight, plain.weight)


def test_directions_that_the_images_do_not_show_stay_as_they_are():
    old = torch.zeros(30, 4)
    old[:, 0] = torch.randn(30, generator=torch.Generator().manual_seed(0))
    found = drift_map(pairs_of(old, 2 * old), ridge=1e-9)
    torch.testing.assert_close(found.weight, torch.diag(torch.tensor([2.0, 1, 1, 1])).double())


@pytest.mark.parametrize("num", [1, 3])
def test_fewer_images_than_dimensions_still_give_a_map(num):
    old = torch.randn(num, 8, generator=torch.Generator().manual_seed(0)).double()
    found = drift_map(pairs_of(old, old + 1), ridge=0.1)
    torch.testing.assert_close(apply(found, old), old + 1)


def test_without_ridge_directions_that_do_not_show_are_refused():
    old = torch.zeros(30, 4)
    old[:, 0] = torch.arange(30)
    with pytest.raises(ValueError, match=r"Expected a `ridge` .* 4 dimensions"):
        drift_map(pairs_of(old, 2 * old), ridge=0.0)


def test_a_single_image_moves_by_its_drift():
    old = torch.arange(4.0).unsqueeze(0)
    found = drift_map(pairs_of(old, 3 * old), ridge=0.1)
    assert torch.equal(found.weight, torch.eye(4).double())
    assert torch.equal(found.bias, 2 * old[0].double())


def test_an_infinite_ridge_is_the_drift_of_the_means():
    old, new = cloud(40)[0].double(), cloud(40, seed=5)[0].double()
    found = drift_map(pairs_of(old, new), ridge=math.inf)
    assert torch.equal(found.weight, torch.eye(5).double())
    torch.testing.assert_close(found.bias, (new - old).mean(dim=0))
    nearly = drift_map(pairs_of(old, new), ridge=1e9)
    torch.testing.assert_close(nearly.bias, found.bias, rtol=1e-6, atol=1e-6)


# Streams of experiences --------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sets(st.integers(0, 5), min_size=1), min_size=1, max_size=5))
def test_under_linear_drift_all_that_was_seen_counts_as_if_seen_today(tasks):
    generator = torch.Generator().manual_seed(1)
    history, known, keys = [], None, []  # history: all features so far, in today's space
    for step, classes in enumerate(tasks):
        labels = torch.tensor(sorted(classes)).repeat(30)
        old = labels.unsqueeze(1) + torch.randn(len(labels), 4, generator=generator).double()
        columns = torch.searchsorted(torch.tensor(sorted(classes)), labels)
        drift = linear_drift(4, seed=step)
        new = apply(drift, old)
        pairs = class_statistics(torch.cat([old, new], 1), columns, num_classes=len(classes))
        history = [(apply(drift, features), names) for features, names in history]
        history.append((new, labels))
        found = new_half(pairs) if known is None else pairs
        known, keys = followed(known, keys, found, sorted(classes), map_prior=1e-12)
    features, names = (torch.cat(part) for part in zip(*history, strict=True))
    columns = torch.tensor([keys.index(name) for name in names.tolist()])
    oracle = class_statistics(features, columns, num_classes=len(keys))
    assert torch.equal(known.counts, oracle.counts)
    torch.testing.assert_close(known.means, oracle.means, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(known.scatter, oracle.scatter, rtol=1e-5, atol=1e-4)


def test_without_a_map_old_statistics_stay_as_they_are():
    old, columns = cloud(40)
    first = of_classes(old, columns)
    pairs = class_statistics(torch.cat([old, 2 * old], 1), 0 * columns, num_classes=1)
    both, keys = followed(first, ["a", "b", "c"], pairs, ["d"], map_prior=None)
    assert keys == ["a", "b", "c", "d"]
    assert torch.equal(both.means[:3], first.means)
    torch.testing.assert_close(both.means[3], 2 * old.double().mean(0))


def test_priors_are_images_beside_those_that_were_seen():
    old, columns = cloud(100)
    statistics, (num_images, size) = of_classes(old, columns), old.shape
    assert size == 5
    sphere = torch.eye(size).double() * statistics.scatter.diagonal().mean() / num_images
    more = ClassStatistics(
        torch.tensor([3.0 * size]).double(), torch.zeros(1, size).double(), 3 * size * sphere
    )
    pooled = (statistics.scatter + more.scatter) / (num_images + 3 * size)
    shrinkage = shrinkage_of(statistics, prior=3.0)
    covariance = statistics.scatter / num_images
    torch.testing.assert_close((1 - shrinkage) * covariance + shrinkage * sphere, pooled)
    assert shrinkage_of(statistics, prior=math.inf) == 1.0
    assert shrinkage_of(statistics, prior=1e-9) == pytest.approx(0, abs=1e-8)

    pairs = pairs_of(old, 2 * old + 1)
    deviation = (old - old.mean(0)).square().mean().sqrt()
    still = deviation * math.sqrt(size) * torch.eye(size)  # on every axis as much as an image
    both = torch.cat([still, -still]).double() + old.mean(0)  # 2 D images that do not move, twice
    weights = torch.cat([torch.ones(num_images), torch.full((2 * size,), 0.75)]).double().sqrt()
    before = torch.cat([old.double(), both]) - old.double().mean(0)
    after = torch.cat([2 * (old.double() - old.double().mean(0)), both - old.mean(0)])
    expected = torch.linalg.lstsq(weights.unsqueeze(1) * before, weights.unsqueeze(1) * after)
    found = drift_map(pairs, ridge=ridge_of(pairs, prior=1.5))
    torch.testing.assert_close(found.weight, expected.solution.T, rtol=1e-4, atol=1e-5)
    assert ridge_of(pairs, prior=math.inf) == math.inf


# Cost --------------------------------------------------------------------------------------------


def milliseconds(function):
    times = []
    for _ in range(30):
        start = time.process_time()
        function()
        times.append(1000 * (time.process_time() - start))
    return statistics.median(times)


def test_it_answers_as_fast_as_a_linear_layer():
    num_classes, num_features = 1000, 512
    columns = torch.arange(2 * num_classes) % num_classes
    features = torch.randn(2 * num_classes, num_features)
    weight, bias = linear_discriminants(of_classes(features, columns), shrinkage=0.1)
    keys = torch.tensor([(0, k) for k in range(num_classes)])
    classifier = frozen_classifiers(
        {"layers.0.weight": weight.float(), "layers.0.bias": bias.float(), "keys": keys}
    )
    plain, batch = nn.Linear(num_features, num_classes), features[:256]
    with torch.no_grad():
        torch.testing.assert_close(
            classifier(batch).double(), batch.double() @ weight.T + bias, rtol=1e-4, atol=1e-2
        )
        ours = milliseconds(lambda: classifier(batch))
        theirs = milliseconds(lambda: plain(batch))
    assert ours < 1.5 * theirs + 0.5
