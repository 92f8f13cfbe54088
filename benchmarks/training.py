"""The training of a cell: its strategy and stream, and what is found on the way."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from avalanche.core import SupervisedPlugin
from avalanche.evaluation import PluginMetric
from avalanche.evaluation.metrics import ConfusionMatrix
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.templates import SupervisedTemplate

from avalanche_dlcpa import SelfSupervisedLossPlugin
from avalanche_dlcpa.files import first_line
from avalanche_dlcpa.metrics import predicted_classes, scenario_metrics
from benchmarks.cells import Cell
from benchmarks.given_loss import take_loss
from benchmarks.hyperparameters import HyperparameterError
from benchmarks.judgement import expect_finite, summary_of
from benchmarks.memory import kept_bytes, peak_bytes
from benchmarks.methods import METHODS
from benchmarks.settings import SETTINGS, Setting

EVAL_BATCH_SIZE = 256
UNSUITABLE = (AssertionError, RuntimeError, TypeError, ValueError)  # what refuses a hyperparameter


def build_strategy(
    cell: Cell,
    setting: Setting,
    options: dict[str, Any],
    *,
    plugins: list[SupervisedPlugin],
    metrics: Iterable[PluginMetric[Any]] = (),
    device: str,
) -> SupervisedTemplate:
    """The strategy of a cell's method on a fresh network.

    Args:
        cell: Method and setting.
        setting: That of the cell, or what takes its place.
        options: Hyperparameters.
        plugins: Beside those of the method.
        metrics: To be kept.
        device: Where to train.

    Raises:
        HyperparameterError: One that the method does not have, or a value that does not suit.
    """
    method = METHODS[cell.method]
    network = setting.make_network(setting.num_classes)
    if method.channels_last:
        network = network.to(memory_format=torch.channels_last)
    try:
        return method.build(
            network,
            setting=setting,
            **options,
            **({"views": setting.make_views()} if method.draws_views else {}),
            train_mb_size=cell.batch_size,
            train_epochs=setting.epochs,
            eval_mb_size=EVAL_BATCH_SIZE,
            device=device,
            plugins=plugins,
            evaluator=EvaluationPlugin(*metrics, loggers=[Silent()]),
        )
    except UNSUITABLE as error:
        if isinstance(error, HyperparameterError):
            raise
        lacking = re.findall(r"'(\w+)'", str(error).partition("required keyword-only")[2])
        if lacking:
            raise HyperparameterError(
                f"Expected {cell.method} to be given {', '.join(lacking)}, got {options}: name "
                "what it lacks with --set; with --validation that is all."
            ) from error
        _, _, words = str(error).partition("keyword argument")
        alone = r"(?<![\w+-]){}(?![\w+-])"
        unknown = [n for n in options if re.search(alone.format(re.escape(n)), words)]
        if unknown:
            raise HyperparameterError(
                f"Expected hyperparameters that {cell.method} has, got {', '.join(unknown)}: "
                "`python -m benchmarks.hyperparameter_table` shows what it runs with."
            ) from error
        raise HyperparameterError(
            f"Expected hyperparameters that suit {cell.method}, got {options}: {first_line(error)}"
        ) from error


def _loss_of(
    options: dict[str, Any], setting: Setting, hyperparameters: dict[str, Any]
) -> list[SelfSupervisedLossPlugin]:
    """The self-supervised loss that a baseline is given, whose options are taken out."""
    try:
        return take_loss(options, setting)
    except UNSUITABLE as error:
        raise HyperparameterError(
            f"Expected options that suit the self-supervised loss, got {hyperparameters}: "
            f"{first_line(error)}"
        ) from error


def expect_buildable(cell: Cell) -> None:
    """Refuse hyperparameters that the cell's method does not have, or values that do not suit.

    Args:
        cell: Of a method, not an analysis.

    Raises:
        HyperparameterError: Names them.
    """
    hyperparameters, setting = cell.hyperparameters, SETTINGS[cell.setting]
    options = dict(hyperparameters)
    plugins = _loss_of(options, setting, hyperparameters)
    build_strategy(cell, setting, options, plugins=[*plugins], device="cpu")


class Training:
    """The training of a cell: a strategy, its stream, and what is found on the way.

    Args:
        cell: A method, not an analysis.
        hyperparameters: Of the cell.
        dataset_root: Folder of the data; None: Avalanche's default.
        device: Where to train.
    """

    def __init__(
        self,
        cell: Cell,
        hyperparameters: dict[str, Any],
        *,
        dataset_root: str | None,
        device: str,
    ):
        self.cell, self.device = cell, device
        self.method, setting = METHODS[cell.method], SETTINGS[cell.setting]
        options = dict(hyperparameters)
        self._stopwatch = Stopwatch()
        loss = _loss_of(options, setting, hyperparameters)
        plugins: list[SupervisedPlugin] = [self._stopwatch, *loss]
        stream = setting.make_stream(
            augment=not (self.method.draws_views or loss),
            validation_fraction=0.1 if cell.validation else 0.0,
            task_labels=self.method.needs_task_labels,
            dataset_root=dataset_root,
        )
        self._class_il, self._task_il = scenario_metrics()
        self._confusion = _Confusion(setting.num_classes)
        metrics = (self._class_il, self._task_il, self._confusion)
        self.strategy = build_strategy(
            cell, setting, options, plugins=plugins, metrics=metrics, device=device
        )
        self._judged_on = "valid_stream" if cell.validation else "test_stream"
        self.train_stream = stream.train_stream[: cell.num_experiences]
        self._judged = getattr(stream, self._judged_on)

    def steps(self) -> Iterator[int]:
        """Train and evaluate what was learned, step by step; yields how many experiences that is.

        Raises:
            NonFiniteLossError: The training diverged.
        """
        at_once = self.method.learns_at_once
        for step, experiences in enumerate([self.train_stream] if at_once else self.train_stream):
            learned = len(self.train_stream) if at_once else step + 1
            self.strategy.train(experiences, eval_streams=[])
            expect_finite(self.strategy, learned)
            self.strategy.eval(self._judged[:learned])
            yield learned

    def found(self) -> dict[str, Any]:
        """What a result holds of the experiences learned so far."""
        classes = [list(e.classes_in_this_experience) for e in self.train_stream]
        return {
            "judged_on": self._judged_on,
            "classes": classes,
            "class_il": {
                **summary_of(self._class_il.matrix(self._judged_on)),
                "confusion_matrix": self._confusion.counts(),
            },
            "task_il": summary_of(self._task_il.matrix(self._judged_on)),
            "training_seconds": self._stopwatch.seconds,
            "memory": {
                "kept_bytes": kept_bytes(self.strategy),
                "peak_bytes": peak_bytes(self.device),
                "keeps_samples": self.method.keeps_samples,
            },
        }


class _Confusion(PluginMetric[Any]):
    """Counts of (true class, predicted class) in Class-IL, of the last evaluation."""

    def __init__(self, num_classes: int):
        super().__init__()
        self._matrix = ConfusionMatrix(num_classes)

    def counts(self) -> list[list[int]]:
        """Rows: true class, columns: predicted class, by label."""
        return self._matrix.result().int().tolist()

    def before_eval(self, strategy: SupervisedTemplate) -> None:
        self._matrix.reset()

    def after_eval_iteration(self, strategy: SupervisedTemplate) -> None:
        predicted = predicted_classes(strategy.mb_output).cpu()  # it goes image by image
        self._matrix.update(strategy.mb_y.cpu(), predicted)

    def reset(self) -> None:
        """Nothing: it counts over a whole evaluation."""

    def result(self) -> None:
        """Nothing to log."""


class Stopwatch(SupervisedPlugin):
    """The seconds of training, also over several lives of a run, without writing its last word."""

    def __init__(self) -> None:
        super().__init__()
        self._before = 0.0
        self._start: float | None = None

    @property
    def seconds(self) -> float:
        """So far."""
        now = 0.0 if self._start is None else time.perf_counter() - self._start
        return self._before + now

    def before_training(self, strategy: Any, **kwargs: Any) -> None:
        """Start."""
        self._start = time.perf_counter()

    def after_training(self, strategy: Any, **kwargs: Any) -> None:
        """Stop."""
        self._before, self._start = self.seconds, None

    def state_dict(self) -> dict[str, float]:
        """For checkpoints."""
        return {"seconds": self.seconds}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Go on from those of an earlier life."""
        self._before = state["seconds"]
        self._start = None if self._start is None else time.perf_counter()


class Silent:
    """A logger that says nothing; Avalanche warns where there is none."""

    def log_metrics(self, values: Any) -> None:
        """Take the metric values."""
