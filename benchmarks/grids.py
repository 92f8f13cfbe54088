"""What `benchmarks.tune` tries, on the validation split: setting -> method -> grids.

At the lab scale of the comparison (`lab-cifar100-10`) every method has eight combinations, and
those whose best lay on the edge of these eight more, beyond it. With twice the images a class
(`lab-cifar100`) there are four a method, and for DLCPA with the crops and the queue of the authors'
runs (`lab-cifar100-10-small-crops`) eight. At lab scale and on digits all have the schedule of
DLCPA, whose learning rates fall to a tenth for the last epoch of a task, and at the scale of the
paper that of the authors' runs. DLCPA's weight of the supervised loss is searched on digits, and
the paper's elsewhere.
"""

from __future__ import annotations

from typing import Any

Grid = dict[str, list[Any]]

_DLCPA = (
    "a",
    "b",
    "c",
    "d",
    "e",
    "mocov2",
    "byol",
    "simclr",
    "vicreg",
    "barlow",
    "simsiam",
    "nnclr",
)
_WITH_QUEUE = ("b", "c", "d", "e", "mocov2", "nnclr")


def _dlcpa(queue_size: int, *, lr: list[float], **others: list[Any]) -> dict[str, list[Grid]]:
    """The same grid for DLCPA with every head and for all ablations.

    VICReg's loss is some 25 times as large as the others and diverges at their learning rates.
    """
    grids: dict[str, list[Grid]] = {}
    for name in _DLCPA:
        rates = [rate / 20 for rate in lr] if name == "vicreg" else lr
        queue = {"queue_size": [queue_size]} if name in _WITH_QUEUE else {}
        grids[f"dlcpa-{name}"] = [{"lr": rates, **others, **queue}]
    return grids


def _baselines(lr: list[float], few: list[float], *, icarl: list[float]) -> dict[str, list[Grid]]:
    """Baselines: four learning rates, or two with two values of what else matters.

    iCaRL has rates of its own: its loss is a mean over classes, and so smaller than those of others
    as many times as there are classes.
    """
    return {
        **{name: [{"lr": lr}] for name in ("stl", "stl-me", "joint", "cumulative")},
        "stl-me-finetuned": [{"lr": few, "finetune_lr": [0.02, 0.1]}],
        "replay": [{"lr": lr}],
        "icarl": [{"lr": icarl}],
        "agem": [{"lr": lr}],
        "gem": [{"lr": few, "memory_strength": [0.0, 0.5]}],
        "der": [{"lr": few, "alpha": [0.1, 0.5]}],
        "der++": [{"lr": few, "alpha": [0.1, 0.5], "beta": [0.5]}],
        "mas": [{"lr": few, "strength": [0.01, 0.1]}],
        "si": [{"lr": few, "strength": [0.01, 0.1]}],
        "packnet": [{"lr": few, "post_prune_share": [0.2, 0.4]}],
    }


def _joined(*parts: dict[str, list[Grid]]) -> dict[str, list[Grid]]:
    """The grids of each method, one part after the other."""
    return {name: [grid for part in parts for grid in part.get(name, [])] for name in parts[0]}


def _with_schedule(grids: dict[str, list[Grid]], last_epochs: int = 1) -> dict[str, list[Grid]]:
    """The same with the schedule that DLCPA has."""
    schedule: Grid = {"last_epochs": [last_epochs]}
    return {name: [{**grid, **schedule} for grid in of_method] for name, of_method in grids.items()}


def _a_head_a_task(grids: dict[str, list[Grid]]) -> dict[str, list[Grid]]:
    """Naive, EWC and LwF are tried with a head a task as with one head."""
    return {f"{name}-heads": grids[name] for name in ("naive", "ewc", "lwf")}


def _lab_dlcpa(queue_size: int) -> dict[str, list[Grid]]:
    return _joined(
        _dlcpa(queue_size, lr=[0.01, 0.02], classifier_lr=[0.05, 0.1]),
        _dlcpa(queue_size, lr=[0.005], classifier_lr=[0.05, 0.1]),
        _dlcpa(queue_size, lr=[0.01], classifier_lr=[0.02, 0.2]),
    )


