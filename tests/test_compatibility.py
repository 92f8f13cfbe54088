"""Plugins of Avalanche with DLCPAStrategy, and COMPATIBILITY.md, which lists what is tested."""

import inspect
import re
from pathlib import Path

import pytest
import torch
from avalanche import logging, training
from avalanche.benchmarks import benchmark_from_datasets
from avalanche.benchmarks.utils import as_classification_dataset
from avalanche.core import BasePlugin
from avalanche.evaluation import metrics
from avalanche.evaluation.metrics import accuracy_metrics
from avalanche.logging import BaseLogger
from avalanche.training import losses
from avalanche.training.plugins import (
    EarlyStoppingPlugin,
    EvaluationPlugin,
    EWCPlugin,
    LRSchedulerPlugin,
    MASPlugin,
    ReplayPlugin,
    SupervisedPlugin,
)
from helpers import (
    SmallCNN,
    WithTargets,
    class_incremental_stream,
    nc_stream,
    samples,
    seed_everything,
    strategy_of,
    tensors_stream,
)
from matrix import TESTED, proves
from test_bad_input import assert_refused
from torch.optim import SGD, lr_scheduler
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

import avalanche_dlcpa
from avalanche_dlcpa.metrics import scenario_metrics
from avalanche_dlcpa.plugin_guards import NEVER_RESET, REFUSED
from avalanche_dlcpa.self_supervised import MoCoV2

ROOT = Path(__file__).parents[1]

# Plugins that work --------------------------------------------------------------------------------


class Recorder(SupervisedPlugin):
    """Notes learning rate, batch size and number of epochs."""

    def __init__(self):
        super().__init__()
        self.rates, self.batches, self.epochs = [], [], []

    def before_training_exp(self, strategy, **kwargs):
        self.rates.append([])
        self.batches.append([])
        self.epochs.append(0)

    def before_training_epoch(self, strategy, **kwargs):
        self.rates[-1].append(strategy.optimizer.param_groups[0]["lr"])

    def after_training_epoch(self, strategy, **kwargs):
        self.epochs[-1] += 1

    def before_training_iteration(self, strategy, **kwargs):
        self.batches[-1].append(len(strategy.mb_x))


@proves("plugins", "ReplayPlugin")
@pytest.mark.parametrize("make_stream", [nc_stream, class_incremental_stream])
@pytest.mark.parametrize("ssl", [None, "simclr"])
def test_replay_trains_the_classifiers_of_earlier_tasks_too(make_stream, ssl):
    stream = list(make_stream(size=8).train_stream)
    moved = {}
    for name, plugins in {"replay": [ReplayPlugin(mem_size=20)], "alone": []}.items():
        recorder = Recorder()
        strategy = strategy_of(SmallCNN(), ssl=ssl, plugins=[*plugins, recorder])
        strategy.train(stream[0])
        before = strategy.model.classifiers.layers[0].weight.detach().clone()
        strategy.train(stream[1])
        moved[name] = not torch.equal(strategy.model.classifiers.layers[0].weight, before)
        assert set(recorder.batches[0]) == {16}
        if plugins:
            assert len(plugins[0].storage_policy.buffer) == 20
            assert max(recorder.batches[1]) > 16
    assert moved == {"replay": True, "alone": False}


@proves("plugins", "EarlyStoppingPlugin")
@pytest.mark.parametrize("stable_update", ["cumulative", "copy"])
def test_early_stopping_restores_the_best_stable_learner_of_a_momentum_encoder(stable_update):
    stop = EarlyStoppingPlugin(patience=2, val_stream_name="test_stream")
    stream = tensors_stream(size=8)
    strategy = strategy_of(
        SmallCNN(),
        ssl=MoCoV2(queue_size=64, momentum=0.9),
        average_source="momentum",
        stable_update=stable_update,
        plugins=[stop],
        evaluator=EvaluationPlugin(accuracy_metrics(stream=True)),
        eval_every=1,
        train_epochs=30,
    )
    for experience in stream.train_stream[:2]:
        strategy.train(experience, eval_streams=[stream.test_stream[:2]])
        assert stop.best_step < strategy.clock.train_exp_epochs - 1 < 30
        for name, value in strategy.model.stable.named_parameters():
            assert torch.equal(value, stop.best_state[f"stable.{name}"])


