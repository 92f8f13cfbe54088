import io
import math
import pickle
import warnings

import dill
import numpy as np
import pytest
import torch
from avalanche.benchmarks import (
    benchmark_from_datasets,
    class_incremental_benchmark,
    nc_benchmark,
    task_incremental_benchmark,
    tensors_benchmark,
)
from avalanche.benchmarks.scenarios.online import split_online_stream
from avalanche.benchmarks.utils import as_classification_dataset
from avalanche.core import SupervisedPlugin
from avalanche.logging import CSVLogger, InteractiveLogger, TensorboardLogger, TextLogger
from avalanche.models import IncrementalClassifier, MTSimpleMLP, MultiTaskModule
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.supervised import JointTraining, Naive
from sklearn.metrics import accuracy_score
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, TensorDataset

from avalanche_dlcpa.metrics import (
    ScenarioAccuracy,
    class_il_metrics,
    predicted_classes,
    scenario_metrics,
    task_il_metrics,
)

quiet = pytest.mark.filterwarnings("ignore:Task-IL accuracy of experience")
NAN = float("nan")
NUM_TASKS, NUM_CLASSES = 4, 8

# Test accuracies by script, row 0 before training. ACC 0.725, BWT -0.7/3, forgetting 0.8/3.
TEST = np.array([[1, 2, 3, 1], [9, 2, 1, 3], [7, 8, 2, 1], [6, 9, 10, 4], [5, 7, 8, 9]]) / 10
# Another course for another stream: BWT = ((.6-.8) + (.7-.7) + (.5-.6)) / 3 = -0.1.
VALID = np.array([[1, 1, 1, 1], [8, 0, 0, 0], [7, 7, 0, 0], [7, 6, 6, 0], [6, 7, 5, 4]]) / 10
# Task-IL accuracies, at least the Class-IL ones.
TASK_IL = np.minimum(1, TEST + 0.1)


@pytest.fixture(autouse=True)
def _one_thread():
    # The tensors are tiny: a second thread only waits, 30 times as long where cores are shared.
    torch.set_num_threads(1)


class ScriptedModel(nn.Module):
    """Class-IL and Task-IL accuracy follow tables; sample n of N is right if n/N is below."""

    def __init__(self):
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))
        tables = np.array([[TEST, TASK_IL], [VALID, VALID]])  # stream, scenario, row, task
        self.tables = torch.tensor(tables, dtype=torch.float32)
        self.row = 0

    def forward(self, x):
        task, position, y, stream = x.T
        y, stream = y.long(), stream.long()
        class_il, task_il = self.tables[stream, :, self.row, task.long()].T - 1e-4
        elsewhere, sibling = (y + 2) % NUM_CLASSES, y ^ 1  # the tasks are (0, 1), (2, 3), ...
        largest = torch.where(position < class_il, y, elsewhere)
        largest_of_task = torch.where(position < task_il, y, sibling)
        one_hot = nn.functional.one_hot
        return 3.0 * one_hot(largest, 8) + one_hot(largest_of_task, 8) + 0 * self.unused


class NextRow(SupervisedPlugin):
    def before_training_exp(self, strategy, **kwargs):
        strategy.model.row += 1


def scripted_benchmark(sizes=(20, 20, 20, 20)):
    def experiences(stream):
        for task, size in enumerate(sizes):
            n = torch.arange(size)
            y = n % 2 + 2 * task
            same = torch.ones(size)
            yield torch.stack([task * same, n / size, y.float(), stream * same], dim=1), y

    test = list(experiences(0))
    return tensors_benchmark(
        test, test, other_streams_tensors={"valid": list(experiences(1))}, task_labels=[0] * 4
    )


def make_strategy(model, *metrics, strategy_class=Naive, lr=0.1, **kwargs):
    loggers = kwargs.pop("loggers", None)
    return strategy_class(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=lr),
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=10,
        eval_mb_size=7,
        evaluator=EvaluationPlugin(*metrics, loggers=loggers),
        **kwargs,
    )


