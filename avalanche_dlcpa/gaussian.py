"""Beyond the paper: Gaussian classes that are computed, and follow the features when these move.

The map from one feature space to another, and linear discriminant analysis, in float64. Source:
Gomez-Villa et al., "Exemplar-Free Continual Representation Learning via Learnable Drift
Compensation" (the map); Hastie, Tibshirani and Friedman, "The Elements of Statistical Learning",
Sec. 4.3 (discriminant analysis).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from avalanche_dlcpa.class_statistics import ClassStatistics, Key, joined, new_half


@dataclasses.dataclass(frozen=True)
class DriftMap:
    """An affine map from old features to new ones.

    Attributes:
        weight: (D, D).
        bias: (D,).
        residual: Covariance of what the map leaves of the new features, (D, D).
    """

    weight: Tensor
    bias: Tensor
    residual: Tensor


def drift_map(pairs: ClassStatistics, *, ridge: float) -> DriftMap:
    """Fit the map from old features x to new ones y of the same images, by ridge regression.

    Minimises ``sum |W x + b - y|^2 + ridge * s * |W - I|^2`` over the images, where s is the sum of
    squared deviations of the old features from their mean, averaged over the D dimensions, so that
    ``ridge`` has no unit. In directions that the images do not show nothing is changed but by the
    bias. With ``ridge=math.inf``, and where all old features are equal, W = I: the drift is the
    difference of the means.

    Args:
        pairs: Statistics of old and new features side by side, (B, 2 D).
        ridge: At least 0.

    Raises:
        ValueError: ``ridge`` of 0 (or next to it) with fewer images than dimensions.

    Example:
        >>> from avalanche_dlcpa.class_statistics import class_statistics
        >>> x = torch.tensor([[0.0], [1.0], [2.0]])
        >>> pairs = torch.cat([x, 2 * x + 1], dim=1)
        >>> drift = drift_map(class_statistics(pairs, torch.tensor([0, 0, 0]), num_classes=1),
        ...                   ridge=0.0)
        >>> round(drift.weight.item(), 6), round(drift.bias.item(), 6)
        (2.0, 1.0)
    """
    size = pairs.num_features // 2
    mean = pairs.counts @ pairs.means / pairs.counts.sum()
    apart = pairs.means - mean
    scatter = pairs.scatter + apart.T @ (pairs.counts.unsqueeze(1) * apart)
    old, cross = scatter[:size, :size], scatter[size:, :size]
    scale = old.diagonal().mean()
    weight = identity = torch.eye(size, dtype=old.dtype, device=old.device)
    if ridge < math.inf and scale > 0:
        factor = _cholesky(old + ridge * scale * identity, "ridge")
        weight = identity + torch.cholesky_solve((cross - old).T, factor).T
    remainder = torch.cat([-weight, identity], dim=1)  # of old and new features side by side
    residual = remainder @ scatter @ remainder.T / pairs.counts.sum()
    return DriftMap(weight, mean[size:] - weight @ mean[:size], residual)


def moved(statistics: ClassStatistics, drift: DriftMap) -> ClassStatistics:
    """The statistics that the new features would have, if the map leaves of each what it left here.

    The covariance of the mapped features alone is that of the new ones without their residual.
    """
    scatter = drift.weight @ statistics.scatter @ drift.weight.T
    return ClassStatistics(
        statistics.counts,
        statistics.means @ drift.weight.T + drift.bias,
        scatter + statistics.counts.sum() * drift.residual,
    )


def ridge_of(pairs: ClassStatistics, *, prior: float) -> float:
    """Ridge of a `drift_map`, as if ``prior`` images for each dimension had not moved.

    Example:
        >>> from avalanche_dlcpa.class_statistics import class_statistics
        >>> images = torch.rand(100, 8)
        >>> pairs = class_statistics(images, torch.zeros(100, dtype=torch.long), num_classes=1)
        >>> ridge_of(pairs, prior=0.5)
        0.02
    """
    return prior * (pairs.num_features // 2) / pairs.counts.sum().item()


def shrinkage_of(statistics: ClassStatistics, *, prior: float) -> float:
    """Shrinkage of a covariance, as if ``prior`` images more for each dimension had shown a sphere.

    Example:
        >>> from avalanche_dlcpa.class_statistics import class_statistics
        >>> images = torch.rand(100, 8)
        >>> one = class_statistics(images, torch.zeros(100, dtype=torch.long), num_classes=1)
        >>> shrinkage_of(one, prior=12.5)
        0.5
    """
    if prior == math.inf:
        return 1.0
    more = prior * statistics.num_features
    return more / (statistics.counts.sum().item() + more)


def followed(
    statistics: ClassStatistics | None,
    keys: Sequence[Key],
    found: ClassStatistics,
    new_keys: Sequence[Key],
    *,
    map_prior: float | None,
) -> tuple[ClassStatistics, list[Key]]:
    """Statistics of all classes after an experience, in the space of the new features.

    Args:
        statistics: Of the old features of earlier classes; None before the first experience.
        keys: The names of these classes.
        found: Of the experience's images: old and new features side by side, (B, 2 D); in the first
            experience new ones alone, (B, D).
        new_keys: The names of its classes, which may be among those of earlier ones.
        map_prior: Of the map, see `ridge_of`; None: old statistics stay as they are.

    Returns:
        The statistics, and the names of their classes, new ones last.
    """
    if statistics is None:
        return found, list(new_keys)
    if map_prior is not None:
        ridge = ridge_of(found, prior=map_prior)
        statistics = moved(statistics, drift_map(found, ridge=ridge))
    return joined(statistics, keys, new_half(found), new_keys)


def linear_discriminants(statistics: ClassStatistics, *, shrinkage: float) -> tuple[Tensor, Tensor]:
    """Linear discriminant analysis with classes that are equally likely, whatever their counts.

    The covariance is ``(1 - shrinkage) * S + shrinkage * tr(S) / D * I``, as in scikit-learn's
    `LinearDiscriminantAnalysis`; with a shrinkage of 1, and where no feature differs from the mean
    of its class, the nearest class mean wins.

    Args:
        statistics: Of K classes with a feature each, at least.
        shrinkage: From 0 to 1.

    Returns:
        Weight (K, D) and bias (K,) of the linear layer whose logits are the log posteriors, but for
        a number that is the same for all classes.

    Raises:
        ValueError: ``shrinkage`` of 0 (or next to it) with fewer features than dimensions.

    Example:
        >>> from avalanche_dlcpa.class_statistics import class_statistics
        >>> x = torch.tensor([[0.0], [2.0], [6.0], [8.0]])
        >>> weight, bias = linear_discriminants(
        ...     class_statistics(x, torch.tensor([0, 0, 1, 1]), num_classes=2), shrinkage=0.1)
        >>> (weight @ torch.tensor([4.0]).double() + bias).diff().abs().item() < 1e-12
        True
    """
    covariance = statistics.scatter / statistics.counts.sum()
    scale = covariance.diagonal().mean()
    identity = torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
    if scale > 0:
        covariance = (1 - shrinkage) * covariance + shrinkage * scale * identity
    else:
        covariance = identity
    center = statistics.means.mean(dim=0)
    apart = statistics.means - center
    weight = torch.cholesky_solve(apart.T, _cholesky(covariance, "shrinkage")).T
    return weight, -(weight * (apart / 2 + center)).sum(dim=1)


def _cholesky(matrix: Tensor, strength: str) -> Tensor:
    factor, failed = torch.linalg.cholesky_ex(matrix)
    if failed:
        raise ValueError(
            f"Expected a `{strength}` that lets a matrix of {len(matrix)} dimensions be solved "
            "for, got too low a value for so few features: raise it."
        )
    return factor
