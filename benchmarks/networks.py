"""Small networks of the benchmarks, and what PackNet and iCaRL need of a network."""

from __future__ import annotations

import copy
from typing import cast

import torch
from avalanche.models import MultiHeadClassifier
from avalanche.models.packnet import PackNetModel, PackNetModule
from torch import Tensor, nn

from avalanche_dlcpa.model_head import find_head


class ThreeLayerCNN(nn.Module):
    """Three 3x3 convolutions with batch norm, for gray images of 8x8; 256 features at width 32.

    Args:
        num_classes: Outputs of the linear layer.
        width: Channels of the first convolution; the others have twice as many.
    """

    def __init__(self, num_classes: int = 10, *, width: int = 32):
        super().__init__()
        self.features = nn.Sequential(
            *_block(1, width),
            *_block(width, 2 * width),
            nn.MaxPool2d(2),
            *_block(2 * width, 2 * width),
            nn.MaxPool2d(2),
            nn.Flatten(),
        )
        self.classifier = nn.Linear(8 * width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, num_classes) of images (B, 1, 8, 8)."""
        return self.classifier(self.features(x))


def _block(channels_in: int, channels_out: int) -> list[nn.Module]:
    convolution = nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False)
    return [convolution, nn.BatchNorm2d(channels_out), nn.ReLU(inplace=True)]


class _OneATask(PackNetModule):
    """What every task has for itself, so that nothing of it is shared, pruned or frozen."""

    task = 0

    def _prune(self, prune_proportion: float) -> None:
        """Nothing."""

    def _freeze_pruned(self) -> None:
        """Nothing: no later task has a gradient for it."""

    def _activate_task(self, task_id: int) -> None:
        """Remember it: `active_task` is a tensor, and waits for a GPU each time it is asked."""
        self.task = int(task_id)


class _NormATask(_OneATask):
    """Batch norms like a given one."""

    def __init__(self, norm: nn.BatchNorm2d, num_tasks: int):
        super().__init__()
        self.norms = nn.ModuleList(copy.deepcopy(norm) for _ in range(num_tasks))

    def forward(self, x: Tensor) -> Tensor:
        return self.norms[self.task](x)


class _HeadATask(_OneATask):
    """Heads, in which the logits of other tasks' classes are very low."""

    def __init__(self, in_features: int):
        super().__init__()
        self.heads = MultiHeadClassifier(in_features)

    def forward(self, features: Tensor) -> Tensor:
        return self.heads.forward_single_task(features, self.task)


def packnet_network(network: nn.Module, num_tasks: int) -> PackNetModel:
    """Wrap a network for Avalanche's PackNet, in place, with batch norms and a head for each task.

    PackNet shares the weights of the convolutions. It refuses batch norm by itself, whose
    statistics would move, and fails on convolutions without a bias: they get one that stays 0.

    Args:
        network: With batch norm and a last linear layer.
        num_tasks: How many tasks there will be.
    """
    features, head = split_at_head(network)
    for parent in list(features.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, nn.BatchNorm2d):
                setattr(parent, name, _NormATask(layer, num_tasks))
            elif isinstance(layer, nn.Conv2d) and layer.bias is None:
                layer.bias = nn.Parameter(torch.zeros(layer.out_channels), requires_grad=False)
    return PackNetModel(nn.Sequential(features, _HeadATask(head.in_features)))


def split_at_head(network: nn.Module) -> tuple[nn.Module, nn.Linear]:
    """Take a network apart, in place, into feature extractor and last linear layer."""
    name = find_head(network)
    parent, _, last = name.rpartition(".")
    head = cast(nn.Linear, network.get_submodule(name))
    setattr(network.get_submodule(parent), last, nn.Identity())
    return network, head
