"""A constructor that fails gives the user's model and optimizer back as they were."""

import pytest
import torch
from avalanche.models import SimpleMLP, as_multitask
from helpers import assert_same_state, state_of
from torch.optim import SGD, Adagrad

from avalanche_dlcpa import DLCPAStrategy, SingleTaskStrategy
from avalanche_dlcpa.backbones import resnet18
from avalanche_dlcpa.self_supervised import SelfSupervisedHead

NOWHERE = "cuda:7"  # no machine that tests has so many


class WithoutLayers(SelfSupervisedHead):
    """Has a parameter to be trained, and then fails."""

    def build(self, plastic, num_features):
        raise RuntimeError(f"no layers for {num_features} features")


def multi_task():
    return as_multitask(SimpleMLP(num_classes=4, input_size=12, hidden_size=8), "classifier")


def plain():
    return resnet18(num_classes=4, width=4)


@pytest.mark.parametrize("make", [plain, multi_task])
@pytest.mark.parametrize("optimizer_class", [SGD, Adagrad])
@pytest.mark.parametrize(
    ("strategy", "arguments", "reason"),
    [
        (DLCPAStrategy, {"ssl": WithoutLayers()}, "no layers for"),
        (DLCPAStrategy, {"device": NOWHERE}, "NVIDIA|CUDA|device"),
        (SingleTaskStrategy, {"device": NOWHERE}, "NVIDIA|CUDA|device"),
    ],
)
def test_the_next_try_has_them_as_they_were(make, optimizer_class, strategy, arguments, reason):
    model = make()
    names, weights = [name for name, _ in model.named_modules()], state_of(model)
    adapts = [getattr(part, "_auto_adapt", None) for part in model.modules()]
    optimizer = optimizer_class([*model.named_parameters()], lr=0.1, weight_decay=0.01)
    before, state = dict(optimizer.param_groups[0]), set(optimizer.state)
    held = [id(p) for p in before.pop("params")]
    with pytest.raises((RuntimeError, AssertionError), match=reason):
        strategy(model=model, optimizer=optimizer, train_mb_size=4, **arguments)
    assert [name for name, _ in model.named_modules()] == names
    assert [getattr(part, "_auto_adapt", None) for part in model.modules()] == adapts
    assert_same_state(state_of(model), weights)
    after = dict(optimizer.param_groups[0])
    assert [id(p) for p in after.pop("params")] == held
    assert after == before
    assert set(optimizer.state) == state
    strategy(model=model, optimizer=optimizer, train_mb_size=4)


@pytest.mark.parametrize("strategy", [DLCPAStrategy, SingleTaskStrategy])
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: torch.nn.LazyLinear(8), r"got '0.weight' of a lazy layer: call it on"),
        (lambda: torch.nn.Linear(4, 8, device="meta"), r"got '0.weight' of the meta device: build"),
    ],
)
def test_a_model_without_values_is_refused(strategy, make, message):
    model = torch.nn.Sequential(make(), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    optimizer = SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=message):
        strategy(model=model, optimizer=optimizer, train_mb_size=4)
