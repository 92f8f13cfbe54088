"""Step 1 of the paper's loop: the normalisation that a stream's own transforms apply."""

import copy

import numpy as np
from avalanche.benchmarks.utils import TransformGroups
from torch import nn
from torchvision.datasets.vision import StandardTransform
from torchvision.transforms import Normalize, v2


def find_normalization(dataset: object) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Find the torchvision `Normalize` (v1 or v2) in the training transforms of a dataset.

    It looks into transform groups, nested datasets and the transforms of the datasets at the
    bottom; no sample is loaded. A normalisation inside a user's own function stays unseen.

    Args:
        dataset: An `AvalancheDataset`, such as `experience.dataset`, or any torch dataset.

    Returns:
        `(mean, std)` as given to the `Normalize`, or None if there is none.

    Raises:
        ValueError: If there are different ones.
    """
    found = {}
    seen: dict[int, object] = {}  # keeps its objects alive, lest a new one gets an id of theirs
    stack = [dataset]
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen[id(node)] = node
        if isinstance(node, Normalize | v2.Normalize):
            found[constants_of(node)] = node
        stack.extend(_inside(node))
    if len(found) > 1:
        raise ValueError(
            "Expected `dataset` to have one Normalize in its training transforms, got "
            f"{list(found.values())}; state the constants: `views=PaperViews(mean=..., std=...)`"
        )
    return next(iter(found), None)


def constants_of(
    transform: Normalize | v2.Normalize,
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """`(mean, std)` of a `Normalize`, which takes sequences, tensors and single numbers.

    Example:
        >>> constants_of(Normalize(0.5, [0.25]))
        ((0.5,), (0.25,))
    """
    mean, std = (np.ravel(part).astype(float) for part in (transform.mean, transform.std))
    return tuple(mean.tolist()), tuple(std.tolist())


def _inside(node: object) -> list[object]:
    """What a dataset, a transform group or a transform consists of; training transforms only."""
    if isinstance(node, TransformGroups):
        # from a copy, as reading a default group adds its key, which changes the dataset
        return [copy.copy(node)["train"]]
    if isinstance(node, nn.Sequential):
        return list(node)
    parts: list[object] = []
    datasets = ("_flat_data", "_datasets", "datasets", "dataset")
    groups = ("_frozen_transform_groups", "_transform_groups")
    for name in (*datasets, *groups, "transforms", "transform"):
        part = getattr(node, name, None)
        # a list with a name in the singular may be one of samples: not to be walked through
        if isinstance(part, list | tuple | nn.ModuleList) and name.endswith("s"):
            parts.extend(part)
        # torchvision's pair of `transform` and `target_transform`, stale where these were replaced
        elif not isinstance(part, StandardTransform):
            parts.append(part)
    return parts
