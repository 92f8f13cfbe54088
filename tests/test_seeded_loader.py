"""Mini-batches whose random transforms do not depend on who reads them."""

import random

import numpy as np
import pytest
import torch
from avalanche.benchmarks.utils.data_loader import (
    GroupBalancedDataLoader,
    GroupBalancedInfiniteDataLoader,
)
from torch.utils.data import DataLoader, Dataset, IterableDataset

from avalanche_dlcpa.random_states import random_states
from avalanche_dlcpa.seeded_loader import SeededLoader, seeded

SIZE = 10


class Draws(Dataset):
    """Row numbers, each with a random number of every generator."""

    def __init__(self, start=0):
        self.start = start

    def __len__(self):
        return SIZE

    def __getitem__(self, row):
        drawn = [random.random(), np.random.rand(), torch.rand(1).item()]
        return torch.tensor([self.start + row, *drawn], dtype=torch.float64)


class DrawsTogether(Draws):
    def __getitems__(self, rows):
        noise = torch.rand(len(rows)).double()
        return list(torch.stack([torch.tensor(rows).double(), noise], dim=1))


def collate_with_noise(rows):
    return torch.stack(rows) + torch.rand(1).double() + random.random()


def of_torch(dataset=None, **options):
    return DataLoader(dataset or Draws(), batch_size=4, shuffle=True, **options)


def of_avalanche(dataset=None, **options):
    options = {"batch_size": 4, "shuffle": True, "collate_fn": torch.stack, **options}
    return GroupBalancedDataLoader([dataset or Draws()], **options)


LOADERS = {
    "torch's": of_torch,
    "Avalanche's": of_avalanche,
    "reads together": lambda **options: of_torch(DrawsTogether(), **options),
    "collate_fn that draws": lambda **options: of_torch(collate_fn=collate_with_noise, **options),
}


def epochs_of(loader, num_epochs=2, seed=0):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    return [list(loader) for _ in range(num_epochs)]


def assert_equal(found, expected):
    for epoch, other in zip(found, expected, strict=True):
        for batch, wanted in zip(epoch, other, strict=True):
            torch.testing.assert_close(batch, wanted, rtol=0, atol=0)


@pytest.mark.parametrize("name", LOADERS)
def test_mini_batches_are_the_same_with_any_number_of_workers(name):
    make = LOADERS[name]
    expected = epochs_of(seeded(make()))
    for num_workers in (1, 2):
        assert_equal(epochs_of(seeded(make(num_workers=num_workers))), expected)


def test_random_numbers_differ_between_samples_mini_batches_epochs_and_seeds():
    loader = seeded(of_torch())
    epochs = [*epochs_of(loader), *epochs_of(loader, seed=1)]
    drawn = torch.cat([batch for epoch in epochs for batch in epoch])[:, 1:]
    assert len(drawn) == 4 * SIZE
    for column in drawn.T:
        assert len(column.unique()) == len(column)


@pytest.mark.parametrize("make", [of_torch, of_avalanche])
def test_order_and_random_states_are_those_of_the_loader_alone(make):
    class Rows(Draws):
        def __getitem__(self, row):
            return torch.tensor([row])

    expected = epochs_of(make(Rows()))
    states = random_states(torch.device("cpu"))
    assert_equal(epochs_of(seeded(make(Rows()))), expected)
    found = random_states(torch.device("cpu"))
    assert torch.equal(found["torch"], states["torch"])
    assert found["python"] == states["python"]
    assert torch.equal(found["numpy"][0], states["numpy"][0])
    # what a dataset draws is missed by nobody outside
    epochs_of(seeded(make()))
    assert torch.equal(random_states(torch.device("cpu"))["torch"], states["torch"])
    assert random_states(torch.device("cpu"))["python"] == states["python"]


def test_persistent_workers_stay_and_draw_other_numbers_each_epoch(monkeypatch):
    started = []
    start = torch.multiprocessing.Process.start
    monkeypatch.setattr(
        torch.multiprocessing.Process, "start", lambda self: (started.append(self), start(self))
    )
    loader = seeded(of_torch(num_workers=2, persistent_workers=True))
    first, second, third = epochs_of(loader, num_epochs=3)
    assert len(started) == 2
    drawn = torch.cat([*first, *second, *third])[:, 1]
    assert len(drawn.unique()) == 3 * SIZE
    again = epochs_of(seeded(of_torch(num_workers=1, persistent_workers=True)), num_epochs=3)
    assert_equal(again, [first, second, third])


def test_a_generator_of_the_loader_decides():
    def loader(seed):
        return seeded(of_torch(generator=torch.Generator().manual_seed(seed)))

    first, same, other = epochs_of(loader(1)), epochs_of(loader(1), seed=5), epochs_of(loader(2))
    assert_equal(same, first)
    assert not torch.equal(first[0][0], other[0][0])
    assert not torch.equal(first[0][0][:, 1], first[1][0][:, 1])


def test_an_error_names_its_cause_and_leaves_the_random_states():
    class Broken(Draws):
        def __getitem__(self, row):
            super().__getitem__(row)
            raise OSError("image file is truncated")

    states = random_states(torch.device("cpu"))
    with pytest.raises(OSError, match="image file is truncated"):
        list(seeded(DataLoader(Broken(), batch_size=4)))
    assert random_states(torch.device("cpu"))["python"] == states["python"]
    with pytest.raises(OSError, match="image file is truncated"):
        list(seeded(of_torch(Broken(), num_workers=1)))


def test_options_of_the_loader_are_kept():
    def note(worker):
        random.seed(worker)

    loader = of_torch(
        num_workers=1,
        prefetch_factor=5,
        timeout=3,
        worker_init_fn=note,
        multiprocessing_context="spawn",
    )
    found = SeededLoader(loader)._seeded()
    names = ("num_workers", "prefetch_factor", "timeout", "worker_init_fn", "persistent_workers")
    for name in names:
        assert getattr(found, name) == getattr(loader, name)
    assert found.multiprocessing_context.get_start_method() == "spawn"
    assert len(found) == len(loader) == len(seeded(loader)) == 3


class Stream(IterableDataset):
    def __iter__(self):
        return iter([torch.tensor([1]), torch.tensor([2])])


def test_what_has_no_rows_stays_as_it_is():
    own = [[torch.rand(2)]]
    assert seeded(own) is own
    assert list(seeded(DataLoader(Stream(), batch_size=None))) == [1, 2]
    singles = list(seeded(DataLoader(Draws(), batch_size=None)))
    assert [int(sample[0]) for sample in singles] == list(range(SIZE))


def test_a_loader_without_an_end_begins():
    options = {"batch_size": 4, "collate_fn": torch.stack}
    batches = iter(seeded(GroupBalancedInfiniteDataLoader([Draws()], **options)))
    assert [len(next(batches)) for _ in range(4)] == [4, 4, 2, 4]
