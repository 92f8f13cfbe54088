"""DLCPAStrategy where a user had EWC(...): every stream with every model."""

import math

import pytest
from avalanche.evaluation.metrics import accuracy_metrics, loss_metrics
from avalanche.training.plugins import EvaluationPlugin
from helpers import IMAGE_SIZE, MODELS, STREAMS, SmallCNN, strategy_of, tensors_stream
from torch.optim import SGD, Adam

from avalanche_dlcpa.metrics import scenario_metrics
from avalanche_dlcpa.self_supervised import MoCoV2

# Few steps have to do, so each model comes with an optimizer that suits it.
SETTINGS = {
    "SimpleMLP": {"ssl": None, "train_epochs": 10, "classifier_lr": 0.05, "supervised_weight": 3.0},
    "SimpleCNN": {"train_epochs": 8, "classifier_lr": 0.05},
    "SlimResNet18": {"train_epochs": 10},
    "resnet18": {"train_epochs": 10},
    "IncrementalClassifier": {"train_epochs": 6},
    "as_multitask": {"train_epochs": 10},
}
OPTIMIZERS = {
    "SimpleMLP": lambda parameters: SGD(parameters, lr=0.003, momentum=0.9),
    "SimpleCNN": lambda parameters: Adam(parameters, lr=0.001),
    **dict.fromkeys(["resnet18", "SlimResNet18"], lambda parameters: SGD(parameters, lr=0.01)),
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
