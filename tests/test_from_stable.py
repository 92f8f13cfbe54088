"""Going on from an exported stable learner: the average counts on, and old classes stay."""

import warnings

import numpy as np
import pytest
import torch
from avalanche.models import MTSimpleMLP
from avalanche.training.plugins import EvaluationPlugin
from helpers import (
    SmallCNN,
    VersionedCNN,
    assert_same_state,
    batch_of,
    clone,
    copies,
    mlp,
    nc_stream,
    small_head,
    state_of,
    strategy_of,
    tensors_stream,
)
from torch import nn
from torch.nn.functional import linear
from torch.optim import SGD

from avalanche_dlcpa import DLCPAStrategy, GaussianClassifierPlugin, load_stable
from avalanche_dlcpa.metrics import scenario_metrics


def continued(path, model=None, *, lr=0.05, **kwargs):
    model = SmallCNN() if model is None else model
    defaults = {"train_mb_size": 16, "eval_mb_size": 64, "evaluator": None, "ssl": None}
    return DLCPAStrategy.from_stable(
        path, model=model, optimizer=SGD(model.parameters(), lr=lr), **defaults | kwargs
    )


def stream_of(tasks=((0, 1), (2, 3), (4, 5)), **kwargs):
    return tensors_stream(tasks, per_class=8, **kwargs)


def exported(path, model=None, *, stream=None, num_tasks=2, **kwargs):
    stream = stream_of() if stream is None else stream
    strategy = strategy_of(SmallCNN() if model is None else model, **kwargs)
    for experience in stream.train_stream[:num_tasks]:
        strategy.train(experience)
    strategy.model.export(path, image_shape=batch_of(stream.train_stream[0])[0].shape[1:])
    return strategy, stream


@pytest.fixture
def path(tmp_path):
    return tmp_path / "stable.safetensors"


def test_both_learners_start_from_the_file_and_predict_as_before(path):
    strategy, stream = exported(path)
    model = SmallCNN()
    weight = model.conv.weight
    again = continued(path, model)
    assert again.model.plastic is model
    assert model.conv.weight is weight  # the very parameters that the optimizer holds
    stable = state_of(strategy.model.stable)
    assert_same_state(state_of(again.model.stable), stable)
    assert_same_state(state_of(again.model.plastic), stable)
    assert int(again.model.num_averaged) == 2
    assert again.model.classifiers.keys == strategy.model.classifiers.keys
    images, _ = batch_of(stream.test_stream[1])
    assert torch.equal(again.model.eval()(images), strategy.model.eval()(images))


def test_a_model_that_migrates_states_of_old_code(path):
    strategy, _ = exported(path, VersionedCNN())
    again = continued(path, VersionedCNN())
    stable = state_of(strategy.model.stable)
    assert_same_state(state_of(again.model.stable), stable)
    assert_same_state(state_of(again.model.plastic), stable)


@pytest.mark.parametrize("t", [1, 2, 3])
def test_the_next_task_enters_the_average_with_its_share(path, t):
    tasks = [(0, 1), (2, 3), (0, 2), (4, 5)]
    _, stream = exported(path, num_tasks=t, stream=stream_of(tasks))
    again = continued(path, train_epochs=2)
    before = copies(again.model.stable.parameters())
    again.train(stream.train_stream[3])
    plastic, stable = (copies(m.parameters()) for m in (again.model.plastic, again.model.stable))
    assert int(again.model.num_averaged) == t + 1
    for phi, theta, found in zip(before, plastic, stable, strict=True):
        assert not torch.equal(theta, phi)
        mean = (theta.double() + t * phi.double()) / (t + 1)
        torch.testing.assert_close(found.double(), mean, rtol=1e-6, atol=1e-7)
        assert torch.equal(found, torch.lerp(phi, theta, 1 / (t + 1)))
    again.model.export(path)
    assert load_stable(path, SmallCNN())[1].num_averaged == t + 1


def test_after_one_task_it_is_the_run_that_was_never_left(path):
    # The average of one task is the plastic learner, which is all that the file does not hold.
    start = SmallCNN(batch_norm=False)
    strategy, stream = exported(path, clone(start), num_tasks=1)
    again = continued(path, clone(start))
    for one in (strategy, again):
        for experience in stream.train_stream[1:]:
            torch.manual_seed(7)
            one.train(experience)
    assert_same_state(state_of(again.model), state_of(strategy.model))


def test_old_classifiers_are_frozen_and_answer_on_the_new_features(path):
    strategy, stream = exported(path)
    weight = torch.cat([layer.weight for layer in strategy.model.classifiers.linears]).clone()
    bias = torch.cat([layer.bias for layer in strategy.model.classifiers.linears]).clone()
    again = continued(path, train_epochs=2)
    again.train(stream.train_stream[2])
    old = [again.model.classifiers.rows(number) for number in (0, 1)]
    assert torch.equal(torch.cat([part for part, _ in old]), weight)
    assert torch.equal(torch.cat([part for _, part in old]), bias)
    images, _ = batch_of(stream.test_stream[0])
    again.model.eval()
    logits = again.model(images)
    old = linear(again.model.features(images), weight, bias)
    assert logits.shape[1] == 6
    torch.testing.assert_close(logits[:, :4], old)
    assert torch.equal(logits[:, :4].argmax(1), old.argmax(1))
    assert not torch.equal(logits[:, :4], strategy.model.eval()(images))  # the features have moved


