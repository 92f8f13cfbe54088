"""Bad arguments: a clear error at construction, and the user's model and optimizer as they were."""

import importlib.util

import numpy as np
import pytest
import torch
from helpers import (
    Probe,
    SmallCNN,
    assert_same_state,
    optimized,
    seed_everything,
    state_of,
    strategy_of,
    tensors_stream,
)
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR

from avalanche_dlcpa import DualLearner
from avalanche_dlcpa.experiences import some_samples
from avalanche_dlcpa.metrics import scenario_metrics
from avalanche_dlcpa.self_supervised import HEADS, MoCoV2, SimCLR, _solo_learn

NAN, INF = float("nan"), float("inf")


class TwoHeads(SmallCNN):
    def __init__(self):
        super().__init__()
        self.classifier = nn.Linear(64, 6)


class NoHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)

    def forward(self, x):
        return self.conv(x).mean(dim=(2, 3))


def assert_refused(model, optimizer, error, match, **kwargs):
    """Construction fails, with what to look for, and has changed nothing."""
    model.eval()
    images = torch.rand(2, 3, 16, 16)
    state, answer = state_of(model), model(images)
    modules = [(name, id(module)) for name, module in model.named_modules()]
    held = [[id(p) for p in group["params"]] for group in optimizer.param_groups]
    flags = [p.requires_grad for p in model.parameters()]
    with pytest.raises(error, match=match):
        strategy_of(model, optimizer=optimizer, **kwargs)
    assert_same_state(state_of(model), state)
    assert torch.equal(model(images), answer)
    assert [(name, id(module)) for name, module in model.named_modules()] == modules
    assert [[id(p) for p in group["params"]] for group in optimizer.param_groups] == held
    assert [p.requires_grad for p in model.parameters()] == flags


BAD_ARGUMENTS = {
    "unknown ssl": ({"ssl": "mocov3"}, ValueError, r"mocov2, byol, .*Did you mean 'mocov2'"),
    "far from any ssl": ({"ssl": "xyz"}, ValueError, "one of mocov2, .* got 'xyz'"),
    "ssl of a wrong type": ({"ssl": 3}, TypeError, "`ssl` to be a name.* got int"),
    "ssl as a class": ({"ssl": SimCLR}, TypeError, "`ssl` to be a name"),
    "one image a batch, ssl": (
        {"ssl": "simclr", "train_mb_size": 1},
        ValueError,
        "`train_mb_size` to be at least 2 .* got 1",
    ),
    "one image a batch, batch norm": ({"train_mb_size": 1}, ValueError, "`train_mb_size`"),
    "one image an evaluation batch": (
        {"bn_statistics": "batch", "eval_mb_size": 1},
        ValueError,
        "`eval_mb_size` to be at least 2 .* got 1",
    ),
    "queue smaller than a batch": (
        {"ssl": lambda: MoCoV2(queue_size=8), "train_mb_size": 16},
        ValueError,
        "`queue_size` .* 16, got 8",
    ),
    "average_source": ({"average_source": "both"}, ValueError, "`average_source`.*plastic.*'both'"),
    "momentum of nothing": (
        {"average_source": "momentum"},
        ValueError,
        "momentum encoder .* average_source='plastic'",
    ),
    "momentum of SimCLR": (
        {"average_source": "momentum", "ssl": "simclr"},
        ValueError,
        "momentum encoder .* SimCLR",
    ),
    "bn_statistics": ({"bn_statistics": "mean"}, ValueError, "`bn_statistics`.*running.*'mean'"),
    "stable_update": ({"stable_update": "sum"}, ValueError, "stable.update.*cumulative.*'sum'"),
    "ema_decay 1": ({"ema_decay": 1.0}, ValueError, "`ema_decay`.*below 1, got 1.0"),
    "ema_decay no number": ({"ema_decay": "slow"}, ValueError, "`ema_decay`.*got 'slow'"),
    "plastic_classifier": ({"plastic_classifier": "x"}, ValueError, "`plastic_classifier`.*'x'"),
    "classifier_features": ({"classifier_features": 1}, ValueError, "`classifier_features`"),
    "no epoch": ({"train_epochs": 0}, ValueError, "`train_epochs` to be at least 1, got 0"),
    "half an epoch": ({"train_epochs": 0.5}, ValueError, "`train_epochs`.*got 0.5"),
    "a loss a sample": (
        {"criterion": nn.CrossEntropyLoss(reduction="none")},
        ValueError,
        "a scalar, got reduction='none'",
    ),
    "a criterion that ignores a class": (
        {"criterion": nn.CrossEntropyLoss(ignore_index=0)},
        ValueError,
        "ignores no class, got ignore_index=0",
    ),
    "no criterion": ({"criterion": None}, TypeError, "`criterion`.*got None"),
    "the class of a criterion": (
        {"criterion": nn.CrossEntropyLoss},
        TypeError,
        r"`criterion`.*got CrossEntropyLoss: pass torch.nn.CrossEntropyLoss\(\)",
    ),
    "metrics in no plugin": (
        {"evaluator": scenario_metrics()},
        TypeError,
        r"`evaluator`.*got list: pass EvaluationPlugin\(\*metrics\)",
    ),
    "batch size a word": ({"train_mb_size": "8"}, ValueError, "`train_mb_size`.*got '8'"),
    "batch size None": ({"train_mb_size": None}, ValueError, "`train_mb_size`.*got None"),
    "weight below 0": ({"supervised_weight": -1.0}, ValueError, "`supervised_weight`.*-1"),
    "weight NaN": ({"supervised_weight": NAN}, ValueError, "`supervised_weight`.*nan"),
    "weight infinite": ({"supervised_weight": INF}, ValueError, "`supervised_weight`.*inf"),
    "weight no number": (
        {"supervised_weight": "10"},
        (ValueError, TypeError),
        "`supervised_weight`",
    ),
    "classifier_lr 0": ({"classifier_lr": 0}, ValueError, "classifier.*rate|classifier_lr"),
    "classifier_lr NaN": ({"classifier_lr": NAN}, ValueError, "classifier.*nan"),
    "classifier_lr infinite": ({"classifier_lr": INF}, ValueError, "classifier.*inf"),
    "classifier_lr no number": (
        {"classifier_lr": "fast"},
        (ValueError, TypeError),
        "classifier.*fast",
    ),
    "unknown head": ({"head": "fully"}, ValueError, r"`head`.*\['fc'\].*'fully'"),
    "head is no linear layer": ({"head": "conv"}, ValueError, r"`head`.*\['fc'\].*'conv'"),
    "views is no function": ({"views": 3}, (ValueError, TypeError), "`views`"),
    "scheduler class that wants more": (
        {"scheduler": StepLR},
        TypeError,
        "`scheduler`.* an optimizer alone, got StepLR, which takes",
    ),
    "scheduler is no function": ({"scheduler": 3}, (ValueError, TypeError), "`scheduler`"),
    "classifier_scheduler is no function": (
        {"classifier_scheduler": "step"},
        (ValueError, TypeError),
        "`classifier_scheduler`",
    ),
    "peval_mode": ({"peval_mode": "sometimes"}, (ValueError, AssertionError), ""),
    "device": ({"device": "abacus"}, (ValueError, RuntimeError), "abacus"),
}


