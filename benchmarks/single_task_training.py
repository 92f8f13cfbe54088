"""STL trained on the tasks of a setting, and its parts as the appendix's analyses take them."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from avalanche.benchmarks import NCScenario
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.data import DataLoader

from avalanche_dlcpa import seed_everything
from avalanche_dlcpa.model_head import detach_head
from benchmarks.given_loss import take_loss
from benchmarks.judgement import expect_finite
from benchmarks.methods import METHODS
from benchmarks.settings import Setting

BATCH_SIZE = 256  # of everything after training


@dataclasses.dataclass(frozen=True)
class SingleTasks:
    """What STL has learned.

    Attributes:
        stream: The scenario it was trained on.
        start: Feature extractor before training, (B, C, H, W) -> (B, D).
        extractors: Theta_1 .. Theta_T, feature extractors at the end of each task.
        classifiers: Gamma_1 .. Gamma_T; output k is the k-th smallest class label of the task.
    """

    stream: NCScenario
    start: nn.Module
    extractors: list[nn.Module]
    classifiers: list[nn.Linear]


def train_single_tasks(
    setting: Setting,
    *,
    seed: int,
    ssl: str | None,
    dataset_root: str | None,
    device: str,
    num_experiences: int,
    validation_fraction: float = 0.0,
    **hyperparameters: Any,
) -> SingleTasks:
    """Train STL task by task, each from the parameters of the task before.

    Args:
        setting: Stream, network and budget.
        seed: Of network, order of samples and views; the stream does not depend on it.
        ssl: Self-supervised loss that is added to the supervised one as in Eq. 6; None: none. With
            one, the views take the place of the stream's augmentation.
        dataset_root: Folder of the data; None: Avalanche's default.
        device: Where to train.
        num_experiences: Tasks to learn, from the first on.
        validation_fraction: Share of the training images held out as ``stream.valid_stream``.
        **hyperparameters: Of the method ``stl``, and of the loss, if there is one.

    Raises:
        NonFiniteLossError: The training diverged.
    """
    stream = setting.make_stream(
        augment=ssl is None, validation_fraction=validation_fraction, dataset_root=dataset_root
    )
    seed_everything(seed)
    network = setting.make_network(setting.num_classes)
    start, _ = detach_head(copy.deepcopy(network))
    options = {**hyperparameters, "ssl": ssl}
    plugins = take_loss(options, setting)
    strategy = METHODS["stl"].build(
        network,
        setting=setting,
        **options,
        plugins=plugins,
        train_mb_size=setting.batch_size,
        train_epochs=setting.epochs,
        device=device,
        evaluator=None,
    )
    for learned, experience in enumerate(stream.train_stream[:num_experiences], start=1):
        strategy.train(experience, eval_streams=[])
        expect_finite(strategy, learned)
    model = strategy.model
    return SingleTasks(
        stream=stream,
        start=start.to(device),
        extractors=[*model.earlier, model.extractor],
        classifiers=model.classifiers.linears,
    )


def flat_parameters(module: nn.Module) -> Tensor:
    """All parameters of a module in a row, (P,), float64 on the CPU."""
    return parameters_to_vector(module.parameters()).detach().cpu().double()


def set_flat_parameters_(module: nn.Module, vector: Tensor) -> None:
    """Write a row (P,) into the parameters of a module, in place, in their dtype and device."""
    like = next(module.parameters())
    vector_to_parameters(vector.to(like), module.parameters())


def mean_extractor(extractors: Sequence[nn.Module]) -> nn.Module:
    """A new extractor with the mean of the parameters: STL-me (Eq. 2).

    Its batch norm statistics are those of the last extractor, to be recalibrated before use.
    """
    mean = copy.deepcopy(extractors[-1])
    total = sum(map(flat_parameters, extractors), start=torch.zeros(()))
    set_flat_parameters_(mean, total / len(extractors))
    return mean


def images_and_labels(experience: Any) -> tuple[Tensor, Tensor]:
    """All images (N, C, H, W) of an experience, as evaluation sees them, and class labels (N,)."""
    dataset = experience.dataset.eval()
    loader = DataLoader(dataset, batch_size=len(dataset), collate_fn=dataset.collate_fn)
    images, labels, *_ = next(iter(loader))
    return images, labels


@torch.no_grad()
def features_of(extractor: nn.Module, images: Tensor, *, device: torch.device) -> Tensor:
    """Features (N, D) of images (N, C, H, W), with the running statistics of batch norm.

    Leaves the extractor in evaluation mode.
    """
    extractor.eval()
    return torch.cat([extractor(batch.to(device)) for batch in images.split(BATCH_SIZE)])
