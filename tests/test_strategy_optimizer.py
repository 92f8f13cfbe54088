"""What the user's optimizer trains, when it starts anew, and the schedules."""

import pytest
import torch
from avalanche.training.plugins import LRSchedulerPlugin
from helpers import Probe, SmallCNN, optimized, small_head, strategy_of, tensors_stream
from torch import nn
from torch.optim import SGD, AdamW, RMSprop
from torch.optim.lr_scheduler import LinearLR, MultiStepLR, OneCycleLR

from avalanche_dlcpa import DualLearner
from avalanche_dlcpa.self_supervised import HEADS, SelfSupervisedHead, SimCLR


def stream(**kwargs):
    return tensors_stream(**{"size": 8, "per_class": 8} | kwargs).train_stream


def ids(parameters):
    return sorted(id(parameter) for parameter in parameters)


def assert_holds_plastic_and_head(strategy):
    wanted = [p for p in strategy.model.plastic.parameters() if p.requires_grad]
    if strategy.ssl is not None:
        wanted += [p for p in strategy.ssl.parameters() if p.requires_grad]
    assert ids(optimized(strategy.optimizer)) == ids(wanted)  # each of them once


@pytest.mark.parametrize("ssl", [None, *HEADS])
def test_the_optimizer_holds_plastic_and_head_parameters_and_nothing_else(ssl):
    head = small_head(ssl)
    strategy = strategy_of(SmallCNN(), ssl=head, momentum=0.9, lr=0.001)
    assert_holds_plastic_and_head(strategy)
    for experience in stream()[:2]:
        strategy.train(experience)
        strategy.eval(stream())
        assert_holds_plastic_and_head(strategy)
        assert all(id(p) in ids(optimized(strategy.optimizer)) for p in strategy.optimizer.state)
    frozen = [*strategy.model.stable.parameters()]
    frozen += [] if not ssl or head.momentum_encoder is None else head.momentum_encoder.parameters()
    assert not any(p.requires_grad for p in frozen)


def test_param_groups_keep_their_members_and_settings():
    model = SmallCNN()
    groups = [
        {"params": model.conv.parameters(), "lr": 0.01},
        {"params": model.norm.parameters(), "lr": 0.02, "weight_decay": 0.0},
        {"params": model.fc.parameters(), "lr": 0.5},
    ]
    optimizer = AdamW(groups, weight_decay=0.1)
    strategy = strategy_of(model, optimizer=optimizer, ssl="simclr")
    strategy.train(stream()[:2])
    assert_holds_plastic_and_head(strategy)
    conv, norm, fc = optimizer.param_groups
    joined = [p for p in conv["params"] if id(p) not in ids(model.conv.parameters())]
    assert ids(joined) == ids(strategy.ssl.parameters())
    assert ids(norm["params"]) == ids(model.norm.parameters())
    assert fc["params"] == []
    assert (conv["lr"], norm["lr"], norm["weight_decay"]) == (0.01, 0.02, 0.0)


class Projected(SelfSupervisedHead):
    def __init__(self):
        super().__init__()
        self.projector = nn.Linear(64, 4)

    def forward(self, plastic, view1, view2):
        features1, features2 = plastic(view1), plastic(view2)
        distance = self.projector(features1) - self.projector(features2)
        return distance.square().mean(), (features1, features2)


def test_a_group_that_the_user_made_for_the_head_keeps_its_learning_rate():
    model, head = SmallCNN(), Projected()
    optimizer = SGD(
        [{"params": model.parameters()}, {"params": head.parameters(), "lr": 0.5}], lr=0.01
    )
    strategy = strategy_of(model, optimizer=optimizer, ssl=head)
    assert_holds_plastic_and_head(strategy)
    assert ids(optimizer.param_groups[1]["params"]) == ids(head.parameters())


def test_a_model_frozen_in_part_stays_frozen():
    model = SmallCNN()
    model.conv.requires_grad_(False)
    before = model.conv.weight.detach().clone()
    strategy = strategy_of(model, ssl=small_head("mocov2"), momentum=0.9)
    strategy.train(stream()[:2])
    assert_holds_plastic_and_head(strategy)
    for learner in (strategy.model.plastic, strategy.model.stable):
        assert torch.equal(learner.conv.weight, before)
    assert not torch.equal(strategy.model.plastic.norm.weight, torch.ones(16))


@pytest.mark.parametrize("of", ["everything", "plastic"])
def test_a_ready_dual_learner(of):
    dual = DualLearner(SmallCNN(), bn_statistics="recalibrated")
    parameters = dual.parameters() if of == "everything" else dual.plastic.parameters()
    optimizer = SGD(parameters, lr=0.05)
    strategy = strategy_of(dual, optimizer=optimizer, ssl="simclr")
    strategy.train(stream()[:2])
    assert strategy.model is dual
    assert dual.num_averaged == 2
    assert_holds_plastic_and_head(strategy)


