"""DLCPA on real CIFAR-100, MNIST and Tiny-ImageNet: some iterations, then both scenarios."""

import dataclasses

import numpy as np
import pytest
import torch
from avalanche.training.plugins import EvaluationPlugin
from torch.optim import SGD

from avalanche_dlcpa import DLCPAStrategy
from avalanche_dlcpa.backbones import resnet18
from avalanche_dlcpa.metrics import scenario_metrics
from avalanche_dlcpa.self_supervised import MoCoV2
from avalanche_dlcpa.streams import split_cifar100, split_mnist, split_tiny_imagenet
from benchmarks.cells import Cell
from benchmarks.run import run_cell
from benchmarks.settings import SETTINGS

# But for that whose hyperparameters nobody has chosen yet.
LAB_TWINS = [
    name for name in SETTINGS if name.startswith("lab-") and name != "lab-cifar100-10-small-crops"
]
CIFAR_CONSTANTS = ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
TINY_CONSTANTS = ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
MNIST_CONSTANTS = ((0.1307,), (0.3081,))


@pytest.mark.real_data
@pytest.mark.parametrize(
    ("split", "num_experiences", "channels", "constants"),
    [
        (split_cifar100, 20, 3, CIFAR_CONSTANTS),
        (split_mnist, 5, 1, MNIST_CONSTANTS),
        (split_tiny_imagenet, 25, 3, TINY_CONSTANTS),
    ],
    ids=["cifar100", "mnist", "tiny-imagenet"],
)
def test_a_real_stream_trains_and_evaluates(data_root, split, num_experiences, channels, constants):
    stream = split(
        num_experiences, train_images_per_class=20, augment=False, dataset_root=data_root
    )
    model = resnet18(len(stream.class_names), in_channels=channels, width=4)
    start = torch.cat([p.detach().flatten() for p in model.parameters()])
    class_il, task_il = scenario_metrics()
    strategy = DLCPAStrategy(
        model=model,
        optimizer=SGD(model.parameters(), lr=0.05),
        ssl=MoCoV2(queue_size=256),
        classifier_lr=0.05,
        train_mb_size=20,
        train_epochs=2,
        eval_mb_size=256,
        evaluator=EvaluationPlugin(class_il, task_il),
    )
    for experience in stream.train_stream[:2]:
        strategy.train(experience)
        strategy.eval(stream.test_stream[: experience.current_experience + 1])

    assert (strategy.views.mean, strategy.views.std) == constants
    trained = torch.cat([p.detach().flatten() for p in strategy.model.plastic.parameters()])
    assert (trained - start[: len(trained)]).abs().max() > 1e-3
    for matrix in (class_il.matrix(), task_il.matrix()):
        assert matrix.shape == (2, 2)
        assert not np.isnan(matrix[1]).any()
    chance = 1 / len(stream.train_stream[0].classes_in_this_experience)
    assert task_il.matrix()[1].mean() > 0.7 * chance
    assert (task_il.matrix()[1] >= class_il.matrix()[1]).all()


@pytest.mark.real_data
@pytest.mark.parametrize("name", LAB_TWINS)
def test_a_lab_twin_trains_its_network_on_its_data(name, data_root, monkeypatch):
    plan = SETTINGS[name]
    short = dataclasses.replace(plan, epochs=1, num_experiences=1)
    monkeypatch.setitem(SETTINGS, name, short)
    result = run_cell(Cell("dlcpa-mocov2", name), dataset_root=str(data_root))
    num_tasks = 10 if name == "lab-cifar100" else plan.num_experiences  # it learns 6 of 10
    (classes,) = result["classes"]
    assert len(classes) == plan.num_classes / num_tasks
    counts = np.array(result["class_il"]["confusion_matrix"])
    assert (counts.sum(axis=1) > 0).tolist() == [c in classes for c in range(plan.num_classes)]
    assert "cifar100" not in name or counts.sum() == 100 * len(classes)
    assert 0 < result["task_il"]["ACC"] <= 1  # after an epoch, at times no more than by chance
