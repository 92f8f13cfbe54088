"""The settings of the comparisons: stream, network and budget, each in one place.

Every setting of the paper has a twin at lab scale (`lab-...`), which a 2-core CPU finishes, and one
on scikit-learn's digits (`digits-...`), which takes seconds and only shows that everything works.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from avalanche.benchmarks import NCScenario
from torch import Tensor, nn
from torchvision.transforms import Compose, RandomCrop, RandomHorizontalFlip

from avalanche_dlcpa import PaperViews, backbones, streams
from benchmarks.names import expect_known
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
        batch_size: In training, of methods for which no other was published.
        make_views: Makes the views of methods that draw their own.
        buffer_transform: Augments images from a buffer, where a method asks for it.
        tuned_on: Name of the setting whose hyperparameters apply; None: its own.
        num_tuning_experiences: How many experiences the choice of hyperparameters learns.
        can_hold_out: Whether there are images besides those that are learned, for trials.
    """

    title: str
    make_stream: Callable[..., NCScenario]
    make_network: Callable[[int], nn.Module]
    num_experiences: int
    num_classes: int
    epochs: int
    batch_size: int
    make_views: Callable[[], Callable[..., Any]] = PaperViews
    buffer_transform: Callable[[Tensor], Tensor] | None = None
    tuned_on: str | None = None
    num_tuning_experiences: int = 3
    can_hold_out: bool = True

    @property
    def views(self) -> str:
        """The views as results name them, such as ``PaperViews(min_crop_area=0.5)``."""
        make = self.make_views
        if not isinstance(make, functools.partial):
            return f"{make.__name__}()"
        options = ", ".join(f"{name}={value}" for name, value in make.keywords.items())
        return f"{make.func.__name__}({options})"


def _few_images(
    split: Callable[..., NCScenario],
    num_experiences: int,
    images_a_class: int,
    *,
    validation_images: int,
    validation_fraction: float = 0.0,
    **options: Any,
) -> NCScenario:
    """A stream of few training images a class, the first ones.

    10 % of so few would tell settings 5 points apart from none. For validation
    ``validation_images`` more a class are therefore read, and so many, drawn at random from all,
    held out.
    """
    if validation_fraction == 0:
        return split(num_experiences, train_images_per_class=images_a_class, **options)
    both = images_a_class + validation_images
    fraction = validation_images / both
    return split(
        num_experiences, train_images_per_class=both, validation_fraction=fraction, **options
    )


# Chosen on the validation split: so few steps learn little from the small crops of long training.
LAB_VIEWS = functools.partial(PaperViews, min_crop_area=0.75)
ORDERS = (1, 2, 3, 4, 5)  # seeds of the five orders of the classes
SCALES = ("paper", "lab", "digits")


@dataclasses.dataclass(frozen=True)
class _Plan:
    """What a setting of the paper and its twins have in common.

    Attributes:
        data: How the titles call the data set.
        split: Its stream.
        num_experiences: Of the stream.
        num_classes: Of the data set.
        network: Makes the network at paper and lab scale.
        order: Seed of the order of the classes; None: the natural one.
        tuned_on: The setting whose hyperparameters apply, at paper scale.
        buffer_transform: Avalanche's augmentation of the data set, on tensors.
        lab_epochs: At lab scale.
        lab_images: Training images a class at lab scale.
        lab_validation_images: Held out there for validation, a class.
    """

    data: str
    split: Callable[..., NCScenario]
    num_experiences: int
    num_classes: int
    network: Callable[..., nn.Module] = backbones.resnet18
    order: int | None = None
    tuned_on: str | None = None
    buffer_transform: Callable[[Tensor], Tensor] | None = None
    lab_epochs: int = 10
    lab_images: int = 100
    lab_validation_images: int = 100

    @property
    def title(self) -> str:
        order = "" if self.order is None else f", order {self.order}"
        return f"{self.num_experiences}-split {self.data}{order}"

    @property
    def network_title(self) -> str:
        return "ResNet-34" if self.network is backbones.resnet34 else "ResNet-18"


