"""Beyond the paper: features of an experience's images, as evaluation sees them, in one pass."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from avalanche_dlcpa.class_statistics import ClassStatistics, class_statistics, merged
from avalanche_dlcpa.dual_learner import DualLearner, checked_features
from avalanche_dlcpa.experiences import classes_of
from avalanche_dlcpa.model_copy import copy_of
from avalanche_dlcpa.model_head import detach_head
from avalanche_dlcpa.precision import autocast

# Feature maps of more images leave the caches: at 256 a ResNet-18 of full width took 1.3 times as
# long for an image.
CPU_BATCH = 32
NUM_COMPARED = 8
ROUNDING = 1e-5  # of the largest feature


class FrozenExtractor(nn.Module):
    """A copy of the feature extractor of a model, (B, ...) -> (B, D), that stays as it is.

    It is in evaluation mode and takes no gradients.

    Args:
        model: A `DualLearner`, whose stable learner it is a copy of, or any other classifier.
        head: Name of the last linear layer of another classifier; None: see `find_head`.

    Attributes:
        num_features: D.
    """

    def __init__(self, model: nn.Module, head: str | None = None):
        super().__init__()
        self.module: nn.Module
        if isinstance(model, DualLearner):
            self.module, self.num_features = copy_of(model.stable), model.num_features
        else:
            self.module, start = detach_head(copy_of(model), head)
            self.num_features = start.in_features
        self.eval().requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        """Features (B, D) of a mini-batch (B, ...)."""
        return checked_features(self.module(x), self.num_features)


def experience_statistics(
    experience: Any,
    extractors: Sequence[FrozenExtractor],
    *,
    batch_size: int,
    device: torch.device,
    precision: str = "float32",
) -> tuple[ClassStatistics, list[int]]:
    """Statistics of the features of an experience's images, without augmentation.

    Args:
        experience: Its own data set alone is read, whatever a plugin mixes in.
        extractors: One or more, whose features come side by side.
        batch_size: Images in a batch.
        device: Of the extractors; there the statistics are summed up.
        precision: Of the passes, see `autocast`.

    Returns:
        The statistics, and the labels of their classes, sorted: those that have an image.

    Raises:
        ValueError: Features that are not finite, no matrix of the right width, or labels that are
            not among the classes of the experience.
    """
    dataset = experience.dataset.eval()
    classes = torch.tensor(classes_of(experience), device=device)
    total: ClassStatistics | None = None
    passes: list[Callable[[Tensor], Tensor]] = list(extractors)
    for x, y, *_ in DataLoader(dataset, batch_size, collate_fn=dataset.collate_fn):
        x, y = x.to(device), y.to(device)
        if total is None and precision == "float32":
            passes = [optimized(extractor, x) for extractor in extractors]
        with autocast(precision, device):
            features = torch.cat([_features(extractor, x) for extractor in passes], dim=1)
        columns = _columns(y, classes)
        batch = class_statistics(features, columns, num_classes=len(classes))
        total = batch if total is None else merged(total, batch)
    assert total is not None  # classes_of refuses an experience without samples
    return total.of_present(), classes[total.counts > 0].tolist()


def optimized(extractor: FrozenExtractor, images: Tensor) -> Callable[[Tensor], Tensor]:
    """The passes of an extractor as torch optimises them for inference on a CPU.

    Batch norm is folded into the convolutions, whose layout is kept from one to the next: an image
    takes a ResNet-18 of full width 0.83 of the time. The features differ by rounding.

    Args:
        extractor: It stays as it is.
        images: (B, ...), like those to come; both are compared on the first of them.

    Returns:
        (B, ...) -> (B, D); the extractor itself on another device, of a model that torch cannot
        trace, or where the features turn out others.
    """
    if images.device.type != "cpu":
        return extractor
    few = images[:NUM_COMPARED]
    expected = extractor(few)
    try:
        with warnings.catch_warnings():  # of the TorchScript that torch itself uses for it
            warnings.simplefilter("ignore", FutureWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            # Here, as torch may move what is experimental: then the passes are as they were.
            from torch.fx.experimental.optimization import optimize_for_inference

            faster = optimize_for_inference(extractor.module)
        torch.testing.assert_close(
            faster(few), expected, rtol=0, atol=ROUNDING * float(expected.abs().max())
        )
    except Exception:  # a model may do anything when it is traced
        return extractor
    return faster


def _features(extractor: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    parts = x.split(CPU_BATCH) if x.device.type == "cpu" else [x]
    return torch.cat([extractor(part).double() for part in parts])


def _columns(labels: Tensor, classes: Tensor) -> Tensor:
    strange = labels[~torch.isin(labels, classes)]
    if len(strange):
        raise ValueError(
            f"Expected the labels of the experience to be among its classes {classes.tolist()}, "
            f"got {strange.unique().tolist()}."
        )
    return torch.searchsorted(classes, labels)