def _rates(lr: list[float], classifier_lr: list[float]) -> Grid:
    return {"lr": lr, "classifier_lr": classifier_lr}


_LOWER = [
    _rates([0.002, 0.003], [0.05, 0.1]),
    _rates([0.003, 0.005], [0.02, 0.2]),
]
_HIGHER = [
    _rates([0.03, 0.05], [0.05, 0.1]),
    _rates([0.02, 0.03], [0.02, 0.2]),
]
_LOWER_CLASSIFIER = [
    _rates([0.005, 0.01, 0.02], [0.005, 0.01]),
    _rates([0.005, 0.02], [0.02]),
]
_HIGHER_CLASSIFIER = [
    _rates([0.005, 0.01, 0.02], [0.3, 0.5]),
    _rates([0.005, 0.02], [0.2]),
]
_BEYOND = {
    "a": _LOWER,
    "b": _HIGHER_CLASSIFIER,
    "c": _HIGHER,
    "d": _LOWER_CLASSIFIER,
    "e": _LOWER,
    "mocov2": _LOWER,
    "byol": _LOWER_CLASSIFIER,
    "simclr": _HIGHER,
}


def _lab_dlcpa_beyond(queue_size: int) -> dict[str, list[Grid]]:
    """Beyond the edge on which the best of `_lab_dlcpa` lay."""
    return {
        f"dlcpa-{name}": [
            {**grid, "queue_size": [queue_size]} if name in _WITH_QUEUE else grid for grid in grids
        ]
        for name, grids in _BEYOND.items()
    }


_RATES = [0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.14, 0.2]
_EWC: Grid = {"lr": [0.05, 0.1], "strength": [0.001, 0.01, 0.1, 1.0]}
_LWF: Grid = {"lr": [0.02, 0.05], "strength": [1.0, 3.0, 10.0, 30.0]}
_LAB = {
    **{
        name: [{"lr": _RATES}]
        for name in (
            "stl",
            "stl-me",
            "joint",
            "cumulative",
            "replay",
            "agem",
            "naive",
            "naive-heads",
        )
    },
    "stl-me-finetuned": [
        {"lr": [0.03, 0.1], "finetune_lr": [0.02, 0.1]},
        {"lr": [0.05, 0.2], "finetune_lr": [0.02, 0.05]},
        {"lr": [0.03, 0.05, 0.07], "finetune_lr": [0.005, 0.01]},
        {"lr": [0.07], "finetune_lr": [0.02, 0.05]},
    ],
    "gem": [
        {"lr": [0.02, 0.03, 0.05, 0.1], "memory_strength": [0.0, 0.5]},
        {"lr": [0.05, 0.1, 0.2], "memory_strength": [1.0, 2.0]},
        {"lr": [0.14, 0.2], "memory_strength": [0.5]},
    ],
    "der": [
        {"lr": [0.02, 0.05], "alpha": [0.03, 0.1, 0.2, 0.5]},
        {"lr": [0.05, 0.07, 0.1], "alpha": [1.0, 2.0]},
        {"lr": [0.07, 0.1], "alpha": [0.5]},
    ],
    "der++": [
        {"lr": [0.02, 0.05], "alpha": [0.1], "beta": [0.5, 1.0, 2.0, 4.0]},
        {"lr": [0.07, 0.1], "alpha": [0.1], "beta": [0.5, 1.0, 2.0]},
        {"lr": [0.05], "alpha": [0.05, 0.2], "beta": [1.0]},
    ],
    "icarl": [{"lr": [1.0, 2.0, 3.0, 5.0, 7.0, 10.0, 14.0, 20.0]}],
    "mas": [
        _EWC,
        {"lr": [0.03, 0.05, 0.07], "strength": [0.0001, 0.0003]},
        {"lr": [0.03, 0.07], "strength": [0.001]},
    ],
    "si": [
        _EWC,
        {"lr": [0.1, 0.14, 0.2], "strength": [10.0, 100.0]},
        {"lr": [0.14, 0.2], "strength": [0.01]},
    ],
    "ewc-heads": [_EWC],
    "ewc": [
        _EWC,
        {"lr": [0.03, 0.07], "strength": [0.001, 0.01, 0.1]},
        {"lr": [0.05], "strength": [0.0001, 10.0]},
    ],
    "lwf-heads": [_LWF],
    "lwf": [
        _LWF,
        {"lr": [0.07, 0.1], "strength": [1.0, 3.0, 10.0]},
        {"lr": [0.05, 0.07], "strength": [0.3]},
    ],
    "packnet": [
        {"lr": [0.03, 0.05, 0.1, 0.2], "post_prune_share": [0.2, 0.4]},
        {"lr": [0.07, 0.1, 0.14], "post_prune_share": [0.1, 0.3]},
        {"lr": [0.07, 0.14], "post_prune_share": [0.2]},
    ],
}

