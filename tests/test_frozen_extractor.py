"""The passes at the end of an experience, as torch optimises them, give the same features."""

import subprocess
import sys

import pytest
import torch
from helpers import SmallCNN, seed_everything, tensors_stream
from torch import nn

from avalanche_dlcpa import frozen_extractor
from avalanche_dlcpa.backbones import resnet18
from avalanche_dlcpa.frozen_extractor import (
    FrozenExtractor,
    experience_statistics,
    optimized,
)

CPU = torch.device("cpu")


def trained(model):
    """With statistics and scales of batch norm that are not those it starts from."""
    seed_everything(0)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 2)
            nn.init.normal_(module.bias)
    with torch.no_grad():
        model.train()(torch.rand(64, 3, 8, 8))
    return model.eval()


class Branching(SmallCNN):
    """Asks for the values of its input, which torch cannot trace."""

    def forward(self, x):
        return super().forward(x if bool((x > 0.5).any()) else -x)


def doubles_its_output(model):
    """By a hook of its own, which is lost when it is traced."""
    model.register_forward_hook(lambda module, inputs, output: 2 * output)
    return model


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("num_images", [1, 11])
def test_it_folds_batch_norm_and_gives_the_same_features(layout, num_images):
    extractor = FrozenExtractor(trained(resnet18(10, width=4)).to(memory_format=layout))
    before = {name: value.clone() for name, value in extractor.state_dict().items()}
    images = torch.rand(num_images, 3, 8, 8)
    found = optimized(extractor, images)
    assert found is not extractor
    assert not any(isinstance(module, nn.BatchNorm2d) for module in found.modules())
    torch.testing.assert_close(found(images), extractor(images), rtol=1e-5, atol=1e-5)
    assert all(torch.equal(before[name], value) for name, value in extractor.state_dict().items())


@pytest.mark.parametrize(
    "model",
    [Branching(), doubles_its_output(nn.Sequential(SmallCNN(), nn.Linear(6, 4)))],
    ids=["not traced", "traced to something else"],
)
def test_where_that_does_not_work_it_is_the_extractor_itself(model):
    extractor = FrozenExtractor(trained(model))
    assert optimized(extractor, torch.rand(11, 3, 8, 8)) is extractor


def test_the_statistics_are_those_of_the_extractors(monkeypatch):
    extractors = [FrozenExtractor(trained(resnet18(10, width=4))) for _ in range(2)]
    experience = tensors_stream(per_class=12, size=8).train_stream[0]
    faster, classes = experience_statistics(experience, extractors, batch_size=10, device=CPU)
    monkeypatch.setattr(frozen_extractor, "optimized", lambda extractor, images: extractor)
    exact, expected = experience_statistics(experience, extractors, batch_size=10, device=CPU)
    assert classes == expected
    assert torch.equal(faster.counts, exact.counts)
    assert not torch.equal(faster.means, exact.means)  # it did take the faster passes
    torch.testing.assert_close(faster.means, exact.means, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(faster.scatter, exact.scatter, rtol=1e-4, atol=1e-4)


def test_what_torch_uses_for_it_warns_no_one():
    script = (
        "import torch; from avalanche_dlcpa.backbones import resnet18;"
        "from avalanche_dlcpa.frozen_extractor import FrozenExtractor, optimized;"
        "import warnings; warnings.simplefilter('error');"
        "extractor = FrozenExtractor(resnet18(10, width=4));"
        "assert optimized(extractor, torch.rand(2, 3, 8, 8)) is not extractor"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_without_torchs_experimental_module_the_passes_are_as_they_were(monkeypatch):
    extractor = FrozenExtractor(trained(resnet18(10, width=4)))
    monkeypatch.setitem(sys.modules, "torch.fx.experimental.optimization", None)
    assert optimized(extractor, torch.rand(2, 3, 8, 8)) is extractor
