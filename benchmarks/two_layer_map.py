"""A drift map with a hidden layer, solved for and not trained: one of the Gaussian variants.

On top of the linear map, what that leaves of the new features is regressed on random rectified
features of the old ones. Where a class is Gaussian, the mean of the map is known exactly, so no
feature has to be kept or drawn. Sources: Rahimi and Recht, "Weighted Sums of Random Kitchen Sinks"
(random hidden layer); the mean of a rectified Gaussian is textbook.
"""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from avalanche_dlcpa.class_statistics import ClassStatistics
from avalanche_dlcpa.gaussian import DriftMap, moved

HIDDEN = 4  # units a dimension of the features


@dataclasses.dataclass(frozen=True)
class TwoLayerMap:
    """Old features x -> ``W x + b + V (relu(R (x - m) + c) - h)``.

    Attributes:
        linear: W, b and the residual.
        center: m, the mean old feature, (D,).
        inner: R, (H, D).
        shift: c, (H,).
        outer: V, (D, H).
        mean_hidden: h, the mean of the hidden layer, (H,).
    """

    linear: DriftMap
    center: Tensor
    inner: Tensor
    shift: Tensor
    outer: Tensor
    mean_hidden: Tensor


def two_layer_map(old: Tensor, new: Tensor, linear: DriftMap, *, ridge: float) -> TwoLayerMap:
    """Fit the map to old and new features of the same images.

    Args:
        old: (N, D), float64.
        new: (N, D), float64.
        linear: The linear map of these.
        ridge: Of the outer layer, as in `drift_map`; `math.inf` leaves the linear map alone.
    """
    size = old.shape[1]
    generator = torch.Generator().manual_seed(0)
    center = old.mean(dim=0)
    spread = (old - center).square().sum(dim=1).mean().sqrt()  # so that R (x - m) is about 1
    inner = torch.randn(HIDDEN * size, size, generator=generator, dtype=old.dtype) / spread
    shift = torch.randn(HIDDEN * size, generator=generator, dtype=old.dtype)
    hidden = ((old - center) @ inner.T + shift).relu()
    mean_hidden = hidden.mean(dim=0)
    apart = hidden - mean_hidden
    left = new - old @ linear.weight.T - linear.bias
    outer = torch.zeros(size, HIDDEN * size, dtype=old.dtype)
    if ridge < math.inf:
        gram = apart.T @ apart
        strength = ridge * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
        outer = torch.linalg.solve(gram + strength, apart.T @ left).T
    return TwoLayerMap(linear, center, inner, shift, outer, mean_hidden)


def moved_by_two_layers(statistics: ClassStatistics, fitted: TwoLayerMap) -> ClassStatistics:
    """Statistics after the map: the means exactly, the covariance as by the linear map."""
    covariance = statistics.scatter / statistics.counts.sum()
    deviations = (fitted.inner @ covariance @ fitted.inner.T).diagonal().clamp(min=0).sqrt()
    inputs = (statistics.means - fitted.center) @ fitted.inner.T + fitted.shift
    hidden = mean_of_rectified(inputs, deviations.expand_as(inputs))
    after = moved(statistics, fitted.linear)
    means = after.means + (hidden - fitted.mean_hidden) @ fitted.outer.T
    return ClassStatistics(after.counts, means, after.scatter)


def mean_of_rectified(means: Tensor, deviations: Tensor) -> Tensor:
    """The mean of ``max(u, 0)`` of Gaussian u, elementwise.

    Example:
        >>> mean_of_rectified(torch.tensor([2.0, 0.0]), torch.tensor([0.0, 1.0]))
        tensor([2.0000, 0.3989])
    """
    ratio = means / deviations.clamp(min=1e-30)
    below = torch.special.ndtr(ratio)
    density = torch.exp(-ratio.square() / 2) / math.sqrt(2 * math.pi)
    return means * below + deviations * density
