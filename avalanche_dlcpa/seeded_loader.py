"""Input of the loop: random transforms that do not depend on who runs them.

Torch gives every worker process random states of its own, so that what a stream's transforms draw
depends on the number of workers. Here each mini-batch brings its own seed.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from avalanche.benchmarks.utils.data_loader import MultiDatasetDataLoader
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from avalanche_dlcpa.random_states import preserved_random_states

CPU = torch.device("cpu")
Seeded = tuple[int, list[int]]  # a seed, and the rows of a mini-batch


def seeded(loader: Any) -> Any:
    """A loader of torch's or Avalanche's with random transforms that do not depend on workers.

    Any other comes back as it is.
    """
    is_known = isinstance(loader, DataLoader | MultiDatasetDataLoader)
    return SeededLoader(loader) if is_known else loader


class SeededLoader:
    """The same mini-batches as of another number of workers.

    Each is read with Python's, NumPy's and torch's generators seeded from the state in which the
    epoch finds torch's own (or the loader's) and from the place of the mini-batch in it. The order
    is that of the loader alone, unless its sampler draws amid the epoch, and without random
    transforms so are the mini-batches.

    Args:
        loader: Of torch's or Avalanche's.
    """

    def __init__(self, loader: DataLoader[Any] | MultiDatasetDataLoader):
        self.loader = loader
        self._persistent: Any = None

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        loader = self._persistent or self._seeded()
        if getattr(loader, "persistent_workers", False):
            self._persistent = loader
        return iter(loader)

    def _seeded(self) -> Any:
        plain: Any = self.loader
        if isinstance(plain, MultiDatasetDataLoader):
            plain = plain._get_loader()
        is_usual = type(plain) is DataLoader and not isinstance(plain.dataset, IterableDataset)
        if not is_usual or plain.batch_sampler is None:
            return plain
        return DataLoader(
            _Batches(plain.dataset, plain.collate_fn),
            batch_sampler=_Seeds(plain.batch_sampler, plain.generator),  # type: ignore[arg-type]
            collate_fn=_as_it_is,
            generator=plain.generator,
            num_workers=plain.num_workers,
            persistent_workers=plain.persistent_workers,
            prefetch_factor=plain.prefetch_factor,
            multiprocessing_context=plain.multiprocessing_context,
            worker_init_fn=plain.worker_init_fn,
            timeout=plain.timeout,
            pin_memory=plain.pin_memory,
        )


class _Seeds:
    """The rows of each mini-batch, with its seed."""

    def __init__(self, sampler: Any, generator: torch.Generator | None):
        self.sampler = sampler
        self.generator = generator

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Seeded]:
        source = self.generator or torch.default_generator
        copy = torch.Generator().set_state(source.get_state())  # what follows is not changed
        first = int(torch.empty((), dtype=torch.int64).random_(generator=copy))
        order, number = iter(self.sampler), 0
        rows = next(order, None)  # draws as with the loader alone
        state = torch.get_rng_state()
        while rows is not None:
            yield first + number, list(rows)
            number += 1
            # What is drawn amid an epoch, such as a small memory's next order, has its own states:
            # workers ask for it earlier.
            with torch.random.fork_rng(devices=[]):
                torch.set_rng_state(state)
                rows = next(order, None)
                state = torch.get_rng_state()


class _Batches(Dataset[Any]):
    """A dataset whose items are whole mini-batches, read with their seed."""

    def __init__(self, dataset: Any, collate: Any):
        self.dataset = dataset
        self.collate = collate

    def __getitems__(self, batch: Seeded) -> Any:
        seed, rows = batch
        is_main = get_worker_info() is None
        with preserved_random_states(CPU) if is_main else contextlib.nullcontext():
            random.seed(seed)
            np.random.seed([seed >> 32, seed % 2**32])
            torch.default_generator.manual_seed(seed)
            return self.collate(self._samples(rows))

    def _samples(self, rows: list[int]) -> list[Any]:
        together = getattr(self.dataset, "__getitems__", None)
        return together(rows) if together else [self.dataset[row] for row in rows]


def _as_it_is(batch: Any) -> Any:
    return batch
