"""Labels and images that nobody should pass: an error names them, and nothing learned is lost."""

import copy

import numpy as np
import pytest
import torch
from avalanche.benchmarks import dataset_benchmark, tensors_benchmark
from helpers import SmallCNN, assert_same_state, samples, small_head, state_of, strategy_of
from torch.utils.data import Dataset

from avalanche_dlcpa import NonFiniteLossError, SingleTaskStrategy

GOOD = samples([0, 1], size=8, per_class=8)
IMAGES, LABELS = samples([2, 3], size=8, per_class=8)


class Samples(Dataset):
    """Images with labels, which need not be the `targets` that it tells."""

    def __init__(self, images, targets, labels=None):
        self.images, self.targets = images, targets
        self.labels = targets if labels is None else labels
        self.broken = set()

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        if index in self.broken:
            raise OSError(f"image file {index} is truncated")
        return self.images[index], self.labels[index]


def with_label(label, *, at=5):
    labels = LABELS.tolist()
    labels[at] = label
    return labels


def told(labels):
    """An experience whose dataset tells and delivers these labels."""
    return Samples(IMAGES, labels)


def hidden(labels):
    """One whose dataset tells good labels and delivers others."""
    return Samples(IMAGES, LABELS.tolist(), labels)


RANGE = "class labels to be whole numbers from 0 to 999999, got "
OTHERS = r"labels of the classes of the experience, got \[{}\]: `targets` of its dataset"
BAD_LABELS = {
    "negative": (told(with_label(-1)), RANGE + "-1"),
    "negative alone": (told([-3] * 16), RANGE + "-3"),
    "too large": (told(with_label(2**40)), RANGE + "1099511627776"),
    "words": (told(["cat", "dog"] * 8), RANGE + "'(cat|dog)'"),
    "digits": (told(["2", "3"] * 8), RANGE + "'[23]'"),
    "fractions": (told(with_label(2.5)), RANGE + r"2\.[05]"),
    "not a number": (told(with_label(float("nan"))), RANGE),
    "hidden negative": (hidden(with_label(-1)), OTHERS.format("-1")),
    "hidden, ignored by cross-entropy": (hidden(with_label(-100)), OTHERS.format("-100")),
    "hidden large": (hidden(with_label(9)), OTHERS.format("9")),
    "hidden of an earlier task": (hidden(with_label(1)), OTHERS.format("1")),
    "hidden floats": (hidden(LABELS.double().tolist()), r"whole numbers, got torch\.float64"),
    "hidden truths": (hidden([True, False] * 8), r"whole numbers, got torch\.bool"),
}


def experience_of(dataset):
    return dataset_benchmark([dataset], [dataset]).train_stream[0]


def assert_goes_on(strategy, experience, error, match, **kwargs):
    """Training fails, changes no learner, and the strategy learns the next experience."""
    good = tensors_benchmark([GOOD, (IMAGES, LABELS)], [GOOD, GOOD], task_labels=[0, 0])
    strategy.train(good.train_stream[0])
    before = state_of(strategy.model.plastic, strategy.model.stable)
    first = [p.detach().double() for p in strategy.model.plastic.parameters()]
    with pytest.raises(error, match=match):
        strategy.train(experience, **kwargs)
    assert_same_state(state_of(strategy.model.plastic, strategy.model.stable), before)
    strategy.train(good.train_stream[1])
    assert strategy.model.num_averaged == 2
    assert [layer.out_features for layer in strategy.model.classifiers.layers] == [2, 2]
    second = strategy.model.plastic.parameters()
    for mean, p, q in zip(strategy.model.stable.parameters(), first, second, strict=True):
        torch.testing.assert_close(mean.detach().double(), (p + q.detach().double()) / 2)


@pytest.mark.parametrize("name", BAD_LABELS)
def test_labels_that_name_no_class_of_the_experience(name):
    dataset, match = BAD_LABELS[name]
    strategy = strategy_of(SmallCNN())
    assert_goes_on(strategy, experience_of(dataset), ValueError, match)