@pytest.mark.parametrize("name", BAD_ARGUMENTS)
def test_a_bad_argument_changes_nothing(name):
    kwargs, error, match = BAD_ARGUMENTS[name]
    if name == "queue smaller than a batch":
        kwargs = kwargs | {"ssl": kwargs["ssl"]()}
    model = SmallCNN()
    assert_refused(model, SGD(model.parameters(), lr=0.1), error, match, **kwargs)


def test_what_is_no_optimizer():
    with pytest.raises(
        TypeError, match=r"`optimizer` to be one of torch\.optim, got str: pass SGD"
    ):
        strategy_of(SmallCNN(), optimizer="sgd")


def test_a_scheduler_instead_of_a_function_that_makes_one():
    model = SmallCNN()
    optimizer = SGD(model.parameters(), lr=0.1)
    scheduler = StepLR(optimizer, 1)
    assert_refused(
        model, optimizer, (ValueError, TypeError), "`scheduler`.*StepLR", scheduler=scheduler
    )


@pytest.mark.parametrize(
    ("make_model", "match"),
    [
        (NoHead, "end in a linear layer, got NoHead"),
        (TwoHeads, r"candidates \['fc', 'classifier'\].*head='classifier'"),
        (lambda: nn.Sequential(nn.Conv2d(3, 4, 16), nn.Flatten()), "end in a linear layer"),
    ],
)
def test_a_model_without_one_last_linear_layer(make_model, match):
    model = make_model()
    assert_refused(model, SGD(model.parameters(), lr=0.1), ValueError, match)


def test_a_named_head_settles_it():
    model = TwoHeads()
    strategy = strategy_of(model, head="fc")
    assert isinstance(strategy.model.plastic.classifier, nn.Linear)


def test_an_optimizer_that_lacks_plastic_parameters():
    model = SmallCNN()
    optimizer = SGD([*model.norm.parameters(), *model.fc.parameters()], lr=0.1)
    match = r"`optimizer` to hold every .* lacks 2 of 4, such as 'conv.weight'"
    assert_refused(model, optimizer, ValueError, match)


def test_an_optimizer_of_another_model():
    model = SmallCNN()
    optimizer = SGD(SmallCNN().parameters(), lr=0.1)
    assert_refused(model, optimizer, ValueError, "`optimizer`.* lacks 4 of 4")


def test_an_optimizer_with_foreign_parameters():
    model, other = SmallCNN(), nn.Linear(5, 7)
    optimizer = SGD([*model.parameters(), *other.parameters()], lr=0.1)
    match = r"`optimizer` to hold parameters of `model` alone, got 2 others.*\(7, 5\)"
    assert_refused(model, optimizer, ValueError, match)


