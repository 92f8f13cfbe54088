"""Beyond the paper: Gaussian classes that are computed, and follow the features when these move.

The map from one feature space to another, and linear discriminant analysis, in float64. Source:
Gomez-Villa et al., "Exemplar-Free Continual Representation Learning via Learnable Drift
Compensation" (the map); Hastie, Tibshirani and Friedman, "The Elements of Statistical Learning",
Sec. 4.3 (discriminant analysis).
"""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from avalanche_dlcpa.class_statistics import ClassStatistics


@dataclasses.dataclass(frozen=True)
class DriftMap:
    """An affine map from old features to new ones.

    Attributes:
        weight: (D, D).
        bias: (D,).
    """

    weight: Tensor
    bias: Tensor


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
    return DriftMap(weight, mean[size:] - weight @ mean[:size])


def moved(statistics: ClassStatistics, drift: DriftMap) -> ClassStatistics:
    """The statistics that the mapped features would have."""
    return ClassStatistics(
        statistics.counts,
        statistics.means @ drift.weight.T + drift.bias,
        drift.weight @ statistics.scatter @ drift.weight.T,
    )


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
