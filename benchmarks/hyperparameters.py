"""The hyperparameters of every method in every setting, and where they come from."""

from __future__ import annotations

from typing import Any

HYPERPARAMETERS: dict[str, dict[str, dict[str, Any]]] = {
    "digits": {
        "naive": {"lr": 0.05},
        "ewc": {"lr": 0.05, "strength": 100.0},
        "lwf": {"lr": 0.05, "strength": 1.0},
        "dlcpa-mocov2": {"lr": 0.01, "classifier_lr": 0.2},
    },
    "lab-cifar100": {
        "naive": {"lr": 0.05},
        "ewc": {"lr": 0.05, "strength": 100.0},
        "lwf": {"lr": 0.05, "strength": 1.0},
        "dlcpa-mocov2": {"lr": 0.05, "classifier_lr": 0.2},
    },
}
