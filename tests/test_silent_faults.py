"""What would go wrong without a word: each is refused with its reason, or simply right."""

import copy
import functools
import math
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from avalanche.benchmarks import benchmark_from_datasets, class_incremental_benchmark
from avalanche.benchmarks.datasets.endless_cl_sim.endless_cl_sim import ClassificationSubSequence
from avalanche.benchmarks.scenarios.online import split_online_stream
from avalanche.benchmarks.utils import (
    AvalancheDataset,
    as_classification_dataset,
    make_avalanche_dataset,
)
from avalanche.benchmarks.utils.data_attribute import DataAttribute
from avalanche.checkpointing import maybe_load_checkpoint, save_checkpoint
from avalanche.core import SupervisedPlugin
from avalanche.models import DynamicModule, MultiHeadClassifier, MultiTaskModule
from avalanche.training.plugins import EvaluationPlugin, ReplayPlugin
from avalanche.training.supervised import JointTraining, Naive
from avalanche.training.templates.base_sgd import PeriodicEval
from helpers import (
    Probe,
    SmallCNN,
    WithTargets,
    assert_learns,
    assert_same_state,
    nc_stream,
    seed_everything,
    small_head,
    state_of,
    strategy_of,
    tensors_stream,
    two_splits,
)
from PIL import Image
from torch import nn
from torch.nn import CrossEntropyLoss, NLLLoss
from torch.nn.utils import prune
from torch.optim import SGD
from torch.optim.lr_scheduler import ConstantLR, LambdaLR, StepLR
from torch.utils.data import Dataset
from torchvision.transforms import ToTensor
from walker import reachable

from avalanche_dlcpa import (
    ClassifierAlignmentPlugin,
    CumulativeParameterAveragingPlugin,
    GaussianClassifierPlugin,
    NonFiniteLossError,
    PaperViews,
    SelfSupervisedLossPlugin,
    SingleTaskStrategy,
)
from avalanche_dlcpa import (
    seed_everything as seed_all,
)
from avalanche_dlcpa.buffers import BuffersGuard
from avalanche_dlcpa.classifier_scope import scope_of
from avalanche_dlcpa.metrics import scenario_metrics
from avalanche_dlcpa.self_supervised import BYOL, NNCLR, MoCoV2, SimCLR
from avalanche_dlcpa.stable_file import StableInfo
from avalanche_dlcpa.stored_samples import read_samples
from avalanche_dlcpa.stream_transforms import NotRecognizedError


def naive(model, *, criterion=None, **kwargs):
    defaults = {"train_mb_size": 16, "eval_mb_size": 64, "evaluator": None}
    optimizer = SGD(model.parameters(), lr=0.05)
    criterion = CrossEntropyLoss() if criterion is None else criterion
    return Naive(model=model, optimizer=optimizer, criterion=criterion, **defaults | kwargs)


def stl(model=None, *, lr=0.05, **kwargs):
    model = SmallCNN() if model is None else model
    optimizer = SGD(model.parameters(), lr=lr)
    defaults = {"train_mb_size": 16, "eval_mb_size": 64, "evaluator": None}
    return SingleTaskStrategy(model=model, optimizer=optimizer, **defaults | kwargs)


# A head that has not the last word, or a changed input ----------------------------------------


class WithSoftmax(SmallCNN):
    def forward(self, x):
        return super().forward(x).log_softmax(dim=1)


class WithScaleInPlace(SmallCNN):
    def forward(self, x):
        return super().forward(x).mul_(2)


class InPlace(SmallCNN):
    def forward(self, x):
        return super().forward(x.sub_(0.5).div_(0.25))


USERS = {
    "DLCPA": lambda model: strategy_of(model, ssl=small_head("simclr")),
    "STL": stl,
    "Gaussian": lambda model: naive(model, plugins=[GaussianClassifierPlugin()]),
    "loss": lambda model: naive(model, plugins=[SelfSupervisedLossPlugin(small_head("simclr"))]),
    "alignment": lambda model: naive(model, plugins=[ClassifierAlignmentPlugin()]),
}


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (WithSoftmax, "to answer with what its head gives, got one that does something after"),
        (WithScaleInPlace, "to answer with what its head gives, got one that does something after"),
        (InPlace, "to leave its input as it is, got one that writes into it"),
    ],
)
def test_a_model_whose_features_are_no_features_is_refused(user, kind, reason):
    model = kind()
    parameters = list(model.parameters())
    before = [parameter.detach().clone() for parameter in parameters]
    strategy = USERS[user](model)
    for _ in range(2):  # the second time, too
        with pytest.raises(ValueError, match=reason):
            strategy.train(nc_stream().train_stream[0])
    assert all(map(torch.equal, parameters, before))


class AtEvaluation(SmallCNN):
    """Training asks for logits, evaluation for probabilities."""

    def forward(self, x):
        logits = super().forward(x)
        return logits if self.training else logits.softmax(dim=1)


@pytest.mark.parametrize("user", ["DLCPA", "STL", "Gaussian"])
def test_a_model_that_does_more_at_evaluation_is_refused_before_it_has_learned(user):
    model = AtEvaluation()
    parameters = list(model.parameters())
    before = [parameter.detach().clone() for parameter in parameters]
    strategy = USERS[user](model)
    for _ in range(2):
        with pytest.raises(ValueError, match="does something after it in evaluation mode"):
            strategy.train(nc_stream().train_stream[0])
    assert all(map(torch.equal, parameters, before))


@pytest.mark.parametrize("user", ["loss", "alignment"])
def test_features_that_are_of_training_alone_may_be_others_at_evaluation(user):
    assert_learns(USERS[user](AtEvaluation()), nc_stream(per_class=8).train_stream[0])


class WithSecondAnswer(SmallCNN):
    def forward(self, x):
        return super().forward(x), x.mean()


@pytest.mark.parametrize("user", ["DLCPA", "STL", "Gaussian", "loss"])
def test_a_model_with_a_second_answer_is_refused(user):
    class First(CrossEntropyLoss):
        def forward(self, answer, targets):
            return super().forward(answer[0] if isinstance(answer, tuple) else answer, targets)

    strategy = USERS[user](WithSecondAnswer())
    strategy._criterion = First()
    with pytest.raises(ValueError, match="with what its head gives alone, got tuple: return the"):
        strategy.train(nc_stream().train_stream[0])


def test_an_aligned_strategy_may_take_the_second_answer_for_itself():
    class TakesBoth(Naive):
        def forward(self):
            answer = super().forward()
            return answer[0] if isinstance(answer, tuple) else answer

    model = WithSecondAnswer()
    strategy = TakesBoth(
        model=model,
        optimizer=SGD(model.parameters(), lr=0.05),
        criterion=CrossEntropyLoss(),
        train_mb_size=16,
        evaluator=None,
        plugins=[ClassifierAlignmentPlugin()],
    )
    assert_learns(strategy, nc_stream(per_class=8).train_stream)


class Cosine(SmallCNN):
    """It uses the weight of its head, and does not call it."""

    def forward(self, x):
        x = nn.functional.adaptive_avg_pool2d(self.norm(self.conv(x)).relu(), 2).flatten(1)
        weight = nn.functional.normalize(self.fc.weight)
        return 10 * nn.functional.linear(nn.functional.normalize(x), weight)


