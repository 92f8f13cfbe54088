"""Bad data and breakdowns in training: a clear error, and nothing learned before is lost."""

import copy
import math
import warnings

import pytest
import torch
from avalanche.benchmarks import dataset_benchmark, nc_benchmark, tensors_benchmark
from avalanche.benchmarks.scenarios.online import split_online_stream
from avalanche.benchmarks.utils import _make_taskaware_classification_dataset
from avalanche.evaluation.metrics import accuracy_metrics
from avalanche.training.plugins import EvaluationPlugin, ReplayPlugin
from avalanche.training.supervised import Naive
from helpers import (
    PILImages,
    Probe,
    SmallCNN,
    assert_learns,
    assert_same_state,
    mlp,
    nc_stream,
    samples,
    seed_everything,
    small_head,
    state_of,
    strategy_of,
    tensors_stream,
)
from torch.nn import CrossEntropyLoss
from torch.optim import SGD
from torch.utils.data import TensorDataset
from torchvision.transforms import ToTensor

from avalanche_dlcpa import (
    CumulativeParameterAveragingPlugin,
    DLCPAStrategy,
    GaussianClassifierPlugin,
    NonFiniteLossError,
    SingleTaskStrategy,
)
from avalanche_dlcpa.metrics import predicted_classes, scenario_metrics
from avalanche_dlcpa.self_supervised import HEADS, SelfSupervisedHead


def stream_of(*splits, task_labels=None):
    return tensors_benchmark(splits, splits, task_labels=task_labels or [0] * len(splits))


def small_stream(**kwargs):
    return tensors_stream(**{"size": 8, "per_class": 8} | kwargs)


# Small mini-batches and experiences ---------------------------------------------------------------


