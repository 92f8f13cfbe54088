"""DLCPAStrategy where a user had EWC(...): every stream with every model, plugins and loggers."""

import csv
import io
import math

import pytest
import torch
from avalanche.evaluation.metrics import accuracy_metrics, loss_metrics
from avalanche.logging import CSVLogger, InteractiveLogger, TensorboardLogger, TextLogger
from avalanche.training.plugins import (
    EarlyStoppingPlugin,
    EvaluationPlugin,
    LRSchedulerPlugin,
    ReplayPlugin,
    SupervisedPlugin,
)
from helpers import (
    IMAGE_SIZE,
    MODELS,
    STREAMS,
    SmallCNN,
    class_incremental_stream,
    nc_stream,
    state_of,
    strategy_of,
    tensors_stream,
)
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import StepLR

from avalanche_dlcpa.metrics import scenario_metrics
from avalanche_dlcpa.self_supervised import MoCoV2

# Few steps have to do, so each model comes with an optimizer that suits it.
SETTINGS = {
    "SimpleMLP": {"ssl": None, "train_epochs": 10, "classifier_lr": 0.05, "supervised_weight": 3.0},
    "SimpleCNN": {"train_epochs": 8, "classifier_lr": 0.05},
    "SlimResNet18": {"train_epochs": 10},
    "resnet18": {"train_epochs": 5},
    "IncrementalClassifier": {"train_epochs": 6},
    "as_multitask": {"train_epochs": 10},
}
OPTIMIZERS = {
    "SimpleMLP": lambda parameters: SGD(parameters, lr=0.003, momentum=0.9),
    "SimpleCNN": lambda parameters: Adam(parameters, lr=0.001),
    "resnet18": lambda parameters: SGD(parameters, lr=0.01),
}


def cell(stream_name, model_name, **kwargs):
    model = MODELS[model_name]()
    make_optimizer = OPTIMIZERS.get(model_name, lambda parameters: SGD(parameters, lr=0.05))
    kwargs = {"ssl": MoCoV2(queue_size=256), "train_mb_size": 8} | SETTINGS[model_name] | kwargs
    strategy = strategy_of(model, optimizer=make_optimizer(model.parameters()), **kwargs)
    stream = STREAMS[stream_name](size=IMAGE_SIZE.get(model_name, 16), per_class=16)
    return strategy, stream


@pytest.mark.parametrize("model_name", MODELS)
@pytest.mark.parametrize("stream_name", STREAMS)
def test_every_model_learns_every_stream(stream_name, model_name):
    class_il, task_il = scenario_metrics()
    evaluator = EvaluationPlugin(
        class_il, task_il, loss_metrics(epoch=True, experience=True), accuracy_metrics(stream=True)
    )
    strategy, stream = cell(stream_name, model_name, evaluator=evaluator)
    seen = list(stream.train_stream)[:2]
    for experience in seen:
        results = strategy.train(experience)
        results |= strategy.eval(stream.test_stream)

    assert strategy.model.num_averaged == 2
    losses = [float(value) for name, value in results.items() if name.startswith("Loss")]
    assert sum(name.startswith("Loss_Exp") for name in results) == 3
    assert len(losses) > 3  # those of training too
    assert all(math.isfinite(loss) for loss in losses)
    assert all(parameter.isfinite().all() for parameter in strategy.model.parameters())

    task_il, class_il = task_il.matrix()[:2], class_il.matrix()[:2]
    trained = [task_il[0, 0], task_il[1, 0], task_il[1, 1]]
    assert sum(trained) / 3 >= 0.75  # two classes a task: chance is 0.5
    assert math.isnan(task_il[1, 2])  # not 0.5 for free
    if hasattr(seen[0], "task_labels") and seen[1].task_labels == [1]:
        assert all(math.isnan(value) for value in class_il.flat)
        # with task labels Avalanche's own accuracy is Task-IL, where an unseen task is all wrong
        own = results["Top1_Acc_Stream/eval_phase/test_stream/Task002"]
        assert own == pytest.approx((task_il[1, 0] + task_il[1, 1] + 0) / 3)
    else:
        assert class_il[0, 0] == task_il[0, 0]  # a single task: the scenarios are one
        assert (class_il[1, :2] <= task_il[1, :2]).all()
        assert class_il[1, 2] == class_il[0, 2] == 0  # predicted among the classes seen
        assert class_il[1, :2].mean() >= 0.25


# With Avalanche's plugins -------------------------------------------------------------------------


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