def scripted(**kwargs):
    metrics = scenario_metrics()
    strategy = make_strategy(ScriptedModel(), *metrics, plugins=[NextRow()], **kwargs)
    return scripted_benchmark(), strategy, *metrics


def same(actual, expected):
    np.testing.assert_allclose(actual, expected, atol=1e-9)
    return True


def trained_only(table):
    """Task-IL: NaN for a task that was not trained."""
    return np.where(np.tri(len(table), dtype=bool), table, np.nan)


def random_data(num_samples=240, seed=0):
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(num_samples) % NUM_CLASSES
    dataset = TensorDataset(torch.randn(num_samples, 5, generator=generator), y)
    dataset.targets = y.tolist()
    return dataset


# --- the scripted case: every way of calling Avalanche gives the same matrix ------------------


@quiet
def test_evaluation_after_each_experience():
    benchmark, strategy, class_il, task_il = scripted()
    emitted = []
    for experience in benchmark.train_stream:
        strategy.train(experience)
        emitted.append(strategy.eval(benchmark.test_stream))
    assert same(class_il.matrix(), TEST[1:])
    assert same(task_il.matrix("test_stream"), trained_only(TASK_IL[1:]))
    assert class_il.learned_experiences == [0, 1, 2, 3]
    assert class_il.matrix()[0, 0] == 0.9  # 18 of 20 as Python divides, not in single precision

    name = "{}/eval_phase/test_stream".format
    acc, bwt = [0.9, 0.75, 2.5 / 3, 0.725], [NAN, -0.2, -0.1, -0.7 / 3]
    assert same([values[name("ClassIL_ACC")] for values in emitted], acc)
    assert same([values[name("ClassIL_BWT")] for values in emitted], bwt)
    assert same(emitted[-1][name("ClassIL_Forgetting")], 0.8 / 3)
    assert same(emitted[-1][name("ClassIL_AverageIncrementalACC")], np.mean(acc))
    assert same(emitted[-1][name("TaskIL_ACC")], TASK_IL[4].mean())
    assert same(emitted[2]["ClassIL_Acc_Exp/eval_phase/test_stream/Task000/Exp003"], 0.4)
    assert math.isnan(emitted[2]["TaskIL_Acc_Exp/eval_phase/test_stream/Task000/Exp003"])
    assert len(emitted[-1]) == 2 * (NUM_TASKS + 4)
    assert all(isinstance(value, float) for value in emitted[-1].values())


@quiet
@pytest.mark.parametrize("eval_every", [0, 1])
@pytest.mark.parametrize("in_one_call", [True, False])
def test_periodic_evaluation_enters_the_row_of_the_experience_in_training(eval_every, in_one_call):
    benchmark, strategy, class_il, task_il = scripted(eval_every=eval_every, train_epochs=2)
    calls = [benchmark.train_stream] if in_one_call else benchmark.train_stream
    for experiences in calls:
        strategy.train(experiences, eval_streams=[benchmark.test_stream])
    # The initial evaluation (row 0 of the script) is not in the matrix.
    assert same(class_il.matrix(), TEST[1:])
    assert same(task_il.matrix(), trained_only(TASK_IL[1:]))


@quiet
@pytest.mark.parametrize(
    "order", [("valid_stream", "test_stream"), ("test_stream", "valid_stream")]
)
def test_two_streams_do_not_disturb_each_other(order):
    benchmark, strategy, class_il, _ = scripted(eval_every=0)
    streams = [getattr(benchmark, name) for name in order]
    values = strategy.train(benchmark.train_stream, eval_streams=streams)
    assert same(class_il.matrix("test_stream"), TEST[1:])
    assert same(class_il.matrix("valid_stream"), VALID[1:])
    assert same(values["ClassIL_BWT/eval_phase/test_stream"], -0.7 / 3)
    assert same(values["ClassIL_BWT/eval_phase/valid_stream"], -0.1)
    # One pass over experiences of both streams reports both.
    both = [benchmark.valid_stream[0], benchmark.test_stream[0]]
    strategy.evaluator.reset_last_metrics()
    assert {name for name in strategy.eval(both) if name.startswith("ClassIL_ACC")} == {
        "ClassIL_ACC/eval_phase/test_stream",
        "ClassIL_ACC/eval_phase/valid_stream",
    }


