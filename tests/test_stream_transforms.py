"""Each batched transform is torchvision's, image by image, for the same random numbers; and the
random numbers have torchvision's distribution.
"""

import numpy as np
import pytest
import torch
import torchvision.transforms.functional as F
from PIL import Image
from scipy.stats import chisquare
from torch import nn
from torchvision import transforms as v1
from torchvision.transforms import v2

from avalanche_dlcpa.stream_transforms import (
    Normalize,
    NotRecognizedError,
    RandomCrop,
    RandomHorizontalFlip,
    ToFloat,
    check_operations,
    crop,
    flip,
    recognized,
)

MEAN, STD = (0.5071, 0.4865, 0.4409), (0.2009, 0.1984, 0.2023)


def pixels(count=6, *, channels=3, size=(9, 7)):
    return torch.randint(256, (count, channels, *size), dtype=torch.uint8)


def as_pil(image):
    array = image.permute(1, 2, 0).numpy()
    return Image.fromarray(array if len(image) == 3 else array[..., 0])


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("padding", "ours"),
    [(0, (0, 0, 0, 0)), (2, (2, 2, 2, 2)), ((1, 3), (1, 3, 1, 3)), ((1, 2, 3, 4), (1, 2, 3, 4))],
)
def test_crop_flip_and_normalisation_are_torchvisions_for_given_numbers(channels, padding, ours):
    images, size, mean, std = pixels(channels=channels), (6, 5), MEAN[:channels], STD[:channels]
    top, left = torch.tensor([0, 1, 2, 3, 0, 3]), torch.tensor([2, 1, 0, 1, 2, 0])
    mirrored = torch.tensor([True, False, True, False, False, True])
    x = flip(crop(images, top, left, size=size, padding=ours), mirrored)
    x = Normalize(mean, std)(ToFloat()(x))
    assert x.dtype == torch.float32
    assert x.is_contiguous()
    for i, image in enumerate(images):
        expected = F.crop(F.pad(as_pil(image), padding), int(top[i]), int(left[i]), *size)
        expected = F.to_tensor(F.hflip(expected) if mirrored[i] else expected)
        assert torch.equal(x[i], F.normalize(expected, mean, std))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.uint8])
def test_crop_and_flip_of_tensors_keep_their_dtype(dtype):
    images = pixels().to(dtype)
    x = RandomCrop((9, 7))(RandomHorizontalFlip(1.0)(images))
    assert x.dtype == dtype
    assert torch.equal(x, images.flip(3))


def test_one_constant_normalises_all_channels():
    x = torch.rand(2, 3, 4, 4, dtype=torch.float64)
    assert torch.equal(Normalize((0.1,), (0.3,))(x), F.normalize(x, [0.1], [0.3]))


@pytest.mark.parametrize("tv", [v1, v2])
@pytest.mark.parametrize(
    ("padding", "size", "places"), [(1, 4, 9), (0, (3, 4), 2), ((0, 2), (4, 3), 10), (0, 4, 1)]
)
def test_crops_and_flips_are_distributed_as_torchvisions(tv, padding, size, places):
    """Every place and side comes equally often, in one batch, and there are no others."""
    image = torch.arange(1, 49, dtype=torch.uint8).view(3, 4, 4)
    chain = tv.Compose([tv.RandomCrop(size, padding), tv.RandomHorizontalFlip()])
    theirs = {np.array(chain(as_pil(image))).tobytes() for _ in range(60 * places)}
    assert len(theirs) == 2 * places
    batch = image.expand(2 * places * 100, -1, -1, -1)
    for operation in recognized(chain):
        batch = operation(batch)
    ours = [image.permute(1, 2, 0).numpy().tobytes() for image in batch]
    assert set(ours) == theirs
    assert chisquare([ours.count(outcome) for outcome in theirs]).pvalue > 1e-3


