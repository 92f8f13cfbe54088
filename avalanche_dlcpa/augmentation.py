"""Step 1 of the paper's loop: the operations of a view, pure functions of given random numbers.

Nothing is drawn here, so that every operation can be compared with torchvision's, image by image.
Shapes are static, there is no loop over images, and nothing waits for the device.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

# the operations of the colour jitter, numbered as in torchvision's `ColorJitter.get_params`
BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)
NUM_CROP_TRIES = 10
# 9 decisions and strengths, 4 for the order of the colour operations, 2 a try and 2 for the place
NUM_DRAWS = 9 + 4 + 2 * NUM_CROP_TRIES + 2


def augment(x: Tensor, *, uniform: Tensor, min_crop_area: float = 0.08) -> Tensor:
    """One random view of every image, from given random numbers.

    Args:
        x: Images (B, C, H, W) with values in [0, 1].
        uniform: Independent random numbers in [0, 1), (NUM_DRAWS, B).
        min_crop_area: See `crop_boxes`.

    Returns:
        The views (B, C, H, W).
    """
    jitter, gray, flip, blur, hue, sigma = uniform[:6]
    brightness, contrast, saturation = 0.2 + 1.6 * uniform[6:9]
    jittered = jitter_color(
        x,
        brightness=brightness,
        contrast=contrast,
        saturation=saturation,
        hue=0.4 * hue - 0.2,
        order=uniform[9:13].argsort(dim=0).T,
    )
    # lerp by 0 or 1 is exact, and on a CPU several times faster than torch.where
    x = x.lerp(jittered, _per_image((jitter < 0.3).to(x.dtype)))
    x = x.lerp(grayscale(x), _per_image((gray < 0.2).to(x.dtype)))
    return warp(
        x,
        box=crop_boxes(uniform[13:], size=(x.shape[2], x.shape[3]), min_area=min_crop_area),
        flip=flip < 0.5,
        sigma=torch.where(blur < 0.2, 1 + sigma, 0.0),
    )


def grayscale(x: Tensor) -> Tensor:
    """Luminance (B, 1, H, W) of images (B, 1 or 3, H, W), as torchvision's `rgb_to_grayscale`."""
    if x.shape[1] == 1:
        return x
    red, green, blue = x.split(1, dim=1)
    return (0.2989 * red).add_(green, alpha=0.587).add_(blue, alpha=0.114)


def jitter_color(
    x: Tensor,
    *,
    brightness: Tensor,
    contrast: Tensor,
    saturation: Tensor,
    hue: Tensor,
    order: Tensor,
) -> Tensor:
    """Colour jitter, each image with its own numbers: torchvision's `adjust_*`, one after another.

    Args:
        x: Images (B, C, H, W), C = 1 or 3, with values in [0, 1]; others are clamped.
        brightness: Factors (B,), at least 0.
        contrast: Factors (B,), at least 0.
        saturation: Factors (B,), at least 0; without effect if C = 1.
        hue: Shifts (B,) in turns of the colour circle; without effect if C = 1.
        order: Operations (B, 4) in their order, each row a permutation of 0 (brightness),
            1 (contrast), 2 (saturation), 3 (hue).

    Returns:
        The jittered images (B, C, H, W).

    Example:
        >>> one, order = torch.ones(1), torch.tensor([[3, 2, 1, 0]])
        >>> x = torch.full((1, 3, 1, 1), 0.25)
        >>> args = dict(contrast=one, saturation=one, hue=0 * one, order=order)
        >>> jitter_color(x, brightness=2 * one, **args).flatten()
        tensor([0.5000, 0.5000, 0.5000])
    """
    factors = torch.stack((brightness, contrast, saturation, torch.ones_like(hue)), dim=1)
    factors = factors.gather(1, order)
    step = torch.arange(4, device=x.device)
    hue_step = (order == HUE).int().argmax(dim=1, keepdim=True)
    # One hue rotation serves all orders: an image's blends before its hue come first, the others
    # last. A blend with factor 1 only clamps, so every image can go through all six.
    before = _blend_weights(torch.where(step < hue_step, factors, 1.0), order=order)
    after = _blend_weights(torch.where(step > hue_step, factors, 1.0), order=order)
    for weights in before[:3]:
        x = _blend(x, *weights)
    if x.shape[1] == 3:
        x = _rotate_hue(x, turns=hue)
    for weights in after[1:]:
        x = _blend(x, *weights)
    return x