@pytest.mark.gpu
@pytest.mark.parametrize("name", [name for name in BAD_LABELS if name.startswith("hidden ")])
def test_on_a_gpu_they_are_noticed_at_the_end_of_the_epoch(name):
    dataset, match = BAD_LABELS[name]
    seen_at_once = "whole numbers" in match
    error, words = (ValueError, match) if seen_at_once else (NonFiniteLossError, "finite loss")
    strategy = strategy_of(SmallCNN(), device="cuda")
    assert_goes_on(strategy, experience_of(dataset), error, words)


@pytest.mark.parametrize("kind", [np.uint8, np.int16, np.int64, torch.tensor])
def test_whole_numbers_of_any_kind_are_the_same_labels(kind):
    def learned(labels):
        torch.manual_seed(0)
        strategy = strategy_of(SmallCNN())
        strategy.train(experience_of(told(labels)))
        return state_of(strategy.model)

    assert_same_state(learned([kind(k) for k in LABELS.tolist()]), learned(LABELS.tolist()))


@pytest.mark.parametrize("name", ["negative", "hidden negative"])
def test_single_tasks_refuse_such_labels_too(name):
    dataset, _ = BAD_LABELS[name]
    model = SmallCNN()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    strategy = SingleTaskStrategy(
        model=model, optimizer=optimizer, train_mb_size=16, evaluator=None
    )
    with pytest.raises(ValueError, match="-1"):
        strategy.train(experience_of(dataset))


# Images -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"image_cache_bytes": 0}, {"num_workers": 2}])
@pytest.mark.parametrize("ssl", [None, "mocov2"])
def test_an_image_that_cannot_be_read(ssl, options):
    dataset = told(LABELS.tolist())
    experience = experience_of(dataset)
    dataset.broken.add(13)
    workers = {name: options[name] for name in options if name == "num_workers"}
    others = {name: options[name] for name in options if name != "num_workers"}
    strategy = strategy_of(SmallCNN(), ssl=small_head(ssl), train_mb_size=16, **others)
    assert_goes_on(strategy, experience, OSError, "image file 13 is truncated", **workers)


def test_an_image_of_another_size():
    images = list(IMAGES)
    images[7] = images[7][:, :5]
    dataset = Samples(images, LABELS.tolist())
    assert_goes_on(strategy_of(SmallCNN()), experience_of(dataset), RuntimeError, "equal size")


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.float16, torch.float64])
def test_images_of_another_dtype_than_the_model(dtype):
    experience = experience_of(Samples((IMAGES * 255).to(dtype), LABELS.tolist()))
    assert_goes_on(strategy_of(SmallCNN()), experience, RuntimeError, "type")


def test_pixels_that_are_infinite():
    images = IMAGES.clone()
    images[3, 0, 1, 1] = float("inf")
    experience = experience_of(Samples(images, LABELS.tolist()))
    assert_goes_on(strategy_of(SmallCNN()), experience, ValueError, "finite loss, got nan")


# Sizes of experiences -----------------------------------------------------------------------------


def test_ten_thousand_classes_beside_two():
    many = torch.rand(10_000, 3, 2, 2), torch.arange(10_000)
    few = many[0][:16], many[1][:16] % 2
    stream = tensors_benchmark([few, many], [few, few], task_labels=[0, 0])
    strategy = strategy_of(SmallCNN(), train_mb_size=1000, eval_mb_size=500)
    for experience in stream.train_stream:
        strategy.train(experience)
    widths = [layer.out_features for layer in strategy.model.classifiers.layers]
    assert widths == [2, 9_998]
    before = copy.deepcopy(state_of(strategy.model))
    strategy.eval(stream.test_stream)
    assert_same_state(state_of(strategy.model), before)
    assert strategy.model.eval()(many[0][:3]).shape == (3, 10_000)
