"""The network of both learners: ResNets for small images, any width (paper's "Settings" section).

The paper uses a ResNet-18 and, in its appendix, a ResNet-34. Their form for small images (3x3 stem
of stride 1, no max-pooling) is that of the authors' runs, which also leave out the ReLU after the
stem: `stem_relu=False`.
"""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

NUM_STAGES = 4


class BasicBlock(nn.Module):
    """Residual block of two 3x3 convolutions.

    The shortcut is a 1x1 convolution with batch norm where the shape changes, otherwise empty.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        stride: Stride of the first convolution and of the shortcut.
    """

    def __init__(self, in_channels: int, out_channels: int, *, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.shortcut = nn.Sequential()
        if stride != 1 or in_channels != out_channels:
            self.shortcut.append(nn.Conv2d(in_channels, out_channels, 1, stride, bias=False))
            self.shortcut.append(nn.BatchNorm2d(out_channels))

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, in_channels, H, W) to (B, out_channels, H / stride, W / stride), rounded up."""
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class SmallImageResNet(nn.Module):
    """ResNet of basic blocks for small images, of any width, height and number of channels.

    A 3x3 stem of stride 1, four stages of `width` times 1, 2, 4 and 8 channels, of which the last
    three halve the image, the average over all pixels, and one linear layer, named `linear`.

    Args:
        blocks: Number of blocks in each of the four stages.
        num_classes: Outputs K of the linear layer.
        in_channels: Channels C of the images.
        width: Channels of the first stage; features are D = 8 * width numbers.
        stem_relu: False leaves out the ReLU after the stem, as in the authors' runs.

    Raises:
        ValueError: If `blocks` is not four numbers, or any number is below 1.

    Example:
        >>> import torch
        >>> model = SmallImageResNet((1, 1, 1, 1), num_classes=10, width=4)
        >>> model(torch.rand(2, 3, 16, 16)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        blocks: Sequence[int],
        *,
        num_classes: int = 100,
        in_channels: int = 3,
        width: int = 64,
        stem_relu: bool = True,
    ) -> None:
        super().__init__()
        if len(blocks) != NUM_STAGES or min(blocks) < 1:
            raise ValueError(
                f"Expected `blocks` to be {NUM_STAGES} numbers of at least 1, got {blocks}; "
                "ResNet-18 is (2, 2, 2, 2)"
            )
        sizes = {"num_classes": num_classes, "in_channels": in_channels, "width": width}
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(f"Expected `{name}` to be at least 1, got {size}")
        self.stem_relu = stem_relu
        self.conv1 = nn.Conv2d(in_channels, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = _stage(width, width, num_blocks=blocks[0], stride=1)
        self.layer2 = _stage(width, 2 * width, num_blocks=blocks[1], stride=2)
        self.layer3 = _stage(2 * width, 4 * width, num_blocks=blocks[2], stride=2)
        self.layer4 = _stage(4 * width, 8 * width, num_blocks=blocks[3], stride=2)
        self.linear = nn.Linear(8 * width, num_classes)

    def features(self, x: Tensor) -> Tensor:
        """Features (B, D) of images (B, C, H, W), D = 8 * width."""
        x = self.bn1(self.conv1(x))
        if self.stem_relu:
            x = F.relu(x)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return x.mean(dim=(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, K) of images (B, C, H, W)."""
        return self.linear(self.features(x))


def resnet18(
    num_classes: int = 100, *, in_channels: int = 3, width: int = 64, stem_relu: bool = True
) -> SmallImageResNet:
    """ResNet-18 for small images, the paper's backbone ("Settings", implementation details).

    Args:
        num_classes: Outputs of the linear layer.
        in_channels: Channels of the images.
        width: Channels of the first stage; 64 in the paper, less for quick checks.
        stem_relu: False leaves out the ReLU after the stem, as in the authors' runs.

    Raises:
        ValueError: If a number is below 1.

    Example:
        >>> sum(p.numel() for p in resnet18().parameters())
        11220132
    """
    return SmallImageResNet(
        (2, 2, 2, 2),
        num_classes=num_classes,
        in_channels=in_channels,
        width=width,
        stem_relu=stem_relu,
    )


def resnet34(
    num_classes: int = 100, *, in_channels: int = 3, width: int = 64, stem_relu: bool = True
) -> SmallImageResNet:
    """ResNet-34 for small images, as in the appendix ("Results with Larger Network Backbone").

    Args:
        num_classes: Outputs of the linear layer.
        in_channels: Channels of the images.
        width: Channels of the first stage; 64 in the paper, less for quick checks.
        stem_relu: False leaves out the ReLU after the stem, as in the authors' runs.

    Raises:
        ValueError: If a number is below 1.

    Example:
        >>> resnet34(10, width=4).linear
        Linear(in_features=32, out_features=10, bias=True)
    """
    return SmallImageResNet(
        (3, 4, 6, 3),
        num_classes=num_classes,
        in_channels=in_channels,
        width=width,
        stem_relu=stem_relu,
    )


def _stage(in_channels: int, out_channels: int, *, num_blocks: int, stride: int) -> nn.Sequential:
    """Blocks of one stage; only the first changes the shape."""
    rest = [BasicBlock(out_channels, out_channels) for _ in range(num_blocks - 1)]
    return nn.Sequential(BasicBlock(in_channels, out_channels, stride=stride), *rest)
