"""Copies of models that hold tensors of their last pass: made, and on weights of their own."""

import pytest
import torch
from avalanche.training.supervised import Naive
from helpers import SmallCNN, assert_learns, nc_stream, small_head, strategy_of
from torch import nn
from torch.nn.utils import prune
from torch.optim import SGD

from avalanche_dlcpa import (
    ClassifierAlignmentPlugin,
    CumulativeParameterAveragingPlugin,
    GaussianClassifierPlugin,
    SelfSupervisedLossPlugin,
    SingleTaskStrategy,
    load_stable,
)
from avalanche_dlcpa.model_copy import copy_of

pytestmark = pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")


class KeepsFeatures(SmallCNN):
    def forward(self, x):
        x = self.norm(self.conv(x)).relu()
        self.last = {"features": [nn.functional.adaptive_avg_pool2d(x, 2).flatten(1)]}
        return self.fc(self.last["features"][0])


def model_of(kind):
    """A model after its first pass."""
    model = KeepsFeatures() if kind == "kept features" else SmallCNN()
    if kind == "weight norm":
        nn.utils.weight_norm(model.conv)
    elif kind == "spectral norm":
        nn.utils.spectral_norm(model.conv)
    elif kind == "pruned":
        prune.l1_unstructured(model.conv, "weight", 0.5)
    model(torch.rand(4, 3, 16, 16))
    return model


KINDS = ["weight norm", "spectral norm", "pruned", "kept features"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_computes_with_weights_of_its_own(kind):
    model, x = model_of(kind).eval(), torch.rand(4, 3, 16, 16)
    twin = copy_of(model)
    answer = model(x)
    assert torch.equal(twin(x), answer)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.rand_like(parameter))
    assert torch.equal(twin(x), answer)
    assert not torch.allclose(model(x), answer)
    twin.requires_grad_(False)
    assert not twin(x).requires_grad


def naive(model, *plugins):
    optimizer = SGD(model.parameters(), lr=0.05)
    return Naive(
        model=model,
        optimizer=optimizer,
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=16,
        eval_mb_size=64,
        evaluator=None,
        plugins=list(plugins),
    )


def stl(model, **kwargs):
    optimizer = SGD(model.parameters(), lr=0.05)
    return SingleTaskStrategy(
        model=model, optimizer=optimizer, train_mb_size=16, evaluator=None, **kwargs
    )


def averaged_and_aligned(model):
    average = CumulativeParameterAveragingPlugin()
    return naive(model, average, ClassifierAlignmentPlugin(average))


USERS = {
    "DLCPA": lambda model: strategy_of(
        model, ssl=small_head("byol"), classifier="gaussian", bn_statistics="recalibrated"
    ),
    "STL": stl,
    "STL-me": lambda model: stl(model, predict_with="mean"),
    "average": averaged_and_aligned,
    "Gaussian": lambda model: naive(model, GaussianClassifierPlugin()),
    "loss": lambda model: naive(model, SelfSupervisedLossPlugin(small_head("byol"))),
}


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("kind", KINDS)
def test_such_a_model_is_trained_from_experience_to_experience(user, kind):
    strategy, stream = USERS[user](model_of(kind)), nc_stream(per_class=8)
    for experience in stream.train_stream:  # no evaluation in between, which would clean up
        assert_learns(strategy, experience)
    strategy.eval(stream.test_stream)


@pytest.mark.parametrize("kind", KINDS)
def test_such_a_stable_learner_is_averaged_exported_and_loaded(kind, tmp_path):
    strategy, stream = strategy_of(model_of(kind)), nc_stream(per_class=8)
    strategy.train(stream.train_stream)
    dual, x = strategy.model.eval(), torch.rand(4, 3, 16, 16)
    path = tmp_path / "stable.safetensors"
    dual.export(path, image_shape=(3, 16, 16))
    loaded, _ = load_stable(path, model_of(kind))
    with torch.no_grad():
        torch.testing.assert_close(loaded(x), dual(x))


class OnceComputed(SmallCNN):
    """Its weight is computed from a parameter where it is made, and never again."""

    def __init__(self):
        super().__init__()
        self.weight = 2 * self.conv.weight

    def forward(self, x):
        x = nn.functional.conv2d(x, self.weight, stride=2, padding=1).relu()
        return self.fc(nn.functional.adaptive_avg_pool2d(x, 2).flatten(1))


@pytest.mark.parametrize("user", USERS)
def test_a_model_whose_copy_would_go_on_with_an_old_tensor_is_refused(user):
    strategy = USERS[user](OnceComputed())
    with pytest.raises(ValueError, match="compute in each forward pass what depends on parameters"):
        strategy.train(nc_stream(per_class=8).train_stream[0])