@pytest.mark.parametrize("user", USERS)
def test_a_model_that_does_not_call_its_head_is_refused(user):
    strategy = USERS[user](Cosine())
    for _ in range(2):
        with pytest.raises((ValueError, AttributeError), match="to call its head as a layer"):
            strategy.train(nc_stream().train_stream[0])


class CosineLinear(nn.Linear):
    def forward(self, features):
        weight = nn.functional.normalize(self.weight)
        return 10 * nn.functional.linear(nn.functional.normalize(features), weight)


class MarginLinear(nn.Linear):
    def forward(self, features, labels):
        return super().forward(features) - nn.functional.one_hot(labels, self.out_features)


class PairLinear(nn.Linear):
    def forward(self, features):
        return super().forward(features), features


class CastingLinear(nn.Linear):
    """As timm's: another forward, the same answer."""

    def forward(self, features):
        return nn.functional.linear(features, self.weight, self.bias)


def with_head(kind):
    model = SmallCNN()
    model.fc = kind(model.fc.in_features, model.fc.out_features)
    return model


@pytest.mark.parametrize("kind", [CosineLinear, MarginLinear, PairLinear])
@pytest.mark.parametrize("user", ["DLCPA", "STL", "alignment"])
def test_a_head_that_is_no_plain_linear_layer_is_refused(user, kind):
    with pytest.raises(ValueError, match=f"'fc' to be a plain linear layer, got {kind.__name__}"):
        USERS[user](with_head(kind)).train(nc_stream().train_stream[0])


@pytest.mark.parametrize(
    "wrapped",
    [
        nn.utils.parametrizations.weight_norm,
        nn.utils.spectral_norm,
        lambda layer: prune.l1_unstructured(layer, "weight", 0.5),
    ],
    ids=["weight norm", "spectral norm", "pruning"],
)
@pytest.mark.parametrize("user", ["DLCPA", "STL", "alignment"])
def test_a_head_whose_weight_is_computed_is_refused(user, wrapped):
    model = with_head(nn.Linear)
    wrapped(model.fc)
    with pytest.raises(ValueError, match="'fc' to be a plain linear layer, got a weight computed"):
        USERS[user](model).train(nc_stream().train_stream[0])


@pytest.mark.parametrize("user", USERS)
def test_a_head_that_answers_as_a_linear_layer_is_taken(user):
    assert_learns(USERS[user](with_head(CastingLinear)), nc_stream(per_class=8).train_stream[0])


@pytest.mark.parametrize("user", ["Gaussian", "loss"])
def test_gaussian_and_loss_take_features_below_any_head(user):
    models = with_head(CosineLinear), with_head(nn.Linear)
    nn.utils.parametrizations.weight_norm(models[1].fc)
    for model in models:
        assert_learns(USERS[user](model), nc_stream(per_class=8).train_stream[0])


def test_whoever_asks_what_a_layer_has_is_answered_where_the_head_stood():
    tap = strategy_of(SmallCNN()).model.plastic.fc
    assert not hasattr(tap, "weight")
    assert getattr(tap, "in_features", None) is None
    assert copy.deepcopy(tap)(1) == 1


class WithFunction(SmallCNN):
    """Its convolution is called by a function that looks it up in this very module."""

    def __init__(self, kind):
        super().__init__()
        kinds = {
            "closure": lambda x: self.norm(self.conv(x)).relu(),
            "default": lambda x, conv=self.conv: conv(x).relu(),
            "partial": functools.partial(lambda conv, x: self.conv(x).relu(), None),
            "weight": self.with_weight(self.conv.weight),
        }
        self.bodies = [kinds[kind]] if kind in kinds else []
        if kind == "hook":
            self.norm.register_forward_hook(lambda _, __, x: x * self.norm.weight.mean())

    @staticmethod
    def with_weight(weight):
        return lambda x: nn.functional.conv2d(x, weight, stride=2, padding=1).relu()

    def forward(self, x):
        x = self.bodies[0](x) if self.bodies else self.norm(self.conv(x)).relu()
        return self.fc(nn.functional.adaptive_avg_pool2d(x, 2).flatten(1))


COPYING = {
    "DLCPA": strategy_of,
    "STL": stl,
    "STL-me": lambda model: stl(model, predict_with="mean"),
    "average": lambda model: naive(model, plugins=[CumulativeParameterAveragingPlugin()]),
    "Gaussian": lambda model: naive(model, plugins=[GaussianClassifierPlugin()]),
    "momentum": lambda model: naive(model, plugins=[SelfSupervisedLossPlugin(small_head("byol"))]),
}


@pytest.mark.parametrize("user", COPYING)
@pytest.mark.parametrize("kind", ["closure", "default", "partial", "weight", "hook"])
def test_a_model_whose_copy_would_compute_with_its_own_weights_is_refused(user, kind):
    model = WithFunction(kind)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    parameters = list(model.parameters())
    strategy = COPYING[user](model)
    for _ in range(2):
        with pytest.raises(ValueError, match="got one whose copy computes with weights of the ori"):
            strategy.train(nc_stream().train_stream[0])
    assert all(map(torch.equal, parameters, before))


class WithFunctions(SmallCNN):
    """Functions that a copy may share, methods, and a hook that only looks on."""

    def __init__(self):
        super().__init__()
        scale = 2.0
        self.scale = lambda x: scale * x
        self.body = self.features
        self.reset = lambda: self.conv.reset_parameters()
        self.norm.register_forward_hook(self.look)

    def look(self, *_):
        assert self.conv.weight.isfinite().all()

    def features(self, x):
        return self.norm(self.conv(x)).relu()

    def forward(self, x):
        return self.fc(nn.functional.adaptive_avg_pool2d(self.body(self.scale(x)), 2).flatten(1))


@pytest.mark.parametrize("user", COPYING)
def test_functions_that_a_copy_may_share_are_left_alone(user):
    assert_learns(COPYING[user](WithFunctions()), nc_stream(per_class=8).train_stream)


def test_the_look_at_a_copy_draws_nothing_and_changes_nothing():
    class Draws(SmallCNN):
        def forward(self, x):
            return super().forward(x + 0.1 * torch.rand_like(x))

    def trained(look):
        seed_everything()
        strategy = strategy_of(Draws(), ssl=small_head("byol"))
        strategy.copy_suits = not look
        strategy.train(nc_stream(per_class=8).train_stream[0])
        return state_of(strategy.model, strategy.ssl)

    assert_same_state(trained(True), trained(False))


class Places(SmallCNN):
    """A head on each of four places, the answer of one of which counts."""

    def __init__(self):
        super().__init__(head=nn.Linear(16, 6))

    def forward(self, x):
        x = self.norm(self.conv(x)).relu()
        places = nn.functional.adaptive_avg_pool2d(x, 2).flatten(2).transpose(1, 2)
        return self.fc(places)[:, 0]


class InFloat32(SmallCNN):
    def forward(self, x):
        return super().forward(x).float()


