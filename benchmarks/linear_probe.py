"""Figure 5 of the paper: how well each feature extractor of STL tells the classes of each task."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from avalanche_dlcpa.accuracy_matrix import check_accuracy_matrix, check_fractions
from avalanche_dlcpa.batch_norm import recalibrate_batch_norm_
from benchmarks.judgement import array_of
from benchmarks.settings import Setting
from benchmarks.single_task_training import (
    BATCH_SIZE,
    features_of,
    images_and_labels,
    mean_extractor,
    train_single_tasks,
)


def linear_probe_accuracy(
    train_features: ArrayLike,
    train_labels: ArrayLike,
    test_features: ArrayLike,
    test_labels: ArrayLike,
) -> float:
    """Test accuracy of a linear classifier that is trained on frozen features.

    The classifier is scikit-learn's logistic regression with its default L2 penalty, on features
    standardised with the mean and deviation of the training features.

    Args:
        train_features: Shape (N, D).
        train_labels: Class labels, shape (N,).
        test_features: Shape (M, D).
        test_labels: Class labels, shape (M,).

    Returns:
        A fraction in [0, 1].

    Raises:
        ValueError: If the training labels are of one class, or a test label is of no training one.

    Example:
        >>> linear_probe_accuracy([[0.0], [0.1], [0.9]], [3, 3, 7], [[0.2], [0.8]], [3, 7])
        1.0
    """
    classes = np.unique(train_labels)
    if len(classes) < 2:
        raise ValueError(
            f"Expected `train_labels` to be of at least 2 classes, got {classes.tolist()}: "
            "nothing is to be told apart."
        )
    strange = np.setdiff1d(test_labels, classes)
    if strange.size:
        raise ValueError(
            f"Expected `test_labels` to be of the classes {classes.tolist()} of the training "
            f"labels, got {strange.tolist()}: take both from the same task."
        )
    probe = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    probe.fit(train_features, train_labels)
    return float(probe.score(test_features, test_labels))


def probe_matrix(own: ArrayLike, mean: ArrayLike) -> np.ndarray:
    """Arrange the accuracies as Figure 5 has them.

    Args:
        own: own[i, j] is the accuracy of the extractor of task i on task j, shape (T, T).
        mean: Accuracy of the mean extractor on each task, shape (T,).

    Returns:
        Shape (T + 2, T): the rows of `own`, then STL, the best of them for each task, then STL-me,
        the mean extractor. "Best" is by these very accuracies, as in the paper's caption, so that
        STL is never below a row above it.

    Raises:
        ValueError: If the shapes do not match, or an entry lies outside [0, 1].

    Example:
        >>> probe_matrix([[0.9, 0.3], [0.2, 0.8]], [0.85, 0.75])[2:]
        array([[0.9 , 0.8 ],
               [0.85, 0.75]])
    """
    own, mean = check_accuracy_matrix(own), check_fractions(mean, name="mean")
    if mean.shape != own.shape[1:]:
        raise ValueError(
            f"Expected `mean` to be of shape {own.shape[1:]}, one value a task, got {mean.shape}."
        )
    return np.vstack([own, own.max(axis=0), mean])


def probe_extractor_(
    extractor: nn.Module, train_experience: Any, test_experience: Any, *, device: torch.device
) -> float:
    """Linear-probe accuracy of an extractor on the images of a task.

    The batch norm statistics of the extractor are recalibrated, in place, on the training images of
    the task: a mean of parameters has none of its own, and so every extractor is treated alike.

    Args:
        extractor: (B, C, H, W) -> (B, D).
        train_experience: Whose images train the probe, without augmentation.
        test_experience: Whose images judge it.
        device: Of the extractor.
    """
    recalibrate_batch_norm_(
        extractor, train_experience.dataset.eval(), batch_size=BATCH_SIZE, device=device
    )
    parts = []
    for experience in (train_experience, test_experience):
        images, labels = images_and_labels(experience)
        parts += [features_of(extractor, images, device=device).cpu().numpy(), labels.numpy()]
    return linear_probe_accuracy(*parts)


def run(
    setting: Setting,
    *,
    seed: int = 0,
    ssl: str | None = None,
    dataset_root: str | None = None,
    device: str = "cpu",
    **hyperparameters: Any,
) -> dict[str, Any]:
    """Train STL on all tasks of a setting and probe its extractors and their mean on each task.

    Args:
        setting: Stream, network and budget.
        seed: Of network, order of samples and views.
        ssl: Self-supervised loss beside the supervised one; None, as in the paper's figure: none.
        dataset_root: Folder of the data; None: Avalanche's default.
        device: Where to train.
        **hyperparameters: Of the method ``stl``.

    Returns:
        ``matrix``, shape (T + 2, T) as nested lists, fractions, on the test images; ``row_labels``
        and ``column_labels``; ``axes``, what rows and columns are.
    """
    learned = train_single_tasks(
        setting,
        seed=seed,
        ssl=ssl,
        dataset_root=dataset_root,
        device=device,
        num_experiences=setting.num_experiences,
        **hyperparameters,
    )
    extractors = [*learned.extractors, mean_extractor(learned.extractors)]
    tasks = [
        (learned.stream.train_stream[task], learned.stream.test_stream[task])
        for task in range(len(learned.extractors))
    ]
    accuracies = np.array(
        [
            [probe_extractor_(extractor, *task, device=torch.device(device)) for task in tasks]
            for extractor in extractors
        ]
    )
    names = [f"task {number}" for number in range(1, len(tasks) + 1)]
    return {
        "matrix": probe_matrix(accuracies[:-1], accuracies[-1]).tolist(),
        "row_labels": [*names, "STL", "STL-me"],
        "column_labels": names,
        "axes": ["feature extractor", "images of task"],
    }


def expect_found(result: dict[str, Any]) -> None:
    """Refuse a result that `run` has not found so.

    Raises:
        ValueError: Another shape, or no fractions.
    """
    num_tasks = result["num_experiences"]
    array_of("matrix", result["matrix"], (num_tasks + 2, num_tasks), most=1.0)
    if len(result["row_labels"]) != num_tasks + 2:
        raise ValueError(f"Expected {num_tasks + 2} row_labels, got {len(result['row_labels'])}.")
