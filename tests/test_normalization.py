"""The constants of a stream are found in any wrapping; what `fit` keeps of them."""

import gc
import pickle
import warnings
import weakref

import numpy as np
import pytest
import torch
from avalanche.benchmarks import (
    class_incremental_benchmark,
    nc_benchmark,
    task_incremental_benchmark,
    tensors_benchmark,
)
from avalanche.benchmarks.classic import PermutedMNIST, SplitCIFAR100, SplitMNIST
from avalanche.benchmarks.utils import (
    TransformGroups,
    as_classification_dataset,
    make_avalanche_dataset,
)
from torch import nn
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset
from torchvision import transforms
from torchvision.datasets import CIFAR100
from torchvision.transforms import Normalize, v2

from avalanche_dlcpa.normalization import find_normalization
from avalanche_dlcpa.views import PaperViews

CIFAR_CONSTANTS = ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))


class Unreadable(Dataset):
    """A dataset that may not be read, as finding the constants must be quick."""

    targets = (0, 1) * 4

    def __init__(self, **attributes):
        vars(self).update(attributes)

    def __len__(self):
        return 8

    def __getitem__(self, index):
        raise AssertionError("a sample was loaded")


class LeafWithTransform(TensorDataset):
    def __init__(self, transform):
        super().__init__(torch.rand(8, 3, 8, 8), torch.tensor([0, 1] * 4))
        self.targets, self.transform = [0, 1] * 4, transform


A, B = Normalize((0.1, 0.2, 0.3), (0.4, 0.5, 0.6)), Normalize((0.5,), (0.5,))
CONSTANTS_A = ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))


@pytest.mark.parametrize(
    "transform",
    [
        A,
        v2.Normalize([0.1, 0.2, 0.3], [0.4, 0.5, 0.6]),
        Normalize(torch.tensor(A.mean, dtype=torch.float64), np.array(A.std)),
        transforms.Compose([transforms.ToTensor(), transforms.Compose([A])]),
        v2.Compose([v2.ToDtype(torch.float32), v2.Compose([v2.Normalize(A.mean, A.std)])]),
        nn.Sequential(transforms.RandomHorizontalFlip(), A),
        transforms.RandomApply(nn.ModuleList([A]), p=1.0),
        transforms.Compose([transforms.RandomCrop(8), A, A]),
    ],
    ids=repr,
)
def test_normalize_is_found_in_any_wrapping(transform):
    as_group = make_avalanche_dataset(
        Unreadable(),
        transform_groups=TransformGroups({"train": (transform, None), "eval": (B, None)}),
    )
    on_leaf = as_classification_dataset(Unreadable(transform=transform))
    for dataset in (as_group, on_leaf, Unreadable(transform=transform)):
        assert find_normalization(dataset) == CONSTANTS_A


@pytest.mark.parametrize("number", [float, torch.tensor, np.float32])
def test_single_numbers_are_constants_of_all_channels(number):
    single = Normalize(number(0.5), number(0.25))
    assert find_normalization(Unreadable(transform=single)) == ((0.5,), (0.25,))


def test_operations_on_datasets_keep_the_normalization():
    groups = TransformGroups({"train": (A, None), "eval": (B, None)})
    dataset = make_avalanche_dataset(Unreadable(), transform_groups=groups)
    plain = make_avalanche_dataset(Unreadable())
    for derived in (
        dataset.subset([0, 1]),
        dataset.concat(plain),
        plain.concat(dataset).subset([9]),
        dataset.freeze_transforms(),
        dataset.freeze_transforms().concat(dataset),
        dataset.eval(),  # training takes the training transforms
        make_avalanche_dataset(ConcatDataset([Subset(Unreadable(transform=A), [1]), Unreadable()])),
        Unreadable(dataset=dataset),
    ):
        assert find_normalization(derived) == CONSTANTS_A
    other = dataset.replace_current_transform_group((transforms.Compose([B]), None))
    assert find_normalization(other) == ((0.5,), (0.5,))
    assert find_normalization(dataset.remove_current_transform_group()) is None


def test_torchvisions_datasets_by_their_own_transform():
    class Leaf(CIFAR100):
        def __init__(self, **arguments):
            super(CIFAR100.__mro__[1], self).__init__("", **arguments)

    assert find_normalization(Leaf(transform=A)) == CONSTANTS_A
    assert (
        find_normalization(Leaf(transforms=v2.Compose([v2.Normalize(*CONSTANTS_A)]))) == CONSTANTS_A
    )
    replaced = Leaf(transform=A)
    replaced.transform = (
        B  # `transforms` is the old pair, which torchvision's CIFAR100 does not use
    )
    assert find_normalization(replaced) == ((0.5,), (0.5,))