def test_evaluation_only_at_the_end_gives_acc_and_nan_for_what_is_missing():
    benchmark, strategy, class_il, task_il = scripted()
    strategy.train(benchmark.train_stream)
    values = strategy.eval(benchmark.test_stream)
    for metric, table in ((class_il, TEST), (task_il, TASK_IL)):
        assert same(metric.matrix(), np.vstack([np.full((3, 4), np.nan), table[4]]))
    assert same(values["ClassIL_ACC/eval_phase/test_stream"], 0.725)
    for name in ("BWT", "Forgetting", "AverageIncrementalACC"):
        assert math.isnan(values[f"ClassIL_{name}/eval_phase/test_stream"])


@quiet
def test_no_stale_number_stays_after_a_pass_with_gaps():
    benchmark, strategy, class_il, _ = scripted()
    for experience in benchmark.train_stream[:3]:
        strategy.train(experience)
        values = strategy.eval(benchmark.test_stream[:3])
    assert same(values["ClassIL_BWT/eval_phase/test_stream"], -0.1)
    strategy.train(benchmark.train_stream[3])
    values = strategy.eval(benchmark.test_stream[0:1])
    assert math.isnan(values["ClassIL_BWT/eval_phase/test_stream"])
    assert math.isnan(values["ClassIL_ACC/eval_phase/test_stream"])
    assert same(class_il.matrix()[3], [0.5, NAN, NAN, NAN])


@quiet
def test_a_later_pass_over_a_slice_changes_nothing_else():
    benchmark, strategy, class_il, _ = scripted()
    for experience in benchmark.train_stream:
        strategy.train(experience)
        strategy.eval(benchmark.test_stream)
    values = strategy.eval(benchmark.test_stream[0:1])
    assert same(class_il.matrix(), TEST[1:])
    assert same(values["ClassIL_BWT/eval_phase/test_stream"], -0.7 / 3)


def test_streams_may_be_partial():
    benchmark, strategy, class_il, task_il = scripted()
    for i, experience in enumerate(benchmark.train_stream[:3]):
        strategy.train(experience)
        values = strategy.eval(benchmark.test_stream[: i + 1])
    assert same(class_il.matrix(), trained_only(TEST[1:4, :3]))
    assert same(task_il.matrix(), trained_only(TASK_IL[1:4, :3]))
    assert same(values["ClassIL_ACC/eval_phase/test_stream"], 2.5 / 3)


@quiet
def test_rows_of_experiences_that_were_never_trained_are_nan():
    benchmark, strategy, class_il, _ = scripted()
    for experience in benchmark.train_stream[:3]:
        strategy.train(experience)
        values = strategy.eval(benchmark.test_stream)
    assert same(class_il.matrix(), np.vstack([TEST[1:4], np.full((1, 4), np.nan)]))
    assert same(values["ClassIL_ACC/eval_phase/test_stream"], 2.5 / 3)
    assert same(values["ClassIL_BWT/eval_phase/test_stream"], -0.1)


def test_evaluation_before_training_is_reported_but_not_in_the_matrix():
    benchmark, strategy, class_il, task_il = scripted()
    with pytest.warns(UserWarning, match="experience 0 of test_stream is NaN: none of its classes"):
        values = strategy.eval(benchmark.test_stream)
    assert same(values["ClassIL_Acc_Exp/eval_phase/test_stream/Task000/Exp002"], 0.3)
    assert math.isnan(values["ClassIL_ACC/eval_phase/test_stream"])
    for metric in (class_il, task_il):
        with pytest.raises(ValueError, match=r"to be one of \[\], got 'test_stream'; evaluate"):
            metric.matrix()
    strategy.train(benchmark.train_stream[0])
    strategy.eval(benchmark.test_stream[:1])
    assert same(class_il.matrix(), [[0.9]])


