"""Accuracies of trained heads and Gaussian classifiers on the features of one model."""

from __future__ import annotations

import collections
from typing import Any

import torch
from torch import Tensor

from avalanche_dlcpa.accuracy_matrix import accuracy_matrix
from avalanche_dlcpa.class_statistics import ClassStatistics, class_statistics, merged
from avalanche_dlcpa.experiences import classes_of
from avalanche_dlcpa.frozen_extractor import FrozenExtractor
from avalanche_dlcpa.metrics import predicted_classes
from benchmarks.gaussian_training import LearnedNetwork
from benchmarks.gaussian_variants import Combinations, Observed, Variants
from benchmarks.judgement import summary_of
from benchmarks.single_task_training import features_of, images_and_labels

SCENARIOS = ("class_il", "task_il")


class Judge:
    """Lets Gaussian classifiers learn from a network's features, and keeps all accuracies.

    Args:
        learner: The Gaussian classifiers.
        stream: To judge on; experience i of it holds the classes of the i-th one learned.
        images_per_class: That the Gaussian classifiers learn from, the first of each; None: all.
    """

    def __init__(
        self,
        learner: Variants | Combinations,
        stream: Any,
        *,
        images_per_class: int | None = None,
    ):
        self.learner, self.stream, self.images_per_class = learner, stream, images_per_class
        self._learned: list[Any] = []
        self._before: FrozenExtractor | None = None
        self._accuracies: dict[tuple[str, str], dict[tuple[int, int], float]]
        self._accuracies = collections.defaultdict(dict)

    def judge(self, network: LearnedNetwork, experience: Any) -> None:
        """Learn from the features after an experience, and judge on all experiences so far."""
        now = network.extractor
        images, labels = self._few(experience)
        features = _features(now, images)
        before = None if self._before is None else _features(self._before, images)
        weight, bias = (part.detach() for part in (network.head.weight, network.head.bias))
        by_label = torch.tensor(network.classes)
        width = max(network.classes) + 1
        weights = weight.new_zeros(width, weight.shape[1]).index_copy(0, by_label, weight)
        biases = bias.new_zeros(width).index_copy(0, by_label, bias)
        self.learner.learn(Observed(features, before, labels, weights, biases))
        self._learned.append(experience)
        if isinstance(self.learner, Variants):
            self.learner.oracle = self._statistics_of_all(now)
        self._before = now
        for task in range(len(self._learned)):
            self._judge_on(task, network)

    def _few(self, experience: Any) -> tuple[Tensor, Tensor]:
        """The images to learn from, with their labels."""
        images, labels = images_and_labels(experience)
        same = labels.unsqueeze(1) == labels
        place = (same & torch.ones_like(same).tril(-1)).sum(dim=1)  # among those of its class
        rows = place < (self.images_per_class or len(labels))
        return images[rows], labels[rows]

    def _statistics_of_all(self, now: FrozenExtractor) -> ClassStatistics:
        """Of all images of all classes met so far, which no exemplar-free method has."""
        total = None
        for experience in self._learned:
            images, labels = self._few(experience)
            columns = torch.tensor([self.learner.classes.index(k) for k in labels.tolist()])
            num_classes = len(self.learner.classes)
            own = class_statistics(_features(now, images), columns, num_classes=num_classes)
            total = own if total is None else merged(total, own)
        assert total is not None
        return total

    @torch.no_grad()
    def _judge_on(self, task: int, network: LearnedNetwork) -> None:
        experience = self.stream[task]
        images, labels = images_and_labels(experience)
        features = _features(network.extractor, images)
        logits = network.head(features)
        columns = torch.tensor(self.learner.classes)
        trained = torch.tensor(network.classes)
        beside = logits[:, torch.searchsorted(trained, columns)]
        answers = {n: (own, columns) for n, own in self.learner.scores(features, beside).items()}
        answers["linear"] = (logits, trained)
        place = (len(self._learned) - 1, task)
        classes = torch.tensor(classes_of(experience))
        for name, (own, names) in answers.items():
            among = {"class_il": None, "task_il": torch.isin(names, classes).nonzero().flatten()}
            for scenario in SCENARIOS:
                predicted = names[predicted_classes(own, columns=among[scenario])]
                share = (predicted == labels).double().mean().item()
                self._accuracies[name, scenario][place] = share

    def summaries(self) -> dict[str, Any]:
        """By variant and scenario, what the JSON tells."""
        found: dict[str, Any] = {}
        order = list(range(len(self._learned)))
        for (name, scenario), entries in self._accuracies.items():
            matrix = accuracy_matrix(entries, learned=order)
            found.setdefault(name, {})[scenario] = summary_of(matrix)
        return found


def _features(extractor: FrozenExtractor, images: Tensor) -> Tensor:
    device = next(extractor.parameters()).device
    return features_of(extractor, images, device=device).cpu()
