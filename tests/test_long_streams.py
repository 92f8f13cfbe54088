"""500 experiences: the average stays exact, only the classifiers grow, and nothing slows down."""

import cProfile
import gc
import pstats
import statistics
import time

import pytest
import torch
from avalanche.benchmarks import tensors_benchmark
from avalanche.core import SupervisedPlugin
from helpers import strategy_of
from torch import nn

from benchmarks.memory import kept_bytes

NUM_EXPERIENCES = 500
NUM_FEATURES = 6


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(5, NUM_FEATURES), nn.BatchNorm1d(NUM_FEATURES))
        self.fc = nn.Linear(NUM_FEATURES, 2)

    def forward(self, x):
        return self.fc(self.hidden(x).relu())


class Seconds(SupervisedPlugin):
    """CPU time of each iteration."""

    def __init__(self):
        super().__init__()
        self.all = []

    def before_training_iteration(self, strategy, **kwargs):
        self.start = time.process_time()

    def after_training_iteration(self, strategy, **kwargs):
        self.all.append(time.process_time() - self.start)


def num_calls(function, *arguments):
    """Of functions, in Python and C, as a clock that no other process disturbs."""
    profile = cProfile.Profile()
    profile.runcall(function, *arguments)
    return pstats.Stats(profile).total_calls


def num_objects():
    gc.collect()
    return len(gc.get_objects())


@pytest.fixture(scope="module")
def long_run():
    """A strategy after 500 experiences of one class and six samples each, and what was noted."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    samples = [
        (torch.randn(6, 5, generator=generator), torch.full((6,), label))
        for label in range(NUM_EXPERIENCES)
    ]
    stream = tensors_benchmark(samples, samples[:1], task_labels=[0] * NUM_EXPERIENCES)
    # cross-entropy over the one class of an experience is 0, so something else drives the steps
    strategy = strategy_of(
        Tiny(),
        lr=0.05,
        train_mb_size=6,
        criterion=lambda logits, y: (logits - 1).square().mean(),
        plugins=[Seconds()],
    )
    mean, sizes, objects, calls = None, {}, {}, {}
    for t, experience in enumerate(stream.train_stream, start=1):
        if t in (100, NUM_EXPERIENCES):
            calls[t] = num_calls(strategy.train, experience)
        else:
            strategy.train(experience)
        plastic = [p.detach().double() for p in strategy.model.plastic.parameters()]
        mean = (
            [p.clone() for p in plastic]
            if mean is None
            else [m + (p - m) / t for m, p in zip(mean, plastic, strict=True)]
        )
        if t in (100, NUM_EXPERIENCES):
            sizes[t], objects[t] = kept_bytes(strategy), num_objects()
    return strategy, mean, sizes, objects, calls


def test_the_average_is_exact(long_run):
    strategy, mean, *_ = long_run
    assert strategy.model.num_averaged == NUM_EXPERIENCES
    for ours, exact in zip(strategy.model.stable.parameters(), mean, strict=True):
        assert (ours - exact).abs().max() <= 1e-5
        assert exact.abs().max() > 1e-3  # something was learned and averaged


def test_only_the_classifiers_grow(long_run):
    _, _, sizes, objects, _ = long_run
    classifier = 4 * (NUM_FEATURES + 1)
    assert sizes[NUM_EXPERIENCES] - sizes[100] == (NUM_EXPERIENCES - 100) * classifier

    before = num_objects()
    layers = [nn.Linear(NUM_FEATURES, 1) for _ in range(100)]
    of_a_layer = (num_objects() - before) / len(layers)
    growth = (objects[NUM_EXPERIENCES] - objects[100]) / (NUM_EXPERIENCES - 100)
    assert growth < of_a_layer + 10  # the layer is listed here and there, and so is its experience


def test_no_iteration_slows_down(long_run):
    seconds = long_run[0].plugins[0].all
    assert len(seconds) == NUM_EXPERIENCES
    assert statistics.median(seconds[-50:]) < 2 * statistics.median(seconds[50:100])


def test_no_experience_takes_more_calls_than_an_early_one(long_run):
    calls = long_run[-1]
    assert calls[NUM_EXPERIENCES] == pytest.approx(calls[100], rel=0.02)
