import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from avalanche_dlcpa.class_statistics import ClassStatistics, class_statistics, joined, merged


def cloud(num, num_features=5, num_classes=4, seed=0):
    """Features far from 0, as those after a ReLU are, of classes of which one has none."""
    generator = torch.Generator().manual_seed(seed)
    features = 3 + torch.randn(num, num_features, generator=generator)
    columns = torch.randint(0, num_classes - 1, (num,), generator=generator)
    return features + columns.unsqueeze(1), columns


def by_hand(features, columns, num_classes):
    """Means and scatter in NumPy, class by class and image by image."""
    features = features.double().numpy()
    means, scatter = [], 0
    for k in range(num_classes):
        own = features[(columns == k).numpy()]
        mean = own.mean(axis=0) if len(own) else 0 * features[0]
        means.append(torch.from_numpy(mean))
        for row in own:
            difference = (row - mean)[:, None]
            scatter = scatter + difference @ difference.T
    return torch.stack(means), torch.as_tensor(scatter)


def assert_same(actual, expected):
    for name in ("counts", "means", "scatter"):
        ours, theirs = getattr(actual, name), getattr(expected, name)
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def test_statistics_are_those_by_hand():
    features, columns = cloud(50)
    found = class_statistics(features, columns, num_classes=4)
    means, scatter = by_hand(features, columns, 4)
    assert found.counts.tolist() == [(columns == k).sum().item() for k in range(4)]
    assert found.counts[3] == 0
    torch.testing.assert_close(found.means, means)
    torch.testing.assert_close(found.scatter, scatter)
    assert {part.dtype for part in vars(found).values()} == {torch.float64}


@settings(max_examples=50, deadline=None)
@given(
    cuts=st.lists(st.integers(0, 40), max_size=6),
    order=st.randoms(use_true_random=False),
    seed=st.integers(0, 1000),
)
def test_the_order_of_images_and_where_batches_end_do_not_matter(cuts, order, seed):
    features, columns = cloud(40, seed=seed)
    whole = class_statistics(features, columns, num_classes=4)
    shuffled = list(range(40))
    order.shuffle(shuffled)
    ends = [0, *sorted(cuts), 40]
    parts = [shuffled[a:b] for a, b in itertools.pairwise(ends)]  # some are empty
    batches = [class_statistics(features[p], columns[p], num_classes=4) for p in parts]
    order.shuffle(batches)
    total = batches[0]
    for batch in batches[1:]:
        total = merged(total, batch)
    assert_same(total, whole)


@settings(max_examples=30, deadline=None)
@given(order=st.permutations(range(4)), seed=st.integers(0, 1000))
def test_the_numbers_of_the_classes_do_not_matter(order, seed):
    features, columns = cloud(40, seed=seed)
    plain = class_statistics(features, columns, num_classes=4)
    other = class_statistics(features, torch.tensor(order)[columns], num_classes=4)
    assert_same(
        ClassStatistics(other.counts[list(order)], other.means[list(order)], other.scatter), plain
    )


def test_a_large_mean_costs_no_accuracy():
    features, columns = cloud(40)
    far = features.double() + 1e6
    found = class_statistics(far[:20], columns[:20], num_classes=4)
    found = merged(found, class_statistics(far[20:], columns[20:], num_classes=4))
    near = class_statistics(features, columns, num_classes=4)
    torch.testing.assert_close(found.scatter, near.scatter, rtol=1e-8, atol=1e-8)


def test_classes_of_two_are_joined_by_their_names():
    features, columns = cloud(60, num_classes=5)
    names = torch.tensor([7, 3, 9, 1])[columns]
    early, late = columns < 3, columns > 0  # classes 3 and 9 come twice, of other images
    early, late = early & (torch.arange(60) < 40), late & (torch.arange(60) >= 40)
    first = class_statistics(features[early], columns[early], num_classes=3)
    second = class_statistics(features[late], columns[late] - 1, num_classes=3)
    both, keys = joined(first, [7, 3, 9], second, [3, 9, 1])
    assert keys == [7, 3, 9, 1]
    used = early | late
    assert_same(both, class_statistics(features[used], columns[used], num_classes=4))
    for k, name in enumerate(keys):
        expected = features[used & (names == name)].double().mean(dim=0)
        torch.testing.assert_close(both.means[k], expected)


def test_classes_without_features_are_left_out():
    features, columns = cloud(30)
    present = class_statistics(features, columns, num_classes=4).of_present()
    assert_same(present, class_statistics(features, columns, num_classes=3))


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_features_that_are_not_finite_are_refused(wrong):
    features, columns = cloud(10)
    features[3, 2] = features[7, 1] = wrong
    with pytest.raises(ValueError, match=r"Expected finite features, got .* in 2 of 10"):
        class_statistics(features, columns, num_classes=4)