_DIGITS: dict[str, list[Grid]] = {
    "naive": [{"lr": [0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1]}],
    "ewc": [{"lr": [0.003, 0.01, 0.03], "strength": [1e2, 1e4, 1e6]}],
    "lwf": [{"lr": [0.003, 0.01, 0.03], "strength": [1.0, 3.0, 10.0]}],
}
_PAPER = {
    **_dlcpa(65_536, lr=[0.005, 0.02], classifier_lr=[0.05, 0.2]),
    **_baselines([0.01, 0.03, 0.1, 0.2], few=[0.03, 0.1], icarl=[1.0, 3.0, 10.0, 20.0]),
    "naive": [{"lr": [0.01, 0.03, 0.1, 0.2]}],
    "ewc": [{"lr": [0.01, 0.03], "strength": [0.01, 1.0]}],
    "lwf": [{"lr": [0.01, 0.03], "strength": [1.0, 10.0]}],
    "mas": [{"lr": [0.03, 0.1], "strength": [0.001, 0.1]}],
    "si": [{"lr": [0.03, 0.1], "strength": [1.0, 100.0]}],
}
GRIDS: dict[str, dict[str, list[Grid]]] = {
    "digits": {
        **_with_schedule(
            {
                **_baselines(
                    [0.003, 0.01, 0.03, 0.1], few=[0.01, 0.03], icarl=[0.03, 0.1, 0.3, 1.0]
                ),
                **_DIGITS,
                **_a_head_a_task(_DIGITS),
            }
        ),
        **_dlcpa(1024, lr=[0.02, 0.05], classifier_lr=[0.05], supervised_weight=[3.0, 10.0]),
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
        **_with_schedule(
            {
                "naive": [{"lr": [0.02, 0.05, 0.1, 0.2]}],
                "ewc": [{"lr": [0.05, 0.1], "strength": [0.1, 1.0]}],
                "lwf": [{"lr": [0.02, 0.05], "strength": [3.0, 10.0]}],
            }
        ),
        "dlcpa-mocov2": [
            {"lr": [0.005, 0.01, 0.02], "classifier_lr": [0.05], "queue_size": [1024]},
            {"lr": [0.01], "classifier_lr": [0.1], "queue_size": [1024]},
        ],
        "dlcpa-a": [
            {"lr": [0.005, 0.01, 0.02], "classifier_lr": [0.05]},
            {"lr": [0.01], "classifier_lr": [0.1]},
        ],
    },
    "lab-cifar100-10": {
        **_with_schedule(_LAB),
        **_joined(_lab_dlcpa(1024), _lab_dlcpa_beyond(1024)),
    },
    "lab-cifar100-10-small-crops": {"dlcpa-mocov2": _lab_dlcpa(65_536)["dlcpa-mocov2"]},
    # At the scale of the paper, where nothing was published: for who has a GPU.
    **{
        name: _with_schedule(_PAPER, last_epochs)
        for name, last_epochs in (("cifar100-10", 1), ("tiny-10", 10))
    },
}
