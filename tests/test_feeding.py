"""Samples from memory: the mini-batches of Avalanche's own loader, or that loader itself."""

import collections
import logging

import numpy as np
import pytest
import torch
from avalanche.benchmarks import nc_benchmark
from avalanche.benchmarks.utils import (
    AvalancheDataset,
    DataAttribute,
    TransformGroups,
    as_classification_dataset,
    make_avalanche_dataset,
)
from avalanche.benchmarks.utils.data_loader import TaskBalancedDataLoader
from avalanche.core import SupervisedPlugin
from avalanche.training.plugins import ReplayPlugin
from helpers import (
    STREAMS,
    Probe,
    SmallCNN,
    WithTargets,
    assert_same_state,
    cifar_style_stream,
    images_of,
    seed_everything,
    small_head,
    state_of,
    strategy_of,
    tensors_stream,
)
from PIL import Image
from scipy.stats import chisquare
from torch.utils.data import BatchSampler, DataLoader, TensorDataset, WeightedRandomSampler
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder, VisionDataset

from avalanche_dlcpa.feeding import CachedLoader, cached
from avalanche_dlcpa.streams import (
    split_cifar100,
    split_digits,
    split_mnist,
    split_tiny_imagenet,
)

CPU = torch.device("cpu")
EVAL = v1.Compose([v1.ToTensor(), v1.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))])
TRAIN = v1.Compose([v1.RandomCrop(4, padding=1), v1.RandomHorizontalFlip(), EVAL])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """4 classes of 6 colour images of 4 x 4, on disk."""
    root = tmp_path_factory.mktemp("images")
    generator = np.random.default_rng(0)
    for label in range(4):
        (root / str(label)).mkdir()
        for number in range(6):
            pixels = generator.integers(256, size=(4, 4, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / str(label) / f"{number}.png")
    return root


def folder_stream(folder, *, transform=EVAL, own_transform=None, **kwargs):
    data = ImageFolder(str(folder), transform=own_transform)
    return nc_benchmark(
        data,
        data,
        n_experiences=2,
        task_labels=False,
        shuffle=False,
        train_transform=transform,
        eval_transform=EVAL,
        **kwargs,
    )


def task_balanced(dataset, *, batch_size=5, shuffle=True, **kwargs):
    return TaskBalancedDataLoader(
        dataset, batch_size=batch_size, oversample_small_groups=True, shuffle=shuffle, **kwargs
    )


def epoch_of(loader, seed=0):
    torch.manual_seed(seed)
    return [[part.clone() for part in batch] for batch in loader]


def assert_same_batches(ours, theirs):
    assert len(ours) == len(theirs)
    for our_batch, their_batch in zip(ours, theirs, strict=True):
        assert len(our_batch) == len(their_batch)
        for our_part, their_part in zip(our_batch, their_batch, strict=True):
            assert our_part.dtype == their_part.dtype
            assert our_part.stride() == their_part.stride()
            assert torch.equal(our_part, their_part)


def assert_as_avalanche(loader):
    """The loader is recognised and gives the same epoch twice, and leaves the same random state."""
    ours = cached(loader, device=CPU)
    assert isinstance(ours, CachedLoader)
    assert len(ours) == len(loader)
    for seed in range(2):
        theirs = epoch_of(loader, seed)
        their_next = torch.rand(1)
        assert_same_batches(epoch_of(ours, seed), theirs)
        if theirs:  # else they draw less, depending on the loader
            assert torch.equal(torch.rand(1), their_next)


# The same mini-batches ----------------------------------------------------------------------------


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("batch_size", [5, 12, 50])  # of 12 samples
def test_mini_batches_are_those_of_avalanches_loader(folder, batch_size, shuffle, drop_last):
    dataset = folder_stream(folder).train_stream[0].dataset.train()
    options = {"batch_size": batch_size, "shuffle": shuffle, "drop_last": drop_last}
    assert_as_avalanche(task_balanced(dataset, **options))
    assert_as_avalanche(DataLoader(dataset, **options))


@pytest.mark.parametrize("name", [name for name in STREAMS if name != "CIFAR style"])
def test_mini_batches_of_every_stream(name):
    for experience in STREAMS[name](per_class=4).train_stream:
        dataset = experience.dataset.train()
        if hasattr(experience, "task_labels"):
            assert_as_avalanche(task_balanced(dataset))
        else:
            assert_as_avalanche(DataLoader(dataset, batch_size=3, shuffle=True))


def test_a_dataset_with_transforms_of_its_own(folder):
    for transform in (v1.Normalize([0.5], [0.25]), None):
        stream = folder_stream(folder, transform=transform, own_transform=EVAL)
        assert_as_avalanche(task_balanced(stream.train_stream[1].dataset.train()))


def test_labels_that_avalanche_renumbers(folder):
    stream = folder_stream(folder, class_ids_from_zero_in_each_exp=True)
    loader = task_balanced(stream.train_stream[1].dataset.train())
    assert_as_avalanche(loader)
    labels = torch.cat([batch[1] for batch in cached(loader, device=CPU)])
    assert labels.unique().tolist() == [0, 1]


@pytest.mark.parametrize("change", ["frozen", "removed", "replaced", "eval", "joined", "of groups"])
def test_datasets_that_were_rearranged(folder, change):
    dataset = folder_stream(folder, transform=EVAL).train_stream[0].dataset.train()
    other = v1.Normalize([0.5], [0.25])
    if change == "frozen":
        dataset = dataset.freeze_transforms()
    elif change == "removed":  # PIL images, which nobody can stack: Avalanche's error stays
        dataset = dataset.remove_current_transform_group()
        loader = task_balanced(dataset)
        assert cached(loader, device=CPU) is loader
        return
    elif change == "replaced":  # Avalanche loses this one in `subset`, and so in its loader
        dataset = tensors_stream().train_stream[0].dataset.train()
        dataset = dataset.replace_current_transform_group(other)
    elif change == "eval":
        dataset = folder_stream(folder, transform=TRAIN).train_stream[0].dataset.eval()
    elif change == "joined":
        dataset = dataset.subset([1, 0, 5]).concat(dataset.subset([7, 1]))
    else:
        groups = TransformGroups({"train": (other, None), "eval": (None, None)})
        dataset = make_avalanche_dataset(dataset, transform_groups=groups)
    assert_as_avalanche(task_balanced(dataset))


def test_further_parts_of_a_sample():
    data = TensorDataset(torch.rand(10, 7), torch.arange(10) % 2, torch.rand(10, 3))
    dataset = make_avalanche_dataset(
        data,
        data_attributes=[
            DataAttribute([0] * 10, "targets_task_labels", use_in_getitem=True),
            DataAttribute(list(range(10)), "number", use_in_getitem=True),
        ],
    )
    assert_as_avalanche(task_balanced(dataset))


def test_every_sample_comes_once_an_epoch_in_a_new_order():
    data = TensorDataset(torch.arange(20.0).view(20, 1), torch.arange(20))
    loader = cached(DataLoader(AvalancheDataset([data]), batch_size=6, shuffle=True), device=CPU)
    orders = [torch.cat([y for _, y in loader]).tolist() for _ in range(3)]
    assert all(sorted(order) == list(range(20)) for order in orders)
    assert len({tuple(order) for order in orders}) == 3


def test_a_mini_batch_may_be_changed_in_place():
    data = TensorDataset(torch.ones(4, 3), torch.zeros(4, dtype=torch.long))
    loader = cached(DataLoader(AvalancheDataset([data]), batch_size=4), device=CPU)
    for x, y in loader:
        x.zero_(), y.fill_(7)
    [(x, y)] = loader
    assert (x == 1).all()
    assert (y == 0).all()
    assert (data.tensors[0] == 1).all()


def test_images_are_held_as_bytes(folder):
    loader = cached(task_balanced(folder_stream(folder).train_stream[0].dataset), device=CPU)
    assert loader.samples[0].dtype == torch.uint8
    assert loader.samples[0].shape == (12, 3, 4, 4)
    assert loader.samples[0].untyped_storage().nbytes() == 12 * 48


def test_augmentation_has_the_distribution_of_the_streams_own(folder):
    """Each of the 9 places and 2 sides of each image equally often, and no other images."""
    dataset = folder_stream(folder, transform=TRAIN).train_stream[0].dataset.subset([0, 8])
    theirs = task_balanced(dataset, batch_size=2)
    ours = cached(theirs, device=CPU)
    assert isinstance(ours, CachedLoader)

    def outcomes(loader, epochs):
        batches = (batch for _ in range(epochs) for batch in loader)
        images = (
            (int(label), x.numpy().tobytes())
            for xs, labels, _ in batches
            for x, label in zip(xs, labels, strict=True)
        )
        return collections.Counter(images)

    expected = outcomes(theirs, 300)
    assert len(expected) == 2 * 18
    counts = outcomes(ours, 2000)
    assert counts.keys() == expected.keys()
    assert chisquare(list(counts.values())).pvalue > 1e-3


@pytest.mark.real_data
@pytest.mark.parametrize("augment", [False, True])
@pytest.mark.parametrize("split", [split_cifar100, split_mnist, split_tiny_imagenet])
def test_real_streams_are_recognised(data_root, split, augment):
    stream = split(5, train_images_per_class=20, augment=augment, dataset_root=data_root)
    theirs = task_balanced(stream.train_stream[1].dataset.train(), batch_size=32)
    ours = cached(theirs, device=CPU)
    assert isinstance(ours, CachedLoader)
    if not augment or split is split_mnist:
        assert_as_avalanche(theirs)
    for their_batch, our_batch in zip(epoch_of(theirs)[:1], epoch_of(ours), strict=False):
        assert torch.equal(our_batch[1], their_batch[1])
        torch.testing.assert_close(our_batch[0].mean(), their_batch[0].mean(), rtol=0.2, atol=0.1)


# Avalanche's own loader ---------------------------------------------------------------------------


class Noisy(TensorDataset):
    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x + torch.rand(()), y


def avalanche(data, transform=None, label_transform=None, **kwargs):
    groups = TransformGroups({"train": (transform, label_transform)})
    return make_avalanche_dataset(data, transform_groups=groups, **kwargs)


def tensors(count=8):
    return TensorDataset(torch.rand(count, 3, 8, 8), torch.arange(count) % 2)


def of_two_tasks():
    tasks = DataAttribute([0, 1] * 4, "targets_task_labels", use_in_getitem=True)
    return task_balanced(make_avalanche_dataset(tensors(), data_attributes=[tasks]))


def collate(samples):
    return torch.stack([x for x, _ in samples]), torch.tensor([y for _, y in samples])


OPTIONS = {"batch_size": 4, "shuffle": True}


class Pictures(VisionDataset):
    """As those of torchvision, with transforms of image, label or both."""

    __module__ = "torchvision.datasets"

    def __init__(self, **transforms):
        super().__init__(root="", **transforms)
        self.targets = [0, 1] * 4

    def __getitem__(self, index):
        image = Image.fromarray(np.full((8, 8, 3), index, dtype=np.uint8))
        sample = image, self.targets[index]
        return sample if self.transforms is None else self.transforms(*sample)

    def __len__(self):
        return len(self.targets)


def folder_of(**transforms):
    return DataLoader(avalanche(Pictures(**transforms), v1.ToTensor()), **OPTIONS)


class NoisyInAvalanche(AvalancheDataset):
    def __getitem__(self, index):
        x, *rest = super().__getitem__(index)
        return x + torch.rand(()), *rest


def loaded_by_an_own_function():
    data = Pictures()
    data.loader = lambda path: path
    return DataLoader(avalanche(data, v1.ToTensor()), **OPTIONS)


NOT_CACHED = {
    "another loader": lambda: [[torch.rand(2, 3), torch.zeros(2)]],
    "several tasks": of_two_tasks,
    "collate_fn": lambda: DataLoader(avalanche(tensors()), collate_fn=collate, **OPTIONS),
    "sampler": lambda: DataLoader(
        avalanche(tensors()), sampler=WeightedRandomSampler([1.0] * 8, 8), batch_size=4
    ),
    "fewer samples": lambda: DataLoader(avalanche(tensors()), sampler=range(4), batch_size=4),
    "generator": lambda: DataLoader(avalanche(tensors()), generator=torch.Generator(), **OPTIONS),
    "torch's dataset": lambda: DataLoader(tensors(), **OPTIONS),
    "own dataset": lambda: DataLoader(avalanche(Noisy(*tensors().tensors)), **OPTIONS),
    "own images": lambda: task_balanced(cifar_style_stream().train_stream[0].dataset),
    "own Avalanche dataset": lambda: DataLoader(NoisyInAvalanche([tensors()]), **OPTIONS),
    "own loader of images": loaded_by_an_own_function,
    "batch sampler": lambda: DataLoader(
        avalanche(tensors()),
        batch_sampler=BatchSampler(WeightedRandomSampler([1.0] * 8, 8), 4, drop_last=False),
    ),
    "own transform": lambda: DataLoader(avalanche(tensors(), lambda x: x + 1), **OPTIONS),
    "label transform": lambda: DataLoader(avalanche(tensors(), None, lambda y: 1 - y), **OPTIONS),
    "label transform of torchvision": lambda: folder_of(target_transform=lambda y: 1 - y),
    "transforms of both": lambda: folder_of(transforms=lambda x, y: (x, 1 - y)),
    "two kinds": lambda: DataLoader(
        avalanche(tensors()).concat(avalanche(tensors(), v1.RandomHorizontalFlip())), **OPTIONS
    ),
    "sizes": lambda: DataLoader(
        avalanche(tensors(), v1.RandomCrop(8)).concat(
            avalanche(TensorDataset(torch.rand(2, 3, 9, 9), torch.ones(2)), v1.RandomCrop(8))
        ),
        **OPTIONS,
    ),
    "no label": lambda: DataLoader(avalanche(TensorDataset(torch.rand(4, 3))), **OPTIONS),
}


@pytest.mark.parametrize("name", NOT_CACHED)
def test_else_the_loader_stays(name, caplog):
    loader = NOT_CACHED[name]()
    with caplog.at_level(logging.INFO, logger="avalanche_dlcpa.feeding"):
        assert cached(loader, device=CPU) is loader
    [record] = caplog.records
    assert "Avalanche's own loader feeds this experience: " in record.message


def test_too_many_images_are_not_held():
    loader = DataLoader(avalanche(tensors()), **OPTIONS)
    size = 8 * 3 * 8 * 8 * 4
    with pytest.warns(UserWarning, match="would take 0 MB .* `image_cache_bytes`"):
        assert cached(loader, device=CPU, most_bytes=size - 1) is loader
    assert isinstance(cached(loader, device=CPU, most_bytes=size), CachedLoader)


# In the strategy ----------------------------------------------------------------------------------


def innermost(loader):
    return innermost(loader.loader) if hasattr(loader, "loader") else loader


def trained(stream, *, channels=3, ssl="simclr", plugins=(), train=None, **kwargs):
    """A strategy after its training, and the classes of the loaders that fed it."""
    seed_everything()
    model = SmallCNN(channels=channels)
    probe = Probe(before_training_epoch=lambda s: type(innermost(s.dataloader)).__name__)
    strategy = strategy_of(
        model, ssl=small_head(ssl), plugins=[*plugins, probe], train_epochs=2, **kwargs
    )
    for experience in stream.train_stream[:2]:
        strategy.train(experience, **(train or {}))
    return strategy, set(probe.seen["before_training_epoch"])


@pytest.mark.parametrize("name", [*STREAMS, "digits"])
def test_training_is_bit_identical_with_and_without(name):
    stream = split_digits(5, train_images_per_class=20) if name == "digits" else STREAMS[name]()
    states = []
    for image_cache_bytes in (0, 1e9):
        channels = 1 if name == "digits" else 3
        strategy, loaders = trained(stream, channels=channels, image_cache_bytes=image_cache_bytes)
        states.append(state_of(strategy.model, strategy.ssl))
        expected = image_cache_bytes > 0 and name != "CIFAR style"
        assert (loaders == {"CachedLoader"}) == expected
    assert_same_state(*states)


def test_training_on_files_reads_each_once_an_experience(folder, monkeypatch):
    stream, read = folder_stream(folder, transform=TRAIN), collections.Counter()
    open_image = Image.open

    def counted(file, *args, **kwargs):
        read[getattr(file, "name", file)] += 1
        return open_image(file, *args, **kwargs)

    monkeypatch.setattr(Image, "open", counted)
    _, loaders = trained(stream, ssl=None)
    assert loaders == {"CachedLoader"}
    assert len(read) == 24
    assert set(read.values()) == {1}


class MoreData(SupervisedPlugin):
    def after_train_dataset_adaptation(self, strategy, **kwargs):
        strategy.adapted_dataset = strategy.adapted_dataset.subset(range(8))


class OwnLoader(SupervisedPlugin):
    def before_training_exp(self, strategy, **kwargs):
        strategy.dataloader = DataLoader(strategy.adapted_dataset, batch_size=4)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"plugins": [MoreData()]}, {"TaskBalancedDataLoader"}),
        ({"plugins": [OwnLoader()]}, {"DataLoader"}),
        ({"plugins": [ReplayPlugin(mem_size=8)]}, {"CachedLoader", "ReplayDataLoader"}),
        ({"image_cache_bytes": 0}, {"TaskBalancedDataLoader"}),
        ({"train": {"num_workers": 1}}, {"CachedLoader"}),
        ({"train": {"drop_last": True, "shuffle": False}}, {"CachedLoader"}),
    ],
)
def test_whose_loader_feeds_the_strategy(options, expected):
    _, loaders = trained(tensors_stream(per_class=8), **options)
    assert loaders == expected


def test_arguments_of_train_reach_the_loader():
    labels = torch.arange(2).repeat_interleave(9)
    data = WithTargets(images_of(labels), labels)
    stream = nc_benchmark(data, data, n_experiences=1, task_labels=False, shuffle=False)
    for options, sizes in (({}, [8, 8, 2]), ({"drop_last": True}, [8, 8])):
        probe = Probe(before_forward=lambda s: s.mb_y.tolist())
        strategy = strategy_of(SmallCNN(), plugins=[probe], train_mb_size=8)
        strategy.train(stream.train_stream, shuffle=False, **options)
        expected = labels[: sum(sizes)].split(8)
        assert probe.seen["before_forward"] == [part.tolist() for part in expected]


@pytest.mark.parametrize("value", [-1, float("nan"), "all", None])
def test_a_wrong_bound_is_refused(value):
    with pytest.raises(ValueError, match="Expected `image_cache_bytes` to be a number"):
        strategy_of(SmallCNN(), image_cache_bytes=value)


def test_new_style_datasets_without_task_labels_are_read_too():
    dataset = as_classification_dataset(WithTargets(*tensors().tensors))
    assert_as_avalanche(DataLoader(dataset, batch_size=3, shuffle=True))
