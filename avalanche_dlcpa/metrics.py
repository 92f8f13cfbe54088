"""Evaluation (Sec. 4.1 of the paper): Task-IL and Class-IL from one pass, as Avalanche metrics.

Class-IL takes the largest of all outputs as the answer, Task-IL the largest among the classes of
the experience, so that a stream without task labels gives both: those that it was trained on, or
those of the evaluated data, where these have others. Where a stream carries task labels, the model
is told the task and answers for it alone: that is Task-IL, and Class-IL is NaN.
"""

import itertools
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from avalanche.evaluation import PluginMetric
from avalanche.evaluation.metric_results import MetricValue
from avalanche.evaluation.metric_utils import get_metric_name
from avalanche.training.supervised import JointTraining
from torch import Tensor

from avalanche_dlcpa.accuracy_matrix import (
    accuracy_matrix,
    average_incremental_accuracy,
    backward_transfer,
    final_accuracy,
    forgetting,
)
from avalanche_dlcpa.experiences import classes_of, task_labels_of
from avalanche_dlcpa.task_classifiers import TaskClassifiers

if TYPE_CHECKING:
    from avalanche.training.templates import SupervisedTemplate

__all__ = [
    "SUMMARY_NAMES",
    "ScenarioAccuracy",
    "class_il_metrics",
    "predicted_classes",
    "scenario_metrics",
    "task_il_metrics",
]

Scenario = Literal["class_il", "task_il"]

_PREFIXES: Mapping[str, str] = {"class_il": "ClassIL", "task_il": "TaskIL"}
_SUMMARIES: Mapping[str, Callable[[np.ndarray], float]] = {
    "ACC": final_accuracy,
    "AverageIncrementalACC": average_incremental_accuracy,
    "BWT": backward_transfer,
    "Forgetting": forgetting,
}
SUMMARY_NAMES = tuple(f"{prefix}_{name}" for prefix in _PREFIXES.values() for name in _SUMMARIES)


def predicted_classes(logits: Tensor, *, columns: Tensor | None = None) -> Tensor:
    """Class with the largest logit, among all classes (Class-IL) or some of them (Task-IL).

    Args:
        logits: Outputs of the model, shape (B, K).
        columns: The classes to choose from, shape (k,), int64, each below K. None means all.

    Returns:
        One class an image, shape (B,), int64; -1, no class, where an output is NaN.

    Example:
        >>> logits = torch.tensor([[3.0, 0.0, 1.0, 2.0]])
        >>> predicted_classes(logits)
        tensor([0])
        >>> predicted_classes(logits, columns=torch.tensor([2, 3]))
        tensor([3])
    """
    chosen = logits if columns is None else logits.index_select(1, columns)
    places = chosen.argmax(dim=1)
    classes = places if columns is None else columns[places]
    return torch.where(chosen.isnan().any(dim=1), -1, classes)


