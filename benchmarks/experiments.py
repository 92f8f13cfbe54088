"""The paper's tables and figures: which cells each of them needs.

    python -m benchmarks.compare table4 --scale lab --seeds 0 1 --out results

A table has a column for each of its settings and measures; our numbers come from the results,
the published ones from ``published.csv``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from benchmarks.analyses import ANALYSES
from benchmarks.cells import Cell, grid
from benchmarks.methods import METHODS
from benchmarks.names import expect_known
from benchmarks.settings import ORDERS, at_scale

SCENARIOS = {"class_il": "Class-IL", "task_il": "Task-IL"}


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        setting: At paper scale.
        scenario: "class_il" or "task_il".
        measure: "ACC" or "BWT".
    """

    setting: str
    scenario: str
    measure: str = "ACC"


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper.

    Attributes:
        title: For pages.
        settings: At paper scale.
        methods: In the order of the rows.
        columns: Of a table; a figure has none.
        changes: Hyperparameters that vary, on top of the chosen ones.
        marks_second: Whether the second best of a column is marked, too, as in most of the
            paper's tables.
    """

    title: str
    settings: tuple[str, ...]
    methods: tuple[str, ...]
    columns: tuple[Column, ...] = ()
    changes: tuple[dict[str, Any], ...] = ({},)
    marks_second: bool = True

    @property
    def has_row_a_setting(self) -> bool:
        """Whether one method is compared over settings, not methods in each."""
        return len(self.methods) * len(self.changes) == 1 < len(self.settings)

    def cells(
        self, scale: str, seeds: Iterable[int], methods: Iterable[str] | None = None
    ) -> list[Cell]:
        """What has to be run.

        Args:
            scale: "paper", "lab" or "digits".
            seeds: Of the runs.
            methods: Only these of its methods; None: all.

        Raises:
            ValueError: A method that it does not have.
        """
        chosen = [expect_known("method", name, self.methods) for name in methods or self.methods]
        settings = [at_scale(setting, scale) for setting in self.settings]
        return grid(chosen, settings, seeds, self.changes)


def _columns(
    settings: Iterable[str], scenarios: Iterable[str], measures: Iterable[str] = ("ACC",)
) -> tuple[Column, ...]:
    measures = tuple(measures)
    pairs = [(setting, scenario) for setting in settings for scenario in scenarios]
    return tuple(Column(*pair, measure) for pair in pairs for measure in measures)


def _table(
    title: str,
    settings: tuple[str, ...],
    methods: tuple[str, ...],
    *,
    scenarios: tuple[str, ...] = ("class_il", "task_il"),
    measures: tuple[str, ...] = ("ACC",),
    marks_second: bool = True,
) -> Experiment:
    columns = _columns(settings, scenarios, measures)
    return Experiment(title, settings, methods, columns, marks_second=marks_second)


_STL = ("stl", "stl-me", "stl-me-finetuned")
_BUFFER = ("gem", "agem", "der", "der++", "replay", "icarl")
_EXEMPLAR_FREE = ("naive", "ewc", "lwf", "mas", "si")
_DLCPA = ("dlcpa-byol", "dlcpa-simclr", "dlcpa-mocov2")
_OTHER_HEADS = ("dlcpa-vicreg", "dlcpa-barlow", "dlcpa-simsiam", "dlcpa-nnclr")
_ABLATIONS = ("dlcpa-a", "dlcpa-b", "dlcpa-c", "dlcpa-d", "dlcpa-e")

EXPERIMENTS = {
    "table1": _table(
        "STL and its variants", ("mnist-5", "cifar100-10"), _STL,
        scenarios=("task_il",),
    ),
    "table2": _table(
        "Task incremental learning",
        ("cifar100-10", "cifar100-20", "tiny-25"),
        ("stl", *_BUFFER[:-1], *_EXEMPLAR_FREE, "packnet", *_DLCPA),
        scenarios=("task_il",), measures=("ACC", "BWT"),
    ),
    "table3": _table(
        "Class incremental learning", ("cifar100-10", "tiny-10"),
        ("joint", "cumulative", *_BUFFER, *_EXEMPLAR_FREE, *_DLCPA), scenarios=("class_il",),
    ),
    "table4": _table(
        "Ablations", ("cifar100-10", "tiny-10"), (*_ABLATIONS, "dlcpa-mocov2"),
        marks_second=False,
    ),
    "table7": _table(
        "Class incremental learning with 5, 10 and 20 tasks",
        ("cifar100-5", "cifar100-10", "cifar100-20"), ("naive", "ewc", "lwf", "dlcpa-mocov2"),
        scenarios=("class_il",),
    ),
    "table8": _table(
        "Methods with masks", ("tiny-10",), ("packnet", "dlcpa-mocov2"), marks_second=False,
    ),
    "table9": _table(
        "ResNet-34", ("cifar100-10-resnet34", "tiny-10-resnet34"),
        ("der++", "dlcpa-mocov2"), marks_second=False,
    ),
    "table10": _table(
        "Five orders of the tasks",
        tuple(f"cifar100-10-order{n}" for n in ORDERS), ("dlcpa-mocov2",),
    ),
    "heads": _table(
        "DLCPA with every self-supervised head", ("cifar100-10",),
        ("dlcpa-a", *_OTHER_HEADS, *_DLCPA),
    ),
    "ssl-baselines": dataclasses.replace(
        _table(
            "Baselines with the self-supervised loss of DLCPA", ("cifar100-10",),
            ("naive", "ewc", "lwf"),
        ),
        changes=({}, {"ssl": "mocov2"}),
    ),
    "lambda": Experiment(
        "Sensitivity to the weight of the supervised loss",
        ("cifar100-10", "tiny-10"), ("dlcpa-mocov2",),
        changes=tuple({"supervised_weight": x} for x in (0.0, 0.1, 1.0, 10.0, 100.0, 1000.0)),
    ),
    "over-time": Experiment(
        "Accuracy of each task over time", ("tiny-10",), ("der++", "dlcpa-mocov2")
    ),
    "confusion": Experiment(
        "Confusion matrices", ("cifar100-10",), ("der++", "dlcpa-mocov2")
    ),
    "linear-probe": Experiment(
        "Linear probes of the extractors of STL and STL-me", ("cifar100-10",),
        ("linear-probe",),
    ),
    "loss-surface": Experiment(
        "Loss over the plane of two tasks' extractors", ("cifar100-10",),
        ("loss-surface",),
        # the loss brings its views, which take the place of the augmentation: so these alone, too
        changes=({}, {"ssl": "mocov2", "ssl_weight": 0.0}, {"ssl": "mocov2"}),
    ),
}  # fmt: skip

# The grid that the README shows: all exemplar-free methods, those with a buffer that the paper has,
# the upper bounds and the ablations.
EXPERIMENTS["grid"] = _table(
    "All methods", ("cifar100-10",),
    (*_STL, "joint", "gem", "der++", "naive", "ewc", "lwf", *_ABLATIONS, *_DLCPA),
    measures=("ACC", "BWT"),
)  # fmt: skip


def title_of(method: str, changes: dict[str, Any] | None = None) -> str:
    """How tables and figures call a method."""
    title = METHODS[method].title if method in METHODS else ANALYSES[method].title
    return ", ".join([title, *(in_words(*pair) for pair in (changes or {}).items())])


def in_words(name: str, value: Any) -> str:
    """How tables and figures write a hyperparameter.

    Example:
        >>> in_words("lr", 0.10), in_words("precision", "bf16")
        ('lr 0.1', 'precision bf16')
    """
    return f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
