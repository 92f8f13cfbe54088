"""Every operation against torchvision, image by image; the distribution against its classes."""

import itertools
import math

import numpy as np
import pytest
import torch
import torchvision.transforms.functional as F
from helpers import WAITING_OPERATIONS, Operations, SmallCNN, needs_cuda_build, strategy_of
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare, ks_1samp, ks_2samp, uniform
from torch._subclasses.fake_tensor import FakeTensorMode
from torchvision import transforms
from torchvision.transforms import Normalize

from avalanche_dlcpa import SelfSupervisedLossPlugin, augmentation
from avalanche_dlcpa.augmentation import (
    NUM_CROP_TRIES,
    NUM_DRAWS,
    augment,
    crop_boxes,
    grayscale,
    jitter_color,
    warp,
)
from avalanche_dlcpa.views import PaperViews, own_views

ORDERS = torch.tensor(list(itertools.permutations(range(4))))
CIFAR_CONSTANTS = ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
sizes = st.integers(8, 40)
channels = st.sampled_from([1, 3])
seeds = st.integers(0, 2**32 - 1)
several = settings(max_examples=30, deadline=None)


def images(batch=24, num_channels=3, height=16, width=20):
    """Noise with flat, gray, black, white and saturated areas, where colour formulas have cases."""
    x = torch.rand(batch, num_channels, height, width)
    x[:, :, :2] = x[:, :1, :2]
    x[:, :, 2] = 0
    x[:, :, 3] = 1
    x[:, 0, 4] = 1
    x[:, -1, 5] = 0
    return x


def random_jitter(batch):
    low_high = {"brightness": (0, 2), "contrast": (0, 2), "saturation": (0, 2), "hue": (-0.5, 0.5)}
    numbers = {name: torch.empty(batch).uniform_(*ends) for name, ends in low_high.items()}
    return numbers | {"order": ORDERS[torch.arange(batch) % len(ORDERS)]}


def random_warp(batch, height, width):
    return {
        "box": crop_boxes(torch.rand(2 * NUM_CROP_TRIES + 2, batch), size=(height, width)),
        "flip": torch.rand(batch) < 0.5,
        "sigma": torch.empty(batch).uniform_(0.3, 3) * (torch.rand(batch) < 0.7),
    }


def torchvision_jitter(image, brightness, contrast, saturation, hue, order):
    functions = (F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue)
    numbers = (brightness, contrast, saturation, hue)
    for index in order.tolist():
        image = functions[index](image, numbers[index].item())
    return image


def torchvision_warp(image, box, flip, sigma):
    height, width = image.shape[1:]
    image = F.hflip(image) if flip else image
    image = F.gaussian_blur(image, 3, sigma.item()) if sigma > 0 else image
    box = [int(number) for number in box]
    return F.resized_crop(image, *box, size=[height, width], antialias=True)


# The operations, image by image -------------------------------------------------------------------


@several
@given(num_channels=channels, height=sizes, width=sizes, seed=seeds)
def test_jitter_color_is_torchvisions_adjustments_in_order(num_channels, height, width, seed):
    torch.manual_seed(seed)
    x, numbers = images(24, num_channels, height, width), random_jitter(24)
    expected = [
        torchvision_jitter(image, **{name: values[index] for name, values in numbers.items()})
        for index, image in enumerate(x)
    ]
    torch.testing.assert_close(
        jitter_color(x, **numbers), torch.stack(expected), rtol=1e-4, atol=1e-5
    )