class ScenarioAccuracy(PluginMetric[float]):
    """Accuracy matrix of one scenario, with ACC, BWT and forgetting, for every evaluated stream.

    Emits `ClassIL_Acc_Exp/eval_phase/test_stream/Task000/Exp003` after each evaluated experience,
    and `ClassIL_ACC/eval_phase/test_stream` after each evaluation, with `AverageIncrementalACC`,
    `BWT` and `Forgetting` alike, all over the experiences learned so far; `TaskIL_...` likewise.
    A value that is missing or undefined is NaN:

    - Class-IL on a stream with task labels. Build it without them and both scenarios come out.
    - Task-IL of an experience none of whose classes was ever trained: a guess among the classes of
      a task is not a result. The first time this happens, there is a warning.
    - ACC, BWT, ... where an accuracy that they need was never evaluated.

    As the tasks that count become more with each experience, ACC and the others (`SUMMARY_NAMES`)
    are nothing for Avalanche's `EarlyStoppingPlugin` to watch.

    Experience i of an evaluated stream must hold test data for experience i of the training stream.
    Only Python numbers are kept, no data and no tensors.

    Args:
        scenario: "class_il" or "task_il".

    Raises:
        ValueError: If `scenario` is neither.

    Example::

        class_il, task_il = scenario_metrics()
        strategy = Naive(..., evaluator=EvaluationPlugin(class_il, task_il))
        for experience in benchmark.train_stream:
            strategy.train(experience)
            strategy.eval(benchmark.test_stream)
        task_il.matrix()  # (T, T)
    """

    def __init__(self, scenario: Scenario):
        super().__init__()
        if scenario not in _PREFIXES:
            raise ValueError(f"Expected `scenario` to be one of {[*_PREFIXES]}, got {scenario!r}.")
        self.scenario = scenario
        self._accuracies: dict[str, dict[tuple[int, int], float]] = {}
        self._learned: list[int] = []
        self._has_learned = False  # to the end, not broken off
        self._classes_trained: dict[int, set[tuple[int, int]]] = {}
        self._task_labelled: dict[str, bool] = {}
        self._evaluated_streams: list[str] = []
        self._warned = False
        self.reset()

    def __str__(self):
        return f"{_PREFIXES[self.scenario]}_Acc_Exp"

    @property
    def learned_experiences(self) -> list[int]:
        """Ids of the experiences in the order of learning; learned again means learned last."""
        return list(self._learned)

    def matrix(self, stream_name: str = "test_stream") -> np.ndarray:
        """Accuracy matrix R of one stream: R[i, j] is the accuracy on j after learning i.

        Args:
            stream_name: The stream as metric names show it, such as "test_stream".

        Returns:
            Fractions of shape (T, T), in the order of `learned_experiences` and, after them,
            experiences that were evaluated but not learned. NaN where nothing was evaluated.

        Raises:
            ValueError: If that stream was not evaluated since training began.
        """
        if stream_name not in self._accuracies:
            raise ValueError(
                f"Expected `stream_name` to be one of {[*self._accuracies]}, got {stream_name!r}; "
                "evaluate that stream after training an experience."
            )
        return accuracy_matrix(self._accuracies[stream_name], learned=self._learned)

    def reset(self) -> None:
        """Forget the counts of the experience under evaluation; the matrices stay."""
        self._num_correct: Tensor | int = 0
        self._num_seen = 0
        self._columns: Tensor | None = None
        self._is_defined = True

    def result(self) -> float:
        """Accuracy on the experience under evaluation so far, NaN where undefined."""
        if self._num_seen == 0:
            return float("nan")
        return int(self._num_correct) / self._num_seen

    def before_training_exp(self, strategy: "SupervisedTemplate") -> None:
        """Note what is learned now; accuracies from after an earlier time of learning it go.

        Raises:
            ValueError: The strategy has learned nothing yet, and the accuracies are another's.
        """
        self._expect_own(strategy)
        for experience in _experiences_in_training(strategy):
            learned = experience.current_experience
            self._learned = [other for other in self._learned if other != learned] + [learned]
            before = self._classes_trained.get(learned, set())
            self._classes_trained[learned] = before | _labelled_classes(experience)
            for stream_name, accuracies in self._accuracies.items():
                kept = {pair: value for pair, value in accuracies.items() if pair[0] != learned}
                self._accuracies[stream_name] = kept

    def after_training_exp(self, strategy: "SupervisedTemplate") -> None:
        """Note that an experience was learned to its end."""
        self._has_learned = True

    def _expect_own(self, strategy: "SupervisedTemplate") -> None:
        begins = strategy.clock.train_exp_counter == 0 and strategy.clock.train_iterations == 0
        others = set(self._learned) - {strategy.experience.current_experience}
        if begins and self._has_learned and others:
            raise ValueError(
                "Expected metrics of this strategy, which learns its first experience, got "
                f"{type(self).__name__} with those of another, which has learned {self._learned}: "
                "make new ones, such as scenario_metrics()."
            )

    def before_eval(self, strategy: "SupervisedTemplate") -> None:
        """Start a new pass."""
        self._evaluated_streams = []

    def before_eval_exp(self, strategy: "SupervisedTemplate") -> None:
        """Start counting, and find out whether there is anything to count."""
        self.reset()
        experience = strategy.experience
        if self.scenario == "class_il":
            self._is_defined = not self._has_task_labels(experience)
        else:
            known = _classes_of_classifiers(strategy.model).union(*self._classes_trained.values())
            self._is_defined = not known.isdisjoint(_labelled_classes(experience))
            self._warn_once_if_undefined(experience)

    def after_eval_iteration(self, strategy: "SupervisedTemplate") -> None:
        """Count the right answers of a mini-batch, on its device."""
        logits = strategy.mb_output
        if self.scenario == "task_il" and self._columns is None:
            # Multi-head outputs too: Avalanche pads them with zeros, above any negative logit.
            # Once an experience, as copying to the device in every mini-batch would stall it.
            inside = [k for k in self._classes_of_task(strategy) if k < logits.shape[1]]
            self._columns = torch.tensor(inside, dtype=torch.long, device=logits.device)
            self._is_defined = self._is_defined and bool(inside)
        if self._is_defined:
            predictions = predicted_classes(logits, columns=self._columns)
            self._num_correct = self._num_correct + (predictions == strategy.mb_y).sum()
            self._num_seen += len(predictions)

    def after_eval_exp(self, strategy: "SupervisedTemplate") -> list[MetricValue]:
        """Enter the accuracy in the matrix and emit it."""
        accuracy, experience = self.result(), strategy.experience
        self.reset()
        stream_name = _stream_name(experience)
        if stream_name not in self._evaluated_streams:
            self._evaluated_streams.append(stream_name)
        if self._learned:
            entries = self._accuracies.setdefault(stream_name, {})
            entries[self._learned[-1], experience.current_experience] = accuracy
        name = get_metric_name(self, strategy, add_experience=True)
        return [MetricValue(self, name, accuracy, strategy.clock.train_iterations)]

    def after_eval(self, strategy: "SupervisedTemplate") -> list[MetricValue]:
        """Emit ACC, average incremental accuracy, BWT and forgetting of the evaluated streams."""
        prefix, now = _PREFIXES[self.scenario], strategy.clock.train_iterations
        return [
            MetricValue(self, f"{prefix}_{name}/eval_phase/{stream_name}", value, now)
            for stream_name in self._evaluated_streams
            for name, value in self._summaries(stream_name).items()
        ]

    def _summaries(self, stream_name: str) -> dict[str, float]:
        """Each summary over the experiences learned so far; NaN before the first."""
        num_learned = len(self._learned)
        if num_learned == 0:
            return dict.fromkeys(_SUMMARIES, float("nan"))
        learned = self.matrix(stream_name)[:num_learned, :num_learned]
        return {name: summary(learned) for name, summary in _SUMMARIES.items()}

    def _classes_of_task(self, strategy: "SupervisedTemplate") -> list[int]:
        """Class labels of the experience: a small test set may lack some that it was trained on."""
        experience = strategy.experience
        tested = set(classes_of(experience))
        trained = {k for _, k in self._classes_trained.get(experience.current_experience, set())}
        # A stream from elsewhere may have other tasks under the same numbers.
        return sorted(trained if tested <= trained else tested)

    def _has_task_labels(self, experience: Any) -> bool:
        """Whether the stream of the experience tells tasks apart; looked up once a stream."""
        stream_name = _stream_name(experience)
        if stream_name not in self._task_labelled:
            self._task_labelled[stream_name] = _tells_tasks_apart(experience.origin_stream)
        return self._task_labelled[stream_name]

    def _warn_once_if_undefined(self, experience: Any) -> None:
        if self._is_defined or self._warned:
            return
        self._warned = True
        warnings.warn(
            f"Task-IL accuracy of experience {experience.current_experience} of "
            f"{_stream_name(experience)} is NaN: none of its classes has been trained yet. "
            "This is said once; evaluate `test_stream[: i + 1]` to leave such experiences out.",
            stacklevel=2,
        )


