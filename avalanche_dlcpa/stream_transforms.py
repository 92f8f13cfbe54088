"""Input of the loop: a stream's own torchvision transforms, for a mini-batch on its device.

What torchvision draws for one image is drawn for all images of the mini-batch at once, from the
same distributions; given these numbers the results are bit-equal. Shapes are static, there is no
loop over images, and nothing waits for the device.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torchvision import transforms as v1
from torchvision.transforms import v2

from avalanche_dlcpa.augmentation import per_channel
from avalanche_dlcpa.normalization import constants_of

Padding = tuple[int, int, int, int]


class NotRecognizedError(Exception):
    """Something that this package cannot do in batches; its message says what."""


@dataclasses.dataclass(frozen=True)
class ToFloat:
    """`ToTensor` of images that are uint8 tensors already: [0, 255] -> [0, 1]."""

    def __call__(self, x: Tensor) -> Tensor:
        """Pixels (B, C, H, W) of any integer dtype as floating numbers."""
        return x.to(torch.get_default_dtype()).div(255)


@dataclasses.dataclass(frozen=True)
class Normalize:
    """`Normalize`: minus `mean`, over `std`, one number a channel or one for all."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, x: Tensor) -> Tensor:
        """Normalised images (B, C, H, W)."""
        return (x - per_channel(self.mean, like=x)).div_(per_channel(self.std, like=x))


@dataclasses.dataclass(frozen=True)
class RandomHorizontalFlip:
    """`RandomHorizontalFlip` with probability `p`."""

    p: float

    def __call__(self, x: Tensor) -> Tensor:
        """Images (B, C, H, W), some of them mirrored left to right."""
        return flip(x, torch.rand(len(x), device=x.device) < self.p)


@dataclasses.dataclass(frozen=True)
class RandomCrop:
    """`RandomCrop` to `size` (H, W), after zeros on the left, top, right and bottom."""

    size: tuple[int, int]
    padding: Padding = (0, 0, 0, 0)

    def room(self, size: tuple[int, int]) -> tuple[int, int]:
        """How far a crop of images of this size can move down and to the right.

        Raises:
            NotRecognizedError: The padded image is smaller than the crop.
        """
        left, top, right, bottom = self.padding
        room = size[0] + top + bottom - self.size[0], size[1] + left + right - self.size[1]
        if min(room) < 0:
            raise NotRecognizedError(f"RandomCrop to {self.size} of smaller images {size}")
        return room

    def __call__(self, x: Tensor) -> Tensor:
        """Random crops (B, C, *size) of images (B, C, H, W)."""
        down, right = self.room((x.shape[2], x.shape[3]))
        top = torch.randint(down + 1, (len(x),), device=x.device)
        left = torch.randint(right + 1, (len(x),), device=x.device)
        return crop(x, top, left, size=self.size, padding=self.padding)


Operation = ToFloat | Normalize | RandomHorizontalFlip | RandomCrop


def flip(x: Tensor, mirrored: Tensor) -> Tensor:
    """Mirror some images (B, C, H, W) left to right: those where `mirrored` (B,) is true."""
    return torch.where(mirrored.view(-1, 1, 1, 1), x.flip(3), x)


def crop(
    x: Tensor, top: Tensor, left: Tensor, *, size: tuple[int, int], padding: Padding
) -> Tensor:
    """Crop every image at its own place.

    Args:
        x: Images (B, C, H, W).
        top: First row of each crop in the padded image, (B,), whole numbers.
        left: First column likewise.
        size: (H', W') of the crops.
        padding: Rows and columns of zeros on the left, top, right and bottom.

    Returns:
        The crops (B, C, H', W').

    Example:
        >>> x = torch.arange(1, 5).view(1, 1, 2, 2)
        >>> place = torch.tensor([1]), torch.tensor([0])
        >>> crop(x, *place, size=(2, 2), padding=(1, 0, 0, 1)).tolist()
        [[[[0, 3], [0, 0]]]]
    """
    before_columns, before_rows, after_columns, after_rows = padding
    padded = nn.functional.pad(x, (before_columns, after_columns, before_rows, after_rows))
    windows = padded.unfold(2, size[0], 1).unfold(3, size[1], 1)  # a view of all possible crops
    return windows[torch.arange(len(x), device=x.device), :, top, left]


def recognized(transform: Any) -> tuple[Operation, ...]:
    """The operations of a chain of torchvision transforms (v1 or v2), in their order.

    Args:
        transform: None, one of `ToTensor`, `Normalize`, `RandomCrop` (padded with zeros) and
            `RandomHorizontalFlip`, or a `Compose` or `nn.Sequential` of them.

    Raises:
        NotRecognizedError: Anything else, subclasses among it.

    Example:
        >>> recognized(v1.Compose([v1.RandomHorizontalFlip(), v1.ToTensor()]))
        (RandomHorizontalFlip(p=0.5), ToFloat())
    """
    kind = type(transform)
    if transform is None:
        return ()
    if kind in (v1.Compose, v2.Compose, nn.Sequential):
        parts = transform if kind is nn.Sequential else transform.transforms
        return tuple(operation for part in parts for operation in recognized(part))
    if kind in (v1.ToTensor, v2.ToTensor):
        return (ToFloat(),)
    if kind in (v1.Normalize, v2.Normalize):
        return (Normalize(*constants_of(transform)),)
    if kind in (v1.RandomHorizontalFlip, v2.RandomHorizontalFlip):
        return (RandomHorizontalFlip(float(transform.p)),)
    if kind in (v1.RandomCrop, v2.RandomCrop):
        return (_random_crop(transform),)
    raise NotRecognizedError(f"the transform {getattr(transform, '__name__', kind.__name__)}")


def check_operations(operations: Sequence[Operation], image: Tensor, *, is_pil: bool) -> None:
    """Check that the operations do on such images what torchvision's transforms would.

    Args:
        operations: From `recognized`.
        image: One image as it will be held, (C, H, W) if there are operations.
        is_pil: Whether the stream holds it as a PIL image.

    Raises:
        NotRecognizedError: They do not; torchvision itself may say why.
    """
    if operations and image.ndim != 3:
        raise NotRecognizedError(f"transforms of tensors of shape {tuple(image.shape)}")
    is_floating, is_waiting, size = image.is_floating_point(), is_pil, tuple(image.shape[1:])
    for operation in operations:
        if isinstance(operation, ToFloat):
            if not is_waiting:
                raise NotRecognizedError("ToTensor of what is a tensor")
            is_floating, is_waiting = True, False
        elif isinstance(operation, Normalize):
            counts = {len(operation.mean), len(operation.std)}
            if not is_floating or not counts <= {1, len(image)} or 0 in operation.std:
                raise NotRecognizedError(f"{operation} of {image.dtype} {tuple(image.shape)}")
        elif isinstance(operation, RandomCrop):
            operation.room((size[0], size[1]))
            size = operation.size
    if is_waiting:
        raise NotRecognizedError("PIL images without ToTensor")


def _random_crop(transform: v1.RandomCrop | v2.RandomCrop) -> RandomCrop:
    plain = transform.padding_mode == "constant" and transform.fill in (0, None)
    if transform.pad_if_needed or not plain:
        raise NotRecognizedError("RandomCrop with padding other than by zeros on all images")
    padding = transform.padding or 0
    padding = [padding] if isinstance(padding, int) else list(padding)
    if isinstance(transform, v2.RandomCrop) and len(padding) == 4:
        left, right, top, bottom = padding
    else:
        left, top, right, bottom = padding * (4 // len(padding))
    return RandomCrop((transform.size[0], transform.size[1]), (left, top, right, bottom))
