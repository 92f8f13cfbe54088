"""Input of the loop: the samples of an experience as they lie in storage, read once.

Only from datasets that are known to give the same sample each time; the transforms that they and
their Avalanche datasets would apply come along as operations on batches.
"""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from avalanche.benchmarks.utils import AvalancheDataset
from avalanche.benchmarks.utils.classification_dataset import (
    _TensorClassificationDataset,
    lookup,
)
from avalanche.benchmarks.utils.flat_data import FlatData
from avalanche.benchmarks.utils.transforms import MultiParamCompose, TupleTransform
from PIL import Image
from torch import Tensor
from torch.utils.data import TensorDataset, default_collate
from torchvision.datasets.vision import StandardTransform

from avalanche_dlcpa.stream_transforms import (
    NotRecognizedError,
    Operation,
    check_operations,
    recognized,
)

PIL_MODES = ("L", "RGB", "RGBA")  # those of one byte a channel

Reader = Callable[[int], list[Any]]


def read_samples(
    dataset: AvalancheDataset, *, device: torch.device, most_bytes: float
) -> tuple[list[Tensor], tuple[Operation, ...]]:
    """Read all samples of a dataset and put them on a device.

    Args:
        dataset: Of an experience, in its current transform group.
        device: Where the samples are to be held.
        most_bytes: Most memory that the images may take; above it there is a warning.

    Returns:
        The parts of the samples, images (N, ...), labels (N,) and whatever else a sample has; and
        the operations that make a mini-batch of these images one of the dataset. PIL images become
        (N, C, H, W) of uint8, tensors stay as they are.

    Raises:
        NotRecognizedError: Transforms or datasets that are not recognised, samples that do not
            stack, or too many images.
    """
    group = dataset._flat_data._transform_groups.current_group
    read, operations = _reader(dataset._flat_data, group)
    try:
        sample = read(0)
    except NotRecognizedError:
        raise
    except Exception as error:  # a dataset may do anything without its transform
        raise NotRecognizedError("a dataset that cannot be read without transforms") from error
    first, is_pil = _as_tensor(sample[0])
    check_operations(operations, first, is_pil=is_pil)
    _check_memory(len(dataset) * first.numel() * first.element_size(), most_bytes)
    extra = [a for a in dataset._data_attributes.values() if a.use_in_getitem]
    images = torch.empty(len(dataset), *first.shape, dtype=first.dtype)
    rest = []
    for index in range(len(dataset)):
        x, *others = read(index) if index else sample
        image, is_also_pil = _as_tensor(x)
        if (image.shape, image.dtype, is_also_pil) != (first.shape, first.dtype, is_pil):
            raise NotRecognizedError("images of different sizes or types")
        images[index] = image
        rest.append([*others, *(attribute[index] for attribute in extra)])
    parts = default_collate(rest)
    if not all(isinstance(part, Tensor) and len(part) == len(images) for part in parts):
        raise NotRecognizedError("samples with parts that are no numbers")
    return [part.to(device) for part in [images, *parts]], operations


def _check_memory(num_bytes: int, most_bytes: float) -> None:
    if num_bytes > most_bytes:
        warnings.warn(
            f"The images of this experience would take {num_bytes / 1e6:.0f} MB on the device, "
            f"more than the {most_bytes / 1e6:.0f} MB of `image_cache_bytes`: Avalanche's own "
            "loader feeds them, which takes longer.",
            stacklevel=4,
        )
        raise NotRecognizedError("too many images")


