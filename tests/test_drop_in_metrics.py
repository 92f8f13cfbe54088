"""Every metric of Avalanche that works with its own strategies, with ours."""

import io

import numpy as np
import pytest
import torch
from avalanche.evaluation.metrics import (
    MAC,
    MAC_metrics,
    WeightCheckpoint,
    accuracy_matrix_metrics,
    accuracy_metrics,
    amca_metrics,
    bwt_metrics,
    class_accuracy_metrics,
    confusion_matrix_metrics,
    cpu_usage_metrics,
    disk_usage_metrics,
    forgetting_metrics,
    forward_transfer_metrics,
    gpu_usage_metrics,
    images_samples_metrics,
    labels_repartition_metrics,
    loss_metrics,
    mean_scores_metrics,
    ram_usage_metrics,
    timing_metrics,
    topk_acc_metrics,
)
from avalanche.training.plugins import EvaluationPlugin
from helpers import (
    SmallCNN,
    assert_same_state,
    class_incremental_stream,
    nc_stream,
    seed_everything,
    state_of,
    strategy_of,
)
from matrix import proves

from avalanche_dlcpa.metrics import scenario_metrics

TEST = "eval_phase/test_stream"


def everywhere(make):
    return make(minibatch=True, epoch=True, epoch_running=True, experience=True, stream=True)


def run(stream, *metrics):
    """Train two of three experiences; the last metrics, the strategy and the matrices R."""
    seed_everything()
    class_il, task_il = scenario_metrics()
    evaluator = EvaluationPlugin(*metrics, class_il, task_il)
    strategy = strategy_of(
        SmallCNN(), ssl="simclr", evaluator=evaluator, train_epochs=2, eval_every=0, lr=0.02
    )
    results = {}
    for experience in list(stream.train_stream)[:2]:
        strategy.train(experience, eval_streams=[stream.test_stream])
        results |= strategy.eval(stream.test_stream)
    return results, strategy, class_il.matrix(), task_il.matrix()


@pytest.fixture(scope="module")
def outcome():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("GPUtil.getGPUs", list)  # also where there is one
        with pytest.warns(UserWarning, match="no GPU"):
            gpu = gpu_usage_metrics(0, epoch=True)
    return run(
        nc_stream(size=8, per_class=16),
        everywhere(accuracy_metrics),
        accuracy_metrics(trained_experience=True),
        everywhere(loss_metrics),
        everywhere(timing_metrics),
        bwt_metrics(experience=True, stream=True),
        forgetting_metrics(experience=True, stream=True),
        forward_transfer_metrics(experience=True, stream=True),
        cpu_usage_metrics(epoch=True, experience=True),
        ram_usage_metrics(epoch=True, every=0.01),
        gpu,
        disk_usage_metrics(epoch=True),
        MAC_metrics(epoch=True, experience=True),
        images_samples_metrics(on_train=True, on_eval=True),
        labels_repartition_metrics(on_train=True, on_eval=True),
        topk_acc_metrics(top_k=2, experience=True, stream=True),
        amca_metrics(),
        mean_scores_metrics(),
        WeightCheckpoint(),
        confusion_matrix_metrics(num_classes=6, stream=True, save_image=False),
        class_accuracy_metrics(experience=True, stream=True),
        accuracy_matrix_metrics(),
    )


@proves("metrics", "accuracy_metrics", "accuracy_matrix_metrics")
def test_accuracies_agree_with_the_class_il_matrix(outcome):
    results, _, class_il, _ = outcome
    for index in range(3):
        own = results[f"Top1_Acc_Exp/{TEST}/Task000/Exp00{index}"]
        assert own == pytest.approx(class_il[1, index])
    mean = class_il[1].mean()
    assert results[f"Top1_Acc_Stream/{TEST}/Task000"] == pytest.approx(mean)
    trained = results[f"Accuracy_On_Trained_Experiences/{TEST}/Task000"]
    assert trained == pytest.approx(class_il[1, :2].mean())
    matrix = results["EvalStream/Acc_Matrix"]
    torch.testing.assert_close(
        matrix[:2].double(), torch.from_numpy(class_il[:2]), check_dtype=False
    )


def test_training_accuracy_counts_the_classes_of_the_task(outcome):
    results = outcome[0]
    for name in ("Top1_Acc_MB", "Top1_Acc_Epoch", "Top1_RunningAcc_Epoch"):
        # the task's two classes alone compete: random guessing would give 0.5
        assert results[f"{name}/train_phase/train_stream/Task000"] > 0.6


@proves("metrics", "loss_metrics")
def test_loss(outcome):
    results, strategy, *_ = outcome
    images, labels = zip(
        *[sample[:2] for sample in nc_stream(size=8, per_class=16).test_stream[1].dataset],
        strict=True,
    )
    logits = strategy.model.eval()(torch.stack(images))
    expected = torch.nn.functional.cross_entropy(logits, torch.tensor(labels))
    assert results[f"Loss_Exp/{TEST}/Task000/Exp001"] == pytest.approx(expected.item(), abs=1e-4)
    for name in ("Loss_MB", "Loss_Epoch", "RunningLoss_Epoch"):
        assert 0 < results[f"{name}/train_phase/train_stream/Task000"] < 100


