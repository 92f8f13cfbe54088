"""Any stream is learned as the method promises, or refused with the model as it was."""

import numpy as np
import pytest
import torch
from avalanche.benchmarks import (
    benchmark_from_datasets,
    tensors_benchmark,
    with_classes_timeline,
)
from avalanche.benchmarks.utils import as_classification_dataset
from avalanche.training.plugins import EvaluationPlugin
from helpers import WithTargets, assert_same_state, state_of, strategy_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim.swa_utils import AveragedModel

from avalanche_dlcpa.metrics import scenario_metrics
from avalanche_dlcpa.self_supervised import SimCLR

NUM_CLASSES = 30


class Tiny(nn.Module):
    """Any size and number of channels; 6 features."""

    def __init__(self, *, channels, batch_norm, dtype):
        super().__init__()
        self.body = nn.Sequential(
            nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * channels, 6),
            nn.BatchNorm1d(6) if batch_norm else nn.Identity(), nn.ReLU(),
        )  # fmt: skip
        self.fc = nn.Linear(6, 3)
        self.to(dtype)

    def forward(self, x):
        return self.fc(self.body(x))


def to_unit_interval(image):
    return image.float() / 255


def noisy_views(x):
    return x, x + 0.05 * torch.randn_like(x)


@st.composite
def tasks_of(draw):
    """Labels of the training samples of each task: 1 to 20 classes, some again, most missing."""
    classes = st.lists(st.integers(0, NUM_CLASSES - 1), min_size=1, max_size=20, unique=True)
    return [
        [label for label in draw(classes) for _ in range(draw(st.integers(1, 3)))]
        for _ in range(draw(st.integers(1, 3)))
    ]


CASES = {
    "tasks": tasks_of(),
    "style": st.sampled_from(["classic", "with task labels", "new"]),
    "stored": st.sampled_from([torch.float32, torch.float64, torch.uint8]),
    "channels": st.integers(1, 4),
    "size": st.tuples(st.integers(2, 9), st.integers(2, 9)),
    "batch_size": st.integers(1, 40),
    "epochs": st.integers(1, 2),
    "batch_norm": st.booleans(),
    "ssl": st.booleans(),
    "lr": st.sampled_from([0.001, 0.1]),
}


def stream_of(tasks, style, stored, channels, size):
    def split(labels):
        images = torch.rand(len(labels), channels, *size, dtype=torch.float64)
        images = (255 * images if stored == torch.uint8 else images).to(stored)
        return images, torch.tensor(labels)

    splits = [split(labels) for labels in tasks]
    transform = to_unit_interval if stored == torch.uint8 else None
    if style == "new":
        datasets = [
            as_classification_dataset(
                WithTargets(*part),
                transform_groups=None if transform is None else {
                    "train": (transform, None), "eval": (transform, None)
                },
            )
            for part in splits
        ]  # fmt: skip
        return with_classes_timeline(benchmark_from_datasets(train=datasets, test=datasets))
    return tensors_benchmark(
        splits,
        splits,
        task_labels=[0] * len(tasks) if style == "classic" else range(len(tasks)),
        train_transform=transform,
        eval_transform=transform,
    )


def refusal(case):
    """Whether a strategy with these arguments, or training on one of the tasks, is refused."""
    needs_two = case["batch_norm"] or case["ssl"]
    at_once = needs_two and case["batch_size"] < 2
    return at_once, [needs_two and len(labels) < 2 for labels in case["tasks"]]


def learn(strategy, stream, refused):
    """Train on all tasks that are not refused; their snapshots and torch's average of them."""
    average, snapshots = None, []
    for experience, is_refused in zip(stream.train_stream, refused, strict=True):
        if is_refused:
            before = state_of(strategy.model, strategy.ssl)
            with pytest.raises(ValueError, match="at least 2 samples"):
                strategy.train(experience)
            assert_same_state(state_of(strategy.model, strategy.ssl), before)
            continue
        strategy.train(experience)
        average = average or AveragedModel(strategy.model.plastic)
        average.update_parameters(strategy.model.plastic)
        snapshots.append([p.detach().double().clone() for p in strategy.model.plastic.parameters()])
        strategy.eval(stream.test_stream)
    return average, snapshots


def check_average(strategy, average, snapshots):
    assert strategy.model.num_averaged == len(snapshots)
    ours = [p.detach().double() for p in strategy.model.stable.parameters()]
    exact = [torch.stack(parts).mean(dim=0) for parts in zip(*snapshots, strict=True)]
    torch.testing.assert_close(ours, exact, rtol=1e-5, atol=1e-6)
    torchs = [p.detach().double() for p in average.module.parameters()]
    torch.testing.assert_close(ours, torchs, rtol=1e-5, atol=1e-6)


def check_accuracies(class_il, task_il, *, num_learned, has_task_labels):
    shared, own = (metric.matrix()[:num_learned] for metric in (class_il, task_il))
    for accuracies in (shared, own):
        defined = accuracies[~np.isnan(accuracies)]
        assert ((defined >= 0) & (defined <= 1)).all()
    learned = own[np.arange(num_learned), np.arange(num_learned)]
    assert not np.isnan(learned).any()
    if has_task_labels:
        assert np.isnan(shared).all()
    else:
        assert (own >= shared)[~np.isnan(own)].all()  # among fewer classes, from the same logits


@settings(
    max_examples=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(case=st.fixed_dictionaries(CASES))
@pytest.mark.filterwarnings("ignore:Task-IL accuracy", "ignore:A mini-batch of one sample")
def test_any_stream_is_learned_or_refused(case):
    torch.manual_seed(0)
    stream = stream_of(*(case[name] for name in ("tasks", "style", "stored", "channels", "size")))
    dtype = torch.float64 if case["stored"] == torch.float64 else torch.float32
    model = Tiny(channels=case["channels"], batch_norm=case["batch_norm"], dtype=dtype)
    class_il, task_il = scenario_metrics()

    def make():
        return strategy_of(
            model,
            ssl=SimCLR() if case["ssl"] else None,
            views=noisy_views,
            train_mb_size=case["batch_size"],
            train_epochs=case["epochs"],
            lr=case["lr"],
            evaluator=EvaluationPlugin(class_il, task_il),
        )

    at_once, refused = refusal(case)
    if at_once:
        with pytest.raises(ValueError, match="`train_mb_size` to be at least 2"):
            make()
        return
    strategy = make()
    average, snapshots = learn(strategy, stream, refused)
    assert all(p.isfinite().all() for p in strategy.model.parameters())
    if snapshots:
        check_average(strategy, average, snapshots)
    if not any(refused):
        check_accuracies(
            class_il,
            task_il,
            num_learned=len(snapshots),
            has_task_labels=case["style"] == "with task labels" and len(case["tasks"]) > 1,
        )
