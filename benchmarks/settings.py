"""The settings of the comparisons: stream, network and budget, each in one place."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from avalanche.benchmarks import NCScenario
from torch import nn

from avalanche_dlcpa import PaperViews, backbones, streams
from benchmarks.networks import ThreeLayerCNN
from benchmarks.views import ShiftsAndNoise


@dataclasses.dataclass(frozen=True)
class Setting:
    """What all methods of a comparison share.

    Attributes:
        title: For tables and pages.
        make_stream: Keyword arguments of the streams of `avalanche_dlcpa.streams` -> the stream.
        make_network: Number of classes -> a fresh network.
        num_experiences: How many of the stream's experiences are learned, from the first on.
        num_classes: Outputs of the network.
        epochs: An experience.
        batch_size: In training.
        make_views: Makes the views of methods that draw their own.
    """

    title: str
    make_stream: Callable[..., NCScenario]
    make_network: Callable[[int], nn.Module]
    num_experiences: int
    num_classes: int
    epochs: int
    batch_size: int
    make_views: Callable[[], Callable[..., Any]] = PaperViews


def _lab_stream(*, validation_fraction: float = 0.0, **options: Any) -> NCScenario:
    """200 training images a class; for validation 100 more, since 10 % of 200 tell too little."""
    if validation_fraction == 0:
        return streams.split_cifar100(10, train_images_per_class=200, **options)
    return streams.split_cifar100(
        10, train_images_per_class=300, validation_fraction=1 / 3, **options
    )


SETTINGS = {
    "digits": Setting(
        title="5-split digits, three-layer CNN",
        make_stream=streams.split_digits,
        make_network=ThreeLayerCNN,
        num_experiences=5,
        num_classes=10,
        epochs=15,
        batch_size=32,
        make_views=ShiftsAndNoise,
    ),
    "lab-cifar100": Setting(
        title="CIFAR-100, 200 images a class, first 6 of 10 tasks, ResNet-18 of width 16",
        make_stream=_lab_stream,
        make_network=lambda num_classes: backbones.resnet18(num_classes, width=16),
        num_experiences=6,
        num_classes=100,
        epochs=10,
        batch_size=32,
    ),
}