class Interrupt(SupervisedPlugin):
    is_armed = True

    def after_eval_iteration(self, strategy, **kwargs):
        if self.is_armed and strategy.experience.current_experience == 1:
            raise KeyboardInterrupt


def test_an_interrupted_evaluation_leaves_nothing_behind():
    benchmark, strategy, class_il, task_il = scripted()
    strategy.train(benchmark.train_stream)
    # After the evaluator, which has counted the mini-batch by then.
    strategy.plugins.append(interrupt := Interrupt())
    with pytest.raises(KeyboardInterrupt):
        strategy.eval(benchmark.test_stream)
    interrupt.is_armed = False
    strategy.eval(benchmark.test_stream[2:3])
    assert same(class_il.matrix()[3], [0.5, NAN, 0.8, NAN])
    assert same(task_il.matrix()[3], [0.6, NAN, 0.9, NAN])


def test_unknown_stream_is_refused():
    benchmark, strategy, class_il, _ = scripted()
    strategy.train(benchmark.train_stream[0])
    strategy.eval(benchmark.test_stream[:1])
    with pytest.raises(ValueError, match=r"one of \['test_stream'\], got 'test'"):
        class_il.matrix("test")


@quiet
def test_the_matrix_follows_the_order_of_learning():
    benchmark, strategy, class_il, task_il = scripted()
    order = [2, 0, 1]
    for i in order:
        strategy.train(benchmark.train_stream[i])
        strategy.eval(benchmark.test_stream)
    assert class_il.learned_experiences == order
    rows = np.vstack([TEST[1:4, [*order, 3]], np.full((1, 4), np.nan)])
    assert same(class_il.matrix(), rows)
    assert same(task_il.matrix()[:3, :3], trained_only(TASK_IL[1:4, order]))


@quiet
def test_an_experience_learned_again_counts_as_learned_last():
    benchmark, strategy, class_il, _ = scripted()
    for i in (0, 1, 0):
        strategy.train(benchmark.train_stream[i])
        strategy.eval(benchmark.test_stream[:2])
    assert class_il.learned_experiences == [1, 0]
    # Rows 2 and 3 of the script; the row of the first time of experience 0 is gone.
    assert same(class_il.matrix(), [[0.8, 0.7], [0.9, 0.6]])
    strategy.train(benchmark.train_stream[1])
    assert same(class_il.matrix(), [[0.6, 0.9], [NAN, NAN]])


@quiet
def test_metrics_of_another_strategy_are_refused_before_anything_is_trained():
    benchmark, strategy, *metrics = scripted()
    strategy.train(benchmark.train_stream[:2])
    strategy.eval(benchmark.test_stream)
    again = make_strategy(ScriptedModel(), *metrics)
    with pytest.raises(ValueError, match=r"of another, which has learned \[0, 1\]: make new ones"):
        again.train(benchmark.train_stream[0])
    assert metrics[0].learned_experiences == [0, 1]
    strategy.train(benchmark.train_stream[0])  # its own go on


@quiet
def test_metrics_go_on_after_a_first_experience_that_was_broken_off():
    class Break(SupervisedPlugin):
        is_due = True

        def before_forward(self, strategy, **kwargs):
            if self.is_due:
                self.is_due = False
                raise KeyboardInterrupt

    metrics, benchmark = scenario_metrics(), scripted_benchmark()
    strategy = make_strategy(ScriptedModel(), *metrics, plugins=[Break()])
    with pytest.raises(KeyboardInterrupt):
        strategy.train(benchmark.train_stream[0])
    strategy.train(benchmark.train_stream[1])
    assert metrics[0].learned_experiences == [0, 1]


