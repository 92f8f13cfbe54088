"""What the benchmark of the throughput trains: images, networks and strategy."""

from __future__ import annotations

import math
from typing import Any

import torch
from avalanche.benchmarks import NCScenario, tensors_benchmark
from avalanche.evaluation.metrics import accuracy_metrics, loss_metrics
from avalanche.training.plugins import EvaluationPlugin
from torch import Tensor, nn
from torch.optim import SGD

from avalanche_dlcpa import DLCPAStrategy, backbones, streams

NUM_CLASSES = 10  # of the experience
IMAGES_OF_A_DIGIT = 125  # to train on, of each
NETWORKS = {"resnet18": backbones.resnet18, "resnet34": backbones.resnet34}
LAYOUTS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}


def one_experience(dataset_root: str | None, iterations: int, batch_size: int) -> NCScenario:
    """A stream whose first experience has 10 classes of images (3, 32, 32), in full mini-batches.

    Args:
        dataset_root: Folder of CIFAR-100; None: digits.
        iterations: At least so many, as far as there are images.
        batch_size: Of the mini-batches.
    """
    if dataset_root is not None:
        return streams.split_cifar100(
            100 // NUM_CLASSES,
            train_images_per_class=images_per_class(iterations, batch_size, most=500),
            augment=False,
            dataset_root=dataset_root,
        )
    images, labels = digits(iterations, batch_size)
    return tensors_benchmark([(images, labels)], [(images[:2], labels[:2])], task_labels=[0])


def images_per_class(iterations: int, batch_size: int, *, most: int) -> int:
    """How many images each class needs for so many full mini-batches, or more, and no other one.

    A smaller mini-batch at the end of an epoch would make its iterations look fast.

    Raises:
        ValueError: There are too few images for a mini-batch.

    Example:
        >>> images_per_class(12, 32, most=500)  # 15 mini-batches
        48
    """
    unit = batch_size // math.gcd(batch_size, NUM_CLASSES)
    if unit > most:
        raise ValueError(
            f"Expected a batch size that {most} images of each of {NUM_CLASSES} classes fill, got "
            f"{batch_size}."
        )
    return unit * min(-(-iterations * batch_size // (NUM_CLASSES * unit)), most // unit)


def digits(iterations: int, batch_size: int) -> tuple[Tensor, Tensor]:
    """Digits for so many mini-batches, (N, 3, 32, 32), and their labels."""
    per_class = images_per_class(iterations, batch_size, most=IMAGES_OF_A_DIGIT)
    stream = streams.split_digits(1, train_images_per_class=per_class)
    images, labels = zip(*[sample[:2] for sample in stream.train_stream[0].dataset], strict=True)
    pixels = torch.stack(images).expand(-1, 3, -1, -1)
    return nn.functional.interpolate(pixels, size=(32, 32)), torch.tensor(labels)


def make_strategy(
    *, head: str, network: str, width: int, layout: str, **options: Any
) -> DLCPAStrategy:
    """The strategy of the paper's CIFAR-100 rows, with accuracy and loss of each epoch."""
    model = NETWORKS[network](NUM_CLASSES, width=width).to(memory_format=LAYOUTS[layout])
    return DLCPAStrategy(
        model=model,
        optimizer=SGD(model.parameters(), lr=0.005),
        ssl=None if head == "none" else head,
        evaluator=EvaluationPlugin(accuracy_metrics(epoch=True), loss_metrics(epoch=True)),
        **options,
    )
