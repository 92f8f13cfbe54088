"""Every logger of Avalanche, with DLCPAStrategy."""

import csv
import io

import pytest
import torch
from avalanche.evaluation.metrics import accuracy_metrics, loss_metrics
from avalanche.logging import (
    CSVLogger,
    InteractiveLogger,
    TensorboardLogger,
    TextLogger,
    WandBLogger,
)
from avalanche.training.plugins import EvaluationPlugin
from helpers import SmallCNN, nc_stream, state_of, strategy_of, tensors_stream
from matrix import proves
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


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


@proves("loggers", "InteractiveLogger")
def test_interactive_logger(capsys):
    results = logged_run(lambda: [InteractiveLogger()])
    printed = capsys.readouterr().out
    assert printed.count("Epoch 1 ended.") == 2
    assert printed.count("100%") >= 4
    accuracy = results["Top1_Acc_Stream/eval_phase/test_stream/Task000"]
    assert f"Top1_Acc_Stream/eval_phase/test_stream/Task000 = {accuracy:.4f}" in printed


@proves("loggers", "TextLogger")
def test_text_logger():
    file = io.StringIO()
    results = logged_run(lambda: [TextLogger(file)])
    loss = results["Loss_Exp/eval_phase/test_stream/Task000/Exp001"]
    assert f"Loss_Exp/eval_phase/test_stream/Task000/Exp001 = {loss:.4f}" in file.getvalue()


@proves("loggers", "CSVLogger")
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


@proves("loggers", "TensorboardLogger")
def test_tensorboard_logger(tmp_path):
    loggers = []
    results = logged_run(lambda: loggers.append(TensorboardLogger(tmp_path)) or loggers)
    loggers[0].writer.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    name = "Top1_Acc_Stream/eval_phase/test_stream/Task000"
    assert [event.value for event in events.Scalars(name)][-1] == pytest.approx(results[name])
    assert len(events.Scalars("Top1_Acc_MB/train_phase/train_stream/Task000")) == 8


@proves("loggers", "WandBLogger")
def test_wandb_logger_fails_with_any_strategy():
    with pytest.raises(AttributeError, match="generate_id"):
        WandBLogger(params={"mode": "disabled"})


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