def test_acc_is_the_mean_over_experiences_not_over_samples():
    metrics = class_il_metrics()
    strategy = make_strategy(ScriptedModel(), *metrics, plugins=[NextRow()])
    benchmark = scripted_benchmark(sizes=(20, 40, 60, 80))
    strategy.train(benchmark.train_stream)
    values = strategy.eval(benchmark.test_stream)
    assert same(values["ClassIL_ACC/eval_phase/test_stream"], 0.725)


def test_joint_training_learns_all_experiences_at_once():
    metrics = scenario_metrics()
    strategy = make_strategy(
        ScriptedModel(), *metrics, plugins=[NextRow()], strategy_class=JointTraining
    )
    benchmark = scripted_benchmark()
    strategy.train(benchmark.train_stream)
    values = strategy.eval(benchmark.test_stream)
    assert metrics[0].learned_experiences == [0, 1, 2, 3]
    assert same(values["ClassIL_ACC/eval_phase/test_stream"], TEST[1].mean())
    assert same(values["TaskIL_ACC/eval_phase/test_stream"], TASK_IL[1].mean())
    assert math.isnan(values["ClassIL_BWT/eval_phase/test_stream"])


@quiet
def test_online_streams_belong_to_their_experiences():
    benchmark, strategy, class_il, task_il = scripted()
    strategy.plugins.remove(next(p for p in strategy.plugins if isinstance(p, NextRow)))
    for row, experience in enumerate(benchmark.train_stream, start=1):
        strategy.model.row = row
        online = split_online_stream([experience], experience_size=5, seed=0)
        strategy.train(online, eval_streams=[])
        strategy.eval(benchmark.test_stream)
    assert same(class_il.matrix(), TEST[1:])
    assert same(task_il.matrix(), trained_only(TASK_IL[1:]))


# --- real predictions against an independent computation ---------------------------------------


def numpy_accuracy(model, experience, classes=None):
    x, y, *task = as_tensors(experience)
    with torch.no_grad():
        logits = model.eval()(x, *task[: isinstance(model, MultiTaskModule)]).numpy()
    if classes is not None:
        others = np.setdiff1d(np.arange(logits.shape[1]), list(classes))
        logits[:, others] = -np.inf
    return accuracy_score(y, logits.argmax(axis=1))


def as_tensors(experience):
    return next(iter(DataLoader(experience.dataset.eval(), batch_size=len(experience.dataset))))


def benchmark_of(kind):
    train, test = random_data(seed=0), random_data(seed=1)
    if kind == "nc_benchmark":
        return nc_benchmark(
            train, test, 4, task_labels=False, shuffle=False, fixed_class_order=ORDER
        )
    data = {name: as_classification_dataset(d) for name, d in (("train", train), ("test", test))}
    new = class_incremental_benchmark(data, class_order=ORDER, num_experiences=4)
    if kind == "class_incremental":
        return new
    # Without a class timeline, an experience has nothing but its targets.
    datasets = {name: [e.dataset for e in stream] for name, stream in new.streams.items()}
    return benchmark_from_datasets(**datasets)


ORDER = [3, 6, 0, 5, 1, 7, 2, 4]


@quiet
@pytest.mark.parametrize("kind", ["nc_benchmark", "class_incremental", "from_datasets"])
def test_naive_against_scikit_learn(kind):
    benchmark, metrics = benchmark_of(kind), scenario_metrics()
    torch.manual_seed(0)
    strategy = make_strategy(nn.Linear(5, NUM_CLASSES), *metrics, train_epochs=3)
    class_il, task_il = np.full((2, 4, 4), np.nan)
    for i, experience in enumerate(benchmark.train_stream):
        strategy.train(experience)
        values = strategy.eval(benchmark.test_stream)
        for j, tested in enumerate(benchmark.test_stream):
            class_il[i, j] = numpy_accuracy(strategy.model, tested)
            if j <= i:
                task_il[i, j] = numpy_accuracy(strategy.model, tested, ORDER[2 * j : 2 * j + 2])
    assert same(metrics[0].matrix(), class_il)
    assert same(metrics[1].matrix(), task_il)
    assert task_il[3].mean() > class_il[3].mean()  # so the test tells the scenarios apart
    task = "/Task000" if kind == "nc_benchmark" else ""
    assert f"TaskIL_Acc_Exp/eval_phase/test_stream{task}/Exp001" in values


