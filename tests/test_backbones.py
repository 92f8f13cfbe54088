from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torchvision.models.resnet import BasicBlock, ResNet

from avalanche_dlcpa.backbones import SmallImageResNet, resnet18, resnet34

FIXTURES = Path(__file__).parent / "fixtures"
TINY = (1, 1, 1, 1)


@pytest.fixture(autouse=True)
def _one_thread(_reproducible):
    """Small networks are slower on two threads, above all where others use the cores."""
    torch.set_num_threads(1)


def torchvision_twin(model, blocks, width, num_classes):
    """torchvision's ResNet in the form for small images, with the weights of `model`."""
    twin = ResNet(BasicBlock, list(TINY))
    twin.conv1 = nn.Conv2d(3, width, 3, padding=1, bias=False)
    twin.bn1 = nn.BatchNorm2d(width)
    twin.maxpool = nn.Identity()
    twin.inplanes = width
    for index, stride in enumerate((1, 2, 2, 2)):
        stage = twin._make_layer(BasicBlock, width * 2**index, blocks[index], stride)
        setattr(twin, f"layer{index + 1}", stage)
    twin.fc = nn.Linear(8 * width, num_classes)
    renamed = {
        key.replace("shortcut", "downsample").replace("linear", "fc"): value
        for key, value in model.state_dict().items()
    }
    twin.load_state_dict(renamed)
    return twin


def randomize_batch_norm_(model):
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.weight, module.bias, module.running_mean, module.running_var):
                nn.init.uniform_(tensor, 0.5, 1.5)


@pytest.mark.parametrize("blocks", [TINY, (2, 2, 2, 2), (3, 4, 6, 3)])
@pytest.mark.parametrize("training", [True, False])
def test_logits_are_those_of_torchvision_in_this_form(blocks, training):
    model = SmallImageResNet(blocks, num_classes=5, width=8).train(training)
    randomize_batch_norm_(model)
    twin = torchvision_twin(model, blocks, 8, 5).train(training)
    x = torch.randn(4, 3, 20, 12)
    torch.testing.assert_close(model(x), twin(x), rtol=1e-4, atol=1e-4)


def test_without_the_stem_relu_the_first_block_sees_the_batch_norm():
    model = SmallImageResNet(TINY, width=4, stem_relu=False).eval()
    randomize_batch_norm_(model)
    twin = torchvision_twin(model, TINY, 4, 100).eval()
    twin.relu = nn.Identity()  # the one of the stem; blocks have their own
    x = torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(model(x), twin(x), rtol=1e-4, atol=1e-5)
    model.stem_relu = True
    assert not torch.allclose(model(x), twin(x), atol=1e-3)


def test_state_dict_takes_the_recorded_weights():
    with np.load(FIXTURES / "trajectory_simclr.npz") as arrays:
        recorded = {
            key.removeprefix("init/plastic/"): torch.from_numpy(arrays[key])
            for key in arrays.files
            if key.startswith("init/plastic/")
        }
    model = SmallImageResNet(TINY, num_classes=4, width=4, stem_relu=False)
    missing, unexpected = model.load_state_dict(recorded, strict=False)
    assert unexpected == []
    missing = [name for name in missing if not name.endswith("num_batches_tracked")]
    assert missing == ["linear.weight", "linear.bias"]
    torch.testing.assert_close(
        model.layer4[0].shortcut[0].weight, recorded["layer4.0.shortcut.0.weight"]
    )


def expected_num_parameters(blocks, width, in_channels, num_classes):
    def convolution(inputs, outputs, kernel):
        return inputs * outputs * kernel**2 + 2 * outputs  # no bias, but a batch norm after it

    count, inputs = convolution(in_channels, width, 3), width
    for stage, num_blocks in enumerate(blocks):
        outputs = width * 2**stage
        for block in range(num_blocks):
            count += convolution(inputs, outputs, 3) + convolution(outputs, outputs, 3)
            count += convolution(inputs, outputs, 1) if block == 0 and stage > 0 else 0
            inputs = outputs
    return count + inputs * num_classes + num_classes


@pytest.mark.parametrize(("build", "blocks"), [(resnet18, (2, 2, 2, 2)), (resnet34, (3, 4, 6, 3))])
def test_number_of_parameters(build, blocks):
    models = {(64, 3, 100): build(), (6, 1, 7): build(7, in_channels=1, width=6)}
    for (width, in_channels, num_classes), model in models.items():
        expected = expected_num_parameters(blocks, width, in_channels, num_classes)
        assert sum(p.numel() for p in model.parameters()) == expected
    assert (
        build is resnet34 or sum(p.numel() for p in models[64, 3, 100].parameters()) == 11_220_132
    )


@settings(max_examples=15, deadline=None)
@given(
    height=st.integers(8, 40),
    width=st.integers(8, 40),
    channels=st.integers(1, 5),
    stem_relu=st.booleans(),
)
def test_any_size_and_number_of_channels(height, width, channels, stem_relu):
    model = resnet18(7, in_channels=channels, width=2, stem_relu=stem_relu)
    x = torch.randn(2, channels, height, width)
    features = model.features(x)
    assert features.shape == (2, 16)
    torch.testing.assert_close(model(x), F.linear(features, model.linear.weight, model.linear.bias))


def test_stages_halve_the_image_three_times():
    model, shapes = SmallImageResNet(TINY, width=4), []
    for stage in (model.layer1, model.layer2, model.layer3, model.layer4):
        stage.register_forward_hook(lambda module, args, y: shapes.append(tuple(y.shape[1:])))
    model(torch.randn(2, 3, 32, 24))
    assert shapes == [(4, 32, 24), (8, 16, 12), (16, 8, 6), (32, 4, 3)]


def test_builders_pass_their_arguments_on():
    for build in (resnet18, resnet34):
        assert build(width=2).stem_relu is True
        assert build(width=2, stem_relu=False).stem_relu is False


@pytest.mark.parametrize("name", ["num_classes", "in_channels", "width"])
@pytest.mark.parametrize("build", [resnet18, resnet34])
def test_sizes_below_one_are_refused(build, name):
    with pytest.raises(ValueError, match=f"Expected `{name}` to be at least 1, got 0"):
        build(**{name: 0})


@pytest.mark.parametrize("blocks", [(1, 1, 1), (2, 2, 0, 2), (1, 1, 1, 1, 1)])
def test_blocks_are_four_numbers_of_at_least_one(blocks):
    with pytest.raises(ValueError, match=r"Expected `blocks` to be 4 numbers.*\(2, 2, 2, 2\)"):
        SmallImageResNet(blocks)