def class_il_metrics() -> list[ScenarioAccuracy]:
    """The Class-IL metric alone, as a list for `EvaluationPlugin`."""
    return scenario_metrics(task_il=False)


def task_il_metrics() -> list[ScenarioAccuracy]:
    """The Task-IL metric alone, as a list for `EvaluationPlugin`."""
    return scenario_metrics(class_il=False)


def scenario_metrics(*, class_il: bool = True, task_il: bool = True) -> list[ScenarioAccuracy]:
    """Metrics of both scenarios, or of one, from the same evaluation pass.

    Args:
        class_il: Whether to include Class-IL.
        task_il: Whether to include Task-IL.

    Returns:
        The metrics for `EvaluationPlugin`, Class-IL first.

    Example:
        >>> [metric.scenario for metric in scenario_metrics()]
        ['class_il', 'task_il']
    """
    wanted: dict[Scenario, bool] = {"class_il": class_il, "task_il": task_il}
    return [ScenarioAccuracy(scenario) for scenario, is_wanted in wanted.items() if is_wanted]


def _stream_name(experience: Any) -> str:
    # As in Avalanche's metric names and benchmark attributes: "test" is `test_stream`.
    return f"{experience.origin_stream.name}_stream"


def _labelled_classes(experience: Any) -> set[tuple[int, int]]:
    """Pairs (task label, class): labels that restart in each task name other classes there."""
    pairs = itertools.product(task_labels_of(experience), classes_of(experience))
    return set(pairs)


def _classes_of_classifiers(model: Any) -> set[tuple[int, int]]:
    """Those that a model of this package knows, also from a file that it goes on from."""
    classifiers = getattr(model, "classifiers", None)
    return set(classifiers.keys) if isinstance(classifiers, TaskClassifiers) else set()


def _tells_tasks_apart(stream: Any) -> bool:
    # A slice may hold a single task, so ask the whole stream; new-style streams are always whole.
    benchmark = getattr(stream, "benchmark", None)
    whole = stream if benchmark is None else benchmark.streams[stream.name]
    labels = {label for experience in whole for label in task_labels_of(experience)}
    return len(labels) > 1


def _experiences_in_training(strategy: "SupervisedTemplate") -> list[Any]:
    if isinstance(strategy, JointTraining):
        # It announces its first experience only, but trains on all of them at once.
        return strategy._experiences
    # An online stream cuts an experience into small ones, each with a number of its own.
    return [getattr(strategy.experience, "origin_experience", strategy.experience)]