def _blend_weights(factors: Tensor, *, order: Tensor) -> tuple[Tensor, ...]:
    """Three weights (3, B, 1, 1, 1) for each step: of the pixel, its gray and the mean gray."""
    rest = 1 - factors  # goes to gray (saturation), to the mean gray (contrast) or to black
    weights = torch.stack((factors, rest * (order == SATURATION), rest * (order == CONTRAST)))
    return weights.view(3, -1, 4, 1, 1, 1).unbind(2)


def _blend(x: Tensor, of_pixel: Tensor, of_gray: Tensor, of_mean: Tensor) -> Tensor:
    gray = grayscale(x)
    reference = of_gray * gray + of_mean * gray.mean(dim=(2, 3), keepdim=True)
    return (of_pixel * x).add_(reference).clamp_(0, 1)


def _rotate_hue(x: Tensor, *, turns: Tensor) -> Tensor:
    """Add `turns` (B,) to the hue of images (B, 3, H, W); HSV value and chroma stay."""
    red, green, blue = x.split(1, dim=1)
    value = x.amax(dim=1, keepdim=True)
    chroma = value - x.amin(dim=1, keepdim=True)
    # The hue in sixths of a turn counts from the largest channel: red 0, green 2, blue 4. Chosen
    # by lerp, as torch.where is slow on a CPU: 0 where the channel is the largest, else 1.
    not_red, not_green = (value - red).sign_(), (value - green).sign_()
    from_green = (blue - red).add_(chroma, alpha=2)
    from_blue = (red - green).add_(chroma, alpha=4)
    sixths = (green - blue).lerp(from_green.lerp(from_blue, not_green), not_red)
    sixths = sixths / chroma.clamp(min=1e-20) + _per_image(6 * turns)
    # And back without the six cases: each channel is the value minus the chroma times the same
    # periodic trapezium of the hue, moved by 5, 3 and 1 sixths.
    shift = torch.arange(5, 0, -2, dtype=x.dtype, device=x.device).view(3, 1, 1)
    phase = sixths + shift
    phase = phase.sub((phase / 6).floor_(), alpha=6)
    return value - chroma * (2 - (phase - 2).abs_()).clamp_(0, 1)


