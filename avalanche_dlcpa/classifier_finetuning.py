"""Classifier finetuning on a mean extractor, the paper's analysis of what averaging could reach.

Source: the paper's Eq. 3 and the last row of Table 1.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.data import DataLoader

from avalanche_dlcpa.arguments import expect_rate
from avalanche_dlcpa.classifier_scope import ClassifierScope, Criterion
from avalanche_dlcpa.experiences import task_labels_in


def finetune_classifier_(
    classifier: nn.Linear,
    features: Tensor,
    targets: Tensor,
    *,
    criterion: Criterion,
    epochs: int,
    lr: float,
    batch_size: int,
) -> None:
    """Train a classifier on fixed features with plain SGD, in place.

    The order of the samples comes from torch's global generator.

    Args:
        classifier: With D inputs and K outputs.
        features: Of the extractor that it shall fit, (N, D).
        targets: Columns of the labels, (N,), int64, each below K.
        criterion: Of logits (B, K) and targets (B,).
        epochs: Passes over the features.
        lr: Learning rate.
        batch_size: Samples in a mini-batch.

    Example:
        >>> features, targets = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([1, 0])
        >>> classifier = nn.Linear(2, 2)
        >>> finetune_classifier_(
        ...     classifier, features, targets,
        ...     criterion=nn.CrossEntropyLoss(), epochs=20, lr=1.0, batch_size=2,
        ... )
        >>> classifier(features).argmax(dim=1).tolist()
        [1, 0]
    """
    optimizer = SGD(classifier.parameters(), lr=lr)
    for _ in range(epochs):
        for rows in torch.randperm(len(features), device=features.device).split(batch_size):
            optimizer.zero_grad()
            criterion(classifier(features[rows]), targets[rows]).backward()
            optimizer.step()
    optimizer.zero_grad(set_to_none=True)


@dataclasses.dataclass(frozen=True)
class _TrainedTask:
    """What finetuning needs of a task.

    Attributes:
        dataset: Its training data, with the transforms of evaluation.
        scope: Its classes, with its classifier.
        gamma: The parameters of that classifier as trained.
    """

    dataset: Any
    scope: ClassifierScope
    gamma: dict[str, Tensor]


class ClassifierFinetuning:
    """Finetunes the classifiers of all tasks so far, each time from where training left them.

    Not exemplar-free: it keeps the training data of the tasks that it is given.

    Args:
        epochs: Passes over the data of each task; 0 for none.
        lr: Learning rate of plain SGD.

    Raises:
        ValueError: ``epochs`` below 0, or ``lr`` not a finite number above 0.
    """

    def __init__(self, epochs: int, lr: float):
        _expect_epochs(epochs)
        expect_rate("`finetune_lr`", lr)
        self.epochs = epochs
        self.lr = lr
        self._tasks: list[_TrainedTask] = []

    def add(self, dataset: Any, scope: ClassifierScope) -> None:
        """Keep a task whose classifier has just been trained.

        Args:
            dataset: Its training data, an Avalanche dataset with the transforms of evaluation.
            scope: Its classes; their one classifier is copied as it is now.
        """
        [classifier] = scope.layers
        gamma = {name: tensor.clone() for name, tensor in classifier.state_dict().items()}
        self._tasks.append(_TrainedTask(dataset, scope, gamma))

    def finetune_(
        self, extractor: nn.Module, *, criterion: Criterion, batch_size: int, eval_batch_size: int
    ) -> None:
        """Finetune every classifier on an extractor's features of its own task, in place.

        One pass of the extractor a task, in evaluation mode and without gradients.

        Args:
            extractor: (B, ...) -> (B, D).
            criterion: Of logits (B, K) and targets (B,).
            batch_size: Features in a mini-batch of SGD.
            eval_batch_size: Images in a mini-batch of the extractor.
        """
        for task in self._tasks:
            [classifier] = task.scope.layers
            classifier.load_state_dict(task.gamma)
            features, targets = _features_and_targets(extractor, task, eval_batch_size)
            finetune_classifier_(
                classifier,
                features,
                targets,
                criterion=criterion,
                epochs=self.epochs,
                lr=self.lr,
                batch_size=batch_size,
            )


@torch.no_grad()
def _features_and_targets(
    extractor: nn.Module, task: _TrainedTask, batch_size: int
) -> tuple[Tensor, Tensor]:
    """Features (N, D) of a task's data, and the columns of their labels (N,)."""
    device = task.scope.labels.device
    modes = [(module, module.training) for module in extractor.modules()]
    extractor.eval()
    features, targets = [], []
    loader = DataLoader(task.dataset, batch_size=batch_size, collate_fn=task.dataset.collate_fn)
    for batch in loader:
        x, labels, *_ = parts = [part.to(device) for part in batch]
        features.append(extractor(x))
        targets.append(task.scope.targets(labels, task_labels_in(parts, task.dataset)))
    for module, mode in modes:
        module.training = mode
    return torch.cat(features), torch.cat(targets)


def _expect_epochs(epochs: Any) -> None:
    if not isinstance(epochs, int) or epochs < 0:
        raise ValueError(
            f"Expected `finetune_epochs` to be a whole number of at least 0, got {epochs}."
        )
