"""Predictions do not depend on the batch, and evaluating leaves no trace."""

import random

import numpy as np
import pytest
import torch
from avalanche.benchmarks import tensors_benchmark
from avalanche.evaluation.metrics import accuracy_metrics, loss_metrics
from avalanche.models import SimpleCNN, SlimResNet18
from avalanche.training.plugins import EvaluationPlugin, SupervisedPlugin
from helpers import (
    SmallCNN,
    assert_same_state,
    batch_of,
    nc_stream,
    samples,
    seed_everything,
    state_of,
    strategy_of,
    tensors_stream,
)
from torch import nn

from avalanche_dlcpa.self_supervised import MoCoV2


class Logits(SupervisedPlugin):
    """Collects the answers of an evaluation."""

    def before_eval(self, strategy, **kwargs):
        self.batches = []

    def after_eval_iteration(self, strategy, **kwargs):
        self.batches.append(strategy.mb_output.clone())

    def all(self):
        return torch.cat(self.batches)


def of_images(images, labels, task_labels=0):
    split = (images, labels)
    return tensors_benchmark(
        train_tensors=[split], test_tensors=[split], task_labels=[task_labels]
    ).test_stream


MODELS = {
    "SmallCNN": (SmallCNN, 8),
    "SlimResNet18": (lambda: SlimResNet18(6, nf=4), 32),
}


@pytest.mark.parametrize("bn_statistics", ["running", "recalibrated"])
@pytest.mark.parametrize("name", MODELS)
def test_a_prediction_does_not_depend_on_its_batch(name, bn_statistics):
    make_model, size = MODELS[name]
    stream, logits = tensors_stream(size=size, per_class=10), Logits()
    strategy = strategy_of(make_model(), bn_statistics=bn_statistics, plugins=[logits], lr=0.02)
    strategy.train(stream.train_stream)
    images, labels = (
        torch.cat(part) for part in zip(*map(batch_of, stream.train_stream), strict=True)
    )
    orders = {
        "sorted": labels.argsort(stable=True),
        "shuffled": torch.randperm(len(labels), generator=torch.Generator().manual_seed(0)),
    }
    reference = None
    for order in orders.values():
        for size in (1, 7, 32, 1000):
            strategy.eval_mb_size = size
            strategy.eval(of_images(images[order], labels[order]))
            answers = torch.empty_like(logits.all())
            answers[order] = logits.all()
            reference = answers if reference is None else reference
            torch.testing.assert_close(answers, reference, rtol=1e-5, atol=1e-5)
    assert reference.std(dim=0).min() > 1e-3  # different images, different answers


def test_the_answer_is_of_the_stable_learner_by_class_label():
    stream, logits = tensors_stream(((4, 1), (0, 5)), size=8), Logits()
    strategy = strategy_of(SmallCNN(), plugins=[logits])
    strategy.train(stream.train_stream)
    images, _ = batch_of(stream.test_stream[0])
    strategy.eval(of_images(images, torch.zeros(len(images), dtype=torch.long)))
    features = strategy.model.stable.eval()(images)
    first, second = strategy.model.classifiers.layers
    side_by_side = torch.cat([first(features), second(features)], dim=1)
    answers = logits.all()
    torch.testing.assert_close(answers[:, [1, 4, 0, 5]], side_by_side)
    assert (answers[:, [2, 3]] < side_by_side.min(dim=1, keepdim=True).values - 500).all()


def test_task_labels_choose_the_classifier_of_each_sample():
    stream, logits = nc_stream(task_labels=True, from_zero=True, size=8), Logits()
    strategy = strategy_of(SmallCNN(), plugins=[logits])
    strategy.train(stream.train_stream[:2])
    images, _ = batch_of(stream.test_stream[0])
    features = strategy.model.stable.eval()(images)
    for task, layer in enumerate(strategy.model.classifiers.layers):
        strategy.eval(of_images(images, torch.zeros(len(images), dtype=torch.long), task))
        torch.testing.assert_close(logits.all(), layer(features))
    mixed = torch.arange(len(images)) % 2
    expected = torch.where(
        mixed[:, None] == 0, *(layer(features) for layer in strategy.model.classifiers.layers)
    )
    torch.testing.assert_close(strategy.model.eval()(images, mixed), expected)


# No trace -----------------------------------------------------------------------------------------