def test_without_normalize_there_is_nothing_to_find():
    samples = [(torch.rand(3), 0)]
    for dataset in (Unreadable(), Subset(samples, [0]), Unreadable(dataset=[A]), TensorDataset()):
        assert find_normalization(dataset) is None


def test_finding_leaves_the_dataset_equal():
    dataset, twin = (make_avalanche_dataset(LeafWithTransform(None)) for _ in range(2))
    twin._flat_data._datasets = dataset._flat_data._datasets
    assert dataset == twin
    find_normalization(dataset)
    assert dataset == twin


def test_different_normalizations_are_refused():
    mixed = ConcatDataset([Unreadable(transform=A), Unreadable(transform=B)])
    message = r"one Normalize.*got .*0\.5.*0\.1.*`views=PaperViews\(mean=..., std=...\)`"
    with pytest.raises(ValueError, match=message):
        find_normalization(mixed)
    with pytest.raises(ValueError, match=message):
        PaperViews().fit(mixed)
    PaperViews(mean=[0.5]).fit(mixed)


def builders():
    train, test = LeafWithTransform(None), LeafWithTransform(None)
    with_transforms = {"train_transform": transforms.Compose([A]), "eval_transform": B}
    new_style = {
        name: as_classification_dataset(
            data, transform_groups={"train": (A, None), "eval": (B, None)}
        )
        for name, data in (("train", train), ("test", test))
    }
    incremental = class_incremental_benchmark(new_style, num_experiences=2)
    tensors = [(torch.rand(4, 3, 8, 8), torch.zeros(4)), (torch.rand(4, 3, 8, 8), torch.ones(4))]
    yield nc_benchmark(train, test, n_experiences=2, task_labels=False, **with_transforms)
    yield nc_benchmark(train, test, n_experiences=2, task_labels=True, **with_transforms)
    yield tensors_benchmark(
        train_tensors=tensors, test_tensors=tensors, task_labels=[0, 0], **with_transforms
    )
    yield incremental
    yield task_incremental_benchmark(incremental)


def test_constants_are_those_of_the_training_transforms_in_every_benchmark():
    for benchmark in builders():
        for experience in benchmark.train_stream:
            assert find_normalization(experience.dataset) == CONSTANTS_A


def write_mnist(root):
    raw = root / "MNIST" / "raw"
    raw.mkdir(parents=True)
    labels = np.arange(10, dtype=np.uint8)
    for part in ("train", "t10k"):
        for kind, array in (
            ("images-idx3", np.zeros((10, 28, 28), np.uint8)),
            ("labels-idx1", labels),
        ):
            head = b"\0\0\x08" + bytes([array.ndim])
            head += b"".join(size.to_bytes(4, "big") for size in array.shape)
            (raw / f"{part}-{kind}-ubyte").write_bytes(head + array.tobytes())


def write_cifar100(root):
    folder = root / "cifar-100-python"
    folder.mkdir()
    entry = {"data": np.zeros((100, 3072), np.uint8), "fine_labels": list(range(100))}
    for name in ("train", "test"):
        (folder / name).write_bytes(pickle.dumps(entry))
    (folder / "meta").write_bytes(pickle.dumps({"fine_label_names": [str(k) for k in range(100)]}))


def test_avalanches_classic_benchmarks(tmp_path, monkeypatch):
    write_mnist(tmp_path)
    write_cifar100(tmp_path)
    for check in ("_check_integrity", "_load_meta"):
        monkeypatch.setattr(CIFAR100, check, lambda self: True)
    cifar = SplitCIFAR100(10, dataset_root=tmp_path)
    assert find_normalization(cifar.train_stream[3].dataset) == CIFAR_CONSTANTS
    for benchmark in (
        SplitMNIST(5, dataset_root=tmp_path),
        PermutedMNIST(2, dataset_root=tmp_path),
    ):
        assert find_normalization(benchmark.train_stream[1].dataset) == ((0.1307,), (0.3081,))


# fit ----------------------------------------------------------------------------------------------


def test_fit_takes_the_normalization_of_each_experience():
    make = PaperViews()
    make.fit(Unreadable(transform=A), lambda: torch.full((2, 3, 8, 8), -5.0))
    assert (make.mean, make.std) == CONSTANTS_A
    make.fit(Unreadable(transform=B))
    assert (make.mean, make.std) == ((0.5,), (0.5,))
    make.fit(Unreadable(), lambda: torch.rand(2, 3, 8, 8))
    assert (make.mean, make.std) == ((0.0,), (1.0,))