_CIFAR100 = _Plan(
    "CIFAR-100",
    streams.split_cifar100,
    10,
    100,
    tuned_on="cifar100-10",
    buffer_transform=Compose([RandomCrop(32, padding=4), RandomHorizontalFlip()]),
)
_TINY = _Plan(
    "Tiny-ImageNet",
    streams.split_tiny_imagenet,
    10,
    200,
    tuned_on="tiny-10",
    buffer_transform=RandomHorizontalFlip(),
    lab_epochs=5,
    lab_images=50,
    lab_validation_images=50,
)
_MNIST = _Plan(
    "MNIST",
    streams.split_mnist,
    5,
    10,
    network=functools.partial(backbones.resnet18, in_channels=1),
    tuned_on="cifar100-10",
    lab_epochs=5,
)
_PLANS = {
    "cifar100-10": dataclasses.replace(_CIFAR100, tuned_on=None),
    "cifar100-5": dataclasses.replace(_CIFAR100, num_experiences=5),
    "cifar100-20": dataclasses.replace(_CIFAR100, num_experiences=20),
    "cifar100-10-resnet34": dataclasses.replace(_CIFAR100, network=backbones.resnet34),
    **{f"cifar100-10-order{n}": dataclasses.replace(_CIFAR100, order=n) for n in ORDERS},
    "tiny-10": dataclasses.replace(_TINY, tuned_on=None),
    "tiny-25": dataclasses.replace(_TINY, num_experiences=25),
    "tiny-10-resnet34": dataclasses.replace(_TINY, network=backbones.resnet34),
    "mnist-5": _MNIST,
}


def _paper(plan: _Plan) -> Setting:
    return Setting(
        title=f"{plan.title}, {plan.network_title}",
        make_stream=functools.partial(
            plan.split, plan.num_experiences, class_order_seed=plan.order
        ),
        make_network=plan.network,
        num_experiences=plan.num_experiences,
        num_classes=plan.num_classes,
        epochs=100,
        batch_size=32,
        buffer_transform=plan.buffer_transform,
        tuned_on=plan.tuned_on,
    )


def _lab(plan: _Plan) -> Setting:
    return Setting(
        title=f"{plan.title}, {plan.lab_images} images a class, {plan.network_title} of width 16",
        make_stream=functools.partial(
            _few_images,
            plan.split,
            plan.num_experiences,
            plan.lab_images,
            validation_images=plan.lab_validation_images,
            class_order_seed=plan.order,
        ),
        make_network=functools.partial(plan.network, width=16),
        num_experiences=plan.num_experiences,
        num_classes=plan.num_classes,
        epochs=plan.lab_epochs,
        batch_size=32,
        make_views=LAB_VIEWS,
        buffer_transform=plan.buffer_transform,
        tuned_on=None if plan is _PLANS["cifar100-10"] else "lab-cifar100-10",
        can_hold_out=plan.lab_validation_images > 0,
    )


def _digits(plan: _Plan) -> Setting:
    is_resnet34 = plan.network is backbones.resnet34
    network = functools.partial(backbones.resnet34, in_channels=1, width=2)
    num_experiences = 2 if plan.num_experiences == 5 and plan.num_classes == 100 else 5
    network_title = f"{plan.network_title} of width 2" if is_resnet34 else "small CNN"
    return Setting(
        title=f"{num_experiences}-split digits for {plan.title}, {network_title}",
        make_stream=functools.partial(
            streams.split_digits,
            num_experiences,
            class_order_seed=plan.order,
            train_images_per_class=40,
        ),
        make_network=network if is_resnet34 else functools.partial(ThreeLayerCNN, width=8),
        num_experiences=num_experiences,
        num_classes=10,
        epochs=2,
        batch_size=32,
        make_views=ShiftsAndNoise,
        tuned_on="digits",
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
        num_tuning_experiences=5,
    ),
    "lab-cifar100": Setting(
        title="CIFAR-100, 200 images a class, first 6 of 10 tasks, ResNet-18 of width 16",
        make_stream=functools.partial(
            _few_images, streams.split_cifar100, 10, 200, validation_images=100
        ),
        make_network=functools.partial(backbones.resnet18, width=16),
        num_experiences=6,
        num_classes=100,
        epochs=10,
        batch_size=32,
        make_views=LAB_VIEWS,
    ),
    **{name: _paper(plan) for name, plan in _PLANS.items()},
    **{f"lab-{name}": _lab(plan) for name, plan in _PLANS.items()},
    # Five times as many steps a task, and a buffer that is as small a part of all images as the
    # paper's.
    "lab-cifar100-10-all-images": _lab(
        dataclasses.replace(_PLANS["cifar100-10"], lab_images=500, lab_validation_images=0)
    ),
    # The views were chosen with DLCPA: this one is for DLCPA with those of the authors' runs.
    "lab-cifar100-10-small-crops": dataclasses.replace(
        _lab(_PLANS["cifar100-10"]),
        title="10-split CIFAR-100, 100 images a class, small crops, ResNet-18 of width 16",
        make_views=PaperViews,
    ),
    **{f"digits-{name}": _digits(plan) for name, plan in _PLANS.items()},
}


def at_scale(setting: str, scale: str) -> str:
    """The name of a paper-scale setting's twin.

    Example:
        >>> at_scale("cifar100-20", "lab"), at_scale("cifar100-20", "paper")
        ('lab-cifar100-20', 'cifar100-20')

    Raises:
        ValueError: An unknown scale.
    """
    expect_known("scale", scale, SCALES)
    return setting if scale == "paper" else f"{scale}-{setting}"
