"""Views for data that is not the paper's."""

from __future__ import annotations

import torch
from torch import Tensor


class ShiftsAndNoise:
    """Two views of digits: shifted by up to a pixel each way, with a little noise.

    A mirrored or half digit is another digit or none, so that the paper's flips and crops, made for
    natural images, cost Class-IL accuracy here (measured on the validation split).

    Args:
        noise: Standard deviation of the noise, of pixels in [0, 1].
    """

    def __init__(self, *, noise: float = 0.05):
        self.noise = noise

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Draw two views (B, C, H, W) of images (B, C, H, W), each image on its own."""
        return self._view(x), self._view(x)

    def _view(self, x: Tensor) -> Tensor:
        shifted = x
        for axis in (2, 3):
            size, batch = x.shape[axis], len(x)
            shift = torch.randint(-1, 2, (batch, 1), device=x.device)
            index = (torch.arange(size, device=x.device) + shift).clamp(0, size - 1)
            index = index.view(batch, 1, size, 1) if axis == 2 else index.view(batch, 1, 1, size)
            shifted = shifted.gather(axis, index.expand_as(x))
        return shifted + self.noise * torch.randn_like(x)
