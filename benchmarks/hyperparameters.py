"""The hyperparameters of every method in every setting: what `tune` chose from `GRIDS`.

A test compares them with ``results/tuning.csv``.
"""

from __future__ import annotations

from typing import Any

HYPERPARAMETERS: dict[str, dict[str, dict[str, Any]]] = {
    "digits": {
        "naive": {"lr": 0.01},
        "ewc": {"lr": 0.01, "strength": 100.0},
        "lwf": {"lr": 0.003, "strength": 10.0},
        "dlcpa-mocov2": {
            "lr": 0.02,
            "classifier_lr": 0.05,
            "supervised_weight": 3.0,
            "queue_size": 1024,
        },
    },
    "lab-cifar100": {
        "naive": {"lr": 0.05},
        "ewc": {"lr": 0.02, "strength": 1.0},
        "lwf": {"lr": 0.02, "strength": 10.0},
        "dlcpa-mocov2": {"lr": 0.005, "classifier_lr": 0.05, "queue_size": 4096},
    },
}

# What trains the few tasks of tuning, but has weights of NaN before the last task of the setting.
DIVERGED: dict[tuple[str, str], list[dict[str, Any]]] = {
    ("lab-cifar100", "ewc"): [{"lr": 0.02, "strength": 10.0}],
}

# What `benchmarks.tune` tries, on the validation split.
GRIDS: dict[str, dict[str, list[dict[str, list[Any]]]]] = {
    "digits": {
        "naive": [{"lr": [0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1]}],
        "ewc": [{"lr": [0.003, 0.01, 0.03], "strength": [1e2, 1e4, 1e6]}],
        "lwf": [{"lr": [0.003, 0.01, 0.03], "strength": [1.0, 3.0, 10.0]}],
        "dlcpa-mocov2": [
            {
                "lr": [0.02, 0.05],
                "classifier_lr": [0.02, 0.05],
                "supervised_weight": [3.0, 10.0],
                "queue_size": [1024],
            }
        ],
    },
    "lab-cifar100": {
        "naive": [{"lr": [0.01, 0.02, 0.05]}],
        "ewc": [
            {"lr": [0.02], "strength": [1.0, 10.0, 100.0]},
            {"lr": [0.05], "strength": [0.3, 1.0]},
        ],
        "lwf": [{"lr": [0.02], "strength": [1.0, 3.0, 10.0]}, {"lr": [0.05], "strength": [3.0]}],
        "dlcpa-mocov2": [
            {"lr": [0.0025, 0.005, 0.01], "classifier_lr": [0.05], "queue_size": [4096]},
            {
                "lr": [0.005],
                "classifier_lr": [0.05],
                "queue_size": [4096],
                "encoder_momentum": [0.99],
            },
            {"lr": [0.005], "classifier_lr": [0.1], "queue_size": [4096]},
            {"lr": [0.005], "classifier_lr": [0.05], "queue_size": [1024]},
        ],
    },
}
