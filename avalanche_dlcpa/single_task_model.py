"""The model of single task learning: a network a task, or the mean of their extractors.

Source: the paper's Section "Analysis", baseline STL and its approximation with a mean extractor.
"""

from __future__ import annotations

from typing import Any

import torch
from avalanche.models import DynamicModule
from torch import Tensor, nn

from avalanche_dlcpa.classifier_scope import ClassifierScope, scope_of
from avalanche_dlcpa.dual_learner import checked_features
from avalanche_dlcpa.experiences import classes_of, task_label_of
from avalanche_dlcpa.model_copy import copy_of
from avalanche_dlcpa.model_head import detach_head, expect_plain, find_head
from avalanche_dlcpa.task_classifiers import TaskClassifiers

PREDICT_WITH = ("own", "mean")


class SingleTaskModel(DynamicModule):
    """One extractor in training, one linear classifier a task, and what predicts with them.

    In training mode it answers with the extractor and the classifier of the current task alone. In
    evaluation mode every task answers for its own classes: with ``predict_with="own"`` through the
    extractor as it was at the end of that task (the paper's STL), with ``"mean"`` all of them
    through one mean extractor (STL-me). The given model itself becomes the extractor (its last
    linear layer is taken out, in place).

    Args:
        model: Any classifier, as for `DualLearner`.
        head: Name of its last linear layer; None: see `find_head`.
        predict_with: ``"own"``, with memory for T extractors, or ``"mean"``, for two.

    Attributes:
        extractor: Feature extractor in training, (B, ...) -> (B, D), the paper's Theta.
        earlier: With ``"own"``, the extractors Theta_1 .. Theta_{t-1} of the tasks before the
            current one, which answers with ``extractor``; empty with ``"mean"``.
        mean: With ``"mean"``, the extractor with the mean of Theta_1 .. Theta_t; else None.
        classifiers: The paper's Gamma_1 .. Gamma_T.
        num_averaged: Number of tasks whose training is finished; a buffer, as in `DualLearner`.
        is_task_open: Whether the last task is in training, or was broken off.

    Raises:
        ValueError: Unknown ``predict_with``, or no head to be found.
    """

    extractor: nn.Module
    num_averaged: Tensor

    def __init__(self, model: nn.Module, *, head: str | None = None, predict_with: str = "own"):
        super().__init__()
        if predict_with not in PREDICT_WITH:
            raise ValueError(
                f"Expected `predict_with` to be one of {', '.join(PREDICT_WITH)}, "
                f"got '{predict_with}'."
            )
        head = find_head(model, head)
        expect_plain(model, head)
        self.extractor, start = detach_head(model, head)
        self.predict_with = predict_with
        self.earlier = nn.ModuleList()
        self.mean = _frozen_copy(self.extractor) if predict_with == "mean" else None
        self.classifiers = TaskClassifiers(start)
        self.register_buffer("num_averaged", torch.zeros((), dtype=torch.long))
        self.is_task_open = False
        self._scope: ClassifierScope | None = None

    @property
    def num_features(self) -> int:
        """D, the length of a feature vector."""
        return self.classifiers.in_features

    @property
    def classifier(self) -> nn.Linear:
        """Gamma_t, the classifier of the current task."""
        return self.classifiers.linears[-1]

    def adaptation(self, experience: Any) -> None:
        """Make room for the classes of an experience; in training mode, begin its task.

        A task that was broken off and is begun again goes on with its classifier.

        Raises:
            ValueError: Classes of an earlier task: which network should answer for them?
        """
        classes, task_label = classes_of(experience), task_label_of(experience)
        if self.training:
            self._begin_task(task_label, classes)
        self.classifiers.widen(max(classes) + 1)

    def _begin_task(self, task_label: int, classes: list[int]) -> None:
        wanted = {(task_label, label) for label in classes}
        if self.is_task_open and wanted == set(self._keys_of_task()):
            return
        again = sorted(label for _, label in wanted.intersection(self.classifiers.keys))
        if again:
            raise ValueError(
                f"Expected classes that no earlier experience had, got {again} of task label "
                f"{task_label} again: single task learning has one network a task; give each task "
                "classes or a task label of its own."
            )
        if self.predict_with == "own" and self.classifiers.linears:
            self.earlier.append(_frozen_copy(self.extractor))
        self.classifiers.add(task_label, classes)
        self.is_task_open, self._scope = True, None

    def end_task(self) -> None:
        """Count the current task as trained."""
        self.num_averaged += 1
        self.is_task_open = False

    def _keys_of_task(self) -> list[tuple[int, int]]:
        return self.classifiers.keys[-self.classifier.out_features :]

    def scope(self) -> ClassifierScope:
        """The classes of the current task, among which its samples compete."""
        if self._scope is None or self._scope.labels.device != self.classifier.weight.device:
            tasks, labels = zip(*self._keys_of_task(), strict=True)
            self._scope = scope_of(self.classifiers, tasks[0], list(labels))
        return self._scope

    def forward(self, x: Tensor, task_labels: Tensor | int | None = None) -> Tensor:
        """Logits, indexed by class label.

        Args:
            x: Mini-batch, (B, ...).
            task_labels: The task of each sample, (B,), or one for all: only the classifiers of that
                task answer. None: all of them do, side by side. Training mode has one task only.

        Returns:
            (B, W); see `DualLearner.forward`, also for classes that may not answer.
        """
        if self.training:
            scope = self.scope()
            logits = self.classifier(self._features(self.extractor, x))
            # by_label needs target columns for mini-batches of several tasks, which do not occur.
            return scope.by_label(logits, scope.labels, self.classifiers.num_outputs)
        return self.classifiers.answer(self._logits(x), task_labels)

    def _logits(self, x: Tensor) -> Tensor:
        """Logits of all classifiers side by side, (B, K), Eq. 1 or 2."""
        if self.mean is not None:
            return self.classifiers(self._features(self.mean, x))
        if not self.classifiers.linears:  # before the first task
            return self.classifiers(self._features(self.extractor, x))
        extractors = [*self.earlier, self.extractor]
        # Task by task, so that later tasks do not change a bit of an earlier one's logits.
        return torch.cat(
            [
                classifier(self._features(extractor, x))
                for extractor, classifier in zip(extractors, self.classifiers.linears, strict=True)
            ],
            dim=1,
        )

    def _features(self, extractor: nn.Module, x: Tensor) -> Tensor:
        return checked_features(extractor(x), self.num_features)


def _frozen_copy(module: nn.Module) -> nn.Module:
    return copy_of(module).requires_grad_(False)
