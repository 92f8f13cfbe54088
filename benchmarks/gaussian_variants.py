"""Gaussian classifiers and their variants on the features of one training, for `gaussian`."""

from __future__ import annotations

import dataclasses
import itertools
import math

import torch
from torch import Tensor

from avalanche_dlcpa.class_statistics import ClassStatistics, class_statistics, joined, new_half
from avalanche_dlcpa.gaussian import (
    drift_map,
    followed,
    linear_discriminants,
    moved,
    ridge_of,
    shrinkage_of,
)
from benchmarks.recalibration import recalibration
from benchmarks.two_layer_map import moved_by_two_layers, two_layer_map

COVARIANCE_PRIORS = (1.0, 2.0, 4.0, 8.0, 16.0)
MAP_PRIORS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, math.inf)
TITLES = {
    "linear": "trained linear heads",
    "stored": "Gaussian, old means as stored",
    "mean-drift": "Gaussian, old means moved by the mean drift",
    "map": "Gaussian, drift map",
    "two-layers": "Gaussian, drift map with a hidden layer",
    "no-residual": "Gaussian, drift map without its residual",
    "oracle": "oracle (not exemplar-free)",
    "nearest-mean": "nearest class mean, drift map",
    "class-covariances": "a covariance for each class, drift map",
    "ensemble": "Gaussian with drift map, and linear heads",
    "recalibrated": "linear heads, scaled and shifted task by task by the Gaussian",
}


@dataclasses.dataclass(frozen=True)
class Observed:
    """What the training images of an experience show, after it.

    Attributes:
        features: (N, D).
        before: The same with the extractor as it was before it, (N, D); None: it is the first.
        labels: (N,).
        weight: Of the trained heads, by class label, (W, D).
        bias: (W,).
    """

    features: Tensor
    before: Tensor | None
    labels: Tensor
    weight: Tensor
    bias: Tensor

    @property
    def classes(self) -> list[int]:
        """Labels, sorted."""
        return sorted(set(self.labels.tolist()))

    @property
    def statistics(self) -> ClassStatistics:
        """As for `followed`, with classes in the order of their labels."""
        before = [] if self.before is None else [self.before]
        classes, columns = self.labels.unique(return_inverse=True)
        features = torch.cat([*before, self.features], dim=1)
        return class_statistics(features, columns, num_classes=len(classes))


