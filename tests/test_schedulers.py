"""Every scheduler of torch, used in both ways: each experience has the rates of the first."""

import pytest
import torch
from avalanche.training.plugins import LRSchedulerPlugin
from helpers import Probe, SmallCNN, mlp, optimized, strategy_of, tensors_stream
from matrix import proves
from torch import nn
from torch.optim import SGD, Adam
from torch.optim import lr_scheduler as of
from torch.optim.swa_utils import SWALR

from avalanche_dlcpa.plugin_guards import NEVER_RESET

EPOCHS = 4
RATE = 1e-3
MAKE = {
    "LambdaLR": lambda o: of.LambdaLR(o, lambda epoch: 0.5**epoch),
    "MultiplicativeLR": lambda o: of.MultiplicativeLR(o, lambda epoch: 0.5),
    "StepLR": lambda o: of.StepLR(o, 2),
    "MultiStepLR": lambda o: of.MultiStepLR(o, [1, 3]),
    "ConstantLR": lambda o: of.ConstantLR(o, 0.1, total_iters=2),
    "LinearLR": lambda o: of.LinearLR(o, 0.1, total_iters=2),
    "ExponentialLR": lambda o: of.ExponentialLR(o, 0.5),
    "ChainedScheduler": lambda o: of.ChainedScheduler([of.ConstantLR(o), of.ExponentialLR(o, 0.5)]),
    "PolynomialLR": lambda o: of.PolynomialLR(o, 4),
    "CosineAnnealingLR": lambda o: of.CosineAnnealingLR(o, 4),
    "SequentialLR": lambda o: of.SequentialLR(o, [of.ConstantLR(o), of.ExponentialLR(o, 0.5)], [2]),
    "CyclicLR": lambda o: of.CyclicLR(o, 1e-4, 1e-3, step_size_up=2),
    "CosineAnnealingWarmRestarts": lambda o: of.CosineAnnealingWarmRestarts(o, 3),
    "OneCycleLR": lambda o: of.OneCycleLR(o, 1e-2, total_steps=6),
    "ReduceLROnPlateau": lambda o: of.ReduceLROnPlateau(
        o, patience=0, threshold=1e9, threshold_mode="abs"
    ),
    "SWALR": lambda o: SWALR(o, 1e-4, anneal_epochs=3),
}
NEEDS_METRIC = ("ReduceLROnPlateau",)
STREAM = tensors_stream(size=8, per_class=4)


def rates_alone(name):
    """The rates of a scheduler by itself."""
    optimizer = SGD([nn.Parameter(nn.Linear(1, 1).weight.detach())], lr=RATE, momentum=0.9)
    scheduler, rates = MAKE[name](optimizer), []
    for _ in range(EPOCHS):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step(*([1.0] if name in NEEDS_METRIC else []))
    return rates


def rates_in_training(*, plugins=(), **kwargs):
    """The rates of each epoch of three experiences."""
    model = mlp(size=8)
    optimizer = SGD(model.parameters(), lr=RATE, momentum=0.9)
    probe = Probe(before_training_epoch=lambda s: s.optimizer.param_groups[0]["lr"])
    plugins = [*(make(optimizer) for make in plugins), probe]
    strategy = strategy_of(
        model, optimizer=optimizer, plugins=plugins, train_epochs=EPOCHS, **kwargs
    )
    strategy.train(STREAM.train_stream)
    seen = probe.seen["before_training_epoch"]
    return [seen[start : start + EPOCHS] for start in range(0, len(seen), EPOCHS)]


def plugin_of(name, **kwargs):
    kwargs = ({"metric": "train_loss"} if name in NEEDS_METRIC else {}) | kwargs
    return lambda optimizer: LRSchedulerPlugin(MAKE[name](optimizer), **kwargs)


@proves("scheduler=", *(set(MAKE) - set(NEEDS_METRIC)))
@pytest.mark.parametrize("name", [name for name in MAKE if name not in NEEDS_METRIC])
def test_a_schedule_starts_anew_in_each_experience(name):
    rates = rates_alone(name)
    assert len(set(rates)) > 1
    assert rates_in_training(scheduler=MAKE[name]) == [pytest.approx(rates)] * 3