def test_an_optimizer_that_wants_a_closure():
    model = SmallCNN()
    optimizer = torch.optim.LBFGS(model.parameters())
    assert_refused(model, optimizer, ValueError, "got LBFGS, whose step.* such as SGD or Adam")


def test_after_a_refusal_the_same_model_and_optimizer_serve_on():
    seed_everything()
    model = SmallCNN()
    optimizer = SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="classifier"):
        strategy_of(model, optimizer=optimizer, classifier_lr=0)
    strategy = strategy_of(model, optimizer=optimizer)
    strategy.train(tensors_stream(size=8, per_class=8).train_stream[0])
    assert len(optimized(optimizer)) == 4
    assert strategy.model.num_features == 64


def test_a_model_without_anything_to_learn_below_its_head():
    model = SmallCNN()
    model.conv.requires_grad_(False), model.norm.requires_grad_(False)
    optimizer = SGD(model.fc.parameters(), lr=0.1)
    assert_refused(model, optimizer, ValueError, "requires_grad|frozen")


def test_a_model_that_has_been_taken_apart_already():
    model = nn.Sequential(nn.Flatten(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 6))
    strategy_of(model)  # takes the last layer out, so the one before would be the last one now
    optimizer = SGD(model.parameters(), lr=0.1)
    assert_refused(model, optimizer, ValueError, "already|DualLearner")


def test_a_ready_dual_learner_has_its_head_and_statistics():
    dual = DualLearner(SmallCNN())
    optimizer = SGD(dual.plastic.parameters(), lr=0.1)
    for kwargs in ({"head": "fc"}, {"bn_statistics": "batch"}):
        assert_refused(dual, optimizer, ValueError, "DualLearner to come without", **kwargs)
    with pytest.raises(ValueError, match="`bn_statistics`"):
        DualLearner(SmallCNN(), bn_statistics="mean")


def test_an_unknown_keyword_is_refused_as_by_avalanche():
    model = SmallCNN()
    optimizer = SGD(model.parameters(), lr=0.1)
    assert_refused(model, optimizer, TypeError, "supervised_wieght", supervised_wieght=1.0)


@pytest.mark.parametrize("number", [3, np.float32(3), np.int64(3)])
def test_numbers_of_numpy_are_numbers(number):
    strategy = strategy_of(SmallCNN(), supervised_weight=number, classifier_lr=number)
    strategy.train(tensors_stream(size=8, per_class=8).train_stream[0])
    assert strategy.supervised_weight == 3


@pytest.mark.parametrize("ssl", HEADS)
def test_solo_learn_missing(ssl, monkeypatch):
    find_spec = importlib.util.find_spec
    hidden = lambda name, *rest: None if name == "solo" else find_spec(name, *rest)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", hidden)
    _solo_learn._load_module.cache_clear()
    model = SmallCNN()
    optimizer = SGD(model.parameters(), lr=0.1)
    match = r"pip install --no-deps solo-learn==1\.0\.2"
    assert_refused(model, optimizer, ImportError, match, ssl=ssl)
    strategy_of(SmallCNN(), ssl=None)  # needs no solo-learn


def test_more_than_one_process(monkeypatch):
    model = SmallCNN()
    optimizer = SGD(model.parameters(), lr=0.1)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert_refused(model, optimizer, ValueError, "one process, got a group of 2.*torchrun")
    monkeypatch.setenv("WORLD_SIZE", "1")
    strategy_of(model, optimizer=optimizer)


def test_a_narrow_model_is_refused_before_it_is_taken_apart():
    model = SmallCNN().bfloat16()
    with pytest.raises(ValueError, match="at least 32 bits for a momentum encoder"):
        strategy_of(model, ssl=MoCoV2(queue_size=64))
    model.float()
    strategy_of(model, ssl=MoCoV2(queue_size=64)).train(tensors_stream(per_class=8).train_stream[0])


def test_a_model_whose_last_experience_was_broken_off_is_refused():
    stream = tensors_stream(per_class=8)
    model = SmallCNN()
    strategy = strategy_of(model)
    strategy.train(stream.train_stream[0])
    strategy.plugins.append(Probe(after_update=lambda s: 1 / 0))
    with pytest.raises(ZeroDivisionError):
        strategy.train(stream.train_stream[1])
    with pytest.raises(ValueError, match="got one whose last experience was broken off"):
        strategy_of(strategy.model)
    strategy.plugins.pop()
    strategy.train(stream.train_stream[1])
    assert strategy_of(strategy.model).model.num_averaged == 2


def test_images_that_cannot_be_stacked_are_named():
    class Images(list):
        def eval(self):
            return self

    for images, got in (
        ([torch.zeros(3, 8, 8), torch.zeros(3, 8, 9)], r"got \(3, 8, 8\) and \(3, 8, 9\): add"),
        ([np.zeros((8, 8, 3))], "got ndarray: add ToTensor"),
    ):
        with pytest.raises(ValueError, match=got):
            some_samples(Images((x, 0) for x in images))
