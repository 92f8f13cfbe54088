"""Small networks of the benchmarks that are nobody's published backbone."""

from __future__ import annotations

from torch import Tensor, nn


class ThreeLayerCNN(nn.Module):
    """Three 3x3 convolutions with batch norm, for images of 8x8; 256 features at width 32.

    Args:
        num_classes: Outputs of the linear layer.
        in_channels: Channels of the images.
        width: Channels of the first convolution; the others have twice as many.
    """

    def __init__(self, num_classes: int = 10, *, in_channels: int = 1, width: int = 32):
        super().__init__()
        self.features = nn.Sequential(
            *_block(in_channels, width),
            *_block(width, 2 * width),
            nn.MaxPool2d(2),
            *_block(2 * width, 2 * width),
            nn.MaxPool2d(2),
            nn.Flatten(),
        )
        self.classifier = nn.Linear(8 * width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, num_classes) of images (B, C, H, W)."""
        return self.classifier(self.features(x))


def _block(channels_in: int, channels_out: int) -> list[nn.Module]:
    convolution = nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False)
    return [convolution, nn.BatchNorm2d(channels_out), nn.ReLU(inplace=True)]
