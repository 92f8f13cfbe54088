"""Results as `benchmarks.run` writes them, of accuracies that a test chooses."""

import numpy as np

from benchmarks.cells import FORMAT, Cell
from benchmarks.settings import SETTINGS
from benchmarks.whole_files import save_json


def lower_triangle(setting, learned, final):
    """A matrix whose diagonal is `learned`, but whose last row is `final`, one value a task."""
    num_tasks = SETTINGS[setting].num_experiences
    matrix = np.full((num_tasks, num_tasks), np.nan)
    matrix[np.tril_indices(num_tasks)] = learned
    matrix[-1] = final
    return matrix


def summary(matrix):
    def numbers(values):
        return [None if np.isnan(value) else float(value) for value in values]

    curve = [matrix[i, : i + 1].mean() for i in range(len(matrix))]
    # In plain numpy, not with the package's own functions.
    acc, bwt = numbers([matrix[-1].mean(), (matrix[-1] - matrix.diagonal())[:-1].mean()])
    return {
        "accuracy_matrix": [numbers(row) for row in matrix],
        "ACC": acc,
        "BWT": bwt,
        "accuracy_over_experiences": numbers(curve),
    }


def confusion(classes, accuracies):
    """Shares of the answers: those that are wrong name the class after."""
    num_classes = sum(map(len, classes))
    shares = np.zeros((num_classes, num_classes))
    for labels, accuracy in zip(classes, np.nan_to_num(accuracies), strict=True):
        for label in labels:
            shares[label, label] = accuracy
            shares[label, (label + 1) % num_classes] += 1 - accuracy
    return shares


def make_result(
    method="naive", setting="digits", seed=0, *, class_il=0.5, task_il=0.75, changes=None, **other
):
    """A result whose accuracies are `class_il` and `task_il`, each a number or a matrix."""
    plan = SETTINGS[setting]
    num_tasks, num_classes = plan.num_experiences, plan.num_classes
    labels = np.arange(num_classes)[::-1]  # learned from the last label to the first
    per_task = num_classes // num_tasks
    matrices = [
        value if isinstance(value, np.ndarray) else lower_triangle(setting, value, value)
        for value in (class_il, task_il)
    ]
    classes = [labels[t * per_task :][:per_task].tolist() for t in range(num_tasks)]
    result = {
        "format": FORMAT,
        "method": method,
        "setting": setting,
        "setting_title": plan.title,
        "seed": seed,
        "changes": changes or {},
        "hyperparameters": {"lr": 0.01},
        "epochs": plan.epochs,
        "batch_size": 32,
        "views": plan.views,
        "judged_on": "test_stream",
        "num_experiences": num_tasks,
        "classes": classes,
        "class_il": {
            **summary(matrices[0]),
            "confusion_matrix": confusion(classes, matrices[0][-1]).tolist(),
        },
        "task_il": summary(matrices[1]),
        "training_seconds": 12.4,
        "memory": {"kept_bytes": 2_000_000, "peak_bytes": 10**9, "keeps_samples": False},
        "provenance": {
            "command": "python -m benchmarks.run",
            "versions": {"torch": "2.9.0", "avalanche-lib": "0.6.0"},
            "python": "3.11.2",
            "commit": "abc1234",
            "device": "cpu",
            "processor": "x86_64",
            "threads": 1,
            "date": "2026-11-28",
        },
    }
    return {**result, **other}


def write(results, folder):
    for result in results:
        changes = tuple(sorted(result["changes"].items()))
        cell = Cell(result["method"], result["setting"], result["seed"], changes)
        save_json(result, folder / f"{cell.name}.json")
    return folder