@several
@given(num_channels=channels, height=sizes, width=sizes, seed=seeds)
def test_warp_is_torchvisions_flip_blur_and_resized_crop(num_channels, height, width, seed):
    torch.manual_seed(seed)
    x, numbers = images(12, num_channels, height, width), random_warp(12, height, width)
    boxes = torch.stack(numbers["box"], dim=1)
    expected = map(torchvision_warp, x, boxes, numbers["flip"], numbers["sigma"])
    torch.testing.assert_close(warp(x, **numbers), torch.stack([*expected]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("num_channels", [1, 3])
def test_grayscale_is_torchvisions(num_channels):
    x = images(num_channels=num_channels)
    torch.testing.assert_close(grayscale(x), F.rgb_to_grayscale(x))


def test_extreme_colors_stay_finite_and_in_range():
    corners = torch.tensor(list(itertools.product([-1e-3, 0, 1e-30, 0.5, 1, 1.001], repeat=3)))
    x = corners.T.reshape(1, 3, 12, 18).repeat(24, 1, 1, 1)
    y = jitter_color(x, **random_jitter(24))
    assert y.isfinite().all()
    assert y.min() >= 0
    assert y.max() <= 1


@several
@given(height=sizes, width=sizes, seed=seeds)
def test_geometry_leaves_a_constant_image_as_it_is(height, width, seed):
    torch.manual_seed(seed)
    x = torch.rand(8, 3, 1, 1).expand(8, 3, height, width)
    torch.testing.assert_close(warp(x, **random_warp(8, height, width)), x)


def test_a_whole_crop_without_flip_and_blur_is_exact():
    x, zeros, ones = images(3), torch.zeros(3), torch.ones(3)
    box = (zeros, zeros, 16 * ones, 20 * ones)
    assert torch.equal(warp(x, box=box, flip=zeros.bool(), sigma=zeros), x)
    assert torch.equal(warp(x, box=box, flip=ones.bool(), sigma=zeros), x.flip(3))


# Where the random numbers go ----------------------------------------------------------------------


@pytest.fixture
def record(monkeypatch):
    """Arguments of the operations in many images, from one call of `PaperViews`."""

    def record(x):
        calls = {}

        def spy_on(name):
            function = getattr(augmentation, name)

            def spy(x, **numbers):
                calls[name] = numbers | {"x": x}
                return function(x, **numbers)

            monkeypatch.setattr(augmentation, name, spy)

        spy_on("jitter_color")
        spy_on("warp")
        calls["views"] = torch.cat(PaperViews()(x))
        return calls

    return record


def assert_share(values, expected):
    """A share of yes among independent draws, within four standard errors."""
    share, error = values.double().mean().item(), math.sqrt(expected * (1 - expected) / len(values))
    assert abs(share - expected) < 4 * error, (share, expected)


def assert_uniform(values, low, high):
    assert ks_1samp(values.numpy(), uniform(low, high - low).cdf).pvalue > 1e-3


def test_strengths_and_orders_are_distributed_as_in_the_paper(record):
    calls = record(torch.rand(4000, 3, 8, 8))
    jitter, geometry = calls["jitter_color"], calls["warp"]
    for name in ("brightness", "contrast", "saturation"):
        assert_uniform(jitter[name], 0.2, 1.8)
    assert_uniform(jitter["hue"], -0.2, 0.2)
    order = (jitter["order"] * torch.tensor([64, 16, 4, 1])).sum(1)
    counts = order.unique(return_counts=True)[1]
    assert len(counts) == 24
    assert chisquare(counts.numpy()).pvalue > 1e-3
    assert_share(geometry["flip"], 0.5)
    blurred = geometry["sigma"] > 0
    assert_share(blurred, 0.2)
    assert_uniform(geometry["sigma"][blurred], 1, 2)


def test_shares_of_jittered_and_gray_images_and_their_independence(record):
    x = torch.tensor([0.3, 0.4, 0.55]).view(1, 3, 1, 1).expand(6000, 3, 8, 8)
    calls = record(x)
    y, geometry = calls["views"][:, :, 4, 4], calls["warp"]
    is_gray = (y.amax(1) - y.amin(1)) < 1e-5
    untouched = x[0, :, 0, 0], grayscale(x[:1, :, :1, :1]).flatten()
    is_jittered = torch.stack([(y - color).abs().amax(1) > 1e-5 for color in untouched]).all(0)
    assert_share(is_gray, 0.2)
    assert_share(is_jittered, 0.3)
    flags = [is_gray, is_jittered, geometry["flip"], geometry["sigma"] > 0]
    correlations = torch.corrcoef(torch.stack(flags).double()) - torch.eye(4)
    assert correlations.abs().max() < 4 / math.sqrt(len(y))


def test_numbers_of_an_image_are_independent_of_each_other(record):
    calls = record(torch.rand(6000, 1, 16, 16))
    jitter, geometry = calls["jitter_color"], calls["warp"]
    top, left, height, width = geometry["box"]
    groups = [jitter[name].view(-1, 1) for name in ("brightness", "contrast", "saturation", "hue")]
    groups.append(jitter["order"].argsort(1)[:, :3])
    groups.append(torch.stack([top, left, height * width, width / height], dim=1))
    groups += [geometry["flip"].view(-1, 1), geometry["sigma"].view(-1, 1)]
    blurred = geometry["sigma"] > 0
    for rows in (slice(None), blurred):
        columns = torch.cat([group[rows].double() for group in groups], dim=1)
        of_group = torch.repeat_interleave(torch.tensor([group.shape[1] for group in groups]))
        correlations = columns.T.corrcoef()[of_group.view(-1, 1) != of_group]
        assert correlations.abs().max() < 4.5 / math.sqrt(len(columns))


def test_images_that_are_not_jittered_are_bit_identical(record):
    calls = record(images(500))
    before, after = calls["jitter_color"]["x"], calls["warp"]["x"]
    same = (before == after).flatten(1).all(1)
    assert_share(same, 0.7 * 0.8)


@pytest.mark.parametrize("min_area", [0.08, 0.5])
@pytest.mark.parametrize("size", [(32, 32), (8, 64), (64, 8), (24, 36)])
def test_crops_are_distributed_as_in_random_resized_crop(size, min_area):
    uniform = torch.rand(2 * NUM_CROP_TRIES + 2, 6000)
    boxes = torch.stack(crop_boxes(uniform, size=size, min_area=min_area))
    image = torch.empty(1, *size)
    get_params = transforms.RandomResizedCrop.get_params
    expected = torch.tensor(
        [get_params(image, [min_area, 1.0], [3 / 4, 4 / 3]) for _ in range(3000)]
    ).T.float()
    assert torch.equal(boxes, boxes.round())
    assert (boxes[:2] >= 0).all()
    assert (boxes[2:] >= 1).all()
    assert (boxes[:2] + boxes[2:] <= torch.tensor(size).unsqueeze(1)).all()
    for summary in (
        lambda top, left, height, width: top,
        lambda top, left, height, width: left,
        lambda top, left, height, width: height * width,
        lambda top, left, height, width: width / height,
        lambda top, left, height, width: top / (size[0] - height).clamp(min=1),
        lambda top, left, height, width: left / (size[1] - width).clamp(min=1),
    ):
        assert ks_2samp(summary(*boxes).numpy(), summary(*expected).numpy()).pvalue > 1e-3
    # the crop taken where ten tries fail; frequent in long images only
    central = torch.tensor(get_params(torch.empty(1, *size), [9.0, 9.0], [3 / 4, 4 / 3])).view(4, 1)
    share, other = ((sample == central).all(0).double().mean() for sample in (boxes, expected))
    assert abs(share - other) < 4 * math.sqrt(0.25 / 6000 + 0.25 / 3000)
    assert share > 0.3 or size in [(32, 32), (24, 36)]


def test_the_largest_random_number_stays_inside_the_image():
    almost_one = torch.full((2 * NUM_CROP_TRIES + 2, 1), 1 - 2**-24)
    for area in torch.linspace(0, 1, 101):
        almost_one[:NUM_CROP_TRIES] = area
        top, left, height, width = crop_boxes(almost_one, size=(50, 70))
        assert top <= 50 - height
        assert left <= 70 - width


def test_views_look_like_those_of_torchvisions_transforms():
    """The whole distribution, by summaries of 2 x 1,500 views of one image."""
    ramp = torch.linspace(0.1, 0.9, 16)
    image = torch.stack([ramp.expand(16, 16), ramp.view(16, 1).expand(16, 16), torch.rand(16, 16)])
    pipeline = transforms.Compose(
        [
            transforms.RandomApply([transforms.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.3),
            transforms.RandomGrayscale(0.2),
            transforms.RandomHorizontalFlip(0.5),
            transforms.RandomApply([transforms.GaussianBlur(3, (1.0, 2.0))], p=0.2),
            transforms.RandomResizedCrop(16, antialias=True),
        ]
    )
    expected = torch.stack([pipeline(image) for _ in range(1500)])
    for view in PaperViews()(image.expand(1500, 3, 16, 16)):
        for summary in (
            lambda y: y.mean((1, 2, 3)),
            lambda y: y.std((1, 2, 3)),
            lambda y: y[:, 0].mean((1, 2)),
            lambda y: y[:, 2].mean((1, 2)),
            lambda y: (y.amax(1) - y.amin(1)).mean((1, 2)),
            lambda y: y[:, 0, :, -1].mean(1) - y[:, 0, :, 0].mean(1),
            lambda y: y[:, 1, -1].mean(1) - y[:, 1, 0].mean(1),
            lambda y: y.diff(dim=3).abs().mean((1, 2, 3)),
            lambda y: y.diff(dim=2).abs().mean((1, 2, 3)),
        ):
            assert ks_2samp(summary(view).numpy(), summary(expected).numpy()).pvalue > 1e-3


def test_views_crop_as_far_as_they_are_told_to():
    x = images(8)
    torch.manual_seed(1)
    views = torch.cat(PaperViews(min_crop_area=0.5)(x))
    torch.manual_seed(1)
    uniform = torch.rand(NUM_DRAWS, 16)
    both = x.repeat(2, 1, 1, 1)
    assert torch.equal(views, augment(both, uniform=uniform, min_crop_area=0.5))
    assert not torch.equal(views, augment(both, uniform=uniform))


@pytest.mark.parametrize("value", [0.0, -1.0, 1.5, float("nan")])
def test_a_crop_of_no_area_is_refused(value):
    with pytest.raises(ValueError, match=f"Expected `min_crop_area` to be above 0 .*got {value}"):
        PaperViews(min_crop_area=value)


def test_every_image_has_its_own_numbers_and_each_view_too():
    x = images(1).repeat(64, 1, 1, 1)
    both = torch.cat(PaperViews()(x)).flatten(1)
    # some are alike by chance: the whole image is left as it is about once in a hundred
    assert len(both.unique(dim=0)) > 120


@pytest.mark.parametrize("num_channels", [1, 3])
def test_a_view_depends_on_its_image_and_numbers_alone(num_channels):
    x, numbers = images(16, num_channels), torch.rand(NUM_DRAWS, 16)
    y = augment(x, uniform=numbers)
    single = [augment(x[[i]], uniform=numbers[:, [i]]) for i in range(16)]
    torch.testing.assert_close(y, torch.cat(single), rtol=1e-5, atol=1e-6)
    others = torch.cat([x[:1], torch.rand_like(x[1:])])
    assert torch.equal(augment(others, uniform=numbers)[0], y[0])


def test_both_views_keep_the_order_of_the_images():
    is_black = torch.rand(32) < 0.5
    x = 0.5 * (~is_black).float().view(-1, 1, 1, 1).expand(32, 3, 8, 8)
    for view in PaperViews()(x):
        assert torch.equal(view.amax((1, 2, 3)) == 0, is_black)


# The call -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_channels", "mean", "std"), [(3, *CIFAR_CONSTANTS), (1, (0.13,), (0.3,))]
)
def test_normalisation_is_undone_and_redone(num_channels, mean, std):
    x, normalize = images(num_channels=num_channels), Normalize(mean, std)
    torch.manual_seed(5)
    expected = [normalize(view) for view in PaperViews()(x)]
    torch.manual_seed(5)
    got = PaperViews(mean=mean, std=std)(normalize(x))
    torch.testing.assert_close(got, tuple(expected), rtol=1e-4, atol=1e-4)


def test_one_constant_serves_all_channels_and_one_alone_leaves_the_other():
    x = images() * 4 + 1
    for short, full in [
        ({"mean": [1], "std": [4]}, {"mean": [1, 1, 1], "std": [4, 4, 4]}),
        ({"mean": torch.tensor([0.5])}, {"mean": [0.5], "std": [1]}),
        ({"std": np.array([2.0])}, {"mean": [0], "std": [2]}),
    ]:
        got, expected = PaperViews(**short), PaperViews(**full)
        torch.manual_seed(1)
        got = got(x)
        torch.manual_seed(1)
        assert all(map(torch.equal, got, expected(x)))


def test_seed_decides_and_input_stays():
    x, make = images(), PaperViews()
    before = x.clone()
    torch.manual_seed(7)
    first = make(x)
    second = make(x)
    torch.manual_seed(7)
    again = make(x)
    assert all(map(torch.equal, first, again))
    assert not torch.equal(first[0], second[0])
    assert torch.equal(x, before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_dtype_stays_and_half_precision_is_only_in_and_out(dtype):
    x = images().to(dtype)
    torch.manual_seed(7)
    got = PaperViews()(x)
    assert [(view.dtype, view.shape) for view in got] == [(dtype, x.shape)] * 2
    wide = torch.promote_types(dtype, torch.float32)
    torch.manual_seed(7)
    expected = PaperViews()(x.to(wide))
    assert all(torch.equal(g, e.to(dtype)) for g, e in zip(got, expected, strict=True))


def test_autocast_does_not_reach_the_views():
    x = images()
    torch.manual_seed(7)
    expected = PaperViews()(x)
    torch.manual_seed(7)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert all(map(torch.equal, PaperViews()(x), expected))


@pytest.mark.parametrize("num_channels", [1, 3])
def test_nothing_waits_for_the_device_or_depends_on_values(num_channels):
    make, x = PaperViews(mean=[0.5] * num_channels, std=[0.2]), images(num_channels=num_channels)
    with Operations() as operations:
        make(x)
    assert operations.names
    assert not operations.names & WAITING_OPERATIONS
    with FakeTensorMode():  # tensors without values, so that any use of one raises
        view1, view2 = make(torch.empty(x.shape))
    assert view1.shape == view2.shape == x.shape


@needs_cuda_build
def test_nothing_is_made_on_the_host():
    with FakeTensorMode():
        x = torch.empty(8, 3, 16, 16, device="cuda")
        with Operations() as operations:
            PaperViews(mean=[0.5, 0.4, 0.3], std=[0.2])(x)
    assert operations.devices - {None} == {torch.device("cuda:0")}


def test_the_check_for_waiting_would_notice():
    for wait in (
        lambda x: x[x > 0.5],
        lambda x: x.max().item(),
        lambda x: x + torch.tensor([0.5, 0.5, 0.5]).view(3, 1, 1),
    ):
        with Operations() as operations:
            wait(images())
        assert operations.names & WAITING_OPERATIONS


@pytest.mark.gpu
def test_views_can_be_captured_in_a_cuda_graph():
    make, x = PaperViews(mean=[0.5, 0.5, 0.5], std=[0.2]), images().cuda()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        make(x)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        view, _ = make(x)
    graph.replay()
    first = view.clone()
    graph.replay()
    assert view.isfinite().all()
    assert not torch.equal(first, view)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.rand(4, 20), r"shape \(B, C, H, W\), got \(4, 20\).*`views=`, or `ssl=None`"),
        (torch.rand(3, 8, 8), r"shape \(B, C, H, W\), got \(3, 8, 8\)"),
        (torch.zeros(2, 3, 8, 8, dtype=torch.uint8), r"floating dtype, got torch.uint8.*ToTensor"),
        (torch.zeros(2, 3, 8, 8, dtype=torch.int64), r"floating dtype, got torch.int64.*ToTensor"),
        (torch.rand(2, 2, 8, 8), r"1 or 3 channels, got 2.*`views=`"),
        (torch.rand(2, 4, 8, 8), r"1 or 3 channels, got 4.*`views=`"),
        (torch.rand(2, 3, 7, 8), r"at least 8 pixels.*got \(7, 8\).*`views=`"),
        (torch.rand(2, 3, 32, 7), r"at least 8 pixels.*got \(32, 7\).*`views=`"),
    ],
)
def test_other_input_is_refused(x, message):
    with pytest.raises(ValueError, match=f"^Expected `x` to be .*{message}"):
        PaperViews()(x)
    with pytest.raises(ValueError, match=f"^Expected `x` to be .*{message}"):
        PaperViews().fit(None, lambda: x)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mean": 0.5}, r"Expected `mean` to be a sequence of finite numbers, got 0.5;.*\[0.5\]"),
        ({"mean": []}, r"Expected `mean` to be a sequence of finite numbers, got \[\]"),
        ({"mean": ["a"]}, r"Expected `mean` to be a sequence of finite numbers, got \['a'\]"),
        ({"std": [math.nan]}, r"Expected `std` to be a sequence of finite numbers, got \[nan\]"),
        ({"std": [0.1, 0, 0.1]}, r"Expected `std` to be above 0, got \[0.1, 0, 0.1\]"),
    ],
)
def test_constants_are_checked(arguments, message):
    with pytest.raises(ValueError, match=message):
        PaperViews(**arguments)