def test_fit_does_nothing_to_given_constants():
    make = PaperViews(std=[2.0])
    make.fit(Unreadable(transform=A), lambda: torch.full((2, 3, 8, 8), -5.0))
    assert (make.mean, make.std) == ((0.0,), (2.0,))


def test_no_sample_is_taken_where_the_constants_are_given():
    def take():
        raise AssertionError("took a sample")

    PaperViews(mean=[0.5], std=[0.25]).fit(Unreadable(), take)


def test_constants_that_were_found_stand_where_there_is_no_sample():
    def take():
        raise ValueError("images of different sizes")

    views = PaperViews()
    views.fit(Unreadable(transform=A), take)
    assert (views.mean, views.std) == (tuple(A.mean), tuple(A.std))


def test_constants_of_another_number_of_channels_are_left_to_the_first_mini_batch():
    views, sample = PaperViews(), torch.rand(4, 1, 8, 8)
    views.fit(Unreadable(transform=Normalize([0.1, 0.2], [0.3, 0.4])), lambda: sample)
    with pytest.raises(ValueError, match="got 2 for 1; pass `views=PaperViews"):
        views(sample)


@pytest.mark.parametrize("scale", [1, 255])
def test_a_normalisation_of_pixels_up_to_255_leads_to_pixels_up_to_1(scale):
    mean, std = [0.5 * scale, 0.4 * scale, 0.45 * scale], [0.25 * scale, 0.2 * scale, 0.3 * scale]
    normalise, pixels = Normalize(mean, std), torch.rand(8, 3, 8, 8)
    sample, views = normalise(scale * pixels), PaperViews()
    views.fit(Unreadable(transform=normalise), lambda: sample)
    assert views.mean == pytest.approx((0.5, 0.4, 0.45))
    assert views.std == pytest.approx((0.25, 0.2, 0.3))
    true = PaperViews(mean=views.mean, std=views.std)
    drawn = []
    for each in (views, true):
        torch.manual_seed(0)
        drawn.append(each(sample))
    torch.testing.assert_close(*drawn)


@pytest.mark.parametrize("sample", [None, torch.tensor([-1e-4, 1 + 1e-4]).repeat(2, 3, 8, 4)])
def test_fit_is_silent_for_pixels_in_zero_to_one(sample):
    make = PaperViews()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make.fit(Unreadable(), None if sample is None else lambda: sample)
    assert (make.mean, make.std) == ((0.0,), (1.0,))


def test_fit_warns_once_of_another_range_and_keeps_it():
    x = torch.rand(64, 3, 8, 8)
    x[0, :, 0, 0], x[0, :, 0, 1] = 0, 1
    scale, shift = torch.tensor([2.0, 4.0, 0.0]).view(3, 1, 1), torch.tensor([-1.5, 0.0, 3.0])
    sample = x * scale + shift.view(3, 1, 1)
    make = PaperViews()
    message = r"range \[-1.5, 4\].*to \[0, 1\].*`views=PaperViews\(mean=..., std=...\)`"
    with pytest.warns(UserWarning, match=message) as caught:
        make.fit(Unreadable(), lambda: sample)
    assert caught[0].filename == __file__
    assert (make.mean, make.std) == ((0.75, 0.0, -3.0), (0.5, 0.25, 1.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make.fit(Unreadable(), lambda: torch.full_like(sample, 200.0))
        make.fit(Unreadable())
    assert (make.mean, make.std) == ((0.75, 0.0, -3.0), (0.5, 0.25, 1.0))
    make.fit(Unreadable(transform=A))
    assert (make.mean, make.std) == CONSTANTS_A


def test_fit_keeps_nothing_but_numbers():
    make, sample = PaperViews(), torch.rand(4, 3, 8, 8) * 9
    with pytest.warns(UserWarning, match="range"):
        make.fit(Unreadable(), [sample].pop)
    reference = weakref.ref(sample)
    del sample
    gc.collect()
    assert reference() is None
    assert {type(number) for number in (*make.mean, *make.std)} == {float}


@pytest.mark.real_data
def test_real_streams(data_root):
    for build, constants in (
        (SplitCIFAR100, CIFAR_CONSTANTS),
        (SplitMNIST, ((0.1307,), (0.3081,))),
    ):
        dataset = build(5, dataset_root=data_root).train_stream[0].dataset
        make = PaperViews()
        make.fit(dataset)
        assert (make.mean, make.std) == constants
        view, _ = make(torch.stack([dataset[index][0] for index in range(8)]))
        pixels = view * torch.tensor(constants[1]).view(-1, 1, 1)
        pixels += torch.tensor(constants[0]).view(-1, 1, 1)
        assert pixels.min() >= -1e-5
        assert pixels.max() <= 1 + 1e-5
