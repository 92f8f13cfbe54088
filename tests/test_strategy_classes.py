"""Which classes compete in training, and where their classifiers start."""

import math

import pytest
import torch
from avalanche.models import IncrementalClassifier, MultiHeadClassifier, as_multitask
from avalanche.training.plugins import ReplayPlugin, SupervisedPlugin
from helpers import (
    Probe,
    SmallCNN,
    class_incremental_stream,
    copies,
    nc_stream,
    strategy_of,
    tensors_stream,
)
from torch import nn
from torch.nn.functional import cross_entropy, linear

from avalanche_dlcpa.classifier_scope import scope_of
from avalanche_dlcpa.model_head import HeadStart
from avalanche_dlcpa.task_classifiers import TaskClassifiers

WEIGHT = 3.0


def test_a_class_that_comes_back_trains_its_own_row_further():
    stream = tensors_stream([(0, 1), (1, 2), (0, 1, 2)], size=8, per_class=8)
    strategy = strategy_of(SmallCNN())
    classifiers, rows = strategy.model.classifiers, []
    for experience in stream.train_stream:
        strategy.train(experience)
        rows.append(torch.cat([layer.weight.detach().clone() for layer in classifiers.layers]))
    assert [layer.out_features for layer in classifiers.layers] == [2, 1]
    assert classifiers.keys == [(0, 0), (0, 1), (0, 2)]
    moved = (rows[1][:2] != rows[0]).any(dim=1)
    assert moved.tolist() == [False, True]  # class 0 was not in the second experience
    assert (rows[2] != rows[1]).any(dim=1).all()
    assert strategy.eval(stream.test_stream) is not None


def start_of_classifiers(head, *, from_zero=False, **kwargs):
    """The classifiers of two tasks as they are before the first step."""
    probe = Probe(
        before_training_exp=lambda strategy: copies(
            strategy.model.classifiers.layers[-1].parameters()
        )
    )
    strategy = strategy_of(SmallCNN(head=head), plugins=[probe])
    stream = nc_stream(size=8, per_class=4, from_zero=from_zero, **kwargs)
    strategy.train(stream.train_stream[:2])
    return probe.seen["before_training_exp"]


def test_the_rows_of_a_linear_head_are_the_start():
    head = nn.Linear(64, 10)
    for task, (weight, bias) in enumerate(start_of_classifiers(head)):
        rows = slice(2 * task, 2 * task + 2)
        assert torch.equal(weight, head.weight[rows])
        assert torch.equal(bias, head.bias[rows])


def test_the_rows_of_a_growing_head_are_the_start_and_others_are_torchs():
    head = IncrementalClassifier(64, initial_out_features=3)
    first, second = start_of_classifiers(head)
    assert torch.equal(first[0], head.classifier.weight[:2])
    assert torch.equal(second[0][0], head.classifier.weight[2])
    assert 0 < second[0][1].abs().max() <= 1 / 8  # nn.Linear's own, 1 / sqrt(64)


def test_the_rows_of_each_head_of_a_multi_head_are_the_start():
    model = as_multitask(SmallCNN(num_classes=2), "fc")
    head = model.fc
    assert isinstance(head, MultiHeadClassifier)
    head.classifiers["1"] = IncrementalClassifier(64, initial_out_features=2)
    probe = Probe(
        before_training_exp=lambda s: s.model.classifiers.layers[-1].weight.detach().clone()
    )
    strategy = strategy_of(model, plugins=[probe])
    stream = nc_stream(size=8, per_class=4, task_labels=True, from_zero=True)
    strategy.train(stream.train_stream[:2])
    for task, weight in enumerate(probe.seen["before_training_exp"]):
        assert torch.equal(weight, head.classifiers[str(task)].classifier.weight)


@pytest.mark.parametrize("make_stream", [nc_stream, class_incremental_stream])
def test_a_replayed_sample_competes_within_its_own_task(make_stream):
    def loss_by_hand(strategy):
        features = strategy.model.plastic(strategy.mb_x)
        classifiers, losses = strategy.model.classifiers, []
        for row, label in zip(features, strategy.mb_y.tolist(), strict=True):
            logits = linear(row, *classifiers.rows(label // 2))
            losses.append(cross_entropy(logits, torch.tensor(label % 2)))
        number = max(classifiers.numbers) + 1
        return strategy.loss - WEIGHT * torch.stack(losses).mean(), number

    def gap(strategy):
        """Of the largest answer for another task's class above the smallest for one's own."""
        answers = strategy.mb_output
        is_own = torch.arange(answers.shape[1]) // 2 == strategy.mb_y.unsqueeze(1) // 2
        others, own = answers.masked_fill(is_own, -math.inf), answers.masked_fill(~is_own, math.inf)
        return (others.amax(dim=1) - own.amin(dim=1)).max().item()

    probe = Probe(after_forward=gap, before_backward=loss_by_hand)
    plugins = [ReplayPlugin(mem_size=8), probe]
    strategy = strategy_of(SmallCNN(batch_norm=False), supervised_weight=WEIGHT, plugins=plugins)
    strategy.train(list(make_stream(size=8, per_class=8).train_stream))
    assert probe.seen["before_backward"][-1][1] == 3
    assert all(abs(difference.item()) < 1e-4 for difference, _ in probe.seen["before_backward"])
    assert max(probe.seen["after_forward"]) <= -999  # -1,000 but for rounding


def test_data_of_an_earlier_task_whose_labels_restart_compete_within_it():
    stream = nc_stream(task_labels=True, from_zero=True, size=8, per_class=8).train_stream

    class Join(SupervisedPlugin):
        def after_train_dataset_adaptation(self, strategy, **kwargs):
            if strategy.experience.current_experience == 1:
                strategy.adapted_dataset = strategy.adapted_dataset.concat(stream[0].dataset)

    def loss_by_hand(strategy):
        features, losses = strategy.model.plastic(strategy.mb_x), []
        for row, label, task in zip(features, strategy.mb_y, strategy.mbatch[-1], strict=True):
            logits = linear(row, *strategy.model.classifiers.rows(int(task)))
            losses.append(cross_entropy(logits, label))
        difference = strategy.loss - WEIGHT * torch.stack(losses).mean()
        return difference.item(), len(strategy.mbatch[-1].unique())

    probe = Probe(before_backward=loss_by_hand)
    strategy = strategy_of(
        SmallCNN(batch_norm=False), supervised_weight=WEIGHT, plugins=[Join(), probe]
    )
    strategy.train(list(stream)[:2])
    differences, num_tasks = zip(*probe.seen["before_backward"], strict=True)
    assert max(num_tasks) == 2
    assert max(map(abs, differences)) < 1e-4


def test_a_label_beyond_all_is_not_taken_for_one_of_another_task():
    classifiers = TaskClassifiers(HeadStart({None: torch.zeros(0, 4)}, {None: torch.zeros(0)}))
    for task in (0, 1):
        classifiers.add(task, [0, 1])
    scope = scope_of(classifiers, 1, [0, 1], mixed=True)
    tasks = torch.tensor([1, 0, 1])
    assert scope.targets(torch.tensor([1, 1, 0]), tasks).tolist() == [3, 1, 2]
    with pytest.raises(ValueError, match=r"trained before, got class labels \[-1, 2, 3\]"):
        scope.targets(torch.tensor([2, 3, -1]), torch.tensor([0, 0, 1]))