@proves("plugins", "EarlyStoppingPlugin")
def test_early_stopping_restores_the_best_model_with_a_right_mean():
    stream, recorder = tensors_stream(size=8), Recorder()
    evaluator = EvaluationPlugin(accuracy_metrics(stream=True))
    plugins = [EarlyStoppingPlugin(patience=2, val_stream_name="test_stream"), recorder]
    strategy = strategy_of(
        SmallCNN(), plugins=plugins, evaluator=evaluator, eval_every=1, train_epochs=30
    )
    previous = [torch.zeros_like(p) for p in strategy.model.stable.parameters()]
    for t, experience in enumerate(stream.train_stream[:2], start=1):
        with pytest.warns(UserWarning, match="used by the EarlyStopping plugin"):
            strategy.train(experience, eval_streams=[stream.test_stream[:t]])
        assert recorder.epochs[-1] < 30
        now = list(strategy.model.plastic.parameters())
        expected = [(p + (t - 1) * q) / t for p, q in zip(now, previous, strict=True)]
        previous = [p.detach().clone() for p in strategy.model.stable.parameters()]
        torch.testing.assert_close(previous, [p.detach() for p in expected])


@pytest.mark.parametrize("name", ["ClassIL_ACC", "TaskIL_Forgetting"])
def test_early_stopping_is_not_to_watch_a_mean_over_the_tasks_so_far(name):
    plugin = EarlyStoppingPlugin(patience=2, val_stream_name="test_stream", metric_name=name)
    with pytest.raises(ValueError, match=f"got '{name}', .* watch 'Top1_Acc_Stream'"):
        strategy_of(SmallCNN(), plugins=[plugin], eval_every=1)


@proves("plugins", "LRSchedulerPlugin")
def test_a_learning_rate_plugin_of_avalanche_drives_the_plastic_optimizer():
    model, recorder = SmallCNN(), Recorder()
    optimizer = SGD(model.parameters(), lr=0.1)
    schedule = LRSchedulerPlugin(StepLR(optimizer, step_size=1, gamma=0.5))
    strategy = strategy_of(
        model, optimizer=optimizer, plugins=[schedule, recorder], ssl="simclr", train_epochs=3
    )
    strategy.train(tensors_stream(size=8, per_class=8).train_stream[:2])
    assert recorder.rates == [pytest.approx([0.1, 0.05, 0.025])] * 2


@proves("plugins", "MASPlugin")
def test_mas_holds_the_plastic_learner_where_it_was():
    stream = tensors_stream(size=8)

    def moved(strength):
        seed_everything()
        plugin = MASPlugin(lambda_reg=strength, verbose=False)
        strategy = strategy_of(SmallCNN(), plugins=[plugin], train_epochs=4)
        strategy.train(stream.train_stream[0])
        before = [p.detach().clone() for p in strategy.model.plastic.parameters()]
        strategy.train(stream.train_stream[1])
        return sum(
            (p - q).square().sum().item()
            for p, q in zip(strategy.model.plastic.parameters(), before, strict=True)
        )

    free, held = moved(0.0), moved(4.0)
    assert held < 0.5 * free


# Plugins that are refused -------------------------------------------------------------------------


def class_named(name):
    homes = (training.plugins, losses, avalanche_dlcpa)
    return next(getattr(home, name) for home in homes if hasattr(home, name))


@pytest.mark.parametrize("name", REFUSED)
def test_a_plugin_that_would_do_nothing_or_harm_is_refused(name):
    plugin = object.__new__(class_named(name))
    model = SmallCNN()
    where = {"criterion": plugin} if name in vars(losses) else {"plugins": [plugin]}
    match = rf"work with DLCPAStrategy, got {name}: {re.escape(REFUSED[name])}\. COMPATIBILITY"
    assert_refused(model, SGD(model.parameters(), lr=0.1), ValueError, match, **where)


def test_a_subclass_is_refused_with_it_and_a_namesake_is_not():
    class MyEWC(EWCPlugin):
        pass

    class LwFPlugin(SupervisedPlugin):
        pass

    with pytest.raises(ValueError, match="got EWCPlugin"):
        strategy_of(SmallCNN(), plugins=[MyEWC(1.0)])
    strategy_of(SmallCNN(), plugins=[LwFPlugin()])


def test_importances_of_ewc_are_zero_as_its_refusal_says(monkeypatch):
    monkeypatch.setattr("avalanche_dlcpa.plugin_guards.REFUSED", {})
    plugin = EWCPlugin(1.0)
    strategy_of(SmallCNN(), plugins=[plugin]).train(tensors_stream(size=8).train_stream[0])
    plastic = {k: v for k, v in plugin.importances[0].items() if k.startswith("plastic.")}
    assert len(plastic) == 4
    assert not any(importance.data.any() for importance in plastic.values())


@pytest.mark.parametrize("eval_every", [-1, 0])
def test_what_watches_evaluations_is_refused_without_any(eval_every):
    model = SmallCNN()
    optimizer = SGD(model.parameters(), lr=0.1)
    watching = [
        EarlyStoppingPlugin(patience=2, val_stream_name="test_stream"),
        LRSchedulerPlugin(ReduceLROnPlateau(optimizer), metric="val_loss"),
    ]
    for plugin in watching:
        match = f"`eval_every` to be at least 1 with {type(plugin).__name__}.* got {eval_every}"
        arguments = {"plugins": [plugin], "eval_every": eval_every}
        assert_refused(model, optimizer, ValueError, match, **arguments)