@quiet
def test_a_growing_head_and_columns_it_does_not_have_yet():
    metrics = scenario_metrics()
    benchmark = benchmark_of("nc_benchmark")
    narrow = nn.Linear(5, 4)  # classes 4..7 have no column
    strategy = make_strategy(narrow, *metrics)
    strategy.criterion = lambda: strategy.mb_output.sum()
    strategy.train(benchmark.train_stream)
    strategy.eval(benchmark.test_stream)
    test = list(benchmark.test_stream)
    # The tasks are (3, 6), (0, 5), (1, 7), (2, 4): each keeps the one column below 4.
    expected = [
        numpy_accuracy(narrow, data, [k]) for data, k in zip(test, (3, 0, 1, 2), strict=True)
    ]
    assert same(metrics[1].matrix()[3], expected)

    growing = make_strategy(IncrementalClassifier(5, 2), *(metrics := scenario_metrics()))
    growing.train(benchmark.train_stream)
    growing.eval(benchmark.test_stream)
    pairs = zip(test, np.reshape(ORDER, (4, 2)), strict=True)
    expected = [numpy_accuracy(growing.model, data, pair) for data, pair in pairs]
    assert same(metrics[1].matrix()[3], expected)


def test_task_il_is_nan_where_no_column_is_left():
    metrics = scenario_metrics()
    train, test = random_data(), random_data(seed=1)
    benchmark = nc_benchmark(train, test, 4, task_labels=False, fixed_class_order=range(8))
    strategy = make_strategy(nn.Linear(5, 4), *metrics)
    strategy.criterion = lambda: strategy.mb_output.sum()
    strategy.train(benchmark.train_stream)
    strategy.eval(benchmark.test_stream)
    assert np.isnan(metrics[1].matrix()[3]).tolist() == [False, False, True, True]
    assert metrics[0].matrix()[3, 2:].tolist() == [0, 0]