def test_a_class_that_comes_back_is_trained_further_and_its_neighbours_are_not(path):
    strategy, _ = exported(path)
    again = continued(path)
    again.train(stream_of([(1, 4)]).train_stream[0])
    first, second, third = (again.model.classifiers.rows(number)[0] for number in range(3))
    old, other = (strategy.model.classifiers.rows(number)[0] for number in range(2))
    assert torch.equal(first[0], old[0])
    assert not torch.equal(first[1], old[1])
    assert torch.equal(second, other)
    assert len(third) == 1
    assert again.model.classifiers.keys == [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4)]


def test_classes_in_any_order_of_learning_come_back_to_their_classifiers(path):
    strategy, stream = exported(path, stream=stream_of([(5, 1), (3, 0), (2, 4)]))
    again = continued(path)
    images, _ = batch_of(stream.test_stream[0])
    assert torch.equal(again.model.eval()(images), strategy.model.eval()(images))
    again.train(stream.train_stream[2])
    assert again.model.eval()(images).shape[1] == 6


@pytest.mark.parametrize("from_zero", [False, True])
@pytest.mark.parametrize("multi_task", [False, True])
def test_streams_with_task_labels(path, from_zero, multi_task):
    def model():
        return MTSimpleMLP(input_size=768, hidden_size=16) if multi_task else mlp(6)

    stream = nc_stream(task_labels=True, from_zero=from_zero, per_class=8)
    strategy, _ = exported(path, model(), stream=stream)
    again = continued(path, model())
    images, _ = batch_of(stream.test_stream[1])
    for task in (0, 1):
        expected = strategy.model.eval()(images, task)
        assert torch.equal(again.model.eval()(images, task), expected)
    again.train(stream.train_stream[2])
    assert again.eval(stream.test_stream) is not None
    assert [task for task, _ in again.model.classifiers.keys] == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("name", ["mocov2", "byol"])
def test_momentum_encoders_start_from_the_file_too(path, name):
    strategy, stream = exported(path, ssl=small_head(name))
    again = continued(path, ssl=small_head(name), average_source="momentum")
    momentum = state_of(again.ssl.momentum_encoder)
    assert_same_state(momentum, state_of(strategy.model.stable))
    again.train(stream.train_stream[2])
    assert int(again.model.num_averaged) == 3


def test_a_subclass_stays_one_and_arguments_reach_the_constructor(path):
    class Mine(DLCPAStrategy):
        pass

    exported(path)
    model = SmallCNN()
    again = Mine.from_stable(
        path,
        model=model,
        optimizer=SGD(model.parameters(), lr=0.1),
        ssl=None,
        supervised_weight=3.0,
        bn_statistics="recalibrated",
        train_mb_size=4,
    )
    assert type(again) is Mine
    assert (again.supervised_weight, again.train_mb_size) == (3.0, 4)
    assert again.model.bn_statistics == "recalibrated"
    with pytest.raises(TypeError, match="head"):
        continued(path, head="fc")


def test_a_gaussian_classifier_would_not_know_the_old_classes(path):
    strategy, _ = exported(path, classifier="gaussian")
    with pytest.raises(
        ValueError, match=r"got a Gaussian one: set `strategy.model.gaussian = None"
    ):
        continued(path)
    strategy.model.gaussian = None
    strategy.model.export(path)
    for arguments in ({"classifier": "gaussian"}, {"plugins": [GaussianClassifierPlugin()]}):
        with pytest.raises(ValueError, match="got a Gaussian one, which would not know the old"):
            continued(path, **arguments)
    continued(path)


def test_what_is_wrong_with_the_file_leaves_the_model_as_it_was(path):
    exported(path)
    model = SmallCNN()
    before = state_of(model)
    path.write_bytes(path.read_bytes()[:-1] + b"\x7f")
    with pytest.raises(ValueError, match="got a file that was altered"):
        continued(path, model)
    exported(path)
    with pytest.raises(ValueError, match="Expected `model` to be built as the one"):
        continued(path, SmallCNN(channels=1))
    assert_same_state(state_of(model), before)
    assert isinstance(model.fc, nn.Linear)
    continued(path, model)


def test_the_checks_of_the_constructor_hold(path):
    exported(path)
    stranger = SmallCNN()
    with pytest.raises(ValueError, match="Expected `optimizer` to hold every parameter"):
        DLCPAStrategy.from_stable(
            path,
            model=SmallCNN(),
            optimizer=SGD(stranger.parameters(), lr=0.1),
            ssl=None,
            train_mb_size=4,
        )


def test_a_run_from_one_file_does_not_go_on_from_another(path, tmp_path):
    exported(path)
    run = continued(path)
    run.resume(tmp_path / "run")
    run.train(stream_of().train_stream[2])
    assert continued(path).resume(tmp_path / "run") == 1
    torch.manual_seed(1)
    exported(path)
    with pytest.raises(ValueError, match="It is of another run: it has from_stable"):
        continued(path).resume(tmp_path / "run")


def test_a_killed_run_from_a_file_goes_on(path, tmp_path):
    _, stream = exported(path)
    run = continued(path)
    run.resume(tmp_path / "run")
    run.train(stream.train_stream[2])
    again = continued(path)
    again.resume(tmp_path / "run")
    assert_same_state(state_of(again.model), state_of(run.model))
    again.model.export(path)
    assert load_stable(path, SmallCNN())[1].num_averaged == 3


def test_what_the_file_has_learned_is_judged_in_both_scenarios(path):
    _, stream = exported(path)
    metrics = scenario_metrics()
    again = continued(path, evaluator=EvaluationPlugin(*metrics))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again.train(stream.train_stream[2])
        again.eval(stream.test_stream)
    class_il, task_il = (metric.matrix()[0] for metric in metrics)
    assert np.isfinite(task_il).all()
    assert (task_il >= class_il).all()