# The page -----------------------------------------------------------------------------------------


def table(heading):
    """Rows of the table below a heading of COMPATIBILITY.md: name -> the other cells."""
    page = (ROOT / "COMPATIBILITY.md").read_text(encoding="utf-8")
    section = page.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `([^`]+)` \| (.*) \|$", section, flags=re.MULTILINE)
    assert len(rows) == len(dict(rows))
    return {name: [cell.strip() for cell in rest.split("|")] for name, rest in rows}


def names_with(rows, status, column=0):
    return {name for name, cells in rows.items() if cells[column] == status}


def subclasses(module, parent):
    found = {n: v for n, v in vars(module).items() if inspect.isclass(v) and issubclass(v, parent)}
    return {name for name in found if not name.startswith("_")} - {parent.__name__}


def test_the_page_lists_the_plugins_as_tested():
    import test_gaussian_plugin  # noqa: F401 - registers its tests

    rows = table("Plugins")
    assert names_with(rows, "works") == TESTED["plugins"]
    assert {n: cells[1] for n, cells in rows.items() if cells[0] == "refused"} == dict(REFUSED)
    assert subclasses(training.plugins, BasePlugin) - {"SupervisedPlugin"} <= set(rows)
    assert len(rows) == len(TESTED["plugins"]) + len(REFUSED)


def test_the_page_lists_the_schedulers_as_tested():
    import test_schedulers  # noqa: F401 - registers its tests

    rows = table("Learning rate schedulers")
    assert names_with(rows, "works", 0) == TESTED["scheduler="]
    assert names_with(rows, "works", 1) == TESTED["LRSchedulerPlugin"]
    assert names_with(rows, "refused", 1) == set(NEVER_RESET)
    assert subclasses(lr_scheduler, lr_scheduler.LRScheduler) <= set(rows)


def test_the_page_lists_the_metrics_as_tested():
    import test_drop_in_metrics  # noqa: F401

    rows = table("Metrics")
    assert names_with(rows, "works") == TESTED["metrics"] == set(rows)
    factories = {name for name, value in vars(metrics).items() if inspect.isfunction(value)}
    assert factories <= set(rows)


WITH_TASK_LABELS = {
    "class_accuracy_metrics": {"stream": True},
    "topk_acc_metrics": {"top_k": 2, "stream": True},
    "labels_repartition_metrics": {"on_train": True},
    "mean_scores_metrics": {},
    "confusion_matrix_metrics": {"num_classes": 4, "stream": True},
}


def trained_on_datasets(*chosen):
    experiences = []
    for labels in ((0, 1), (2, 3)):
        x, y = samples(labels, size=8)
        experiences.append(as_classification_dataset(WithTargets(x, y)))
    stream = benchmark_from_datasets(train=experiences, test=experiences)
    model = SmallCNN()
    strategy = training.Naive(
        model=model, optimizer=SGD(model.parameters(), lr=0.05), train_mb_size=16,
        eval_mb_size=64, evaluator=EvaluationPlugin(*chosen),
    )  # fmt: skip
    strategy.train(stream.train_stream)
    return strategy.eval(stream.test_stream)


@pytest.mark.parametrize("name", WITH_TASK_LABELS)
def test_metrics_that_fail_on_streams_of_datasets_do_so_with_any_strategy(name):
    text = " ".join((ROOT / "COMPATIBILITY.md").read_text(encoding="utf-8").split())
    assert f"`{name}`" in text[text.index("On streams of `benchmark_from_datasets`") :][:500]
    chosen = getattr(metrics, name)(**WITH_TASK_LABELS[name])
    with pytest.raises((AssertionError, AttributeError), match=r"ask label|has no attribute"):
        trained_on_datasets(chosen)


def test_our_metrics_work_on_streams_of_datasets():
    assert trained_on_datasets(scenario_metrics())["TaskIL_ACC/eval_phase/test_stream"] > 0.5


def test_the_page_lists_the_loggers_as_tested():
    import test_loggers  # noqa: F401

    rows = table("Loggers")
    assert set(rows) == TESTED["loggers"] == subclasses(logging, BaseLogger)


def versions(text, sign):
    return dict(re.findall(rf"^\s*([\w-]+){sign}([\d.]+)$", text, flags=re.MULTILINE))


def test_the_oldest_versions_are_those_that_are_declared():
    declared = versions((ROOT / "setup.cfg").read_text(encoding="utf-8"), "[>=]=")
    tested = versions((ROOT / "constraints-oldest.txt").read_text(encoding="utf-8"), "==")
    assert tested.items() <= declared.items()
    rows = table("Versions")
    assert {name: cells[0] for name, cells in rows.items() if name != "python"} == {
        name: tested[name] for name in set(rows) - {"python"}
    }