class Copied(SmallCNN):
    def forward(self, x):
        return super().forward(x).clone()


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("kind", [Places, InFloat32, Copied])
def test_a_model_that_only_picks_or_copies_what_its_head_gives_is_trained(user, kind):
    if (user, kind) == ("alignment", Places):
        pytest.skip("the plugin aligns a head by what it is given, one vector an image")
    stream = nc_stream(per_class=8).train_stream
    assert_learns(USERS[user](kind()), stream[0])
    if user == "DLCPA":
        assert_learns(strategy_of(kind(), precision="bf16"), stream[0])


@pytest.mark.parametrize("user", USERS)
def test_models_that_are_compiled_are_trained_again_and_again(user):
    for _ in range(2):
        model = torch.compile(SmallCNN(), backend="eager")
        assert_learns(USERS[user](model), nc_stream(per_class=8).train_stream[0])


def compiled_in_place(model):
    model.compile(backend="eager")
    return model


@pytest.mark.parametrize(
    "compiled", [functools.partial(torch.compile, backend="eager"), compiled_in_place]
)
def test_a_compiled_model_is_aligned_and_answered_for_as_it_is_without(compiled):
    """What compiled passes made before there were hooks would leave hooks silent."""

    def learned(compile_):
        seed_everything()
        accuracy, _ = scenario_metrics()
        average = CumulativeParameterAveragingPlugin()
        strategy = naive(
            compile_(nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.ReLU(), nn.Linear(8, 4))),
            train_epochs=2,
            plugins=[average, ClassifierAlignmentPlugin(average), GaussianClassifierPlugin()],
            evaluator=EvaluationPlugin(accuracy),
            eval_every=1,
        )
        stream = tensors_stream(((0, 1), (2, 3)), size=8, per_class=8)
        for experience in stream.train_stream:
            strategy.train(experience, eval_streams=[stream.test_stream])
            strategy.eval(stream.test_stream)
        return accuracy.matrix(), [p.detach() for p in average.averaged_model.parameters()]

    matrix, parameters = learned(lambda model: model)
    found, theirs = learned(compiled)
    assert np.array_equal(found, matrix, equal_nan=True)
    torch.testing.assert_close(theirs, parameters)


@pytest.mark.parametrize("user", USERS)
def test_the_look_at_a_model_draws_nothing_and_leaves_it_in_training(user):
    """Dropout draws in training, and would show a random state or a mode that was not put back."""

    def trained(look):
        seed_everything()
        model = SmallCNN(head=nn.Sequential(nn.Dropout(0.5), nn.Linear(64, 6)))
        strategy = USERS[user](model)
        for owner in (strategy, *strategy.plugins):
            if hasattr(owner, "model_suits"):
                owner.model_suits = not look
        strategy.train(nc_stream().train_stream[0])
        hooks = ("_forward_pre_hooks", "_forward_hooks")
        assert not any(getattr(m, name) for m in strategy.model.modules() for name in hooks)
        owners = (strategy, *strategy.plugins)
        assert all(getattr(owner, "model_suits", True) for owner in owners)
        return state_of(strategy.model)

    looked, passed_over = trained(True), trained(False)
    assert looked.keys() == passed_over.keys()
    assert all(torch.equal(looked[name], passed_over[name]) for name in looked)


# Buffers and shared weights ---------------------------------------------------------------------


class WithMean(nn.Module):
    """A running mean of its own, in place or as a new tensor each time."""

    def __init__(self, *, in_place=True):
        super().__init__()
        self.in_place = in_place
        self.register_buffer("mean", torch.zeros(3, 1, 1))

    def forward(self, x):
        if self.training:
            now = x.detach().mean(dim=(0, 2, 3)).view(3, 1, 1)
            if self.in_place:
                self.mean.lerp_(now, 0.1)
            else:
                self.mean = self.mean.lerp(now, 0.1)
        return x - self.mean


def with_buffers(kind):
    model = SmallCNN(batch_norm=False)
    if kind == "instance norm":
        model.norm = nn.InstanceNorm2d(16, track_running_stats=True)
    elif kind == "spectral norm":
        nn.utils.parametrizations.spectral_norm(model.conv)
    else:
        model.conv = nn.Sequential(WithMean(in_place=kind == "in place"), model.conv)
    return model