@pytest.mark.parametrize("name", ["mean", "std"])
def test_constants_for_another_number_of_channels_are_refused(name):
    with pytest.raises(ValueError, match=f"Expected `{name}` .* got 3 for 1; pass `views=Paper"):
        PaperViews(**{name: [1, 1, 1]})(images(num_channels=1))


# The normalisation of the stream ------------------------------------------------------------------


def views_of_a_strategy(views):
    return strategy_of(SmallCNN(), ssl="simclr", views=views).views


def views_of_a_plugin(views):
    return SelfSupervisedLossPlugin("simclr", views=views).views


@several
@given(
    low=st.lists(st.floats(-300, 300), min_size=3, max_size=3),
    width=st.lists(st.floats(0.01, 300), min_size=3, max_size=3),
)
def test_a_guessed_range_is_mapped_to_pixels_from_0_to_1(low, width):
    views = PaperViews()
    start, scale = (torch.tensor(values)[:, None, None] for values in (low, width))
    pixels = images()
    sample = start + pixels * scale
    with pytest.warns(UserWarning, match="Found no Normalize"):
        views.fit(None, lambda: sample - 1000)
    mean, std = (torch.tensor(constants)[:, None, None] for constants in (views.mean, views.std))
    torch.testing.assert_close((sample - 1000) * std + mean, pixels, rtol=0, atol=0.02)