def test_a_learning_rate_plugin_of_avalanche_drives_the_plastic_optimizer():
    model, recorder = SmallCNN(), Recorder()
    optimizer = SGD(model.parameters(), lr=0.1)
    schedule = LRSchedulerPlugin(StepLR(optimizer, step_size=1, gamma=0.5))
    strategy = strategy_of(
        model, optimizer=optimizer, plugins=[schedule, recorder], ssl="simclr", train_epochs=3
    )
    strategy.train(tensors_stream(size=8, per_class=8).train_stream[:2])
    assert recorder.rates == [pytest.approx([0.1, 0.05, 0.025])] * 2


@pytest.mark.parametrize(("eval_every", "num_evaluations"), [(-1, 0), (0, 2), (1, 4)])
def test_periodic_evaluation(eval_every, num_evaluations):
    stream = tensors_stream(size=8, per_class=8)
    evaluator = EvaluationPlugin(accuracy_metrics(stream=True))
    strategy = strategy_of(
        SmallCNN(), ssl="simclr", evaluator=evaluator, eval_every=eval_every, train_epochs=3
    )
    strategy.train(stream.train_stream[0], eval_streams=[stream.test_stream])
    curve = evaluator.get_all_metrics().get("Top1_Acc_Stream/eval_phase/test_stream/Task000")
    assert (0 if curve is None else len(curve[1])) == num_evaluations
    assert strategy.model.training  # the loop went on in training mode
    assert strategy.mbatch is None


# With its loggers ---------------------------------------------------------------------------------


def logged_run(make_loggers, **kwargs):
    stream = nc_stream(size=8, per_class=16)
    metrics = accuracy_metrics(minibatch=True, epoch=True, experience=True, stream=True)
    evaluator = EvaluationPlugin(
        metrics, loss_metrics(epoch=True, experience=True), loggers=make_loggers()
    )
    strategy = strategy_of(SmallCNN(), ssl="simclr", evaluator=evaluator, train_epochs=2, **kwargs)
    results = {}
    for experience in stream.train_stream[:2]:
        strategy.train(experience)
        results |= strategy.eval(stream.test_stream)
    return results


def test_interactive_logger(capsys):
    results = logged_run(lambda: [InteractiveLogger()])
    printed = capsys.readouterr().out
    assert printed.count("Epoch 1 ended.") == 2
    assert printed.count("100%") >= 4
    accuracy = results["Top1_Acc_Stream/eval_phase/test_stream/Task000"]
    assert f"Top1_Acc_Stream/eval_phase/test_stream/Task000 = {accuracy:.4f}" in printed


def test_text_logger():
    file = io.StringIO()
    results = logged_run(lambda: [TextLogger(file)])
    loss = results["Loss_Exp/eval_phase/test_stream/Task000/Exp001"]
    assert f"Loss_Exp/eval_phase/test_stream/Task000/Exp001 = {loss:.4f}" in file.getvalue()


def test_csv_logger(tmp_path):
    loggers = []
    results = logged_run(lambda: loggers.append(CSVLogger(tmp_path)) or loggers)
    loggers[0].close()
    training = list(csv.DictReader((tmp_path / "training_results.csv").open()))
    assert [row["epoch"] for row in training] == ["0", "1"] * 2
    evaluation = list(csv.DictReader((tmp_path / "eval_results.csv").open()))
    assert len(evaluation) == 6
    expected = results["Top1_Acc_Exp/eval_phase/test_stream/Task000/Exp001"]
    assert float(evaluation[4]["eval_accuracy"]) == pytest.approx(expected, abs=1e-4)


def test_tensorboard_logger(tmp_path):
    loggers = []
    results = logged_run(lambda: loggers.append(TensorboardLogger(tmp_path)) or loggers)
    loggers[0].writer.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    name = "Top1_Acc_Stream/eval_phase/test_stream/Task000"
    assert [event.value for event in events.Scalars(name)][-1] == pytest.approx(results[name])
    assert len(events.Scalars("Top1_Acc_MB/train_phase/train_stream/Task000")) == 8


def test_a_run_with_loggers_learns_the_same(tmp_path):
    def final_state(**kwargs):
        torch.manual_seed(0)
        strategy = strategy_of(SmallCNN(), ssl="simclr", **kwargs)
        strategy.train(tensors_stream(size=8, per_class=8).train_stream[:2])
        return state_of(strategy.model)

    plain = final_state()
    evaluator = EvaluationPlugin(
        accuracy_metrics(minibatch=True), loggers=[TextLogger(io.StringIO())]
    )
    logged = final_state(evaluator=evaluator, eval_every=1)
    assert all(torch.equal(plain[name], logged[name]) for name in plain)
