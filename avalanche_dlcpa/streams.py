"""The paper's streams, one call each (sections "Settings" and "Dataset Statistics").

All take the options of :func:`split_cifar100`. Without any, they hold what Avalanche's own
``SplitCIFAR100``, ``SplitTinyImageNet`` and ``SplitMNIST`` hold with ``shuffle=False``. The global
random state is neither read nor moved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
import torch
from avalanche.benchmarks import NCScenario, nc_benchmark
from avalanche.benchmarks.classic import SplitCIFAR100, SplitMNIST, SplitTinyImageNet
from avalanche.benchmarks.datasets import TinyImagenet, default_dataset_location
from avalanche.benchmarks.datasets.external_datasets.cifar import get_cifar100_dataset
from avalanche.benchmarks.datasets.external_datasets.mnist import get_mnist_dataset
from avalanche.benchmarks.utils import (
    DataAttribute,
    as_classification_dataset,
    make_avalanche_dataset,
)
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.utils.data import TensorDataset
from torchvision.datasets import CIFAR100, MNIST

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["split_cifar100", "split_digits", "split_mnist", "split_tiny_imagenet"]

SPLIT_SEED = 0  # of every held-out part: all runs hold out the same images
Source = tuple[Any, Any, list[str]]  # training set, test set, class names


class StreamOptions(TypedDict, total=False):
    """The keyword arguments that all streams take; :func:`split_cifar100` explains them."""

    class_order_seed: int | None
    validation_fraction: float
    train_images_per_class: int | None
    task_labels: bool
    augment: bool
    dataset_root: str | Path | None


def split_cifar100(num_experiences: int = 10, **options: Unpack[StreamOptions]) -> NCScenario:
    """Builds the split CIFAR-100 stream: (3, 32, 32) images, 500 training and 100 test a class.

    A label is the data set's own in every class order and names the same class in every run,
    ``class_names[label]``. In a drawn order, an experience therefore holds scattered labels.

    Args:
        num_experiences: Experiences that share the classes equally; 10 and 20 in the paper.
        **options: Any of these, by keyword.

            * class_order_seed (int): Draws the class order that Avalanche's ``seed`` would draw.
              Default: None, the natural order 0, 1, 2, ...
            * validation_fraction (float): The share of each class that goes to ``valid_stream``
              instead of ``train_stream``, with the transforms of evaluation; 0.1 in the paper. The
              same images in every class order and number of experiences. Default: 0.0.
            * train_images_per_class (int): Uses only the first so many training images of each
              class, in the data set's own order, validation included. Default: None, all.
            * task_labels (bool): Gives each experience a task label of its own, otherwise all have
              0. Class-IL and Task-IL can both be measured without. Default: False.
            * augment (bool): Puts Avalanche's augmentation (here a random crop and flip) before the
              normalisation of training images. Without, they look as in evaluation: the starting
              point for views of one's own. Default: True.
            * dataset_root (str or Path): The data's folder; what it lacks is downloaded. Default:
              None, Avalanche's own folder.

    Returns:
        Avalanche's scenario: ``train_stream``, ``test_stream``, ``valid_stream`` if images are held
        out, and ``class_names``, a list indexed by label.

    Raises:
        ValueError: If ``num_experiences`` does not divide the number of classes, or a class has
            too few images for ``train_images_per_class`` or ``validation_fraction``.
        FileNotFoundError: If the data are absent and the download fails.
    """
    return _build(_cifar100, SplitCIFAR100, num_experiences, **options)


def split_tiny_imagenet(num_experiences: int = 10, **options: Unpack[StreamOptions]) -> NCScenario:
    """Builds the split Tiny-ImageNet stream: (3, 64, 64) images, 500 training and 50 test a class.

    The paper splits the 200 classes into 10 and 25 experiences. Test images are the data set's
    labelled validation images; the augmentation is a random flip. Images stay on disk until used.
    """
    return _build(_tiny_imagenet, SplitTinyImageNet, num_experiences, **options)


def split_mnist(num_experiences: int = 5, **options: Unpack[StreamOptions]) -> NCScenario:
    """Builds the split MNIST stream: (1, 28, 28) images of ten digits.

    Avalanche does not augment MNIST, so that ``augment`` makes no difference.
    """
    return _build(_mnist, SplitMNIST, num_experiences, **options)


def split_digits(num_experiences: int = 5, **options: Unpack[StreamOptions]) -> NCScenario:
    """Builds a split stream of scikit-learn's digits: 1,797 real images, nothing to download.

    The images are (1, 8, 8), float32 in [0, 1]; a fixed fifth of each class is the test set. With
    no transforms and no files, ``augment`` and ``dataset_root`` make no difference.

    Example:
        >>> stream = split_digits(2, train_images_per_class=100, validation_fraction=0.1)
        >>> [experience.classes_in_this_experience for experience in stream.train_stream]
        [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
        >>> [len(experience.dataset) for experience in stream.valid_stream]
        [50, 50]
    """
    return _build(_digits, nc_benchmark, num_experiences, **options)


def _build(
    read: Callable[[str | Path | None], Source],
    split: Callable[..., NCScenario],
    num_experiences: int,
    *,
    class_order_seed: int | None = None,
    validation_fraction: float = 0.0,
    train_images_per_class: int | None = None,
    task_labels: bool = False,
    augment: bool = True,
    dataset_root: str | Path | None = None,
) -> NCScenario:
    """Builds a scenario of the data that `read` gives, with the default transforms of `split`."""
    train, test, class_names = read(dataset_root)
    train = as_classification_dataset(train)
    targets = np.asarray(train.targets)
    in_use = _first_of_each_class(targets, train_images_per_class)
    kept, held_out = _hold_out(in_use, targets[in_use], validation_fraction)
    defaults = signature(split).parameters
    build = partial(
        nc_benchmark,
        train.subset(np.sort(kept).tolist()),
        n_experiences=num_experiences,
        task_labels=task_labels,
        fixed_class_order=_class_order(len(class_names), num_experiences, class_order_seed),
        train_transform=defaults["train_transform" if augment else "eval_transform"].default,
        eval_transform=defaults["eval_transform"].default,
    )
    scenario = build(test)
    if len(held_out) > 0:
        _add_valid_stream_(scenario, build(train.subset(np.sort(held_out).tolist())))
    scenario.class_names = list(class_names)
    return scenario


def _add_valid_stream_(scenario: NCScenario, validation: NCScenario) -> None:
    """Adds the test stream of `validation` to `scenario`, as its valid stream."""
    # Avalanche's benchmark_with_validation_stream would drop the task labels and NCScenario, which
    # itself knows two streams only; its base class takes any.
    super(NCScenario, scenario).__init__(
        stream_definitions={
            **scenario.stream_definitions,
            "valid": validation.stream_definitions["test"],
        },
        stream_factory=scenario.stream_factory,
        experience_factory=scenario.experience_factory,
    )


def _class_order(num_classes: int, num_experiences: int, seed: int | None) -> list[int]:
    divisors = [n for n in range(1, num_classes + 1) if num_classes % n == 0]
    if num_experiences not in divisors:
        raise ValueError(
            f"Expected `num_experiences` to be a divisor of the {num_classes} classes, got "
            f"{num_experiences}; choose one of {', '.join(map(str, divisors))}."
        )
    if seed is None:
        return list(range(num_classes))
    return torch.randperm(num_classes, generator=torch.Generator().manual_seed(seed)).tolist()


def _first_of_each_class(targets: np.ndarray, num_images: int | None) -> np.ndarray:
    smallest = np.bincount(targets).min()
    if num_images is None:
        return np.arange(len(targets))
    if not 1 <= num_images <= smallest:
        raise ValueError(
            f"Expected `train_images_per_class` to be from 1 to {smallest}, the size of the "
            f"smallest class, got {num_images}; pass None for all images."
        )
    return np.concatenate([np.flatnonzero(targets == k)[:num_images] for k in np.unique(targets)])


def _hold_out(indices: np.ndarray, targets: np.ndarray, fraction: float) -> list[np.ndarray]:
    smallest = np.bincount(targets).min()
    if fraction == 0:
        return [indices, indices[:0]]
    if not 1 <= fraction * smallest <= smallest - 1:
        raise ValueError(
            "Expected `validation_fraction` to be 0, or to leave an image of each class on both "
            f"sides (the smallest class has {smallest}), got {fraction}; the paper takes 0.1."
        )
    size = round(fraction * len(indices))
    # not Avalanche's class-balanced split, which draws from the global random state
    return train_test_split(indices, test_size=size, stratify=targets, random_state=SPLIT_SEED)


@contextmanager
def _data_folder(
    dataset_root: str | Path | None, name: str, url: str, files: list[str]
) -> Iterator[Path]:
    """Yields the folder to read from, and tells what it lacks if that and the download fail."""
    root = default_dataset_location(name) if dataset_root is None else Path(dataset_root)
    try:
        yield root
    except (OSError, RuntimeError) as error:  # a URLError is an OSError
        absent = [file for file in files if not (root / file).exists()]
        state = f"lacks {', '.join(absent)}" if absent else f"holds altered {', '.join(files)}"
        reason = " ".join(str(error).split())  # torchvision's has a line for each mirror
        raise FileNotFoundError(
            f"Expected `dataset_root` to be a folder with the {name} data, got {root}, which "
            f"{state}, and the download failed ({reason}). Try again with a network, or unpack "
            f"{url} there."
        ) from error


def _cifar100(dataset_root: str | Path | None) -> Source:
    files = [f"cifar-100-python/{name}" for name in ("train", "test", "meta")]
    with _data_folder(dataset_root, "cifar100", CIFAR100.url, files) as root:
        train, test = get_cifar100_dataset(root)
    return train, test, train.classes


def _mnist(dataset_root: str | Path | None) -> Source:
    files = [f"MNIST/raw/{name.removesuffix('.gz')}" for name, _ in MNIST.resources]
    with _data_folder(dataset_root, "mnist", MNIST.mirrors[0], files) as root:
        train, test = get_mnist_dataset(root)
    return train, test, list("0123456789")


def _tiny_imagenet(dataset_root: str | Path | None) -> Source:
    files = [f"tiny-imagenet-200/{name}" for name in ("wnids.txt", "words.txt", "train", "val")]
    with _data_folder(dataset_root, "tinyimagenet", TinyImagenet.filename[1], files) as root:
        train, test = TinyImagenet(root, train=True), TinyImagenet(root, train=False)
        lines = (root / files[1]).read_text(encoding="utf-8").splitlines()
    words = dict(line.split("\t") for line in lines)
    names = [words[train.id2label[label]].split(",")[0] for label in range(len(train.id2label))]
    # Avalanche lists a class in the order of the file system, which differs between machines
    number = [int(path.stem.split("_")[1]) for path in train.data]
    in_order = np.lexsort((number, train.targets)).tolist()
    return as_classification_dataset(train).subset(in_order), test, names


def _digits(_: str | Path | None) -> Source:
    images, labels = load_digits(return_X_y=True)
    pixels = torch.tensor(images / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
    everything = make_avalanche_dataset(
        TensorDataset(pixels, torch.tensor(labels)),
        data_attributes=[DataAttribute(labels.tolist(), "targets")],
    )
    every = np.arange(len(labels))
    train, test = train_test_split(every, test_size=0.2, stratify=labels, random_state=SPLIT_SEED)
    return everything.subset(sorted(train)), everything.subset(sorted(test)), list("0123456789")
