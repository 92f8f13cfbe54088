"""Gaussian classifiers and their variants on the features of one training, for `gaussian`."""

from __future__ import annotations

import dataclasses
import itertools
import math

import torch
from torch import Tensor

from avalanche_dlcpa.class_statistics import ClassStatistics, class_statistics, joined, new_half
from avalanche_dlcpa.gaussian import drift_map, followed, linear_discriminants, moved

SHRINKAGES = (0.003, 0.01, 0.03, 0.1, 0.3, 0.6)
RIDGES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, math.inf)
TITLES = {
    "linear": "trained linear heads",
    "stored": "Gaussian, old means as stored",
    "mean-drift": "Gaussian, old means moved by the mean drift",
    "map": "Gaussian, drift map",
    "no-residual": "Gaussian, drift map without its residual",
    "oracle": "Gaussian, means and covariance from all data (not exemplar-free)",
    "nearest-mean": "nearest class mean, drift map",
    "class-covariances": "a covariance for each class, drift map",
    "ensemble": "Gaussian with drift map, and linear heads",
}


class Variants:
    """The variants side by side; see `TITLES`.

    Args:
        shrinkage: Of all covariances but of "nearest-mean", where it is 1.
        ridge: Of the map.

    Attributes:
        classes: Labels of the classes met so far, the columns of all scores.
        oracle: Statistics of all images of all classes met, in today's space, to be set from
            outside: nothing else looks at an old image.
    """

    def __init__(self, *, shrinkage: float, ridge: float):
        self.shrinkage, self.ridge = shrinkage, ridge
        self.classes: list[int] = []
        self.oracle: ClassStatistics | None = None
        self._known: dict[str, ClassStatistics | None] = dict.fromkeys(
            ("stored", "mean-drift", "map")
        )
        self._no_residual: ClassStatistics | None = None
        self._class_wise: dict[int, ClassStatistics] = {}

    def learn(self, found: ClassStatistics, features: Tensor, labels: Tensor) -> None:
        """Take in an experience.

        Args:
            found: As for `followed`, with classes in the order of their labels.
            features: Of its training images after it, (N, D).
            labels: Of these, (N,).
        """
        new = sorted(set(labels.tolist()))
        ridges = {"stored": None, "mean-drift": math.inf, "map": self.ridge}
        for name, ridge in ridges.items():
            known = self._known[name]
            self._known[name], classes = followed(known, self.classes, found, new, ridge=ridge)
        if self._no_residual is None:
            self._no_residual = found
        else:
            drift = drift_map(found, ridge=self.ridge)
            self._class_wise = {k: moved(own, drift) for k, own in self._class_wise.items()}
            alone = dataclasses.replace(drift, residual=torch.zeros_like(drift.residual))
            old = moved(self._no_residual, alone)
            self._no_residual, _ = joined(old, self.classes, new_half(found), new)
        for k in new:
            own = features[labels == k]
            columns = torch.zeros(len(own), dtype=torch.long)
            self._class_wise[k] = class_statistics(own, columns, num_classes=1)
        self.classes = classes

    def scores(self, features: Tensor, logits: Tensor) -> dict[str, Tensor]:
        """Score images by all variants.

        Args:
            features: (N, D).
            logits: Of the trained heads, columns as in `classes`, (N, K).

        Returns:
            By name of the variant, scores of shape (N, K); the largest wins.
        """
        features = features.double()
        known = {**self._known, "no-residual": self._no_residual, "oracle": self.oracle}
        found = {
            name: _linear(features, statistics, self.shrinkage)
            for name, statistics in known.items()
            if statistics is not None
        }
        return {
            **found,
            "nearest-mean": _linear(features, self._known["map"], 1.0),
            "class-covariances": self._by_class_covariances(features),
            "ensemble": found["map"].log_softmax(1)
            + logits.double().log_softmax(1),
        }

    def _by_class_covariances(self, features: Tensor) -> Tensor:
        """Negative Mahalanobis distances with covariances normalised to correlations.

        Source: Goswami et al., "FeCAM: Exploiting the Heterogeneity of Class Distributions in
        Exemplar-Free Continual Learning", with the shrinkage of all others here.
        """
        columns = []
        for k in self.classes:
            own = self._class_wise[k]
            covariance = own.scatter / own.counts.sum()
            scale = covariance.diagonal().mean()
            identity = torch.eye(len(covariance), dtype=covariance.dtype)
            covariance = (1 - self.shrinkage) * covariance + self.shrinkage * scale * identity
            deviations = covariance.diagonal().sqrt()
            factor = torch.linalg.cholesky(covariance / torch.outer(deviations, deviations))
            apart = (features - own.means[0]).T
            columns.append(
                -torch.linalg.solve_triangular(factor, apart, upper=False).square().sum(0)
            )
        return torch.stack(columns, dim=1)


class Combinations:
    """Every combination of shrinkage and ridge, to choose from.

    Attributes:
        classes: Labels of the classes met so far, the columns of all scores.
    """

    def __init__(self) -> None:
        self.classes: list[int] = []
        self._known: dict[float, ClassStatistics | None] = dict.fromkeys(RIDGES)

    def learn(self, found: ClassStatistics, features: Tensor, labels: Tensor) -> None:
        """Take in an experience; see `Variants`."""
        new = sorted(set(labels.tolist()))
        for ridge, known in self._known.items():
            self._known[ridge], classes = followed(known, self.classes, found, new, ridge=ridge)
        self.classes = classes

    def scores(self, features: Tensor, logits: Tensor) -> dict[str, Tensor]:
        """Score images by all combinations; see `Variants`."""
        return {
            f"shrinkage={shrinkage:g} ridge={ridge:g}": _linear(
                features.double(), self._known[ridge], shrinkage
            )
            for shrinkage, ridge in itertools.product(SHRINKAGES, RIDGES)
        }


def _linear(features: Tensor, statistics: ClassStatistics | None, shrinkage: float) -> Tensor:
    assert statistics is not None
    weight, bias = linear_discriminants(statistics, shrinkage=shrinkage)
    return features @ weight.T + bias
