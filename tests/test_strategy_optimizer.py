"""What the user's optimizer trains, when it starts anew, and the schedules."""

import pytest
import torch
from helpers import Probe, SmallCNN, optimized, small_head, strategy_of, tensors_stream
from torch import nn
from torch.optim import SGD, AdamW, RMSprop

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
    held = [p for p in optimized(strategy.optimizer) if p.requires_grad]
    assert ids(held) == ids(wanted)  # each of them once


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


def test_the_head_joins_the_first_group_that_trains_any():
    model = SmallCNN()
    model.conv.requires_grad_(False)
    rest = [p for p in model.parameters() if p.requires_grad]
    optimizer = SGD([{"params": model.conv.parameters(), "lr": 1e-6}, {"params": rest, "lr": 0.05}])
    strategy = strategy_of(model, optimizer=optimizer, ssl=small_head("byol"))
    frozen, trained = (ids(group["params"]) for group in optimizer.param_groups)
    own = [p for p in strategy.ssl.parameters() if p.requires_grad]
    assert own
    assert set(ids(own)) <= set(trained)
    assert frozen == ids(model.conv.parameters())


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
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.001, initial_accumulator_value=0.1),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.001),
    "SGD, fused": lambda p: SGD(p, lr=0.001, fused=True, momentum=0.9),
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


@pytest.mark.parametrize("options", [{}, {"plastic_classifier": "temporary"}])
def test_adagrad_starts_each_experience_as_its_constructor_does(options):
    sums = Probe(
        before_training_epoch=lambda strategy: [
            strategy.optimizer.state[p]["sum"].unique().tolist()
            for group in strategy.optimizer.param_groups
            for p in group["params"]
        ]
    )
    model = SmallCNN()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01, initial_accumulator_value=0.5)
    strategy = strategy_of(model, optimizer=optimizer, ssl=SimCLR(), plugins=[sums], **options)
    strategy.train(stream()[:2])
    for found in sums.seen["before_training_epoch"]:
        assert found == [[0.5]] * len(found)
    assert any((state["sum"] > 0.5).any() for state in optimizer.state.values())


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