class Scaled(CrossEntropyLoss):
    """A loss in units of its own running mean."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(()))

    def forward(self, logits, targets):
        loss = super().forward(logits, targets)
        self.scale.lerp_(loss.detach(), 0.1)
        return loss / self.scale


BUFFERS = ["instance norm", "spectral norm", "in place", "anew"]


@pytest.mark.parametrize("kind", BUFFERS)
def test_the_mean_of_one_model_answers_as_that_model(kind):
    experience = nc_stream(num_experiences=1, per_class=12).train_stream[0]
    images = torch.rand(8, 3, 16, 16)
    average, model = CumulativeParameterAveragingPlugin(), with_buffers(kind)
    naive(model, plugins=[average], train_epochs=2).train(experience)
    with torch.no_grad():
        assert torch.allclose(average.averaged_model.eval()(images), model.eval()(images))
    single = stl(with_buffers(kind), predict_with="mean", train_epochs=2)
    single.train(experience)
    with torch.no_grad():
        extractors = (single.model.mean, single.model.extractor)
        found, expected = (extractor.eval()(images) for extractor in extractors)
        assert torch.allclose(found, expected)


class WithQueue(SmallCNN):
    """Its own queue, the means of the last eight mini-batches."""

    def __init__(self):
        super().__init__()
        self.register_buffer("queue", torch.zeros(8))

    def forward(self, x):
        if self.training:
            self.queue.copy_(torch.cat([self.queue[1:], x.detach().mean().view(1)]))
        return super().forward(x)


@pytest.mark.parametrize("kind", [*BUFFERS, "criterion", "queue"])
def test_a_corrupt_image_leaves_every_buffer_as_it_was(kind):
    model = {"criterion": SmallCNN, "queue": WithQueue}.get(kind, lambda: with_buffers(kind))()
    criterion = Scaled() if kind == "criterion" else CrossEntropyLoss()
    states = []

    def spoil(strategy):
        if strategy.clock.train_exp_epochs == 1:
            states.append(state_of(strategy.model, criterion))
            strategy.mbatch[0][0, 0] = math.nan

    strategy = strategy_of(
        model,
        criterion=criterion,
        ssl=small_head("byol"),
        train_epochs=2,
        plugins=[Probe(before_training_iteration=spoil)],
    )
    with pytest.raises(NonFiniteLossError, match="The model is as it was before that mini-batch"):
        strategy.train(nc_stream(per_class=16).train_stream[0])
    assert_same_state(state_of(strategy.model, criterion), states[0])


@pytest.mark.parametrize("kind", [*BUFFERS, "criterion"])
def test_training_that_diverges_takes_every_buffer_back(kind):
    model = SmallCNN() if kind == "criterion" else with_buffers(kind)
    criterion = Scaled() if kind == "criterion" else CrossEntropyLoss()
    states = []

    def remember(strategy):
        states.append(state_of(strategy.model, criterion))

    @torch.no_grad()
    def run_away(strategy):
        if strategy.clock.train_exp_epochs == strategy.clock.train_epoch_iterations == 1:
            for parameter in strategy.model.plastic.parameters():
                parameter.fill_(1e38)

    strategy = strategy_of(
        model,
        criterion=criterion,
        train_epochs=2,
        plugins=[Probe(before_training_epoch=remember, before_training_iteration=run_away)],
    )
    with pytest.raises(NonFiniteLossError, match="Everything is back at the start of that epoch"):
        strategy.train(nc_stream(per_class=16).train_stream[0])
    assert_same_state(state_of(strategy.model, criterion), states[-1])


class Odd(nn.Module):
    """Buffers that change their shape, come and go, are expanded, or hold on to a graph."""

    def __init__(self):
        super().__init__()
        self.register_buffer("last", torch.zeros(0))
        self.register_buffer("cache", None)
        self.register_buffer("gone", torch.ones(2))
        self.register_buffer("expanded", torch.ones(1).expand(6))
        self.register_buffer("graph", torch.zeros(3))
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x):
        if self.training:
            self.last = x.detach().flatten()
            self.cache = x.detach().mean()
            self.gone = None
            self.graph = self.weight.exp()
            if "late" not in self._buffers:
                self.register_buffer("late", x.detach().amax())
        return x * self.weight.view(3, 1, 1)


def with_odd_buffers():
    model = SmallCNN()
    model.conv = nn.Sequential(Odd(), model.conv)
    return model


def buffers_of(module):
    return {name: None if b is None else b.clone() for name, b in module._buffers.items()}


def test_odd_buffers_are_kept_and_put_back():
    odd = Odd()
    guard, before = BuffersGuard(odd), buffers_of(odd)
    odd(torch.rand(2, 3, 4, 4))
    guard.restore()
    after = buffers_of(odd)
    assert after.keys() == before.keys()
    for name, value in before.items():
        assert (value is None) == (after[name] is None)
        assert value is None or torch.equal(after[name], value)
    odd(torch.rand(2, 3, 4, 4))
    guard.keep()
    assert not any(kept.requires_grad for kept in guard._kept[0].values() if kept is not None)


@pytest.mark.parametrize(
    "make",
    [
        strategy_of,
        lambda model: stl(model, predict_with="mean"),
        lambda model: naive(model, plugins=[ClassifierAlignmentPlugin()]),
    ],
)
def test_models_with_odd_buffers_are_trained(make):
    assert_learns(make(with_odd_buffers()), nc_stream(per_class=8).train_stream)


def test_the_average_has_the_buffers_of_the_model_however_they_come_and_go():
    average, model = CumulativeParameterAveragingPlugin(), with_odd_buffers()
    strategy = naive(model, plugins=[average])
    for experience in nc_stream(per_class=8).train_stream:
        strategy.train(experience)
    found, expected = (buffers_of(m.conv[0]) for m in (average.averaged_model, model))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert value is None or torch.equal(found[name], value)


class FrozenNorm(SmallCNN):
    """Keeps the statistics of its pretraining, far from those of a fresh layer."""

    def __init__(self):
        super().__init__()
        self.norm.running_mean.fill_(5.0)
        self.norm.running_var.fill_(0.25)

    def train(self, mode=True):
        super().train(mode)
        self.norm.eval()
        return self


@pytest.mark.parametrize(
    ("make", "mean_of"),
    [
        (
            lambda model: strategy_of(model, bn_statistics="recalibrated"),
            lambda strategy: strategy.model.stable,
        ),
        (lambda model: stl(model, predict_with="mean"), lambda strategy: strategy.model.mean),
        (
            lambda model: naive(model, plugins=[CumulativeParameterAveragingPlugin()]),
            lambda strategy: strategy.plugins[0].averaged_model,
        ),
    ],
    ids=["DLCPA", "STL-me", "plugin"],
)
def test_batch_norm_in_evaluation_mode_keeps_its_statistics(make, mean_of):
    strategy = make(FrozenNorm())
    strategy.train(nc_stream(per_class=8).train_stream[:2])
    norm = mean_of(strategy).norm
    assert norm.running_mean.unique().tolist() == [5.0]
    assert norm.running_var.unique().tolist() == [0.25]


def test_the_mean_keeps_the_batch_norm_of_other_tasks():
    class NormOfTask(MultiTaskModule):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3, stride=2)
            self.norms = nn.ModuleList([nn.BatchNorm2d(8) for _ in range(2)])
            self.classifier = MultiHeadClassifier(8, 2)

        def forward_single_task(self, x, task_label):
            x = self.norms[task_label](self.conv(x)).relu()
            return self.classifier(x.mean(dim=(2, 3)), task_label)

    average = CumulativeParameterAveragingPlugin()
    strategy = naive(NormOfTask(), plugins=[average])
    stream = tensors_stream(task_labels=[0, 1, 0], per_class=8).train_stream
    strategy.train(stream[0])
    first = average.averaged_model.norms[0].running_mean.clone()
    strategy.train(stream[1])
    first_now, second = (norm.running_mean for norm in average.averaged_model.norms)
    assert torch.equal(first_now, strategy.model.norms[0].running_mean)
    assert not torch.equal(first_now, first)  # computed anew while it was the one of its task
    assert second.count_nonzero() == 8


def test_an_alignment_of_the_strategys_own_model_counts_no_batch_twice():
    counts = []
    for plugins in ([], [ClassifierAlignmentPlugin()]):
        model = SmallCNN()
        naive(model, plugins=plugins).train(nc_stream(per_class=8).train_stream[0])
        counts.append(int(model.norm.num_batches_tracked))
    assert counts == [1, 1]


class NormForEach(DynamicModule):
    """Has a further batch norm for each experience it has met, be it at evaluation."""

    def __init__(self):
        super().__init__()
        self.met = set()
        self.norms = nn.ModuleList()
        self.cnn = SmallCNN()

    def adaptation(self, experience):
        if experience.current_experience not in self.met:
            self.met.add(experience.current_experience)
            self.norms.append(nn.BatchNorm2d(3))

    def forward(self, x):
        return self.cnn(nn.Sequential(*self.norms)(x))


class BuffersAfterThePass(SupervisedPlugin):
    """Looks whether what follows a training pass leaves the buffers as that pass left them."""

    num_buffers = ()

    def after_forward(self, strategy, **kwargs):
        self.left = copy.deepcopy(dict(strategy.model.named_buffers()))

    def after_training_iteration(self, strategy, **kwargs):
        torch.testing.assert_close(dict(strategy.model.named_buffers()), self.left, rtol=0, atol=0)
        self.num_buffers += (len(self.left),)


def test_an_alignment_of_the_strategys_own_model_leaves_the_buffers_of_one_that_grows():
    alignment, look = ClassifierAlignmentPlugin(), BuffersAfterThePass()
    evaluations = PeriodicEval(1, "iteration", do_initial=False)
    plugins = [alignment, look, evaluations]
    strategy = naive(NormForEach(), plugins=plugins, train_mb_size=4)
    stream = nc_stream(per_class=8)
    for i in range(2):
        strategy.train(stream.train_stream[i], eval_streams=[stream.test_stream[i + 1]])
        held = [x for x in reachable(alignment) if isinstance(x, torch.Tensor)]
        assert not any(x.is_floating_point() for x in held), "between two experiences"
    assert look.num_buffers == (6, *3 * [9], 9, *3 * [12])  # three a norm, one of them the CNN's


def test_an_alignment_leaves_a_frozen_head_alone():
    model = SmallCNN()
    model.fc.requires_grad_(False)
    strategy = naive(model, plugins=[ClassifierAlignmentPlugin()])
    with pytest.raises(ValueError, match="Expected the head 'fc' to be one that learns, got a fro"):
        strategy.train(nc_stream().train_stream[0])
    assert not model.fc.weight.requires_grad


@pytest.mark.parametrize(
    "make",
    [
        lambda average: [average],
        lambda average: [average, ClassifierAlignmentPlugin(average)],
        lambda _: [ClassifierAlignmentPlugin()],
    ],
)
def test_plugins_that_would_see_the_first_experience_alone_are_refused(make):
    model = SmallCNN()
    joint = JointTraining(
        model=model,
        optimizer=SGD(model.parameters(), lr=0.05),
        criterion=CrossEntropyLoss(),
        train_mb_size=16,
        evaluator=None,
        plugins=make(CumulativeParameterAveragingPlugin()),
    )
    with pytest.raises(ValueError, match="experience after experience, got JointTraining"):
        joint.train(nc_stream().train_stream)


def test_pieces_of_an_experience_are_no_tasks_of_the_average():
    average = CumulativeParameterAveragingPlugin()
    strategy = naive(SmallCNN(), plugins=[average])
    pieces = split_online_stream(nc_stream().train_stream, experience_size=8)
    with pytest.raises(ValueError, match="whole experiences, got a piece of an online stream"):
        strategy.train(next(iter(pieces)))
    assert average.num_averaged == 0
    smoothed = CumulativeParameterAveragingPlugin(update="ema")  # which counts iterations
    naive(SmallCNN(), plugins=[smoothed]).train(next(iter(pieces)))


@pytest.mark.parametrize("make", [strategy_of, stl])
def test_an_experience_of_one_class_is_said_to_teach_little(make):
    with pytest.warns(UserWarning, match="An experience has one class alone, from which there is"):
        make(SmallCNN()).train(tensors_stream([(0,), (1,)]).train_stream[0])
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="An experience has one class")
        make(SmallCNN()).train(tensors_stream().train_stream[0])


@pytest.mark.parametrize("name", ["simclr", "byol"])
def test_a_self_supervised_head_learns_at_the_rate_of_the_features(name):
    model = SmallCNN()
    below = [*model.conv.parameters(), *model.norm.parameters()]
    groups = [{"params": model.fc.named_parameters(), "lr": 1.0}]
    groups += [{"params": [("conv.w", below[0]), *zip("bcd", below[1:], strict=True)], "lr": 0.01}]
    optimizer = SGD(groups, lr=0.1)
    strategy = strategy_of(
        model, optimizer=optimizer, ssl=small_head(name), plastic_classifier="temporary"
    )
    strategy.train(nc_stream(per_class=8).train_stream[0])
    head = [id(p) for p in strategy.ssl.parameters() if p.requires_grad]
    first, second = ({id(p) for p in group["params"]} for group in optimizer.param_groups)
    assert first == set()
    assert second == {*map(id, below), *head}
    assert not any("param_names" in group for group in optimizer.param_groups)


def test_a_head_beside_a_strategy_needs_an_optimizer_that_can_be_made_again():
    class ForModels(SGD):
        def __init__(self, *, model):
            super().__init__(model.parameters(), lr=0.05)

    model, plugin = SmallCNN(), SelfSupervisedLossPlugin(small_head("simclr"))
    strategy = naive(model, plugins=[plugin])
    strategy.optimizer = ForModels(model=model)
    with pytest.raises(ValueError, match="for the head to have one like it, got ForModels"):
        strategy.train(nc_stream().train_stream[0])


@pytest.mark.parametrize("make", [strategy_of, stl])
def test_a_weight_that_the_head_shares_with_a_layer_below_is_trained(make):
    class Tied(SmallCNN):
        def __init__(self):
            super().__init__(head=nn.Linear(64, 64))
            self.middle = nn.Linear(64, 64)
            self.fc.weight = self.middle.weight

        def forward(self, x):
            x = self.norm(self.conv(x)).relu()
            return self.fc(self.middle(nn.functional.adaptive_avg_pool2d(x, 2).flatten(1)))

    model = Tied()
    before = model.middle.weight.detach().clone()
    strategy = make(model)
    strategy.train(nc_stream(per_class=8).train_stream[0])
    assert not torch.equal(model.middle.weight, before)
    assert model.middle.weight.grad is None


@pytest.mark.parametrize("make", [strategy_of, stl])
def test_a_layer_that_is_thawed_learns_from_then_on(make):
    model = SmallCNN()
    weight = model.conv.weight.requires_grad_(False)
    before = weight.detach().clone()
    strategy, stream = make(model), nc_stream(per_class=8).train_stream
    strategy.train(stream[0])
    assert torch.equal(weight, before)
    weight.requires_grad_(True)
    strategy.train(stream[1])
    assert not torch.equal(weight, before)


@pytest.mark.parametrize("make", [strategy_of, stl])
def test_what_the_optimizer_never_held_is_not_left_behind(make):
    model = SmallCNN()
    model.conv.requires_grad_(False)
    optimizer = SGD([p for p in model.parameters() if p.requires_grad], lr=0.05)
    if make is stl:
        strategy = SingleTaskStrategy(
            model=model, optimizer=optimizer, train_mb_size=16, evaluator=None
        )
    else:
        strategy = strategy_of(model, optimizer=optimizer)
    stream = nc_stream(per_class=8).train_stream
    strategy.train(stream[0])
    model.conv.requires_grad_(True)
    before = model.conv.weight.detach().clone()
    with pytest.raises(ValueError, match=r"lacks 2, such as 'conv\.weight', which would not"):
        strategy.train(stream[1])
    optimizer.add_param_group({"params": model.conv.parameters()})
    strategy.train(stream[1])
    assert not torch.equal(model.conv.weight, before)


def test_an_optimizer_that_is_exchanged_has_to_hold_the_self_supervised_head():
    strategy, stream = strategy_of(SmallCNN(), ssl=small_head("simclr")), nc_stream().train_stream
    strategy.train(stream[0])
    strategy.optimizer = SGD(strategy.model.plastic.parameters(), lr=0.05)
    with pytest.raises(ValueError, match=r"lacks \d, such as 'projector"):
        strategy.train(stream[1])


def test_parameters_that_are_no_numbers_to_average_are_refused():
    model = SmallCNN()
    model.table = nn.Parameter(torch.arange(4), requires_grad=False)
    message = r"can be averaged, got 'table' of torch.int64: register it as a buffer"
    for make in (strategy_of, lambda model: stl(model, predict_with="mean")):
        with pytest.raises(ValueError, match=message):
            make(model)
    assert isinstance(model.fc, nn.Linear)
    averaging = naive(model, plugins=[CumulativeParameterAveragingPlugin()])
    with pytest.raises(ValueError, match=message):
        averaging.train(nc_stream().train_stream[0])
    stl(model).train(nc_stream(per_class=8).train_stream)  # it averages nothing


def test_complex_parameters_are_averaged():
    class Complex(SmallCNN):
        def __init__(self):
            super().__init__()
            self.turn = nn.Parameter(torch.ones(16, 1, 1, dtype=torch.cfloat))

        def forward(self, x):
            x = (self.norm(self.conv(x)) * self.turn).real.relu()
            return self.fc(nn.functional.adaptive_avg_pool2d(x, 2).flatten(1))

    strategy = strategy_of(Complex())
    seen = []
    for experience in nc_stream(per_class=8).train_stream:
        strategy.train(experience)
        seen.append(strategy.model.plastic.turn.detach().clone())
    assert torch.allclose(strategy.model.stable.turn, torch.stack(seen).mean(dim=0))


# Evaluations at the end of an experience -------------------------------------------------------

AT_THE_END = {
    "gaussian": lambda **kw: strategy_of(SmallCNN(), classifier="gaussian", **kw),
    "recalibrated": lambda **kw: strategy_of(SmallCNN(), bn_statistics="recalibrated", **kw),
    "Gaussian plugin": lambda **kw: naive(SmallCNN(), plugins=[GaussianClassifierPlugin()], **kw),
    "average": lambda **kw: naive(SmallCNN(), plugins=[CumulativeParameterAveragingPlugin()], **kw),
    "STL-me": lambda **kw: stl(predict_with="mean", finetune_epochs=5, **kw),
}


@pytest.mark.parametrize("name", AT_THE_END)
def test_the_last_evaluation_of_an_experience_sees_what_its_end_has_made(name):
    found = []
    for eval_every in (1, 0):  # Avalanche's own evaluates at the end alone where it is 0
        seed_everything()
        class_il, task_il = scenario_metrics()
        strategy = AT_THE_END[name](
            eval_every=eval_every, evaluator=EvaluationPlugin(class_il, task_il), train_epochs=2
        )
        stream = nc_stream(per_class=12)
        results = strategy.train(stream.train_stream, eval_streams=[stream.test_stream])
        found.append(
            [np.nan_to_num(metric.matrix(), nan=-1).tolist() for metric in (class_il, task_il)]
        )
        key = "ClassIL_ACC/eval_phase/test_stream"
        assert results[key] == strategy.eval(stream.test_stream)[key]
    if not isinstance(strategy, Naive):  # whose other evaluations draw random numbers
        assert found[0] == found[1]


@pytest.mark.parametrize(
    "make", [GaussianClassifierPlugin, CumulativeParameterAveragingPlugin, SupervisedPlugin]
)
def test_evaluations_at_the_end_leave_the_training_of_another_strategy_as_it_is(make):
    def trained(plugins):
        seed_everything()
        strategy = naive(SmallCNN(), plugins=plugins, eval_every=1, train_epochs=2)
        stream = nc_stream(per_class=8)
        strategy.train(stream.train_stream, eval_streams=[stream.test_stream])
        return state_of(strategy.model)

    alone, beside = trained([]), trained([make()])
    assert all(torch.equal(alone[name], beside[name]) for name in alone)


# Parts of two strategies ------------------------------------------------------------------------


@pytest.mark.parametrize("make", [SimCLR, lambda: MoCoV2(queue_size=64)])
def test_a_head_of_two_strategies_is_refused(make):
    head = make()
    first = strategy_of(SmallCNN(), ssl=head)
    before = state_of(head)
    for second in (
        lambda: strategy_of(SmallCNN(), ssl=head),
        lambda: naive(SmallCNN(), plugins=[SelfSupervisedLossPlugin(head)]),
    ):
        with pytest.raises(ValueError, match="that another one has: make a new one"):
            second()
    after = state_of(head)
    assert all(torch.equal(after[name], before[name]) for name in before)
    first.train(nc_stream().train_stream[0])
    moved = [not torch.equal(tensor, before[name]) for name, tensor in state_of(head).items()]
    assert any(moved)


def test_an_averaging_plugin_of_two_strategies_is_refused():
    plugin, stream = CumulativeParameterAveragingPlugin(), nc_stream()
    first = naive(SmallCNN(), plugins=[plugin])
    first.train(stream.train_stream[0])
    with pytest.raises(ValueError, match="got a second one: it averages the model of the first"):
        naive(SmallCNN(), plugins=[plugin]).train(stream.train_stream[0])
    first.train(stream.train_stream[1])
    assert plugin.num_averaged == 2


def test_plugins_may_come_from_a_generator():
    for make in (strategy_of, stl):
        probe = Probe(before_training_exp=lambda strategy: True)
        strategy = make(SmallCNN(), plugins=(plugin for plugin in [probe]))
        strategy.train(nc_stream().train_stream[0])
        assert probe.seen["before_training_exp"] == [True]


# States and rates -------------------------------------------------------------------------------


def test_a_state_that_is_loaded_takes_the_gaussian_statistics_back():
    strategy, stream = strategy_of(SmallCNN(), classifier="gaussian"), nc_stream()
    [plugin] = (p for p in strategy.plugins if isinstance(p, GaussianClassifierPlugin))
    strategy.train(stream.train_stream[0])
    state = copy.deepcopy(strategy.state_dict())
    strategy.train(stream.train_stream[1])
    expected = copy.deepcopy(plugin.statistics)
    strategy.load_state_dict(state)
    assert plugin.keys == strategy.model.gaussian.keys == [(0, 0), (0, 1)]
    strategy.train(stream.train_stream[1])
    assert plugin.statistics.counts.tolist() == expected.counts.tolist() == [40] * 4


def test_a_rate_set_between_experiences_is_the_first_one_from_then_on():
    rates = []
    strategy = strategy_of(
        SmallCNN(),
        train_mb_size=80,
        train_epochs=2,
        scheduler=lambda optimizer: StepLR(optimizer, 1, 0.1),
        plugins=[Probe(before_update=lambda s: rates.append(s.optimizer.param_groups[0]["lr"]))],
    )
    stream = nc_stream()
    strategy.train(stream.train_stream[0])
    strategy.train(stream.train_stream[1])
    strategy.optimizer.param_groups[0]["lr"] = 0.001
    strategy.load_state_dict(strategy.state_dict())
    strategy.train(stream.train_stream[2])
    assert rates == pytest.approx([0.05, 0.005, 0.05, 0.005, 0.001, 0.0001])


def rates_of(scheduler, *, plugin=None, change=lambda optimizer: None):
    """The rates of three experiences of two epochs; `change` comes before the last."""
    rates = []
    note = Probe(before_update=lambda s: rates.append(s.optimizer.param_groups[0]["lr"]))
    strategy = strategy_of(
        SmallCNN(),
        train_mb_size=80,
        train_epochs=2,
        scheduler=scheduler,
        plugins=[note, *([] if plugin is None else [plugin])],
    )
    for experience in nc_stream().train_stream:
        if experience.current_experience == 2:
            change(strategy.optimizer)
        strategy.train(experience)
    return rates


def test_a_rate_may_be_set_to_what_the_schedule_ended_with():
    def change(optimizer):
        assert optimizer.param_groups[0]["lr"] == 0.05
        optimizer.param_groups[0]["lr"] = 0.025

    rates = rates_of(lambda optimizer: StepLR(optimizer, 1, 0.5), change=change)
    assert rates == pytest.approx([0.05, 0.025, 0.05, 0.025, 0.025, 0.0125])


def test_a_rate_counts_for_schedules_that_go_on_from_their_first_one():
    def change(optimizer):
        optimizer.param_groups[0]["lr"] = 0.001

    rates = rates_of(lambda optimizer: LambdaLR(optimizer, lambda e: 0.5**e), change=change)
    assert rates == pytest.approx([0.05, 0.025, 0.05, 0.025, 0.001, 0.0005])


def test_what_a_plugin_does_to_a_rate_within_an_experience_ends_with_it():
    class Halves(SupervisedPlugin):
        def after_training_epoch(self, strategy, **kwargs):
            strategy.optimizer.param_groups[0]["lr"] /= 2

    rates = rates_of(lambda optimizer: ConstantLR(optimizer, 1.0), plugin=Halves())
    assert rates == pytest.approx(3 * [0.05, 0.025])


def test_the_advice_to_lower_the_rate_can_be_followed():
    rates = []
    strategy = strategy_of(
        SmallCNN(),
        lr=1e30,
        train_epochs=2,
        scheduler=lambda optimizer: StepLR(optimizer, 1),
        plugins=[Probe(before_update=lambda s: rates.append(s.optimizer.param_groups[0]["lr"]))],
    )
    experience = nc_stream().train_stream[0]
    with pytest.raises(NonFiniteLossError, match="or lower the learning rate"):
        strategy.train(experience)
    rates.clear()
    strategy.optimizer.param_groups[0]["lr"] = 0.01
    strategy.train(experience)
    assert rates[0] == 0.01


class StopAtLastEpoch(SupervisedPlugin):
    def after_training_epoch(self, strategy, **kwargs):
        if strategy.clock.train_exp_epochs == 0:
            strategy.stop_training()


@pytest.mark.parametrize("make", [strategy_of, stl])
def test_a_stop_in_the_last_epoch_does_not_cost_the_next_experience(make):
    trained = Probe(after_update=lambda strategy: strategy.experience.current_experience)
    strategy = make(SmallCNN(), plugins=[StopAtLastEpoch(), trained])
    strategy.train(nc_stream().train_stream)
    assert set(trained.seen["after_update"]) == {0, 1, 2}
    assert strategy.model.num_averaged == 3


@pytest.mark.parametrize("make", [strategy_of, stl])
def test_a_plugin_may_skip_experiences(make):
    class Skips(SupervisedPlugin):
        def before_training_exp(self, strategy, **kwargs):
            if strategy.experience.current_experience > 0:
                strategy.stop_training()

    trained = Probe(after_update=lambda strategy: strategy.experience.current_experience)
    make(SmallCNN(), plugins=[Skips(), trained]).train(nc_stream().train_stream)
    assert set(trained.seen["after_update"]) == {0}


# Replay beside a class that comes back ----------------------------------------------------------


def test_a_class_that_came_back_competes_with_those_of_both_its_tasks():
    stream = tensors_stream(tasks=((0, 1), (1, 2)))
    strategy = strategy_of(SmallCNN(), plugins=[ReplayPlugin(mem_size=40)], train_epochs=2)
    strategy.train(stream.train_stream[0])
    before = strategy.model.classifiers.rows(0)[0].clone()
    strategy.train(stream.train_stream[1])
    moved = (strategy.model.classifiers.rows(0)[0] - before).abs().amax(dim=1)
    assert (moved > 1e-4).all()
    scope = scope_of(strategy.model.classifiers, 0, [1, 2], mixed=True)
    logits = torch.randn(3, 3, generator=torch.Generator().manual_seed(0))
    found = scope.loss(CrossEntropyLoss(), logits, torch.tensor([0, 1, 2]))
    by_hand = [
        logits[0, [0, 1]].logsumexp(0) - logits[0, 0],  # replayed: among those of its task
        logits[1, [1, 2]].logsumexp(0) - logits[1, 1],  # of the experience: among its classes
        logits[2, [1, 2]].logsumexp(0) - logits[2, 2],
    ]
    assert found.item() == pytest.approx(sum(by_hand).item() / 3)
    answer = scope.by_label(logits, torch.tensor([0, 1, 2]), 3)
    assert (answer < -900).tolist() == [[False, False, True]] + [[True, False, False]] * 2


def test_columns_of_a_task_by_its_label_where_tasks_have_labels_of_their_own():
    def info_of(classifiers, task_labels):
        return SimpleNamespace(task_labels=task_labels, classifiers=classifiers)

    tasks = StableInfo.tasks.fget
    assert tasks(info_of((0, 0, 1, 1), (0, 0, 0, 0))) == (0, 0, 1, 1)  # no labels
    assert tasks(info_of((0, 0, 1, 1), (1, 1, 1, 1))) == (0, 0, 1, 1)  # one label for all
    assert tasks(info_of((0, 0), (1, 1))) == (1, 1)  # the first of several
    assert tasks(info_of((0, 0, 1, 1), (1, 1, 2, 2))) == (1, 1, 2, 2)


# Single task learning ---------------------------------------------------------------------------


def test_single_task_learning_refuses_a_task_that_would_not_be_trained():
    experience = nc_stream().train_stream[0]
    with pytest.raises(ValueError, match="Expected `train_epochs` to be at least 1, got 0"):
        stl(train_epochs=0)
    strategy = stl(train_mb_size=1000, predict_with="mean")
    with pytest.raises(ValueError, match="Expected a mini-batch in experience 0, got 80 samples"):
        strategy.train(experience, drop_last=True)
    assert strategy.model.num_averaged == 0


def test_single_task_learning_that_diverges_goes_back_to_the_start_of_the_epoch():
    stream, states = nc_stream(), []
    keep = Probe(before_training_epoch=lambda s: states.append(state_of(s.model.extractor)))
    strategy = stl(lr=1e30, train_epochs=3, predict_with="mean", plugins=[keep])
    with pytest.raises(NonFiniteLossError, match="Everything is back at the start of that epoch"):
        strategy.train(stream.train_stream[0])
    now = state_of(strategy.model.extractor)
    assert all(torch.equal(now[name], states[-1][name]) for name in now)
    strategy.optimizer.param_groups[0]["lr"] = 0.01
    assert all(bool(tensor.isfinite().all()) for tensor in states[0].values())


def test_single_task_learning_leaves_out_a_last_image_alone():
    stream = nc_stream(per_class=5, size=8)  # 10 images, in mini-batches of 3
    with pytest.warns(UserWarning, match="A mini-batch of one sample was skipped"):
        stl(train_mb_size=3).train(stream.train_stream[0])


def test_single_task_learning_can_be_saved_by_avalanche(tmp_path):
    strategy, stream = stl(), nc_stream()
    strategy.train(stream.train_stream[0])
    save_checkpoint(strategy, tmp_path / "stl.pkl")
    loaded, num_learned = maybe_load_checkpoint(stl(), tmp_path / "stl.pkl")
    assert num_learned == 1
    expected = state_of(strategy.model)
    assert all(torch.equal(expected[name], t) for name, t in state_of(loaded.model).items())


# Arguments --------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [strategy_of, stl])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"criterion": CrossEntropyLoss(torch.ones(2))}, "without a weight for each class"),
        ({"criterion": NLLLoss(torch.ones(6))}, "without a weight for each class, got one of 6"),
        ({"eval_mb_size": 0}, "Expected `eval_mb_size` to be at least 1, got 0"),
        ({"eval_mb_size": -3}, "Expected `eval_mb_size` to be at least 1, got -3"),
    ],
)
def test_arguments_that_would_fail_at_the_first_evaluation_are_refused(make, arguments, message):
    with pytest.raises(ValueError, match=message):
        make(SmallCNN(), **arguments)


def test_a_criterion_may_have_a_factor_by_the_name_of_weight():
    class Scaled(CrossEntropyLoss):
        def __init__(self):
            super().__init__()
            self.weight = torch.tensor(2.0)

        def forward(self, logits, targets):
            return self.weight * nn.functional.cross_entropy(logits, targets)

    for make in (strategy_of, stl):
        assert_learns(make(SmallCNN(), criterion=Scaled()), nc_stream(per_class=8).train_stream[0])


def test_a_head_of_a_strategy_that_was_never_made_is_free():
    def fails():
        raise OSError("no such folder")

    head = SimCLR()
    with pytest.raises(OSError, match="no such folder"):
        strategy_of(SmallCNN(), ssl=head, evaluator=fails)
    strategy_of(SmallCNN(), ssl=head).train(nc_stream(per_class=8).train_stream[0])


def test_batch_norm_that_keeps_no_statistics_answers_by_the_batch_alone():
    def without():
        model = SmallCNN()
        model.norm = nn.BatchNorm2d(16, track_running_stats=False)
        return model

    for statistics in ("running", "recalibrated"):
        with pytest.raises(ValueError, match=f"for bn_statistics='{statistics}', got 1 layers"):
            strategy_of(without(), bn_statistics=statistics)
    strategy, stream = strategy_of(without(), bn_statistics="batch"), nc_stream(per_class=8)
    strategy.train(stream.train_stream[0])
    strategy.eval(stream.test_stream[0])


def test_bfloat16_of_a_model_in_float64_is_refused():
    with pytest.raises(ValueError, match=r"got parameters in float64.*call model\.float\(\)"):
        strategy_of(SmallCNN().double(), precision="bf16")


@pytest.mark.parametrize("kind", [MoCoV2, SimCLR, NNCLR])
@pytest.mark.parametrize("temperature", [0, -0.07, math.nan, "warm"])
def test_temperatures_that_drive_positives_apart_are_refused(kind, temperature):
    with pytest.raises(ValueError, match="Expected `temperature` to be finite and above 0, got"):
        kind(temperature=temperature)


@pytest.mark.parametrize("kind", [MoCoV2, BYOL])
@pytest.mark.parametrize("momentum", [1.5, -3.0, math.nan, None])
def test_a_momentum_that_runs_away_is_refused(kind, momentum):
    with pytest.raises(ValueError, match="Expected `momentum` to be at least 0 and at most 1, got"):
        kind(momentum=momentum)


def test_no_crop_is_without_a_pixel():
    seed_all(0)
    views = PaperViews(min_crop_area=0.001, mean=(0.0,), std=(1.0,))(torch.ones(4000, 1, 8, 8))
    assert all((view.flatten(1).amax(dim=1) > 0).all() for view in views)


# Images in memory -------------------------------------------------------------------------------


def test_a_dataset_that_cannot_do_without_its_transform_is_read_by_avalanche(tmp_path):
    files = [str(tmp_path / f"{i}.png") for i in range(8)]
    for i, file in enumerate(files):
        Image.new("RGB", (16, 16), (30 * i, 0, 0)).save(file)
    labels = [i % 2 for i in range(8)]
    images = ClassificationSubSequence(files, labels, patch_size=16, transform=ToTensor())
    dataset = as_classification_dataset(
        make_avalanche_dataset(images, data_attributes=[DataAttribute(labels, "targets")])
    )
    with pytest.raises(NotRecognizedError, match="cannot be read without transforms"):
        read_samples(dataset, device=torch.device("cpu"), most_bytes=1e9)


# What samples hold beside image and class label -------------------------------------------------


class WithIndex(Dataset):
    """Samples of image, label and their own number."""

    def __init__(self, images, labels):
        self.images, self.labels, self.targets = images, labels, labels.tolist()

    def __getitem__(self, index):
        return self.images[index], self.targets[index], index

    def __len__(self):
        return len(self.targets)


def indexed_stream(dataset=WithIndex):
    """A new-style stream without task labels, two classes an experience."""
    splits = [dataset(*part) for part in two_splits(range(4), per_class=12)]
    train, test = (as_classification_dataset(part) for part in splits)
    parts = {"train": train, "test": test}
    return class_incremental_benchmark(parts, class_order=list(range(4)), num_experiences=2)


def aligned_naive(model, **kwargs):
    average = CumulativeParameterAveragingPlugin()
    return naive(model, plugins=[average, ClassifierAlignmentPlugin(average)], **kwargs)


def gaussian_naive(model, **kwargs):
    return naive(model, plugins=[GaussianClassifierPlugin()], **kwargs)


def finetuned(model, **kwargs):
    return stl(model, predict_with="mean", finetune_epochs=1, **kwargs)


def recalibrated(model, **kwargs):
    return strategy_of(model, bn_statistics="recalibrated", **kwargs)


@pytest.mark.parametrize("make", [recalibrated, finetuned, aligned_naive, gaussian_naive])
def test_a_number_in_each_sample_is_no_task_label(make):
    found = []
    for dataset in (WithTargets, WithIndex):
        stream, answers = indexed_stream(dataset), []
        listening = Probe(after_eval_iteration=lambda s, into=answers: into.append(s.mb_output))
        seed_everything()
        strategy = make(SmallCNN(4), evaluator=None, train_epochs=2)
        strategy.plugins.append(listening)
        for experience in stream.train_stream:
            strategy.train(experience, eval_streams=[])
        strategy.eval(stream.test_stream)
        found.append((state_of(strategy.model), torch.cat(answers)))
    assert_same_state(found[1][0], found[0][0])
    assert torch.equal(found[1][1], found[0][1])


def with_task_label(images, labels, task):
    told = [DataAttribute(labels.tolist(), "targets")]
    told += [DataAttribute([task] * len(labels), "targets_task_labels", use_in_getitem=True)]
    return AvalancheDataset([WithTargets(images, labels)], data_attributes=told)


def task_aware_stream():
    """Labels from zero in each task, which the datasets tell and the experiences do not."""
    streams = ([], [])
    for task, classes in enumerate([(0, 1), (2, 3)]):
        for stream, (images, labels) in zip(streams, two_splits(classes), strict=True):
            stream.append(with_task_label(images, labels % 2, task))
    return benchmark_from_datasets(train=streams[0], test=streams[1])


def test_task_labels_of_the_datasets_are_those_of_the_experiences():
    stream = task_aware_stream()
    assert not hasattr(stream.train_stream[1], "task_labels")
    metrics = scenario_metrics()
    strategy = strategy_of(SmallCNN(2), train_epochs=4, evaluator=EvaluationPlugin(*metrics))
    for experience in stream.train_stream:
        strategy.train(experience)
        strategy.eval(stream.test_stream[: experience.current_experience + 1])
    assert strategy.model.classifiers.keys == [(0, 0), (0, 1), (1, 0), (1, 1)]
    class_il, task_il = (metric.matrix() for metric in metrics)
    assert np.isnan(class_il).all()  # the labels tell the tasks apart
    assert task_il[-1].min() > 0.9
