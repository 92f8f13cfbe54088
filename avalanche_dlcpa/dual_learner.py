"""The three modules of DLCPA in one model: plastic learner, stable learner, task classifiers.

Source: the paper's Section "Methods", overview and Eq. 4-5 (prediction in Task-IL and Class-IL).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from avalanche.models import DynamicModule
from torch import Tensor, nn

from avalanche_dlcpa.batch_norm import batch_norms, batch_statistics
from avalanche_dlcpa.divergence import all_finite
from avalanche_dlcpa.experiences import classes_of, task_label_of
from avalanche_dlcpa.model_copy import copy_of, follow_modes_
from avalanche_dlcpa.model_head import detach_head, expect_plain, find_head
from avalanche_dlcpa.stable_file import write_stable
from avalanche_dlcpa.stable_model import (
    ClassNames,
    Normalization,
    describe,
    plain_model,
    tensors_of,
)
from avalanche_dlcpa.task_classifiers import TaskClassifiers, frozen_classifiers

BN_STATISTICS = ("running", "recalibrated", "batch")


class DualLearner(DynamicModule):
    """A plastic and a stable feature extractor with one linear classifier a task.

    In training mode it answers with the plastic learner, in evaluation mode with the stable one, so
    that Avalanche's own loop, metrics and loggers work unchanged. The given model itself becomes
    the plastic learner (its last linear layer is taken out, in place); the stable learner starts as
    its copy and takes no gradients.

    Args:
        model: Any classifier of images (B, C, H, W) or vectors. Its last linear layer, also
            Avalanche's `IncrementalClassifier` or `MultiHeadClassifier`, becomes the classifiers.
        head: Name of that layer, such as ``"fc"`` or ``"classifier.1"``; None: found by name or as
            the last ``nn.Linear``.
        bn_statistics: What batch norm of the stable learner uses at evaluation: its ``"running"``
            statistics, those ``"recalibrated"`` on the experience's own images at its end (by the
            stream's transforms for evaluation, whatever a plugin does to mini-batches), or those
            of the test ``"batch"`` (as in the authors' runs; a prediction then depends on the
            other images of its batch).

    Attributes:
        plastic: Feature extractor, (B, ...) -> (B, D), the paper's f(x|Theta).
        stable: Feature extractor of the same architecture, f(x|Phi).
        classifiers: The paper's Gamma_1 .. Gamma_T.
        gaussian: What answers in evaluation mode in the place of the classifiers, see
            `GaussianClassifierPlugin`; None: nothing does.
        num_averaged: Number of experiences in the average; a buffer, so that it is saved with it.
        is_learning: Whether the stable learner is the mean with an experience that has not ended.

    Raises:
        ValueError: No linear layer, or more than one candidate, or an unknown name; one with a
            forward of its own; batch norm that keeps no statistics, but for ``"batch"``.
    """

    plastic: nn.Module
    stable: nn.Module
    gaussian: TaskClassifiers | None
    num_averaged: Tensor
    is_learning: bool = False

    def __init__(
        self, model: nn.Module, *, head: str | None = None, bn_statistics: str = "running"
    ):
        super().__init__()
        if bn_statistics not in BN_STATISTICS:
            raise ValueError(
                f"Expected `bn_statistics` to be one of {', '.join(BN_STATISTICS)}, "
                f"got '{bn_statistics}'."
            )
        without = [layer for layer in batch_norms(model) if layer.running_mean is None]
        if without and bn_statistics != "batch":
            raise ValueError(
                f"Expected batch norm with running statistics for bn_statistics='{bn_statistics}', "
                f"got {len(without)} layers without, whose answer for an image depends on the "
                "others of its batch: build the model with track_running_stats=True, or choose "
                "'batch'."
            )
        head = find_head(model, head)
        expect_plain(model, head)
        twin = copy_of(model).requires_grad_(False)
        self.plastic, start = detach_head(model, head)
        self.stable, _ = detach_head(twin, head)
        self.classifiers = TaskClassifiers(start)
        self.register_module("gaussian", None)
        self.bn_statistics = bn_statistics
        self.register_buffer("num_averaged", torch.zeros((), dtype=torch.long))

    @property
    def num_features(self) -> int:
        """D, the length of a feature vector."""
        return self.classifiers.in_features

    @property
    def predictor(self) -> TaskClassifiers:
        """What answers in the present mode, by features (B, D) of `features`."""
        if self.training or self.gaussian is None:
            return self.classifiers
        self.gaussian.widen(self.classifiers.num_outputs)
        return self.gaussian

    def adaptation(self, experience: Any) -> None:
        """Make room for the classes of an experience.

        In training mode its new classes get a classifier; in evaluation mode nothing but the width
        of the answer changes, so that a loss on unseen classes is defined.
        """
        classes = classes_of(experience)
        self.classifiers.widen(max(classes) + 1)
        if self.training:
            self.classifiers.add(task_label_of(experience), classes, pack=True)

    def freeze_as_plastic(self) -> None:
        """Keep those layers of the stable learner in evaluation mode that are so in the plastic."""
        follow_modes_(self.stable, self.plastic)

    def features(self, x: Tensor) -> Tensor:
        """Features (B, D) of the learner that the mode selects."""
        if self.training:
            return checked_features(self.plastic(x), self.num_features)
        if self.bn_statistics == "batch":
            with batch_statistics(self.stable):
                return checked_features(self.stable(x), self.num_features)
        return checked_features(self.stable(x), self.num_features)

    def forward(self, x: Tensor, task_labels: Tensor | int | None = None) -> Tensor:
        """Logits, indexed by class label.

        Args:
            x: Mini-batch, (B, ...).
            task_labels: The task of each sample, (B,), or one for all: only the classifiers of that
                task answer (Eq. 4). None: all of them do, side by side (Eq. 5).

        Returns:
            (B, W), W = 1 + the largest label met. A class that may not answer lies 1,000 below the
            lowest logit of its row. Where none may answer (a task never trained), a further column
            beyond all labels is the largest, so that no label is right by chance.
        """
        features = self.features(x)
        with torch.autocast(features.device.type, enabled=False):
            predictor = self.predictor
            return predictor.answer(predictor(features), task_labels)

    def _load_from_state_dict(
        self, state_dict: dict[str, Tensor], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        """Have a Gaussian classifier if the state has one; torch loads it after this."""
        self.gaussian = None
        if f"{prefix}gaussian.keys" in state_dict:
            loaded = frozen_classifiers(state_dict, f"{prefix}gaussian.")
            self.gaussian = loaded.to(self.num_averaged.device).train(self.training)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def stable_model(self) -> nn.Module:
        """The stable learner with its classifiers, as a network of the user's own kind.

        A copy in evaluation mode, which needs this package no more: the model that was given, with
        a linear layer of all classes learned as its head. `torch.export` and ONNX take it. With a
        Gaussian classifier that layer is the Gaussian one, as in evaluation.

        Returns:
            Network (B, ...) -> logits (B, K), the classes learned in the order of their labels
            (and of task labels, where class labels restart in each task). Where these are 0 to
            K - 1, the logits are those of this model in evaluation mode.

        Raises:
            ValueError: Nothing has been learned, or ``bn_statistics`` is "batch".

        Example:
            >>> from avalanche_dlcpa.backbones import resnet18
            >>> model = DualLearner(resnet18(num_classes=10, width=4))
            >>> model.classifiers.add(task_label=0, classes=[3, 5])
            >>> network = model.stable_model()
            >>> network(torch.rand(2, 3, 8, 8)).shape
            torch.Size([2, 2])
            >>> network.linear
            Linear(in_features=32, out_features=2, bias=True)
        """
        if not self.classifiers.layers:
            raise ValueError("Expected a model that has learned a task, got none: train it first.")
        if self.bn_statistics == "batch":
            raise ValueError(
                "Expected a model whose prediction for an image depends on that image alone, got "
                "bn_statistics='batch'. The stable learner has kept running statistics as well: "
                "set `bn_statistics = 'running'` on the model to take it away with those."
            )
        return plain_model(self)

    def export(
        self,
        path: str | os.PathLike[str],
        *,
        class_names: ClassNames | None = None,
        image_shape: Sequence[int] | None = None,
        normalization: Normalization | None = None,
    ) -> None:
        """Write `stable_model` to a safetensors file, with all that one needs to know about it.

        The file is written whole or not at all. It holds neither the plastic learner nor any head
        of a self-supervised loss; parameters of less than 32 bits are the rounded average. Read it
        with `load_stable`, or go on learning from it with `DLCPAStrategy.from_stable`.

        Args:
            path: The file, such as ``"model.safetensors"``; one that is there is replaced.
            class_names: Names by class label, such as a data set's ``classes``; a dict by (task
                label, class label) where class labels restart. Default: the labels themselves.
            image_shape: Shape of one input, such as (3, 32, 32). With it the file also holds the
                answer to a fixed input in [-1, 1], so that a network is refused that has the same
                tensors and computes something else. The answer must be finite, and the same twice.
            normalization: Mean and deviation of each channel, for those who will prepare inputs.

        Raises:
            ValueError: See `stable_model`; amid an experience; arguments that do not fit.
            OSError: The file cannot be written; what was there before stays as it was.

        Example::

            strategy.model.export("model.safetensors", class_names=benchmark.class_names)
        """
        if self.classifiers.layers and (self.is_learning or self.num_averaged == 0):
            raise ValueError(
                "Expected an export between two experiences, got one amid an experience, which the "
                "average does not count yet: train it to its end, or use `stable_model()`."
            )
        model = self.stable_model()
        if not all_finite(model.parameters()):
            raise ValueError(
                "Expected finite parameters to export, got NaN or infinity: the training diverged, "
                "go back to a checkpoint."
            )
        info = describe(
            self,
            model,
            class_names=class_names,
            image_shape=image_shape,
            normalization=normalization,
        )
        write_stable(path, tensors_of(model), info)


def checked_features(features: Any, num_features: int) -> Tensor:
    """Return the features if they are (B, D), as the classifiers need them.

    Raises:
        ValueError: No tensor, or one of another shape.
    """
    is_tensor = isinstance(features, Tensor)
    if not is_tensor or features.ndim != 2 or features.shape[1] != num_features:
        found = tuple(features.shape) if is_tensor else type(features).__name__
        raise ValueError(
            f"Expected the features before the model's head to have shape (B, {num_features}), "
            f"got {found}: name the last linear layer with `head=`."
        )
    return features
