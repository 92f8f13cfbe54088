"""Small networks of the benchmarks, and what PackNet and iCaRL need of a network."""

from __future__ import annotations

import torch
from avalanche.models.packnet import PackNetModel
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


def packnet_network(network: nn.Module) -> PackNetModel:
    """Wrap a network for Avalanche's PackNet, in place.

    It refuses batch norm, whose statistics would move: each becomes a group norm without
    parameters, of 8 channels a group. It fails on convolutions without bias: they get one.
    """
    for parent in list(network.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, nn.BatchNorm2d):
                num_groups = max(1, layer.num_features // 8)
                norm = nn.GroupNorm(num_groups, layer.num_features, affine=False)
                setattr(parent, name, norm)
            elif isinstance(layer, nn.Conv2d) and layer.bias is None:
                layer.bias = nn.Parameter(torch.zeros(layer.out_channels))
    return PackNetModel(network)


def split_at_head(network: nn.Module) -> tuple[nn.Module, nn.Module]:
    """Take a network apart, in place, into feature extractor and last linear layer."""
    name = find_head(network)
    parent, _, last = name.rpartition(".")
    head = network.get_submodule(name)
    setattr(network.get_submodule(parent), last, nn.Identity())
    return network, head
