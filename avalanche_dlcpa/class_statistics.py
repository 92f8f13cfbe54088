"""Beyond the paper: means and one covariance of classes, summed up batch by batch, in float64.

Source: Chan, Golub and LeVeque, "Algorithms for Computing the Sample Variance".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

Key = TypeVar("Key", bound=Hashable)


@dataclasses.dataclass(frozen=True)
class ClassStatistics:
    """What Gaussian classes with one covariance need to know of all features seen; float64.

    Attributes:
        counts: Number of features of each class, (K,).
        means: Mean feature of each class, 0 for a class without any, (K, D).
        scatter: Sum of the outer products of all features with the means of their classes taken
            off, (D, D). Over the number of features it is the pooled within-class covariance.
    """

    counts: Tensor
    means: Tensor
    scatter: Tensor

    @property
    def num_features(self) -> int:
        """D, the length of a feature vector."""
        return self.means.shape[1]

    def to(self, device: torch.device | str) -> ClassStatistics:
        """The same statistics on a device."""
        parts = (self.counts, self.means, self.scatter)
        return ClassStatistics(*(part.to(device) for part in parts))

    def of_present(self) -> ClassStatistics:
        """Those of the classes that have a feature."""
        present = self.counts > 0
        return ClassStatistics(self.counts[present], self.means[present], self.scatter)


def class_statistics(features: Tensor, columns: Tensor, *, num_classes: int) -> ClassStatistics:
    """Statistics of a batch of features.

    Args:
        features: Of any floating dtype, (B, D).
        columns: The class of each, in 0 .. K - 1, (B,), int64.
        num_classes: K.

    Raises:
        ValueError: A feature that is NaN or infinite.

    Example:
        >>> found = class_statistics(torch.tensor([[1.0], [3.0], [7.0]]), torch.tensor([0, 0, 2]),
        ...                          num_classes=3)
        >>> found.means.flatten().tolist(), found.scatter.item()
        ([2.0, 0.0, 7.0], 2.0)
    """
    features = features.double()
    finite = features.isfinite().all(dim=1)
    if not finite.all():
        raise ValueError(
            f"Expected finite features, got NaN or infinite ones in {int((~finite).sum())} of "
            f"{len(features)}: look at the samples, or lower the learning rate."
        )
    # A product adds in the same order each time, as scattered sums on a GPU do not.
    members = F.one_hot(columns, num_classes).double()
    counts = members.sum(dim=0)
    means = members.T @ features / counts.clamp(min=1).unsqueeze(1)
    centred = features - means[columns]
    return ClassStatistics(counts, means, centred.T @ centred)


def merged(first: ClassStatistics, second: ClassStatistics) -> ClassStatistics:
    """Statistics of all features that two others come from; the K classes are the same.

    Example:
        >>> one = class_statistics(torch.tensor([[1.0]]), torch.tensor([0]), num_classes=1)
        >>> two = class_statistics(torch.tensor([[4.0]]), torch.tensor([0]), num_classes=1)
        >>> both = merged(one, two)
        >>> both.means.item(), both.scatter.item()
        (2.5, 4.5)
    """
    counts = first.counts + second.counts
    share = second.counts / counts.clamp(min=1)
    apart = second.means - first.means
    both = first.counts * second.counts > 0  # a batch has few of many classes
    between = apart[both].T @ ((first.counts * share)[both].unsqueeze(1) * apart[both])
    means = first.means + share.unsqueeze(1) * apart
    return ClassStatistics(counts, means, first.scatter + second.scatter + between)


def joined(
    first: ClassStatistics,
    first_keys: Sequence[Key],
    second: ClassStatistics,
    second_keys: Sequence[Key],
) -> tuple[ClassStatistics, list[Key]]:
    """Statistics of the classes of two others, which may have some in common.

    Args:
        first: Of k classes.
        first_keys: Their names, k different ones.
        second: Of other or the same classes.
        second_keys: Their names.

    Returns:
        The statistics, and the names of their K classes: those of the first, then what the second
        has beyond them.

    Example:
        >>> features = torch.tensor([[1.0], [5.0]])
        >>> one = class_statistics(features, torch.tensor([0, 1]), num_classes=2)
        >>> both, names = joined(one, ["cat", "dog"], one, ["dog", "owl"])
        >>> both.means.flatten().tolist(), names
        ([1.0, 3.0, 5.0], ['cat', 'dog', 'owl'])
    """
    keys = list(dict.fromkeys([*first_keys, *second_keys]))
    return merged(_among(first, first_keys, keys), _among(second, second_keys, keys)), keys


def _among(statistics: ClassStatistics, own: Sequence[Key], keys: Sequence[Key]) -> ClassStatistics:
    """The same statistics among more classes, of which the others have no features."""
    places = {key: place for place, key in enumerate(keys)}
    columns = torch.tensor([places[key] for key in own], dtype=torch.long)
    counts = statistics.counts.new_zeros(len(keys))
    means = statistics.means.new_zeros(len(keys), statistics.num_features)
    counts[columns], means[columns] = statistics.counts, statistics.means
    return ClassStatistics(counts, means, statistics.scatter)


def new_half(pairs: ClassStatistics) -> ClassStatistics:
    """Of statistics of old and new features side by side, (B, 2 D), those of the new ones."""
    size = pairs.num_features // 2
    return ClassStatistics(pairs.counts, pairs.means[:, size:], pairs.scatter[size:, size:])
