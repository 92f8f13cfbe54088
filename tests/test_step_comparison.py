"""Replays beside eager iterations, on a CPU, where a capture is the step itself."""

import random

import pytest
import torch
from helpers import (
    SmallCNN,
    assert_same_state,
    seed_everything,
    small_head,
    state_of,
    strategy_of,
    tensors_stream,
)
from torch import nn

from avalanche_dlcpa import cuda_graph
from avalanche_dlcpa.cuda_graph import StepGraph
from benchmarks.gpu_check import WithoutCapture
from benchmarks.step_comparison import StepComparison, _difference

NUM_REPLAYS = 7 * 2 - StepGraph.warm_up_iterations  # of two full mini-batches an epoch


def compared(monkeypatch, capture=None, **options):
    """A comparison over two experiences of 7 epochs, and the trained strategy."""

    class Backend(WithoutCapture):
        def capture(self, run):
            return run if capture is None else capture(strategy, run)

    monkeypatch.setitem(cuda_graph.BACKENDS, "cpu", Backend)
    seed_everything()
    plugins = [] if options.pop("plain", False) else [StepComparison()]
    strategy = strategy_of(
        SmallCNN(), plugins=plugins, train_epochs=7,
        **{"ssl": small_head("mocov2"), "momentum": 0.9} | options,
    )  # fmt: skip
    for experience in tensors_stream(size=8, per_class=20).train_stream[:2]:
        strategy.train(experience, eval_streams=[])
    return (plugins or [None])[0], strategy


@pytest.mark.parametrize("ssl", [None, "mocov2", "byol", "simclr"])
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_right_replay_differs_by_nothing(monkeypatch, ssl, precision):
    options = {"precision": precision}
    steps, strategy = compared(monkeypatch, ssl=small_head(ssl), **options)
    assert steps.num_compared == 2 * (NUM_REPLAYS - 1)  # the first of an experience captures
    assert (steps.difference, steps.noise) == (0.0, 0.0)
    _, plain = compared(monkeypatch, ssl=small_head(ssl), plain=True, **options)
    assert_same_state(state_of(strategy.model, strategy.ssl), state_of(plain.model, plain.ssl))


def without(owner_of, name):
    """A capture in which a method does nothing."""

    def capture(strategy, run):
        owner = owner_of(strategy)

        def replay():
            setattr(owner, name, lambda *_: None)
            try:
                return run()
            finally:
                delattr(owner, name)

        return replay

    return capture


def twice(strategy, run):
    return lambda: (run(), run())[1]


def with_old_images(strategy, run):
    old = []  # of the first replay; at the capture there are none

    def replay():
        if not old:
            old.append(run.args[1].clone())
        run.args[1].copy_(old[0])
        return run()

    return replay


def with_other_numbers(strategy, run):
    def replay():
        torch.rand(1)
        return run()

    return replay


@pytest.mark.parametrize(
    "capture",
    [
        twice,
        with_old_images,
        with_other_numbers,
        without(lambda strategy: strategy.ssl, "after_update"),
        without(lambda strategy: strategy._average, "update_"),
        without(lambda strategy: strategy._alignment, "step_"),
        without(lambda strategy: strategy.optimizer, "step"),
    ],
    ids=["twice", "images", "numbers", "momentum", "average", "alignment", "optimizer"],
)
def test_a_wrong_replay_is_noticed(monkeypatch, capture):
    steps, _ = compared(monkeypatch, capture)
    assert steps.difference > 0.1
    assert steps.noise == 0


def test_a_replay_of_nan_is_infinitely_far():
    one, zero, nan = ({"part": [torch.tensor(x)]} for x in (1.0, 0.0, float("nan")))
    assert _difference(one, one, zero) == 0
    assert _difference(nan, one, zero) == _difference(one, nan, zero) == float("inf")
    assert _difference(one, zero, zero) == float("inf")  # it should not have changed


def test_what_eager_runs_differ_by_is_told(monkeypatch):
    draws = random.Random(0)

    class Noisy(nn.CrossEntropyLoss):
        def forward(self, logits, targets):
            return super().forward(logits, targets) * (1 + 1e-3 * draws.random())

    steps, _ = compared(monkeypatch, ssl=None, criterion=Noisy())
    assert 1e-5 < steps.noise < 0.1
    assert 1e-5 < steps.difference < 0.1
