"""Step 1 of the paper's loop: mini-batch -> two augmented views (per image, on the batch's device).

The distribution is that of the authors' runs; the paper does not state it. One difference: every
image has its own random numbers, where theirs shared one draw in a batch. Shapes are static and
nothing waits for the device, so that a training step and its views fit into one CUDA graph.
"""

import contextlib
import copy
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from avalanche_dlcpa.augmentation import NUM_DRAWS, augment, per_channel
from avalanche_dlcpa.normalization import find_normalization

MIN_SIZE = 8


class PaperViews:
    """Two random views of every image, as in the authors' runs.

    In this order: ColorJitter(0.8, 0.8, 0.8, 0.2) with probability 0.3, grayscale with 0.2,
    horizontal flip with 0.5, GaussianBlur(3, sigma 1 to 2) with 0.2, RandomResizedCrop to the size
    of the image. The stream's normalisation is undone before and redone after. Random numbers come
    from torch's global generator of the batch's device.

    Args:
        mean: Mean of the stream's normalisation, one number or one a channel. With neither `mean`
            nor `std`, `fit` looks them up; until then pixels are taken as they are (0 and 1).
        std: Its standard deviation, likewise.
        min_crop_area: Least share of an image that a crop keeps. 0.08, torchvision's default, in
            the authors' runs, which train 100 epochs; with few steps a task, more is learned from
            larger crops.

    Raises:
        ValueError: If `mean` or `std` is not a sequence of finite numbers, `std` not above 0, or
            `min_crop_area` not in (0, 1].

    Example:
        >>> x = (torch.rand(4, 3, 32, 32) - 0.5) / 0.25
        >>> view1, view2 = PaperViews(mean=[0.5], std=[0.25])(x)
        >>> view1.shape, view2.shape
        (torch.Size([4, 3, 32, 32]), torch.Size([4, 3, 32, 32]))
    """

    def __init__(
        self,
        *,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        min_crop_area: float = 0.08,
    ) -> None:
        self._is_given = mean is not None or std is not None
        self._is_guessed = False
        self.mean = _to_constants((0.0,) if mean is None else mean, name="mean")
        self.std = _to_constants((1.0,) if std is None else std, name="std")
        if min(self.std) <= 0:
            raise ValueError(f"Expected `std` to be above 0, got {std}; leave it out for 1")
        if not 0 < min_crop_area <= 1:
            raise ValueError(
                f"Expected `min_crop_area` to be above 0 and at most 1, got {min_crop_area}; the "
                "authors' runs have 0.08"
            )
        self.min_crop_area = min_crop_area

    def fit(self, dataset: object, take_sample: Callable[[], Tensor] | None = None) -> None:
        """Set `mean` and `std` for an experience, unless the user gave them.

        Args:
            dataset: Dataset of the experience, for `find_normalization`.
            take_sample: Gives a mini-batch (B, C, H, W) of it; not called if a normalisation is
                given. Where one is found, it tells whether that was of pixels from 0 to 255. Where
                none is, and that sample leaves [0, 1], its range in each channel stands in for
                good, with a warning. Only these numbers are kept.

        Raises:
            ValueError: If the dataset has different normalisations or the sample is no image batch.
        """
        if self._is_given:
            return
        found = find_normalization(dataset)
        if found is not None:
            (self.mean, self.std), self._is_guessed = found, False
            if take_sample is not None:
                self._scale_to(take_sample)
        elif not self._is_guessed:
            self.mean, self.std = (0.0,), (1.0,)
            if take_sample is not None:
                self._guess_from(take_sample())

    def state_dict(self) -> dict[str, Any]:
        """The constants found so far, and whether they were guessed from a sample."""
        return {"mean": self.mean, "std": self.std, "is_guessed": self._is_guessed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the constants that `state_dict` told."""
        self.mean, self.std = tuple(state["mean"]), tuple(state["std"])
        self._is_guessed = state["is_guessed"]

    def _scale_to(self, take_sample: Callable[[], Tensor]) -> None:
        """Let constants of pixels from 0 to 255 lead to pixels from 0 to 1."""
        with contextlib.suppress(ValueError):  # without a sample they stand as they are
            sample = take_sample()
            _check_images(sample)  # the first mini-batch will tell what does not suit
            mean = _checked_channels(self.mean, like=sample, name="mean")
            std = _checked_channels(self.std, like=sample, name="std")
            low, high = (float(end) for end in torch.aminmax(sample * std + mean))
            if low >= -1 and 2 < high <= 256:
                self.mean = tuple(value / 255 for value in self.mean)
                self.std = tuple(value / 255 for value in self.std)

    def _guess_from(self, sample: Tensor) -> None:
        _check_images(sample)
        low = sample.amin(dim=(0, 2, 3)).tolist()
        high = sample.amax(dim=(0, 2, 3)).tolist()
        if (min(low) >= -1e-3 and max(high) <= 1 + 1e-3) or not math.isfinite(sum(low) + sum(high)):
            return  # a corrupt image tells no range; training will stop at its loss
        self._is_guessed = True
        # from x = (pixel - mean) / std with pixels 0 and 1 at the ends; a constant channel has none
        tiny = torch.finfo(torch.float32).tiny
        ranges = [b - a for a, b in zip(low, high, strict=True)]
        self.std = tuple(1 / width if width > tiny else 1.0 for width in ranges)
        self.mean = tuple(-a * scale for a, scale in zip(low, self.std, strict=True))
        warnings.warn(
            "Found no Normalize in the training transforms, but pixels in the range "
            f"[{min(low):.4g}, {max(high):.4g}]. The views map this range, channel by channel, to "
            "[0, 1], where their colour operations work. `views=PaperViews(mean=..., std=...)` "
            "states the true constants.",
            stacklevel=3,
        )

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Draw two independent views.

        Args:
            x: Images (B, C, H, W), floating, as the stream delivers them; C = 1 or 3, H, W >= 8.

        Returns:
            Two tensors of the shape, dtype and device of `x`.

        Raises:
            ValueError: If `x` is no such batch, or `mean` or `std` has another number of channels.
        """
        _check_images(x)
        # half precision is too coarse for colours; one batch of both views saves operations
        images = x.to(torch.promote_types(x.dtype, torch.float32))
        mean = _checked_channels(self.mean, like=images, name="mean")
        std = _checked_channels(self.std, like=images, name="std")
        pixels = (images * std + mean).repeat(2, 1, 1, 1)
        uniform = torch.rand(NUM_DRAWS, len(pixels), dtype=pixels.dtype, device=pixels.device)
        views = augment(pixels, uniform=uniform, min_crop_area=self.min_crop_area)
        views = (views - mean) / std
        view1, view2 = views.to(x.dtype).chunk(2)
        return view1, view2


def own_views(views: Any) -> Any:
    """A strategy's own copy of `PaperViews`, without the range that was guessed for another one.

    Other views are returned as they are.
    """
    if not isinstance(views, PaperViews):
        return views
    own = copy.copy(views)
    if own._is_guessed:
        (own.mean, own.std), own._is_guessed = ((0.0,), (1.0,)), False
    return own


def checked_views(views: Any, num_views: int, batch_size: int) -> Sequence[Tensor]:
    """Return the first views if a function of the user's has returned enough of them.

    Raises:
        ValueError: Not a tuple or list of at least so many tensors with a row for each sample.
    """
    is_sequence = isinstance(views, tuple | list) and all(isinstance(v, Tensor) for v in views)
    if not is_sequence or len(views) < num_views or any(len(v) != batch_size for v in views):
        found = [tuple(v.shape) for v in views] if is_sequence else type(views).__name__
        raise ValueError(
            f"Expected `views` to return a tuple of {num_views} tensors of {batch_size} samples "
            f"each, got {found}."
        )
    return views[:num_views]


def _checked_channels(values: tuple[float, ...], *, like: Tensor, name: str) -> Tensor:
    if len(values) not in (1, like.shape[1]):
        raise ValueError(
            f"Expected `{name}` to be one number or one for each channel of `x`, got {len(values)} "
            f"for {like.shape[1]}; pass `views=PaperViews(mean=..., std=...)` for these images"
        )
    return per_channel(values, like=like)


def _to_constants(values: Sequence[float], *, name: str) -> tuple[float, ...]:
    try:
        constants = tuple(map(float, values))
    except (TypeError, ValueError):
        constants = ()
    if not constants or not all(map(math.isfinite, constants)):
        raise ValueError(
            f"Expected `{name}` to be a sequence of finite numbers, got {values!r}; give one, such "
            "as [0.5], or one a channel"
        )
    return constants


def _check_images(x: Tensor) -> None:
    own = "pass a callable of your own as `views=`"
    if x.ndim != 4:
        raise ValueError(
            f"Expected `x` to be images of shape (B, C, H, W), got {tuple(x.shape)}; {own}, or "
            "`ssl=None`"
        )
    if not x.is_floating_point():
        raise ValueError(
            f"Expected `x` to be of a floating dtype, got {x.dtype}; add ToTensor() to the "
            "transforms of the benchmark"
        )
    if x.shape[1] not in (1, 3):
        raise ValueError(f"Expected `x` to be of 1 or 3 channels, got {x.shape[1]}; {own}")
    if min(x.shape[2:]) < MIN_SIZE:
        raise ValueError(
            f"Expected `x` to be at least {MIN_SIZE} pixels high and wide, got "
            f"{tuple(x.shape[2:])}; resize the images, or {own}"
        )