class Variants:
    """The variants side by side; see `TITLES`.

    Args:
        covariance_prior: Of all covariances but of "nearest-mean", where it is infinite.
        map_prior: Of the map.

    Attributes:
        classes: Labels of the classes met so far, the columns of all scores.
        oracle: Statistics of all images of all classes met, in today's space, to be set from
            outside: nothing else looks at an old image.
    """

    def __init__(self, *, covariance_prior: float, map_prior: float):
        self.covariance_prior, self.map_prior = covariance_prior, map_prior
        self.classes: list[int] = []
        self.oracle: ClassStatistics | None = None
        self._known: dict[str, ClassStatistics | None] = dict.fromkeys(
            ("stored", "mean-drift", "map")
        )
        self._no_residual: ClassStatistics | None = None
        self._two_layers: ClassStatistics | None = None
        self._class_wise: dict[int, ClassStatistics] = {}
        self._tasks: dict[int, int] = {}
        self._recalibration: tuple[Tensor, Tensor]

    def learn(self, observed: Observed) -> None:
        """Take in an experience."""
        found, new = observed.statistics, observed.classes
        priors = {"stored": None, "mean-drift": math.inf, "map": self.map_prior}
        for name, prior in priors.items():
            known = self._known[name]
            self._known[name], classes = followed(known, self.classes, found, new, map_prior=prior)
        self._learn_by_other_maps(found, observed)
        task = max(self._tasks.values(), default=-1) + 1
        for k in new:
            own = observed.features[observed.labels == k]
            columns = torch.zeros(len(own), dtype=torch.long)
            self._class_wise[k] = class_statistics(own, columns, num_classes=1)
            self._tasks[k] = task
        self.classes = classes
        known = self._known["map"]
        assert known is not None
        self._recalibration = recalibration(
            observed.weight[classes],
            observed.bias[classes],
            torch.tensor([self._tasks[k] for k in classes]),
            known,
            shrinkage=shrinkage_of(known, prior=self.covariance_prior),
        )

    def _learn_by_other_maps(self, found: ClassStatistics, observed: Observed) -> None:
        if observed.before is None:
            self._no_residual = self._two_layers = found
            return
        assert self._no_residual is not None
        assert self._two_layers is not None
        ridge = ridge_of(found, prior=self.map_prior)
        drift = drift_map(found, ridge=ridge)
        self._class_wise = {k: moved(own, drift) for k, own in self._class_wise.items()}
        alone = dataclasses.replace(drift, residual=torch.zeros_like(drift.residual))
        old, new = observed.before.double(), observed.features.double()
        fitted = two_layer_map(old, new, drift, ridge=ridge)
        here = (new_half(found), observed.classes)
        self._no_residual, _ = joined(moved(self._no_residual, alone), self.classes, *here)
        carried = moved_by_two_layers(self._two_layers, fitted)
        self._two_layers, _ = joined(carried, self.classes, *here)

    def scores(self, features: Tensor, logits: Tensor) -> dict[str, Tensor]:
        """Score images by all variants.

        Args:
            features: (N, D).
            logits: Of the trained heads, columns as in `classes`, (N, K).

        Returns:
            By name of the variant, scores of shape (N, K); the largest wins.
        """
        features = features.double()
        known = {
            **self._known,
            "no-residual": self._no_residual,
            "two-layers": self._two_layers,
            "oracle": self.oracle,
        }
        scales, offsets = self._recalibration
        found = {
            name: _linear(features, statistics, self.covariance_prior)
            for name, statistics in known.items()
            if statistics is not None
        }
        return {
            **found,
            "nearest-mean": _linear(features, self._known["map"], math.inf),
            "class-covariances": self._by_class_covariances(features),
            "ensemble": found["map"].log_softmax(1) + logits.double().log_softmax(1),
            "recalibrated": logits.double() * scales + offsets,
        }

    def _by_class_covariances(self, features: Tensor) -> Tensor:
        """Negative Mahalanobis distances with covariances normalised to correlations.

        Source: Goswami et al., "FeCAM: Exploiting the Heterogeneity of Class Distributions in
        Exemplar-Free Continual Learning", with the prior of all others here, and without
        the power transform of the features that FeCAM does first.
        """
        columns = []
        for k in self.classes:
            own = self._class_wise[k]
            covariance = own.scatter / own.counts.sum()
            scale = covariance.diagonal().mean()
            identity = torch.eye(len(covariance), dtype=covariance.dtype)
            shrinkage = shrinkage_of(own, prior=self.covariance_prior)
            covariance = (1 - shrinkage) * covariance + shrinkage * scale * identity
            deviations = covariance.diagonal().sqrt()
            factor = torch.linalg.cholesky(covariance / torch.outer(deviations, deviations))
            apart = (features - own.means[0]).T
            columns.append(
                -torch.linalg.solve_triangular(factor, apart, upper=False).square().sum(0)
            )
        return torch.stack(columns, dim=1)


class Combinations:
    """Every combination of priors, alone and with the linear heads, to choose from.

    Attributes:
        classes: Labels of the classes met so far, the columns of all scores.
    """

    def __init__(self) -> None:
        self.classes: list[int] = []
        self._known: dict[float, ClassStatistics | None] = dict.fromkeys(MAP_PRIORS)

    def learn(self, observed: Observed) -> None:
        """Take in an experience."""
        found, new = observed.statistics, observed.classes
        for prior, known in self._known.items():
            self._known[prior], classes = followed(known, self.classes, found, new, map_prior=prior)
        self.classes = classes

    def scores(self, features: Tensor, logits: Tensor) -> dict[str, Tensor]:
        """Score images by all combinations; see `Variants`."""
        found = {
            combination_of(covariance, drift): _linear(
                features.double(), self._known[drift], covariance
            )
            for covariance, drift in itertools.product(COVARIANCE_PRIORS, MAP_PRIORS)
        }
        together = {
            f"{name}, with linear heads": own + logits.double() for name, own in found.items()
        }
        return {**found, **together}


def combination_of(covariance_prior: float, map_prior: float) -> str:
    """How results call it."""
    return f"covariance_prior={covariance_prior:g} map_prior={map_prior:g}"


def _linear(features: Tensor, statistics: ClassStatistics | None, prior: float) -> Tensor:
    assert statistics is not None
    shrinkage = shrinkage_of(statistics, prior=prior)
    weight, bias = linear_discriminants(statistics, shrinkage=shrinkage)
    return features @ weight.T + bias
