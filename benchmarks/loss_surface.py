"""Figure 6 of the paper: the loss of the first two tasks over a plane through STL's extractors.

The plane goes through the extractors of task 1 (the origin) and task 2, and the start of training.
So the first axis holds their mean and all points between them. MC-SGD, whose way the paper follows,
has the multitask solution as third point, which STL lacks; the grid of 15 x 15 points and the
margin of 0.2 are those of its code.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from avalanche_dlcpa.batch_norm import recalibrate_batch_norm_
from avalanche_dlcpa.experiences import classes_of
from benchmarks.hyperparameters import HyperparameterError
from benchmarks.judgement import array_of
from benchmarks.plane import Plane, coordinates, grid_axes, plane_axes, point_at
from benchmarks.settings import Setting
from benchmarks.single_task_training import (
    BATCH_SIZE,
    features_of,
    flat_parameters,
    images_and_labels,
    set_flat_parameters_,
    train_single_tasks,
)

CALIBRATION_IMAGES = 512  # at most, a task: enough for means and variances, at every grid point


@dataclasses.dataclass(frozen=True)
class Task:
    """What a loss of a task needs.

    Attributes:
        images: Judged, shape (N, C, H, W).
        targets: Their outputs of the classifier, shape (N,).
        classifier: Of the task, Gamma_t.
        calibration: Avalanche dataset of training images, as evaluation sees them.
    """

    images: Tensor
    targets: Tensor
    classifier: nn.Linear
    calibration: Any


def task_of(train_experience: Any, judged_experience: Any, classifier: nn.Linear) -> Task:
    """The task of two experiences of the same classes: to calibrate on, and to be judged on."""
    images, labels = images_and_labels(judged_experience)
    classes = torch.tensor(classes_of(train_experience))
    training = train_experience.dataset.eval()
    spread = np.linspace(0, len(training) - 1, min(len(training), CALIBRATION_IMAGES))
    return Task(
        images=images,
        targets=torch.searchsorted(classes, labels),
        classifier=classifier,
        calibration=training.subset(spread.round().astype(int).tolist()),
    )


@torch.no_grad()
def loss_at_(extractor: nn.Module, parameters: Tensor, task: Task) -> float:
    """Cross-entropy of a task, among its own classes, at a point of the space of parameters.

    Statistics of batch norm belong to no point of the plane: they are recalibrated on training
    images of the task.

    Args:
        extractor: Receives the parameters and the statistics, in place.
        parameters: Of the extractor, shape (P,).
        task: Images, targets and classifier.
    """
    device = task.classifier.weight.device
    set_flat_parameters_(extractor, parameters)
    recalibrate_batch_norm_(extractor, task.calibration, batch_size=BATCH_SIZE, device=device)
    logits = task.classifier(features_of(extractor, task.images, device=device))
    return float(F.cross_entropy(logits, task.targets.to(device)))


def loss_surface_(
    extractor: nn.Module, plane: Plane, x: Iterable[float], y: Iterable[float], task: Task
) -> np.ndarray:
    """Loss of a task at each point of a grid, shape (len(y), len(x)); see `loss_at_`."""
    return np.array([[loss_at_(extractor, point_at(a, b, plane), task) for a in x] for b in y])


def run(
    setting: Setting,
    *,
    seed: int = 0,
    ssl: str | None = None,
    dataset_root: str | None = None,
    device: str = "cpu",
    resolution: int = 15,
    margin: float = 0.2,
    **hyperparameters: Any,
) -> dict[str, Any]:
    """Train STL on the first two tasks of a setting and take the loss of each over the plane.

    The 10 % validation split is held out of the training images and judged, as in the paper.

    Args:
        setting: Stream, network and budget.
        seed: Of network, order of samples and views.
        ssl: Self-supervised loss beside the supervised one (the figure's right half); None: none.
        dataset_root: Folder of the data; None: Avalanche's default.
        device: Where to train.
        resolution: Grid points along each axis.
        margin: Room around the marked points, as a share of their longer extent.
        **hyperparameters: Of the method ``stl``.

    Returns:
        ``losses``, shape (len(y), len(x)) as nested lists, by the name of the task; ``x`` and
        ``y`` and what they are, ``axes``; ``points``, coordinates by name, and
        ``losses_at_points``, by task and point.
    """
    if not isinstance(resolution, int) or resolution < 2:
        raise HyperparameterError(
            f"Expected `resolution` to be a whole number from 2 on, got {resolution!r}."
        )
    learned = train_single_tasks(
        setting,
        seed=seed,
        ssl=ssl,
        dataset_root=dataset_root,
        device=device,
        num_experiences=2,
        validation_fraction=0.1,
        **hyperparameters,
    )
    stream = learned.stream
    tasks = {
        f"task {index + 1}": task_of(
            stream.train_stream[index], stream.valid_stream[index], learned.classifiers[index]
        )
        for index in range(2)
    }
    first, second = (flat_parameters(extractor) for extractor in learned.extractors)
    start, scratch = flat_parameters(learned.start), learned.start
    plane = plane_axes(first, second, start)
    places = {"start": start, "task 1": first, "mean": (first + second) / 2, "task 2": second}
    points = {name: coordinates(place, plane) for name, place in places.items()}
    x, y = grid_axes(points.values(), resolution=resolution, margin=margin)
    return {
        "losses": {
            name: loss_surface_(scratch, plane, x, y, task).tolist() for name, task in tasks.items()
        },
        "x": x.tolist(),
        "y": y.tolist(),
        "axes": ["from task 1 towards task 2", "orthogonal to it, towards the start"],
        "points": {name: list(point) for name, point in points.items()},
        "losses_at_points": {
            name: {at: loss_at_(scratch, place, task) for at, place in places.items()}
            for name, task in tasks.items()
        },
    }


def expect_found(result: dict[str, Any]) -> None:
    """Refuse a result that `run` has not found so.

    Raises:
        ValueError: Another shape, or no losses.
    """
    shape = (len(result["y"]), len(result["x"]))
    for task, losses in result["losses"].items():
        array_of(f"losses of {task}", losses, shape)
        at_points = list(result["losses_at_points"][task].values())
        array_of(f"losses at points of {task}", at_points, (len(result["points"]),))