def _reader(node: Any, group: str) -> tuple[Reader, tuple[Operation, ...]]:
    """How to read a sample with an image as it lies in storage, and what is to be done to it."""
    if not isinstance(node, FlatData):
        return _storage_reader(node)
    if not type(node).__module__.startswith("avalanche."):
        raise NotRecognizedError(f"a dataset of class {type(node).__name__}")
    parts = [_reader(part, group) for part in node._datasets]
    if len({operations for _, operations in parts}) != 1:
        raise NotRecognizedError("datasets of different transforms in one")
    operations = parts[0][1]
    relabel: list[Callable[[Any], Any]] = []
    for name in ("_frozen_transform_groups", "_transform_groups"):
        groups = getattr(node, name, None)
        if groups is not None:
            # from a copy, as reading a default group adds its key, which changes the dataset
            more, functions = _split_transform(copy.copy(groups)[group])
            operations, relabel = operations + more, relabel + functions

    def read(index: int) -> list[Any]:
        part, inside = node._get_idx(index)
        x, y, *rest = parts[part][0](inside)
        for function in relabel:
            y = function(y)
        return [x, y, *rest]

    return read, operations


def _storage_reader(dataset: Any) -> tuple[Reader, tuple[Operation, ...]]:
    """Read a dataset whose samples are known to be the same each time."""
    getitem = type(dataset).__getitem__
    operations: tuple[Operation, ...] = ()
    if getitem not in (TensorDataset.__getitem__, _TensorClassificationDataset.__getitem__):
        dataset, operations = _without_transforms(dataset)

    def read(index: int) -> list[Any]:
        sample = list(dataset[index])
        if len(sample) < 2:
            raise NotRecognizedError("samples without labels")
        return sample

    return read, operations


def _without_transforms(dataset: Any) -> tuple[Any, tuple[Operation, ...]]:
    """A dataset of torchvision's or Avalanche's, and the transforms that it would have applied."""
    home = type(dataset).__module__.split(".")[0]
    if home not in ("torchvision", "avalanche") or not hasattr(dataset, "transform"):
        raise NotRecognizedError(f"a dataset of class {type(dataset).__name__}")
    transform, pair = dataset.transform, getattr(dataset, "transforms", None)
    load = getattr(dataset, "loader", None)
    if load is not None and not str(load.__module__).startswith(("torchvision.", "avalanche.")):
        raise NotRecognizedError("an own loader of images")
    if getattr(dataset, "target_transform", None) is not None:
        raise NotRecognizedError("an own `target_transform`")
    is_plain = isinstance(pair, StandardTransform) and pair.transform is transform
    if pair is not None and not is_plain:
        raise NotRecognizedError("`transforms` of image and label together")
    dataset = copy.copy(dataset)
    dataset.transform = None
    if pair is not None:
        dataset.transforms = None
    return dataset, recognized(transform)


def _split_transform(transform: Any) -> tuple[tuple[Operation, ...], list[Callable[[Any], Any]]]:
    """Operations on the image and functions of the label that a transform group consists of."""
    if transform is None:
        return (), []
    if type(transform) is MultiParamCompose:
        parts = [_split_transform(part) for part in transform.transforms]
        operations = tuple(operation for part, _ in parts for operation in part)
        return operations, [function for _, part in parts for function in part]
    if type(transform) is not TupleTransform:
        return recognized(transform), []
    of_image, of_label, *others = [*transform.transforms, None, None][:4]
    others = [other for other in [*others, *transform.transforms[4:]] if other is not None]
    # Avalanche's own renumbering of classes; another function might be random
    is_renumbering = isinstance(of_label, functools.partial) and of_label.func is lookup
    if others or not (of_label is None or is_renumbering):
        raise NotRecognizedError("an own function of the label")
    return recognized(of_image), [] if of_label is None else [of_label]


def _as_tensor(image: Any) -> tuple[Tensor, bool]:
    """An image as it will be held, and whether it is a PIL image, then (C, H, W) of uint8."""
    if isinstance(image, Image.Image) and image.mode in PIL_MODES:
        pixels = torch.from_numpy(np.array(image))
        return pixels.view(*pixels.shape[:2], -1).permute(2, 0, 1), True
    if type(image) is Tensor and not image.requires_grad:
        return image.detach(), False
    raise NotRecognizedError(f"images of type {type(image).__name__}")