@pytest.mark.parametrize("p", [0.0, 0.25, 1.0])
def test_flips_come_with_their_probability(p):
    x = torch.tensor([0.0, 1.0]).expand(4000, 1, 1, 2)
    share = RandomHorizontalFlip(p)(x)[:, 0, 0, 0].mean()
    assert abs(share - p) <= 4 * (p * (1 - p) / 4000) ** 0.5


def test_nothing_is_drawn_twice_in_a_batch():
    x = torch.arange(64.0).view(1, 1, 8, 8).expand(50, -1, -1, -1)
    assert len(RandomCrop((4, 4))(x).flatten(1).unique(dim=0)) > 10


def test_recognized_chains():
    chain = v1.Compose(
        [
            v2.Compose([v1.RandomCrop(32, padding=4), v2.RandomCrop((30, 31), (1, 2, 3, 4))]),
            nn.Sequential(v2.RandomHorizontalFlip(0.3)),
            v1.ToTensor(),
            v2.Normalize(MEAN, STD),
        ]
    )
    assert recognized(chain) == (
        RandomCrop((32, 32), (4, 4, 4, 4)),
        RandomCrop((30, 31), (1, 2, 3, 4)),
        RandomHorizontalFlip(0.3),
        ToFloat(),
        Normalize(MEAN, STD),
    )
    assert recognized(None) == ()
    assert recognized(v1.Normalize(0.5, 0.25)) == (Normalize((0.5,), (0.25,)),)


class MyFlip(v1.RandomHorizontalFlip):
    pass


@pytest.mark.parametrize(
    "transform",
    [
        v1.RandomResizedCrop(8),
        v1.ColorJitter(0.4),
        lambda image: image,
        MyFlip(),
        v1.RandomCrop(8, padding=2, fill=1),
        v1.RandomCrop(8, padding=2, padding_mode="reflect"),
        v1.RandomCrop(8, pad_if_needed=True),
        v1.Compose([v1.ToTensor(), v1.RandomErasing()]),
        v1.RandomApply([v1.RandomHorizontalFlip()]),
    ],
)
def test_other_transforms_are_not_recognized(transform):
    with pytest.raises(NotRecognizedError):
        recognized(transform)


IMAGE, FLOATING = torch.zeros(3, 8, 8, dtype=torch.uint8), torch.zeros(3, 8, 8)


@pytest.mark.parametrize(
    ("operations", "image", "is_pil"),
    [
        ([RandomHorizontalFlip(0.5)], IMAGE, True),  # PIL images would not stack
        ([ToFloat()], IMAGE, False),  # ToTensor refuses tensors
        ([ToFloat(), ToFloat()], IMAGE, True),
        ([Normalize(MEAN, STD)], IMAGE, False),  # refuses uint8
        ([Normalize(MEAN, STD), ToFloat()], IMAGE, True),
        ([Normalize(MEAN, STD)], FLOATING[:1], False),
        ([Normalize(MEAN, (1.0, 0.0, 1.0))], FLOATING, False),
        ([RandomCrop((9, 9))], FLOATING, False),
        ([RandomCrop((4, 4)), RandomCrop((5, 5))], FLOATING, False),
        ([RandomHorizontalFlip(0.5)], FLOATING[0], False),  # (H, W)
    ],
)
def test_chains_that_torchvision_refuses_are_not_recognized(operations, image, is_pil):
    with pytest.raises(NotRecognizedError):
        check_operations(operations, image, is_pil=is_pil)


@pytest.mark.parametrize(
    ("operations", "image", "is_pil"),
    [
        ([], torch.zeros(5), False),
        ([], IMAGE, False),
        ([RandomCrop((8, 8), (1, 1, 1, 1)), ToFloat(), Normalize(MEAN, STD)], IMAGE, True),
        ([Normalize((0.5,), (0.5,)), RandomCrop((9, 9), (1, 1, 1, 1))], FLOATING, False),
    ],
)
def test_usual_chains_pass(operations, image, is_pil):
    check_operations(operations, image, is_pil=is_pil)