def crop_boxes(
    uniform: Tensor, *, size: tuple[int, int], min_area: float = 0.08
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Crops distributed as by torchvision's `RandomResizedCrop.get_params`.

    Args:
        uniform: Independent random numbers in [0, 1), (2 * NUM_CROP_TRIES + 2, B).
        size: (H, W) of the images.
        min_area: Least share of the image's area that a crop is drawn from; the largest is 1.

    Returns:
        `(top, left, height, width)`, (B,) each, whole numbers in floating dtype.
    """
    all_rows, all_columns = size
    draw_area, draw_ratio, place = uniform.split([NUM_CROP_TRIES, NUM_CROP_TRIES, 2])
    area = all_rows * all_columns * (min_area + (1 - min_area) * draw_area)
    ratio = torch.exp(math.log(4 / 3) * (2 * draw_ratio - 1))
    # if no try fits: the largest crop, in the centre. As a last try, it needs no case of its own
    last_height = min(all_rows, round(all_columns * 4 / 3))
    last_width = min(all_columns, round(all_rows * 4 / 3))
    last = torch.ones_like(place[:1])
    heights = torch.cat([(area / ratio).sqrt().round(), last_height * last])
    widths = torch.cat([(area * ratio).sqrt().round(), last_width * last])
    fits = (heights <= all_rows) & (widths <= all_columns) & (heights > 0) & (widths > 0)
    first = fits.int().argmax(dim=0, keepdim=True)
    height, width = heights.gather(0, first)[0], widths.gather(0, first)[0]
    room = torch.stack((all_rows - height, all_columns - width))
    corner = (place * (room + 1)).floor()
    top, left = torch.where(first == NUM_CROP_TRIES, (room / 2).floor(), corner)
    return top, left, height, width


def warp(
    x: Tensor, *, box: tuple[Tensor, Tensor, Tensor, Tensor], flip: Tensor, sigma: Tensor
) -> Tensor:
    """Flip, blur, crop and resize, each image in its own way.

    Equal to torchvision's `hflip`, `gaussian_blur` with a kernel of 3, and bilinear `resized_crop`
    back to (H, W), in this order. All of them are linear in the rows and in the columns, so one
    matrix for the rows and one for the columns of an image do everything.

    Args:
        x: Images (B, C, H, W), H and W at least 2.
        box: `(top, left, height, width)` of the crop, (B,) each, inside the image.
        flip: Which images to mirror left to right, bool (B,).
        sigma: Standard deviation of the blur in pixels (B,), 0 for none.

    Returns:
        The images (B, C, H, W).
    """
    top, left, height, width = box
    rows = _resize_matrix(top, height, size=x.shape[2], flip=torch.zeros_like(flip))
    columns = _resize_matrix(left, width, size=x.shape[3], flip=flip)
    neighbor = torch.exp(-0.5 / sigma**2).view(-1, 1, 1)
    neighbor = neighbor / (1 + 2 * neighbor)
    # autocast would round these products to half precision
    with torch.autocast(x.device.type, enabled=False):
        rows = rows + neighbor * (rows @ _second_difference(rows))
        columns = columns + neighbor * (columns @ _second_difference(columns))
        return rows.unsqueeze(1) @ (x.flatten(1, 2) @ columns.mT).view_as(x)


def _resize_matrix(start: Tensor, length: Tensor, *, size: int, flip: Tensor) -> Tensor:
    """Bilinear weights (B, size, size) that stretch `length` pixels from `start` on to `size`."""
    pixel = torch.arange(size, dtype=start.dtype, device=start.device)
    start, length = start.unsqueeze(1), length.unsqueeze(1)
    source = start - 0.5 + (pixel + 0.5) * (length / size)
    # never beyond the crop: its pixels at the border are continued
    source = source.maximum(start).minimum(start + length - 1)
    source = torch.where(flip.unsqueeze(1), size - 1 - source, source)
    return (1 - (source.unsqueeze(2) - pixel).abs_()).clamp_(min=0)


def _second_difference(like: Tensor) -> Tensor:
    """Matrix of left - 2 * middle + right neighbour, mirrored at the ends, for lines of `like`."""
    last = like.shape[-1] - 1
    pixel = torch.arange(last + 1, device=like.device)
    middle = pixel.unsqueeze(1)
    left, right = (middle - 1).abs(), last - (last - middle - 1).abs()
    return (pixel == left).to(like.dtype) - 2.0 * (pixel == middle) + 1.0 * (pixel == right)


def _per_image(values: Tensor) -> Tensor:
    return values.view(-1, 1, 1, 1)


def per_channel(values: Sequence[float], *, like: Tensor) -> Tensor:
    """Constants of the channels, (C, 1, 1), on the device of a tensor.

    They are filled there, as a copy from the host would wait.

    Example:
        >>> per_channel([0.5, 0.25], like=torch.rand(1)).shape
        torch.Size([2, 1, 1])
    """
    return torch.cat([like.new_full((1, 1, 1), value) for value in values])