def test_each_experience_starts_without_optimizer_state():
    sizes = Probe(
        before_training_exp=lambda strategy: len(strategy.optimizer.state),
        after_training_exp=lambda strategy: len(strategy.optimizer.state),
    )
    strategy = strategy_of(SmallCNN(), momentum=0.9, plugins=[sizes])
    strategy.train(stream())
    assert sizes.seen["before_training_exp"] == [0, 0, 0]
    assert sizes.seen["after_training_exp"] == [4, 4, 4]


def test_optimizer_state_can_be_kept_as_in_avalanche():
    sizes = Probe(before_training_exp=lambda strategy: len(strategy.optimizer.state))
    strategy = strategy_of(SmallCNN(), momentum=0.9, plugins=[sizes])
    strategy.train(stream()[:2], reset_optimizer_state=False)
    assert sizes.seen["before_training_exp"] == [0, 4]


OPTIMIZERS = {
    "AdamW, amsgrad": lambda p: AdamW(p, lr=0.001, amsgrad=True),
    "RMSprop, momentum": lambda p: RMSprop(p, lr=0.001, momentum=0.9),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.001),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.001),
    "SGD, foreach": lambda p: SGD(p, lr=0.001, foreach=True, weight_decay=0.1, momentum=0.9),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_of_torch(name):
    model = SmallCNN()
    strategy = strategy_of(model, optimizer=OPTIMIZERS[name](model.parameters()), ssl=SimCLR())
    before = strategy.ssl.projector[0].weight.detach().clone()
    strategy.train(stream()[:2])
    assert not torch.equal(strategy.ssl.projector[0].weight, before)
    assert all(p.isfinite().all() for p in strategy.model.parameters())


def test_plugins_see_gradients_of_what_the_optimizer_trains_alone():
    # such as one that clips clip_grad_norm_(strategy.model.parameters())
    def others_with_gradient(strategy):
        held = ids(optimized(strategy.optimizer))
        model = strategy.model.named_parameters()
        return [name for name, p in model if p.grad is not None and id(p) not in held]

    probe = Probe(before_update=others_with_gradient)
    strategy = strategy_of(SmallCNN(), plugins=[probe], train_epochs=3)
    strategy.train(stream()[:2])
    assert probe.seen["before_update"] == [[]] * 6


# Schedules ----------------------------------------------------------------------------------------


def rates(number_of_epochs, *, plugins=(), make_optimizer=None, **kwargs):
    """Learning rate of each epoch of two experiences."""
    model = SmallCNN()
    optimizer = (make_optimizer or (lambda p: SGD(p, lr=1e-3)))(model.parameters())
    probe = Probe(before_training_epoch=lambda s: s.optimizer.param_groups[0]["lr"])
    plugins = [*(make(optimizer) for make in plugins), probe]
    strategy = strategy_of(
        model, optimizer=optimizer, plugins=plugins, train_epochs=number_of_epochs, **kwargs
    )
    strategy.train(stream()[:2])
    seen = probe.seen["before_training_epoch"]
    return seen[:number_of_epochs], seen[number_of_epochs:]


SCHEDULES = {
    "warm-up": (lambda o: LinearLR(o, 0.1, total_iters=3), [1e-4, 4e-4, 7e-4, 1e-3]),
    "steps": (lambda o: MultiStepLR(o, [1, 3]), [1e-3, 1e-4, 1e-4, 1e-5]),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_starts_anew_in_each_experience(name):
    schedule, expected = SCHEDULES[name]
    first, second = rates(4, scheduler=schedule)
    assert first == pytest.approx(expected)
    assert second == pytest.approx(expected)


def test_one_cycle_repeats():
    first, second = rates(
        4,
        scheduler=lambda o: OneCycleLR(o, max_lr=0.01, total_steps=5),
        make_optimizer=lambda p: SGD(p, lr=1e-3, momentum=0.9),
    )
    assert first == second
    assert max(first) > 2 * first[0]


def test_a_scheduler_of_avalanches_plugin_runs_beside_it():
    first, second = rates(3, plugins=[lambda o: LRSchedulerPlugin(MultiStepLR(o, [2]))])
    assert first == second == pytest.approx([1e-3, 1e-3, 1e-4])


def test_the_classifiers_have_a_schedule_of_their_own():
    made = []

    def schedule(optimizer):
        made.append(optimizer)
        return MultiStepLR(optimizer, [1])

    probe = Probe(before_training_epoch=lambda strategy: made[-1].param_groups[0]["lr"])
    strategy = strategy_of(
        SmallCNN(),
        classifier_lr=0.4,
        classifier_scheduler=schedule,
        plugins=[probe],
        train_epochs=2,
    )
    for task, experience in enumerate(stream()[:2]):
        strategy.train(experience)
        layer = strategy.model.classifiers.layers[task]
        assert ids(optimized(made[-1])) == ids(layer.parameters())
    assert probe.seen["before_training_epoch"] == pytest.approx([0.4, 0.04] * 2)
    assert strategy.optimizer.param_groups[0]["lr"] == 0.05