def flags_of(modules):
    return [(m.training, getattr(m, "track_running_stats", None)) for m in modules]


def random_states():
    return torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()


class DrawsNumbers(SupervisedPlugin):
    """A plugin (or a transform) that draws random numbers in evaluation."""

    def after_eval_iteration(self, strategy, **kwargs):
        torch.rand(3), np.random.rand(3), random.random()


@pytest.mark.parametrize("bn_statistics", ["running", "batch"])
@pytest.mark.parametrize("ssl", [None, "mocov2"])
def test_evaluating_changes_nothing(ssl, bn_statistics):
    stream = tensors_stream(size=8, per_class=8)
    ssl = MoCoV2(queue_size=64) if ssl else None
    strategy = strategy_of(
        SmallCNN(), ssl=ssl, bn_statistics=bn_statistics, plugins=[DrawsNumbers()], momentum=0.9
    )
    strategy.train(stream.train_stream[0])
    strategy.model.plastic.norm.eval()  # a flag that is unlike the others
    modules = [*strategy.model.modules(), *([] if ssl is None else ssl.modules())]
    flags = flags_of(modules)
    state, seeds = state_of(strategy.model, ssl), random_states()
    identities = [id(p) for p in strategy.model.parameters()]
    for _ in range(2):
        strategy.eval(stream.test_stream)  # also the classes that are still unseen
    assert_same_state(state_of(strategy.model, ssl), state)
    assert [id(p) for p in strategy.model.parameters()] == identities
    assert flags_of(modules) == flags
    assert not strategy.model.plastic.norm.training
    assert all(np.array_equal(a, b) for a, b in zip(random_states()[:2], seeds[:2], strict=True))
    assert random_states()[2] == seeds[2]


def trained(*, evaluations, ssl=None, **kwargs):
    """Final state of a run whose model has dropout, so that random numbers matter."""
    seed_everything()
    stream = tensors_stream(per_class=8)
    evaluator = EvaluationPlugin(accuracy_metrics(stream=True))
    strategy = strategy_of(
        SimpleCNN(6),
        ssl=MoCoV2(queue_size=64) if ssl else None,
        evaluator=evaluator,
        plugins=[DrawsNumbers()],
        train_epochs=2,
        **kwargs,
    )
    for experience in stream.train_stream:
        strategy.train(experience, eval_streams=[stream.test_stream])
        for _ in range(evaluations):
            strategy.eval(stream.test_stream)
    return state_of(strategy.model, strategy.ssl)


@pytest.mark.parametrize("ssl", [None, "mocov2"])
def test_evaluating_changes_no_later_training(ssl):
    plain = trained(evaluations=0, ssl=ssl)
    for kwargs in (
        {"evaluations": 2},
        {"evaluations": 0, "eval_every": 0},
        {"evaluations": 0, "eval_every": 1},
        {"evaluations": 0, "eval_every": 1, "peval_mode": "iteration"},
    ):
        assert_same_state(trained(ssl=ssl, **kwargs), plain)


def test_labels_of_few_bits_are_trained_and_evaluated():
    (x, y), (a, b) = samples((0, 1), size=8), samples((0, 1), size=8)
    stream = tensors_benchmark([(x, y.int())], [(a, b.int())], task_labels=[0])
    evaluator = EvaluationPlugin(loss_metrics(experience=True))
    strategy = strategy_of(SmallCNN(), evaluator=evaluator)
    strategy.train(stream.train_stream[0], eval_streams=[])
    found = strategy.eval(stream.test_stream)
    [loss] = [value for name, value in found.items() if name.startswith("Loss_Exp")]
    strategy.model.eval()
    expected = nn.functional.cross_entropy(strategy.model(a), b.long())
    assert loss == pytest.approx(float(expected), rel=1e-4)


def test_evaluating_before_training_is_an_answer_too():
    stream, logits = tensors_stream(size=8), Logits()
    strategy = strategy_of(SmallCNN(), plugins=[logits])
    before = state_of(strategy.model)
    strategy.eval(stream.test_stream)
    assert all(batch.isfinite().all() for batch in logits.batches)
    assert_same_state(state_of(strategy.model), before)
    images, labels = batch_of(stream.test_stream[0])
    assert (strategy.model.eval()(images).argmax(dim=1) != labels).all()
