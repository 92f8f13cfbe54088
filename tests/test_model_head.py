import copy

import pytest
import torch
from avalanche.models import (
    IncrementalClassifier,
    MTSimpleMLP,
    MTSlimResNet18,
    SimpleCNN,
    SimpleMLP,
    SlimResNet18,
    as_multitask,
)
from torch import nn
from torchvision import models as tv

from avalanche_dlcpa.model_head import detach_head, find_head


class TwoOutputs(nn.Module):
    def __init__(self, *names, sizes=(4, 4)):
        super().__init__()
        for name, size in zip(names, sizes, strict=True):
            setattr(self, name, nn.Linear(8, size))


class HiddenAndOutput(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (SimpleMLP(hidden_layers=3), "classifier"),
        (SimpleCNN(), "classifier.0"),
        (SlimResNet18(10), "linear"),
        (tv.resnet18(), "fc"),
        (tv.mobilenet_v3_small(), "classifier.3"),
        (tv.vit_b_16(), "heads.head"),
        (tv.densenet121(), "classifier"),
        (tv.inception_v3(init_weights=False), "fc"),
        (nn.Sequential(nn.Linear(4, 4), IncrementalClassifier(4), nn.Identity()), "1"),
        (as_multitask(SlimResNet18(10), "linear"), "linear"),
        (MTSimpleMLP(), "classifier"),
        (nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)), "2"),
        (HiddenAndOutput(), "second"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_the_last_linear_layer_is_found(model, name):
    assert find_head(model) == name
    assert find_head(model, name) == name


@pytest.mark.parametrize(
    ("model", "x"),
    [
        (SimpleMLP(4, input_size=12, hidden_size=6), torch.rand(3, 12)),
        (SimpleCNN(4), torch.rand(3, 3, 16, 16)),
        (SlimResNet18(4), torch.rand(3, 3, 32, 32)),
        (tv.resnet18(num_classes=4), torch.rand(3, 3, 32, 32)),
        (tv.mobilenet_v3_small(num_classes=4), torch.rand(3, 3, 32, 32)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_head_of_the_features_is_the_whole_model(model, x):
    whole = copy.deepcopy(model).eval()
    plastic, start = detach_head(model)
    features = plastic.eval()(x)
    layer = start.linear(0, [0, 1, 2, 3])
    torch.testing.assert_close(layer(features), whole(x))


@pytest.mark.parametrize(
    ("model", "x"),
    [
        (as_multitask(SlimResNet18(4), "linear"), torch.rand(3, 3, 32, 32)),
        (MTSlimResNet18(4), torch.rand(3, 3, 32, 32)),
        (MTSimpleMLP(input_size=12, hidden_size=6), torch.rand(3, 12)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_multi_task_models_are_taken_apart_and_start_each_task_with_its_own_head(model, x):
    whole = copy.deepcopy(model).eval()
    plastic, start = detach_head(model)
    features = plastic.eval()(x)
    own = whole.get_submodule(find_head(whole)).classifiers["0"].classifier
    assert torch.equal(start.linear(0, [1]).weight, own.weight[1:2])
    assert not torch.equal(start.linear(1, [1]).weight, own.weight[1:2])
    assert features.shape == (3, own.in_features)


def test_rows_of_the_head_are_taken_over_by_class_and_others_grow():
    head = nn.Linear(5, 3)
    _, start = detach_head(nn.Sequential(nn.Linear(2, 5), nn.ReLU(), head))
    layer = start.linear(0, [2, 7])
    assert torch.equal(layer.weight[0], head.weight[2])
    assert torch.equal(layer.bias[0], head.bias[2])
    assert layer.weight[1].abs().max() <= 5**-0.5  # torch's initialisation
    assert layer.weight[1].abs().max() > 0


def test_a_head_without_bias_gives_classifiers_without():
    _, start = detach_head(nn.Sequential(nn.Linear(2, 5), nn.Linear(5, 3, bias=False)))
    assert start.linear(0, [0, 9]).bias is None


class Chain(nn.Module):
    """Linear layers of the given widths, by name and in that order."""

    def __init__(self, widths, **names):
        super().__init__()
        for (name, given), width in zip(names.items(), widths, strict=True):
            setattr(self, name, nn.Linear(given, width))


def test_a_hidden_layer_with_the_name_of_a_head_is_not_taken_for_it():
    hidden = Chain([8, 6, 3], fc=4, between=8, out=6)
    with pytest.raises(ValueError, match=r"candidates \['fc', 'out'\]: name it, such as head='out"):
        find_head(hidden)
    assert find_head(hidden, "out") == "out"
    assert find_head(Chain([3, 8], fc=4, projector=4)) == "fc"


def test_a_head_with_a_second_name_is_found():
    model = nn.Module()
    model.body = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3))
    model.fc = model.body[1]
    assert find_head(model) == "fc"


def test_bad_models():
    with pytest.raises(
        ValueError, match="Expected `model` to end in a linear layer, got Sequential"
    ):
        find_head(nn.Sequential(nn.Conv2d(1, 1, 1)))
    with pytest.raises(ValueError, match="got Linear with none below it"):
        find_head(nn.Linear(2, 2))
    with pytest.raises(
        ValueError, match=r"candidates \['fc', 'head'\]: name it, such as head='head'"
    ):
        find_head(TwoOutputs("fc", "head"))
    with pytest.raises(ValueError, match=r"candidates \['left', 'right'\]"):
        find_head(TwoOutputs("left", "right"))
    with pytest.raises(ValueError, match=r"`head` to name a linear layer of .*got 'fcc'"):
        find_head(tv.resnet18(), "fcc")
