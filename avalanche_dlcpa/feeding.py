"""Input of the loop: mini-batches from samples that are held on the device.

Where a stream's transforms are recognised, the images of an experience are read once, and gathered
and transformed in batches: samples of the same distribution as from Avalanche's loader, in the same
order. Everywhere else Avalanche's loader reads them, see `seeded_loader`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from typing import Any

import torch
from avalanche.benchmarks.utils import AvalancheDataset
from avalanche.benchmarks.utils.data_loader import TaskBalancedDataLoader
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    default_collate,
)

from avalanche_dlcpa.stored_samples import read_samples
from avalanche_dlcpa.stream_transforms import NotRecognizedError, Operation

DEFAULT_CACHE_BYTES = 2 * 1024**3

logger = logging.getLogger(__name__)


class CachedLoader:
    """Mini-batches of samples that are held on a device; the order is that of torch's `DataLoader`.

    With the same state of torch's global generator it yields the very mini-batches of a
    `DataLoader`, where no operation is random. Random numbers of the operations come from the
    global generator of the device.

    Args:
        samples: Images (N, ...), labels (N,) and whatever else a sample has, such as task labels.
        operations: To be applied to the images of a mini-batch.
        batch_size: Samples in a mini-batch.
        shuffle: Whether each epoch has an order of its own.
        drop_last: Whether to leave out a last mini-batch that is not full.
    """

    def __init__(
        self,
        samples: list[Tensor],
        operations: tuple[Operation, ...] = (),
        *,
        batch_size: int,
        shuffle: bool = True,
        drop_last: bool = False,
    ):
        self.samples = samples
        self.operations = operations
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.drop_last = drop_last

    def __len__(self) -> int:
        batches = len(self.samples[0]) / self.batch_size
        return math.floor(batches) if self.drop_last else math.ceil(batches)

    def __iter__(self) -> Iterator[list[Tensor]]:
        for rows in self._order().split(self.batch_size)[: len(self)]:
            # copies, which a plugin may change
            x, *rest = (part.index_select(0, rows) for part in self.samples)
            for operation in self.operations:
                x = operation(x)
            yield [x, *rest]

    def _order(self) -> Tensor:
        size = len(self.samples[0])
        # torch's own loader, as it draws more than the permutation from the global generator
        loader: Any = DataLoader(
            range(size),  # type: ignore[arg-type]
            batch_size=size,
            shuffle=self.shuffle,
            collate_fn=torch.tensor,
        )
        return next(iter(loader)).to(self.samples[0].device)


def cached(loader: Any, *, device: torch.device, most_bytes: float = DEFAULT_CACHE_BYTES) -> Any:
    """Read the samples of a loader once, if that gives the same mini-batches in distribution.

    Args:
        loader: Avalanche's loader of an experience, freshly made.
        device: Where the samples are held.
        most_bytes: Most memory that the images may take; above it there is a warning.

    Returns:
        A `CachedLoader`, which leaves worker processes nothing to do; or the given loader itself:
        with an own `collate_fn` or sampler, several tasks, transforms or datasets that are not
        recognised, or images that differ in size.
    """
    try:
        plain = _plain_loader(loader)
        samples, operations = read_samples(plain.dataset, device=device, most_bytes=most_bytes)
        return CachedLoader(
            samples,
            operations,
            batch_size=plain.batch_size,
            shuffle=isinstance(plain.sampler, RandomSampler),
            drop_last=plain.drop_last,
        )
    except NotRecognizedError as reason:
        logger.info("Avalanche's own loader feeds this experience: %s.", reason)
        return loader


def _plain_loader(loader: Any) -> Any:
    """The `DataLoader` whose mini-batches a loader of Avalanche's yields."""
    if type(loader) is TaskBalancedDataLoader and len(loader.datasets) == 1:
        [dataset], [batch_size] = loader.datasets, loader.batch_sizes
        loader = DataLoader(dataset, batch_size=batch_size, **loader.loader_kwargs)
    dataset = loader.dataset if type(loader) is DataLoader else None
    if not isinstance(dataset, AvalancheDataset):
        raise NotRecognizedError(f"a {type(loader).__name__}, or several tasks")
    if type(dataset).__getitem__ is not AvalancheDataset.__getitem__:
        raise NotRecognizedError(f"a dataset of class {type(dataset).__name__}")
    if loader.collate_fn is not default_collate:
        raise NotRecognizedError("an own `collate_fn`")
    sampler = loader.sampler
    is_usual = type(sampler) in (RandomSampler, SequentialSampler)
    is_usual = is_usual and type(loader.batch_sampler) is BatchSampler and loader.generator is None
    is_usual = is_usual and loader.batch_sampler.sampler is sampler
    if not is_usual or len(sampler) != len(dataset) or _replaces(sampler):
        raise NotRecognizedError("an own sampler or generator")
    return loader


def _replaces(sampler: Any) -> bool:
    return getattr(sampler, "replacement", False) or getattr(sampler, "generator", None) is not None