@pytest.mark.parametrize("constants", [CIFAR_CONSTANTS, ((0.0,), (1 / 255,)), ((0.5,), (0.5,))])
def test_views_of_a_guessed_range_are_those_of_the_true_constants(constants):
    mean, std = (torch.tensor(values)[:, None, None] for values in constants)
    normalised = (images() - mean) / std
    guessed, true = PaperViews(), PaperViews(mean=constants[0], std=constants[1])
    with pytest.warns(UserWarning, match="Found no Normalize"):
        guessed.fit(None, lambda: normalised)
    drawn = []
    for views in (guessed, true):
        torch.manual_seed(0)
        drawn.append(views(normalised))
    torch.testing.assert_close(*drawn, rtol=1e-4, atol=1e-3)


def test_a_channel_without_a_range_counts_as_black():
    views, sample = PaperViews(), 3 * images()
    sample[:, 1] = 7.0
    with pytest.warns(UserWarning, match="Found no Normalize"):
        views.fit(None, lambda: sample)
    assert (views.mean[1], views.std[1]) == (-7.0, 1.0)


def test_a_guessed_range_is_of_one_strategy():
    views = PaperViews(min_crop_area=0.5)
    with pytest.warns(UserWarning, match="Found no Normalize"):
        views.fit(None, lambda: 9 * images())
    assert max(views.std) < 1 / 8
    own = own_views(views)
    assert (own.mean, own.std, own.min_crop_area) == ((0.0,), (1.0,), 0.5)
    with pytest.warns(UserWarning, match="Found no Normalize"):
        own.fit(None, lambda: 5 * images())
    assert min(own.std) > 1 / 6
    assert max(views.std) < 1 / 8  # the first goes on with its own
    given_constants = PaperViews(mean=[0.5], std=[0.25])
    assert vars(own_views(given_constants)) == vars(given_constants)
    assert own_views(images) is images


@pytest.mark.parametrize("make", [views_of_a_strategy, views_of_a_plugin])
def test_each_owner_of_views_has_its_own(make):
    views = PaperViews()
    assert len({id(each) for each in (views, make(views), make(views))}) == 3