@pytest.mark.parametrize("ssl", [None, "simclr", "mocov2", "barlow"])
def test_a_last_mini_batch_of_one_image_is_skipped_with_one_warning(ssl):
    images, labels = samples([0, 1], size=8, per_class=9)
    stream = stream_of((images[:17], labels[:17]))
    sizes = Probe(before_training_iteration=lambda strategy: len(strategy.mb_x))
    strategy = strategy_of(
        SmallCNN(), ssl=small_head(ssl), plugins=[sizes], train_epochs=3, train_mb_size=8, lr=0.01
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        strategy.train(stream.train_stream[0])
    said = [str(w.message) for w in caught if "one sample" in str(w.message)]
    assert len(said) == 1
    assert "train_mb_size" in said[0]
    assert sizes.seen["before_training_iteration"] == [8, 8] * 3
    assert strategy.model.num_averaged == 1


def test_one_image_is_enough_without_batch_norm_and_head():
    images, labels = samples([0, 1], size=8, per_class=1)
    strategy = strategy_of(SmallCNN(batch_norm=False), train_mb_size=1)
    strategy.train(stream_of((images[:1], labels[:1])).train_stream[0])
    assert strategy.model.num_averaged == 1


@pytest.mark.parametrize("ssl", [None, "simclr"])
def test_an_experience_of_one_image(ssl):
    images, labels = samples([0, 1], size=8, per_class=1)
    stream = stream_of(samples([0, 1], size=8), (images[:1], labels[:1]))
    strategy = strategy_of(SmallCNN(), ssl=ssl)
    strategy.train(stream.train_stream[0])
    before = state_of(strategy.model, strategy.ssl)
    with pytest.raises(ValueError, match=r"experience 1 to hold at least 2 samples.* got 1"):
        strategy.train(stream.train_stream[1])
    assert_same_state(state_of(strategy.model, strategy.ssl), before)


def test_an_experience_of_no_image():
    stream = small_stream()
    strategy = strategy_of(SmallCNN())
    strategy.train(stream.train_stream[0])
    before = state_of(strategy.model)
    empty = copy.copy(stream.train_stream[1])
    empty._dataset = stream.train_stream[1].dataset.subset([])
    assert len(empty.dataset) == 0
    with pytest.raises(ValueError, match="experience 1 to hold samples, got none"):
        strategy.train(empty)
    assert_same_state(state_of(strategy.model), before)


# The wrong kind of data ---------------------------------------------------------------------------

X, Y = samples([0, 1], size=8, per_class=8)
BAD_DATA = {
    "vectors": (X.flatten(1), r"\(B, C, H, W\), got \(\d+, 192\).*`views=`.*`ssl=None`"),
    "small images": (X[:, :, :7], r"at least 8 pixels.* got \(7, 8\)"),
    "two channels": (X[:, :2], "1 or 3 channels, got 2"),
    "bytes": ((X * 255).byte(), "floating dtype, got torch.uint8"),
}


@pytest.mark.parametrize("name", BAD_DATA)
def test_data_that_the_default_views_cannot_work_on(name):
    images, match = BAD_DATA[name]
    model = mlp(size=8) if name == "vectors" else SmallCNN(channels=images.shape[1])
    strategy = strategy_of(model, ssl="simclr")
    before = state_of(strategy.model.plastic, strategy.model.stable)
    with pytest.raises(ValueError, match=match):
        strategy.train(stream_of((images, Y)).train_stream[0])
    assert_same_state(state_of(strategy.model.plastic, strategy.model.stable), before)


@pytest.mark.parametrize("ssl", [None, "simclr"])
def test_vectors_with_views_or_without_a_head(ssl):
    views = None if ssl is None else lambda x: (x + 0.1 * torch.rand_like(x), x)
    strategy = strategy_of(mlp(size=8), ssl=ssl, views=views)
    strategy.train(stream_of((X.flatten(1), Y)).train_stream[0])
    assert strategy.model.num_averaged == 1


BAD_VIEWS = {
    "nothing": lambda x: None,
    "one view": lambda x: (x,),
    "a tensor": lambda x: x,
    "fewer images": lambda x: (x[1:], x[1:]),
    "arrays": lambda x: (x.numpy(), x.numpy()),
    "a generator": lambda x: (view for view in (x, x)),
    "a dictionary": lambda x: {"view1": x, "view2": x},
}


@pytest.mark.parametrize("name", BAD_VIEWS)
def test_views_that_return_something_else(name):
    strategy = strategy_of(SmallCNN(), ssl="simclr", views=BAD_VIEWS[name])
    before = state_of(strategy.model.plastic, strategy.model.stable, strategy.ssl)
    with pytest.raises((ValueError, TypeError), match="`views` to return"):
        strategy.train(small_stream().train_stream[0])
    modules = (strategy.model.plastic, strategy.model.stable, strategy.ssl)
    assert_same_state(state_of(*modules), before)


def test_one_view_alone_is_not_taken_for_a_sequence_of_views():
    # a mini-batch of 3 images of 3 channels: its first image would pass as a view of 3 samples
    strategy = strategy_of(mlp(size=8), views=lambda x: x.clone(), train_mb_size=3)
    with pytest.raises((ValueError, TypeError), match="`views` to return"):
        strategy.train(stream_of((X[:6], Y[:6])).train_stream[0])


class ReturnsLossAlone(SelfSupervisedHead):
    def forward(self, plastic, view1, view2):
        return plastic(view1).mean(), plastic(view1)  # not a tuple of features


def test_a_head_that_returns_no_tuple_of_features():
    strategy = strategy_of(SmallCNN(), ssl=ReturnsLossAlone())
    with pytest.raises((ValueError, TypeError), match="features"):
        strategy.train(small_stream().train_stream[0])


# Streams that the method cannot learn -------------------------------------------------------------


def test_pieces_of_an_online_stream():
    online = split_online_stream(small_stream().train_stream, experience_size=4)
    strategy = strategy_of(SmallCNN())
    with pytest.raises(ValueError, match="whole experiences, got a piece of an online stream"):
        strategy.train(next(iter(online)))


def test_several_task_labels_in_an_experience():
    parts = [TensorDataset(*samples(classes, size=8)) for classes in ([0, 1], [2, 3])]
    first, second = (
        _make_taskaware_classification_dataset(part, task_labels=task)
        for task, part in enumerate(parts)
    )
    joined = first.concat(second)
    experience = dataset_benchmark([joined], [joined]).train_stream[0]
    strategy = strategy_of(SmallCNN())
    with pytest.raises(ValueError, match=r"one task label .* got \[0, 1\]"):
        strategy.train(experience)
    assert strategy.model.num_averaged == 0


def test_a_replayed_sample_of_a_class_never_trained():
    replay = ReplayPlugin(mem_size=8)
    strategy_of(SmallCNN(), plugins=[replay]).train(small_stream(tasks=[(8, 9)]).train_stream)
    strategy = strategy_of(SmallCNN(), plugins=[replay])
    with pytest.raises(ValueError, match=r"classes trained before, got class labels \[.*9\]"):
        strategy.train(small_stream().train_stream[0])


def test_evaluating_tasks_never_trained():
    for task_labels in (False, True):
        class_il, task_il = scenario_metrics()
        evaluator = EvaluationPlugin(class_il, task_il, accuracy_metrics(experience=True))
        strategy = strategy_of(SmallCNN(), evaluator=evaluator)
        stream = nc_stream(task_labels=task_labels, from_zero=task_labels, size=8, per_class=8)
        strategy.eval(stream.test_stream)  # before any training
        strategy.train(stream.train_stream[0])
        with (
            pytest.warns(UserWarning, match="Task-IL accuracy of experience 1 .* is NaN")
            if (not task_il._warned)
            else warnings.catch_warnings()
        ):
            results = strategy.eval(stream.test_stream)
        assert math.isnan(task_il.matrix()[0, 1])
        own = [value for name, value in results.items() if name.startswith("Top1_Acc_Exp")]
        assert own[1:] == [0, 0]


# Other kinds of models ---------------------------------------------------------------------------


@pytest.mark.parametrize("ssl", [None, *HEADS])
def test_a_model_in_double_precision(ssl):
    head = small_head(ssl)
    strategy = strategy_of(
        SmallCNN().double(), ssl=head, views=lambda x: (x.double(), x.double().flip(-1))
    )
    strategy.train(small_stream().train_stream[:2])
    assert {p.dtype for p in strategy.model.parameters()} == {torch.float64}


# At the end of an experience ----------------------------------------------------------------------


def of_avalanche(model, *plugins, strategy=Naive, **kwargs):
    optimizer = SGD(model.parameters(), lr=0.05)
    return strategy(
        model=model, optimizer=optimizer, criterion=CrossEntropyLoss(), train_mb_size=8,
        evaluator=None, plugins=list(plugins), **kwargs,
    )  # fmt: skip


READING_AT_THE_END = {
    "average": lambda probe: of_avalanche(SmallCNN(), CumulativeParameterAveragingPlugin(), probe),
    "Gaussian": lambda probe: of_avalanche(mlp(size=8), GaussianClassifierPlugin(), probe),
    "recalibrated": lambda probe: strategy_of(
        SmallCNN(), bn_statistics="recalibrated", plugins=[probe]
    ),
    "DLCPA, Gaussian": lambda probe: strategy_of(
        mlp(size=8), classifier="gaussian", plugins=[probe]
    ),
    "STL-me": lambda probe: of_avalanche(
        SmallCNN(), probe, strategy=SingleTaskStrategy, predict_with="mean"
    ),
    "finetuned": lambda probe: of_avalanche(
        mlp(size=8), probe, strategy=SingleTaskStrategy, predict_with="mean", finetune_epochs=1
    ),
}


def pil_stream(transform, **kwargs):
    images = PILImages(*samples([0, 1], size=8, per_class=8))
    images.transform = transform
    return nc_benchmark(images, images, 1, task_labels=False, **kwargs)


@pytest.mark.parametrize("name", READING_AT_THE_END)
def test_images_without_transforms_of_evaluation_are_noticed_before_training(name):
    probe = Probe(before_training_iteration=lambda strategy: None)
    stream = pil_stream(lambda image: image, train_transform=ToTensor())
    strategy = READING_AT_THE_END[name](probe)
    with pytest.raises(ValueError, match="got Image: give the training set transforms of evaluati"):
        strategy.train(stream.train_stream[0])
    assert not probe.seen["before_training_iteration"]


def test_nobody_asks_for_transforms_of_evaluation_that_are_never_used():
    stream = pil_stream(lambda image: image, train_transform=ToTensor())
    average = CumulativeParameterAveragingPlugin()
    assert_learns(of_avalanche(mlp(size=8), average), stream.train_stream[0])
    recalibrated = strategy_of(mlp(size=8), bn_statistics="recalibrated")
    assert_learns(recalibrated, stream.train_stream[0])


def test_the_look_at_an_image_of_evaluation_draws_nothing():
    stream = pil_stream(lambda image: ToTensor()(image) + 0.1 * torch.rand(3, 1, 1))

    def trained(*plugins):
        seed_everything()
        model = SmallCNN()
        of_avalanche(model, *plugins).train(stream.train_stream[0])
        return state_of(model)

    expected = trained()
    assert_same_state(trained(CumulativeParameterAveragingPlugin()), expected)
    assert_same_state(trained(GaussianClassifierPlugin()), expected)


# At evaluation ------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [DLCPAStrategy, SingleTaskStrategy])
def test_images_that_give_no_finite_logits_are_not_judged(make):
    images, labels = samples([0, 1], size=8, per_class=8)
    corrupt = images.clone()
    corrupt[[2, 5]] = float("nan")
    stream = tensors_benchmark([(images, labels)], [(corrupt, labels)], task_labels=[0])
    model = SmallCNN()
    options = {"ssl": None} if make is DLCPAStrategy else {}
    strategy = make(
        model=model, optimizer=SGD(model.parameters(), lr=0.05), train_mb_size=8,
        evaluator=EvaluationPlugin(*scenario_metrics()), **options,
    )  # fmt: skip
    strategy.train(stream.train_stream[0])
    before = state_of(strategy.model)
    message = "NaN or infinity for 2 of 8 images of a mini-batch of experience 0 of test"
    with pytest.raises(NonFiniteLossError, match=message):
        strategy.eval(stream.test_stream)
    assert_same_state(state_of(strategy.model), before)
    strategy.eval(stream.train_stream)


def test_nan_is_no_class():
    logits = torch.tensor([[float("nan"), 2.0, 1.0], [0.0, 2.0, 1.0]])
    assert predicted_classes(logits).tolist() == [-1, 1]
    assert predicted_classes(logits, columns=torch.tensor([1, 2])).tolist() == [1, 1]


def test_an_image_that_only_recalibration_meets_leaves_the_running_statistics():
    images, labels = samples([0, 1], size=8, per_class=9)
    images = images[:17].clone()
    images[16] = float("nan")  # in a mini-batch of its own, which is skipped
    experience = stream_of((images, labels[:17])).train_stream[0]
    trained = {}
    for statistics in ("running", "recalibrated"):
        seed_everything()
        strategy = strategy_of(SmallCNN(), bn_statistics=statistics)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            strategy.train(experience, shuffle=False)
        trained[statistics] = state_of(strategy.model)
    assert any("keeps its running statistics" in str(w.message) for w in caught)
    assert_same_state(trained["recalibrated"], trained["running"])