def test_a_schedule_that_steps_by_a_metric_is_refused():
    with pytest.raises(TypeError, match="use Avalanche's LRSchedulerPlugin"):
        rates_in_training(scheduler=MAKE["ReduceLROnPlateau"])


@proves("LRSchedulerPlugin", *(set(MAKE) - set(NEVER_RESET)))
@pytest.mark.parametrize("name", [name for name in MAKE if name not in NEVER_RESET])
def test_a_scheduler_in_avalanches_plugin_starts_anew_too(name):
    rates = rates_alone(name)
    assert rates_in_training(plugins=[plugin_of(name)]) == [pytest.approx(rates)] * 3


@pytest.mark.parametrize("name", NEVER_RESET)
def test_a_scheduler_that_the_plugin_cannot_set_back_is_refused(name, monkeypatch):
    match = rf"{name}, whose rates .* `scheduler=lambda optimizer: {name}\(optimizer, ...\)`"
    with pytest.raises(ValueError, match=match):
        rates_in_training(plugins=[plugin_of(name)])
    # what it would have been; where this fails, it is refused without need
    monkeypatch.setattr("avalanche_dlcpa.plugin_guards.NEVER_RESET", ())
    assert rates_in_training(plugins=[plugin_of(name)]) != [pytest.approx(rates_alone(name))] * 3


def test_a_rate_that_is_a_tensor_starts_anew_too():
    model = mlp(size=8)
    optimizer = Adam(model.parameters(), lr=torch.tensor(RATE))
    probe = Probe(before_training_epoch=lambda s: float(s.optimizer.param_groups[0]["lr"]))
    strategy = strategy_of(
        model, optimizer=optimizer, plugins=[probe], train_epochs=EPOCHS,
        scheduler=MAKE["MultiStepLR"],
    )  # fmt: skip
    rate = optimizer.param_groups[0]["lr"]
    strategy.train(STREAM.train_stream)
    rates = probe.seen["before_training_epoch"]
    assert rates == pytest.approx(3 * rates_alone("MultiStepLR"))
    assert optimizer.param_groups[0]["lr"] is rate


@pytest.mark.parametrize("option", [{"reset_scheduler": False}, {"first_exp_only": True}])
def test_a_warm_up_of_the_first_experience_alone(option):
    first, *others = rates_in_training(plugins=[plugin_of("LinearLR", **option)])
    assert first == pytest.approx(rates_alone("LinearLR"))
    assert others == [pytest.approx([RATE] * EPOCHS)] * 2


def test_a_scheduler_of_another_optimizer_is_refused():
    other = SGD(mlp(size=8).parameters(), lr=RATE)
    with pytest.raises(ValueError, match="got a StepLR of another optimizer"):
        rates_in_training(plugins=[lambda optimizer: plugin_of("StepLR")(other)])


@pytest.mark.parametrize("name", ["scheduler", "classifier_scheduler"])
def test_a_schedule_must_be_of_the_optimizer_that_it_is_given(name):
    other = SGD(mlp(size=8).parameters(), lr=RATE)
    with pytest.raises(ValueError, match=f"Expected `{name}` to make a scheduler for the opt"):
        rates_in_training(**{name: lambda optimizer: of.StepLR(other, 1)})


def test_the_classifiers_have_a_schedule_of_their_own():
    made = []

    def schedule(optimizer):
        made.append(optimizer)
        return of.MultiStepLR(optimizer, [1])

    probe = Probe(before_training_epoch=lambda strategy: made[-1].param_groups[0]["lr"])
    strategy = strategy_of(
        SmallCNN(),
        classifier_lr=0.4,
        classifier_scheduler=schedule,
        plugins=[probe],
        train_epochs=2,
    )
    for task, experience in enumerate(STREAM.train_stream[:2]):
        strategy.train(experience)
        layer = strategy.model.classifiers.layers[task]
        assert set(map(id, optimized(made[-1]))) == set(map(id, layer.parameters()))
    assert probe.seen["before_training_epoch"] == pytest.approx([0.4, 0.04] * 2)
    assert strategy.optimizer.param_groups[0]["lr"] == 0.05