@quiet
@pytest.mark.parametrize("together", [False, True])
def test_task_il_counts_classes_that_the_test_data_lack(together):
    x, y = random_data().tensors
    train = [(x[y // 4 == task], y[y // 4 == task]) for task in (0, 1)]
    test = [(x[y == label], y[y == label]) for label in (1, 6)]
    benchmark = tensors_benchmark(train, test, task_labels=[0, 0])
    metrics = task_il_metrics()
    joint = JointTraining if together else Naive
    strategy = make_strategy(nn.Linear(5, NUM_CLASSES), *metrics, strategy_class=joint)
    strategy.train(benchmark.train_stream)
    strategy.eval(benchmark.test_stream)
    pairs = zip(benchmark.test_stream, (range(4), range(4, 8)), strict=True)
    expected = [numpy_accuracy(strategy.model, data, classes) for data, classes in pairs]
    assert max(expected) < 1
    assert same(metrics[0].matrix()[1], expected)
    swapped = tensors_benchmark(train, [train[1], train[0]], task_labels=[0, 0])
    strategy.eval(swapped.test_stream)
    pairs = zip(swapped.test_stream, (range(4, 8), range(4)), strict=True)
    expected = [numpy_accuracy(strategy.model, data, classes) for data, classes in pairs]
    assert same(metrics[0].matrix()[1], expected)


# --- streams with task labels -------------------------------------------------------------------


def task_labelled(restarting):
    return nc_benchmark(
        random_data(),
        random_data(seed=1),
        4,
        task_labels=True,
        fixed_class_order=range(8),
        class_ids_from_zero_in_each_exp=restarting,
    )


@quiet
@pytest.mark.parametrize("restarting", [False, True])
@pytest.mark.parametrize("slices", [False, True])
def test_task_labels_make_it_task_il(restarting, slices):
    benchmark, metrics = task_labelled(restarting), scenario_metrics()
    strategy = make_strategy(MTSimpleMLP(input_size=5, hidden_size=8), *metrics)
    expected = np.full((4, 4), np.nan)
    for i, experience in enumerate(benchmark.train_stream):
        strategy.train(experience)
        # A slice of one experience holds one task label, yet its stream tells tasks apart.
        for j in range(i + 1):
            strategy.eval(benchmark.test_stream[j : j + 1] if slices else benchmark.test_stream)
            # Avalanche pads the output of a head with zeros, above any negative logit.
            classes = [0, 1] if restarting else [2 * j, 2 * j + 1]
            expected[i, j] = numpy_accuracy(strategy.model, benchmark.test_stream[j], classes)
    class_il, task_il = (metric.matrix() for metric in metrics)
    assert same(task_il, expected)
    assert class_il.shape == (4, 4)
    assert np.isnan(class_il).all()


@quiet
def test_new_style_task_labels_make_it_task_il():
    data = {name: as_classification_dataset(random_data()) for name in ("train", "test")}
    new = class_incremental_benchmark(data, class_order=range(8), num_experiences=4)
    benchmark = task_incremental_benchmark(new)
    metrics = scenario_metrics()
    strategy = make_strategy(nn.Linear(5, NUM_CLASSES), *metrics)
    strategy.train(benchmark.train_stream)
    strategy.eval(benchmark.test_stream)
    # The model ignores the task label; choosing among the task's classes is Task-IL all the same.
    sets = [({2 * j, 2 * j + 1}, e) for j, e in enumerate(benchmark.test_stream)]
    expected = [numpy_accuracy(strategy.model, data, classes) for classes, data in sets]
    assert same(metrics[1].matrix()[3], expected)
    assert np.isnan(metrics[0].matrix()).all()


def test_one_task_label_is_no_task_label():
    metrics = class_il_metrics()
    benchmark = nc_benchmark(random_data(), random_data(), 1, task_labels=True)
    strategy = make_strategy(nn.Linear(5, NUM_CLASSES), *metrics)
    strategy.train(benchmark.train_stream)
    strategy.eval(benchmark.test_stream)
    assert not np.isnan(metrics[0].matrix()).any()


@pytest.mark.parametrize("restarting", [False, True])
def test_an_untrained_task_is_no_free_half_and_warns_once(restarting):
    benchmark, metrics = task_labelled(restarting), task_il_metrics()
    strategy = make_strategy(MTSimpleMLP(input_size=5, hidden_size=8), *metrics)
    strategy.train(benchmark.train_stream[0])
    with pytest.warns(UserWarning, match="experience 1 of test_stream is NaN") as caught:
        values = strategy.eval(benchmark.test_stream)
    assert sum("is NaN" in str(w.message) for w in caught) == 1
    assert np.isnan(metrics[0].matrix()[0]).tolist() == [False, True, True, True]
    assert math.isnan(values["TaskIL_Acc_Exp/eval_phase/test_stream/Task003/Exp003"])
    assert not math.isnan(values["TaskIL_ACC/eval_phase/test_stream"])
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        strategy.eval(benchmark.test_stream)


# --- as a citizen of Avalanche ------------------------------------------------------------------


def test_predicted_classes():
    logits = torch.tensor([[3.0, 0, 1, 2], [0, 1, 9, 8]])
    assert predicted_classes(logits).tolist() == [0, 2]
    assert predicted_classes(logits, columns=torch.tensor([1, 3])).tolist() == [3, 3]
    assert predicted_classes(logits, columns=torch.tensor([3, 2])).tolist() == [3, 2]


def test_helpers_and_errors():
    names = [str(metric) for metric in (*class_il_metrics(), *task_il_metrics())]
    assert names == ["ClassIL_Acc_Exp", "TaskIL_Acc_Exp"]
    assert scenario_metrics(class_il=False, task_il=False) == []
    with pytest.raises(ValueError, match=r"`scenario` to be one of .*, got 'taskil'"):
        ScenarioAccuracy("taskil")


@quiet
def test_all_loggers_run(tmp_path, capsys):
    text = io.StringIO()
    loggers = [InteractiveLogger(), TextLogger(text), CSVLogger(tmp_path / "csv")]
    loggers.append(TensorboardLogger(tmp_path / "tensorboard"))
    benchmark, strategy, *_ = scripted(loggers=loggers, eval_every=1)
    strategy.train(benchmark.train_stream[:2], eval_streams=[benchmark.test_stream])
    strategy.eval(benchmark.test_stream)
    for printed in (text.getvalue(), capsys.readouterr().out):
        assert "ClassIL_BWT/eval_phase/test_stream = -0.2000" in printed
        assert "TaskIL_Acc_Exp/eval_phase/test_stream/Task000/Exp003 = nan" in printed
    assert (tmp_path / "csv" / "eval_results.csv").read_text().count("\n") == 5


@quiet
@pytest.mark.parametrize("pickler", [pickle, dill])
def test_a_pickled_metric_continues_in_the_middle_of_a_run(pickler):
    whole, resumed = scripted(), scripted()
    for experience in whole[0].train_stream[:2]:
        for benchmark, strategy, *_ in (whole, resumed):
            strategy.train(benchmark.train_stream[experience.current_experience])
            strategy.eval(benchmark.test_stream)
    copies = [pickler.loads(pickler.dumps(metric)) for metric in resumed[2:]]
    resumed[1].evaluator.metrics = copies
    for benchmark, strategy, *_ in (whole, resumed):
        strategy.train(benchmark.train_stream[2:])
        strategy.eval(benchmark.test_stream)
    for metric, copy in zip(whole[2:], copies, strict=True):
        assert same(copy.matrix(), metric.matrix())
        np.testing.assert_equal(vars(copy), vars(metric))


def contains_tensor(value):
    if isinstance(value, dict):
        return any(map(contains_tensor, [*value.keys(), *value.values()]))
    if isinstance(value, (list, tuple, set)):
        return any(map(contains_tensor, value))
    return not isinstance(value, (int, float, str, type(None)))


@quiet
def test_nothing_but_python_numbers_is_kept():
    benchmark, strategy, *metrics = scripted(eval_every=1)
    strategy.train(benchmark.train_stream, eval_streams=[benchmark.test_stream])
    assert not any(contains_tensor(vars(metric)) for metric in metrics)


class CountTransfers(TorchDispatchMode):
    """Counts numbers read from the device, which wait for it, and tensors made from lists."""

    def __init__(self):
        super().__init__()
        self.counts = np.zeros(2, dtype=int)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        aten = torch.ops.aten
        self.counts += [func is aten._local_scalar_dense.default, func is aten.lift_fresh.default]
        return func(*args, **(kwargs or {}))


def test_device_and_host_exchange_numbers_once_an_experience():
    metrics = scenario_metrics()
    benchmark, strategy, *_ = scripted()
    strategy.train(benchmark.train_stream)
    counts = []
    for evaluator in (EvaluationPlugin(loggers=None), EvaluationPlugin(*metrics, loggers=None)):
        strategy.plugins[strategy.plugins.index(strategy.evaluator)] = evaluator
        strategy.evaluator = evaluator
        for metric in metrics:
            metric._classes_trained = {0: {(0, k) for k in range(NUM_CLASSES)}}
        with CountTransfers() as transfers:
            strategy.eval(benchmark.test_stream)  # 3 mini-batches an experience
        counts.append(transfers.counts)
    num_reads, num_lists = counts[1] - counts[0]
    assert num_reads == 2 * NUM_TASKS
    assert num_lists == NUM_TASKS  # the columns of Task-IL