@proves("metrics", "bwt_metrics", "forgetting_metrics", "forward_transfer_metrics")
def test_transfer(outcome):
    results, _, class_il, _ = outcome
    bwt = class_il[1, 0] - class_il[0, 0]
    assert results[f"StreamBWT/{TEST}"] == pytest.approx(bwt)
    assert results[f"ExperienceBWT/{TEST}/Task000/Exp000"] == pytest.approx(bwt)
    assert results[f"StreamForgetting/{TEST}"] == pytest.approx(-bwt)
    assert results[f"StreamForwardTransfer/{TEST}"] == 0  # a class never trained is never answered


@proves(
    "metrics",
    "timing_metrics",
    "ram_usage_metrics",
    "disk_usage_metrics",
    "cpu_usage_metrics",
    "gpu_usage_metrics",
    "MAC_metrics",
)
def test_time_and_resources(outcome):
    results = outcome[0]
    assert results[f"Time_Stream/{TEST}/Task000"] > 0
    assert results["Time_Epoch/train_phase/train_stream/Task000"] > 0
    assert results["MaxRAMUsage_Epoch/train_phase/train_stream/Task000"] > 0
    assert results["DiskUsage_Epoch/train_phase/train_stream/Task000"] > 0
    assert results["CPUUsage_Epoch/train_phase/train_stream/Task000"] > 0
    assert results["MaxGPU0Usage_Epoch/train_phase/train_stream/Task000"] == 0
    features = MAC()
    features.update(outcome[1].model.stable, torch.zeros(1, 3, 8, 8))
    assert results[f"MAC_Exp/{TEST}/Task000/Exp000"] >= features.result() > 0


@proves("metrics", "confusion_matrix_metrics", "class_accuracy_metrics", "amca_metrics")
def test_confusion_and_class_accuracy(outcome):
    results, _, class_il, _ = outcome
    matrix = results[f"ConfusionMatrix_Stream/{TEST}"]
    assert matrix.shape == (6, 6)
    assert matrix.sum(dim=1).tolist() == [8] * 6
    assert matrix[:, 4:].sum() == 0  # classes never trained are never answered
    assert matrix[:2, :2].diagonal().sum() / 16 == pytest.approx(class_il[1, 0])
    for label in range(6):
        recall = results[f"Top1_ClassAcc_Stream/{TEST}/Task000/{label}"]
        assert recall == pytest.approx(matrix[label, label].item() / 8)
    # over classes, which are equally many in each experience, and over the evaluations so far
    means = np.nan_to_num(class_il[:2]).mean(axis=1)
    assert results["Top1_AMCA_Stream/test_stream/Task000"] == pytest.approx(means.mean())


@proves("metrics", "topk_acc_metrics", "mean_scores_metrics")
def test_top_k_and_scores(outcome):
    results = outcome[0]
    for index in range(3):
        at = f"{TEST}/Task000/Exp00{index}"
        assert results[f"Topk_2_Acc_Exp/{at}"] >= results[f"Top1_Acc_Exp/{at}"]
    # the mean score of the classes of the second experience
    assert -100 < results["MeanScores/train_phase/train_stream/new_classes"] < 100


@proves("metrics", "images_samples_metrics", "labels_repartition_metrics", "WeightCheckpoint")
def test_samples_and_weights(outcome):
    results, strategy, *_ = outcome
    assert results["images/train_phase/train_stream/Task000"].image.ndim == 3
    assert results["Repartition/train_phase/train_stream/Task_000"] is not None
    checkpoint = results["WeightCheckpoint/train_phase/train_stream/Exp001"]
    saved = torch.load(io.BytesIO(checkpoint), weights_only=False)
    assert_same_state(state_of(saved), state_of(strategy.model))


def test_metrics_on_samples_without_task_labels():
    stream = class_incremental_stream(size=8, per_class=8)
    results, _, class_il, task_il = run(
        stream,
        everywhere(accuracy_metrics),
        everywhere(loss_metrics),
        everywhere(timing_metrics),
        bwt_metrics(experience=True, stream=True),
        forgetting_metrics(experience=True, stream=True),
        forward_transfer_metrics(experience=True, stream=True),
        mean_scores_metrics(),
    )
    accuracy = results[f"Top1_Acc_Exp/{TEST}/Exp001"]
    assert accuracy == pytest.approx(class_il[1, 1])
    assert results[f"StreamBWT/{TEST}"] == pytest.approx(class_il[1, 0] - class_il[0, 0])
    assert results[f"StreamForwardTransfer/{TEST}"] == 0
    assert task_il[1, 0] >= class_il[1, 0]


@pytest.mark.parametrize("from_zero", [False, True])
def test_a_task_never_trained_is_answered_with_none_of_its_classes(from_zero):
    stream = nc_stream(task_labels=True, from_zero=from_zero, size=8, per_class=16)
    results, *_ = run(
        stream,
        accuracy_metrics(experience=True),
        confusion_matrix_metrics(stream=True, save_image=False),
        class_accuracy_metrics(experience=True),
        loss_metrics(experience=True),
    )
    assert results[f"Top1_Acc_Exp/{TEST}/Task002/Exp002"] == 0
    assert results[f"Loss_Exp/{TEST}/Task002/Exp002"] == pytest.approx(1000, abs=1)
    # one column beyond all labels holds the answers to the unseen task
    width = 2 if from_zero else 6
    assert results[f"ConfusionMatrix_Stream/{TEST}"][:, width].sum() == 16
