"""The stable learner taken away: the user's own network, which answers as the strategy does."""

import pytest
import safetensors.torch
import torch
from avalanche.core import SupervisedPlugin
from avalanche.models import IncrementalClassifier
from helpers import (
    IMAGE_SIZE,
    MODELS,
    STREAMS,
    Probe,
    SmallCNN,
    VersionedCNN,
    assert_same_state,
    batch_of,
    mlp,
    nc_stream,
    state_of,
    strategy_of,
    tensors_stream,
)
from torch import nn

from avalanche_dlcpa import DualLearner, load_stable
from avalanche_dlcpa.backbones import resnet18
from avalanche_dlcpa.random_states import random_states


def learned(model=None, stream=None, **kwargs):
    """A strategy that has learned two experiences of a stream, and the stream."""
    stream = tensors_stream(per_class=8) if stream is None else stream
    strategy = strategy_of(SmallCNN() if model is None else model, **kwargs)
    for experience in stream.train_stream[:2]:
        strategy.train(experience)
    return strategy, stream


def images_of_tasks(stream, num_tasks=2):
    return torch.cat([batch_of(experience)[0] for experience in stream.test_stream[:num_tasks]])


@pytest.fixture
def path(tmp_path):
    return tmp_path / "stable.safetensors"


@pytest.fixture(scope="module")
def two_tasks():
    return learned()


# The network ------------------------------------------------------------------------------------


def test_it_answers_as_the_strategy_and_needs_this_package_no_more(two_tasks, path):
    strategy, stream = two_tasks
    images = images_of_tasks(stream)
    expected = strategy.model.eval()(images)
    network = strategy.model.stable_model()
    assert {type(part).__module__.partition(".")[0] for part in network.modules()} <= {
        "torch",
        "helpers",  # where the user's model is defined
    }
    assert not network.training
    assert torch.equal(network(images), expected)
    strategy.model.export(path)
    alone = SmallCNN(num_classes=4)  # as a user without this package does
    alone.load_state_dict(safetensors.torch.load_file(path))
    assert torch.equal(alone.eval()(images), expected)


@pytest.mark.parametrize("name", MODELS)
def test_with_every_kind_of_model(name, path):
    stream = tensors_stream(per_class=8, size=IMAGE_SIZE.get(name, 16))
    strategy, _ = learned(MODELS[name](), stream)
    images = images_of_tasks(stream)
    strategy.model.export(path, image_shape=images.shape[1:])
    fresh = MODELS[name]()
    before = state_of(fresh)
    network, info = load_stable(path, fresh)
    assert torch.equal(network(images), strategy.model.eval()(images))
    assert info.labels == (0, 1, 2, 3)
    assert_same_state(state_of(fresh), before)


@pytest.mark.parametrize("name", STREAMS)
def test_both_scenarios_on_every_kind_of_stream(name, path):
    strategy, stream = learned(mlp(20), STREAMS[name](per_class=8))
    strategy.model.export(path)
    network, info = load_stable(path, mlp(3))
    restarts = len(set(info.labels)) < len(info.labels)
    assert restarts == (name == "nc with labels from zero")
    for task, experience in enumerate(stream.test_stream[:2]):
        images, _ = batch_of(experience)
        logits, dual = network(images), strategy.model.eval()
        columns = info.columns(task)
        if not restarts:
            assert torch.equal(logits, dual(images)[:, list(info.labels)])
            answer = torch.tensor(info.labels)[logits.argmax(1)]
            assert torch.equal(answer, dual(images).argmax(1))
        classes = [info.labels[column] for column in columns]
        assert set(classes) == set(experience.classes_in_this_experience)
        label = torch.tensor(classes)[logits[:, columns].argmax(1)]
        if "task" in name or "zero" in name:
            assert torch.equal(label, dual(images, task).argmax(1))
        else:
            own = dual(images)[:, classes].argmax(1)
            assert torch.equal(label, torch.tensor(classes)[own])


def test_columns_are_in_the_order_of_labels_whatever_the_order_of_learning(path):
    stream = tensors_stream([(3, 0), (5, 1)], per_class=8)
    strategy, _ = learned(stream=stream)
    strategy.model.export(path, class_names=["a", "b", "c", "d", "e", "f"])
    network, info = load_stable(path, SmallCNN())
    assert info.labels == (0, 1, 3, 5)
    assert info.names == ("a", "b", "d", "f")
    assert info.tasks == (0, 1, 0, 1)
    images = images_of_tasks(stream)
    assert torch.equal(network(images), strategy.model.eval()(images)[:, [0, 1, 3, 5]])


def test_a_head_without_bias(path):
    model = SmallCNN(head=nn.Linear(64, 6, bias=False))
    strategy, stream = learned(model)
    strategy.model.export(path)
    network, _ = load_stable(path, SmallCNN(head=nn.Linear(64, 2, bias=False)))
    images = images_of_tasks(stream)
    assert torch.equal(network(images), strategy.model.eval()(images))
    with pytest.raises(
        ValueError, match=r"'fc\.bias' is torch.float32 \[4\], where the file has none"
    ):
        load_stable(path, SmallCNN())


def test_a_network_that_migrates_states_of_old_code(path):
    strategy, stream = learned(VersionedCNN())
    strategy.model.export(path)
    network, _ = load_stable(path, VersionedCNN())
    images = images_of_tasks(stream)
    assert torch.equal(network(images), strategy.model.eval()(images))


def test_recalibrated_statistics_go_with_it(path):
    strategy, stream = learned(bn_statistics="recalibrated")
    strategy.model.export(path)
    images = images_of_tasks(stream)
    network, _ = load_stable(path, SmallCNN())
    assert torch.equal(network(images), strategy.model.eval()(images))


def test_statistics_of_the_batch_are_refused_with_the_way_out(path):
    strategy, stream = learned(bn_statistics="batch")
    with pytest.raises(
        ValueError, match=r"got bn_statistics='batch'.*set `bn_statistics = 'running'"
    ):
        strategy.model.export(path)
    assert not path.exists()
    strategy.model.bn_statistics = "running"
    strategy.model.export(path)
    images = images_of_tasks(stream)
    network, _ = load_stable(path, SmallCNN())
    assert torch.equal(network(images), strategy.model.eval()(images))
    torch.testing.assert_close(network(images)[:1], network(images[:1]))  # whatever is beside it


def test_after_an_experience_that_was_broken_off_a_gaussian_classifier_can_be_exported(path):
    class BreaksOff(SupervisedPlugin):
        def before_training_iteration(self, strategy, **kwargs):
            if strategy.experience.current_experience == 1:
                raise RuntimeError("broken off")

    stream = tensors_stream(size=8, per_class=8)
    strategy = strategy_of(SmallCNN(), classifier="gaussian", plugins=[BreaksOff()])
    strategy.train(stream.train_stream[0])
    with pytest.raises(RuntimeError, match="broken off"):
        strategy.train(stream.train_stream[1])
    strategy.train(stream.train_stream[2])
    strategy.model.export(path)
    network, info = load_stable(path, SmallCNN())
    assert info.labels == (0, 1, 4, 5)
    assert info.classifiers == (0, 0, 1, 1)
    images, _ = batch_of(stream.test_stream[0])
    expected = strategy.model.eval()(images)[:, [0, 1, 4, 5]]
    torch.testing.assert_close(network.eval()(images), expected)


def test_a_gaussian_classifier_goes_with_it_where_it_answers(path):
    stream = tensors_stream([(3, 0), (5, 1)], per_class=8)
    strategy, _ = learned(stream=stream, classifier="gaussian")
    images = images_of_tasks(stream)
    gaussian = strategy.model.eval()(images)
    for kind in ("gaussian", "linear"):
        strategy.model.export(path, image_shape=(3, 16, 16))
        network, info = load_stable(path, SmallCNN())
        expected = strategy.model.eval()(images)
        assert info.kind == kind
        assert info.tasks == (0, 1, 0, 1)
        assert torch.equal(network(images), expected[:, list(info.labels)])
        strategy.model.gaussian = None
    assert not torch.equal(expected, gaussian)


def test_a_gaussian_classifier_in_the_place_of_a_head_without_bias(path):
    strategy, stream = learned(SmallCNN(head=nn.Linear(64, 6, bias=False)), classifier="gaussian")
    strategy.model.export(path)
    network, _ = load_stable(path, SmallCNN(head=nn.Linear(64, 2, bias=False)))
    images = images_of_tasks(stream)
    assert torch.equal(network(images), strategy.model.eval()(images))


def test_it_is_a_copy_and_taking_it_changes_nothing(path):
    strategy, stream = learned()
    strategy.model.train()
    before = state_of(strategy.model)
    modes = [part.training for part in strategy.model.modules()]
    states = random_states(torch.device("cpu"))
    strategy.model.export(path, image_shape=(3, 16, 16))
    with torch.no_grad():
        for parameter in strategy.model.stable_model().parameters():
            parameter.zero_()
    assert_same_state(state_of(strategy.model), before)
    assert [part.training for part in strategy.model.modules()] == modes
    assert torch.equal(states["torch"], random_states(torch.device("cpu"))["torch"])
    strategy.train(stream.train_stream[2])  # goes on


def test_tied_and_transposed_weights_are_written(path):
    def tied():
        model = nn.Sequential(
            nn.Flatten(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 12), nn.Linear(12, 2)
        )
        model[3].weight = model[1].weight
        return model

    dual = DualLearner(tied())
    dual.classifiers.add(0, [0, 1])
    dual.num_averaged += 1
    dual.stable[1].bias.data = torch.randn(2, 12).t()[:, 0]
    dual.export(path)
    network, _ = load_stable(path, tied())
    images = torch.rand(3, 3, 2, 2)
    assert torch.equal(network(images), dual.eval()(images))


# What is refused when exporting -----------------------------------------------------------------


def test_an_export_before_or_amid_an_experience_is_refused(path):
    def try_to_export(strategy):
        with pytest.raises(ValueError, match="between two experiences, got one amid an experience"):
            strategy.model.export(path)
        return strategy.model.stable_model()  # to look at, not to count on

    probe = Probe(after_training_iteration=try_to_export)
    strategy, _ = learned(plugins=[probe])
    assert len(probe.seen["after_training_iteration"]) == 2
    strategy.model.export(path)
    untrained = DualLearner(SmallCNN())
    for take_away in (lambda: untrained.export(path), untrained.stable_model):
        with pytest.raises(ValueError, match="Expected a model that has learned a task, got none"):
            take_away()


def test_an_experience_that_was_broken_off_is_no_place_to_export(path, tmp_path):
    stream = tensors_stream(per_class=8)
    iterations = []

    class Interrupt(SupervisedPlugin):
        def after_training_iteration(self, strategy, **kwargs):
            iterations.append(strategy.clock.train_iterations)
            if len(iterations) == 6:  # of 4 in each experience
                raise KeyboardInterrupt

    def resumed():
        strategy = strategy_of(SmallCNN(), train_mb_size=4, plugins=[Interrupt()])
        strategy.resume(tmp_path / "run", every_minutes=0)
        return strategy

    strategy = resumed()
    strategy.train(stream.train_stream[0])
    with pytest.raises(KeyboardInterrupt):
        strategy.train(stream.train_stream[1])
    again = resumed()
    for broken_off in (strategy, again):
        with pytest.raises(ValueError, match=r"amid an experience.*train it to its end"):
            broken_off.model.export(path)
    again.train(stream.train_stream[:2])
    again.model.export(path)
    assert load_stable(path, SmallCNN())[1].num_averaged == 2


def test_class_names(two_tasks, path):
    strategy, _ = two_tasks
    strategy.model.export(path)
    assert load_stable(path, SmallCNN())[1].names == ("0", "1", "2", "3")
    strategy.model.export(path, class_names={(0, label): f"class {label}" for label in range(4)})
    assert load_stable(path, SmallCNN())[1].names == ("class 0", "class 1", "class 2", "class 3")
    for names in (["a", "b", "c"], {(0, 0): "a", (0, 1): "b", (0, 2): "c", 3: "d"}):
        with pytest.raises(ValueError, match="got none for class label 3 of task label 0"):
            strategy.model.export(path, class_names=names)


def test_names_of_labels_that_restart_tell_the_task(path):
    strategy, _ = learned(mlp(2), nc_stream(task_labels=True, from_zero=True, per_class=8))
    with pytest.raises(
        ValueError, match=r"a dict by .task label, class label., since class labels re"
    ):
        strategy.model.export(path, class_names=["a", "b"])
    names = {(0, 0): "a", (0, 1): "b", (1, 0): "c", (1, 1): "d"}
    strategy.model.export(path, class_names=names)
    info = load_stable(path, mlp(2))[1]
    found = {
        (task, label): name
        for task, label, name in zip(info.task_labels, info.labels, info.names, strict=True)
    }
    assert found == names


def test_image_shape_and_normalization(two_tasks, path):
    strategy, _ = two_tasks
    strategy.model.export(path, image_shape=[3, 8, 8], normalization=([0.5] * 3, [0.25, 0.2, 0.1]))
    info = load_stable(path, SmallCNN())[1]
    assert info.image_shape == (3, 8, 8)
    assert info.normalization == ((0.5, 0.5, 0.5), (0.25, 0.2, 0.1))
    with pytest.raises(ValueError, match=r"one input, got \(8, 8\), which the model does not take"):
        strategy.model.export(path, image_shape=(8, 8))
    with pytest.raises(ValueError, match="got 2 means and 1 deviations"):
        strategy.model.export(path, normalization=([0.5, 0.5], [0.5]))
    assert load_stable(path, SmallCNN())[1] == info  # the file is as it was


class Root(SmallCNN):
    """Has no answer to a negative input."""

    def forward(self, x):
        return super().forward(x.sqrt())


class Drawing(SmallCNN):
    """Adds noise also in evaluation mode."""

    def forward(self, x):
        return super().forward(x + 0.3 * torch.randn_like(x))


@pytest.mark.parametrize(
    ("model", "problem"),
    [(Root, "finite logits, got NaN or infinity"), (Drawing, "draws in evaluation mode")],
)
def test_an_answer_that_no_network_could_give_again_is_refused(path, model, problem):
    strategy, _ = learned(model())
    before = torch.get_rng_state()
    with pytest.raises(ValueError, match=f"Expected `image_shape` .*{problem}: leave `image_shap"):
        strategy.model.export(path, image_shape=(3, 16, 16))
    assert torch.equal(torch.get_rng_state(), before)
    assert not path.exists()
    strategy.model.export(path)
    load_stable(path, model())


def test_extra_state_that_is_no_tensor_is_refused(path):
    class WithExtraState(SmallCNN):
        def get_extra_state(self):
            return {"secret": 1}

        def set_extra_state(self, state):
            pass

    strategy, _ = learned(WithExtraState())
    with pytest.raises(ValueError, match="got '_extra_state' of type dict"):
        strategy.model.export(path)


# What is refused when loading -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        (lambda: SmallCNN(channels=1), r"'conv\.weight' is torch\.float32 \[16, 1, 3, 3\], where"),
        (lambda: SmallCNN(batch_norm=False), r"'norm\.\w*' is absent, where .* \(5 tensors differ"),
        (lambda: SmallCNN().double(), r"'conv\.weight' is torch\.float64 .* has torch\.float32"),
        (lambda: SmallCNN(head=nn.Linear(32, 6)), r"'fc\.weight' is .*\[4, 32\].*has .*\[4, 64\]"),
        (mlp, "a SmallCNN with the last linear layer 'fc', as in .*, got a SimpleMLP"),
        (nn.Identity, "got a Identity"),
        (lambda: DualLearner(SmallCNN()), "got a DualLearner.* taken apart already: pass a fresh"),
    ],
)
def test_a_foreign_network_is_refused(two_tasks, path, model, problem):
    two_tasks[0].model.export(path)
    with pytest.raises(ValueError, match=f"Expected `model` to be .*{problem}"):
        load_stable(path, model())


@pytest.mark.parametrize("wrap", [torch.compile, nn.DataParallel])
def test_a_file_of_a_wrapped_network_tells_so(path, wrap):
    strategy = strategy_of(wrap(SmallCNN()))
    strategy.model.num_averaged += 1
    strategy.model.classifiers.add(0, [0, 1])
    strategy.model.export(path)
    name = f"torch.{'compile' if wrap is torch.compile else 'nn.DataParallel'}"
    words = rf"It was trained in {name}: pass {name}\(model\)"
    with pytest.raises(ValueError, match=words):
        load_stable(path, SmallCNN())
    load_stable(path, wrap(SmallCNN()))


def test_a_network_with_the_same_tensors_that_computes_something_else_is_refused(path):
    strategy, stream = learned(resnet18(6, width=8), tensors_stream(per_class=8))
    strategy.model.export(path, image_shape=(3, 16, 16))
    network, _ = load_stable(path, resnet18(6, width=8))
    images = images_of_tasks(stream)
    assert torch.equal(network(images), strategy.model.eval()(images))
    with pytest.raises(ValueError, match="got one with the same tensors that answers otherwise"):
        load_stable(path, resnet18(6, width=8, stem_relu=False))


class Asking(SmallCNN):
    """One that checks its inputs by itself."""

    def __init__(self, size):
        super().__init__()
        self.size = size

    def forward(self, x):
        assert x.shape[-1] == self.size, f"got width {x.shape[-1]}"
        return super().forward(x)


def test_what_a_network_says_of_a_wrong_input_is_passed_on(path):
    strategy, _ = learned(Asking(8), tensors_stream(per_class=8, size=8))
    with pytest.raises(ValueError, match=r"which the model does not take \(got width 9\)"):
        strategy.model.export(path, image_shape=(3, 9, 9))
    strategy.model.export(path, image_shape=(3, 8, 8))
    with pytest.raises(ValueError, match=r"takes no input of shape \(3, 8, 8\) \(got width 8\)"):
        load_stable(path, Asking(9))


def test_a_network_that_takes_other_inputs_is_refused(path):
    def network(size):
        pool = nn.AvgPool2d(size // 2)
        return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), pool, nn.Flatten(), nn.Linear(16, 6))

    strategy, _ = learned(network(16), head="3")
    strategy.model.export(path, image_shape=(3, 16, 16))
    load_stable(path, network(16))
    with pytest.raises(ValueError, match=r"takes no input of shape \(3, 16, 16\)"):
        load_stable(path, network(8))


def test_a_narrow_model_is_written_as_it_is(path):
    strategy, stream = learned(mlp().bfloat16(), views=lambda x: (x.bfloat16(),))
    strategy.model.export(path, image_shape=(3, 16, 16))
    network, _ = load_stable(path, mlp().bfloat16())
    images = images_of_tasks(stream).bfloat16()
    assert torch.equal(network(images), strategy.model.eval()(images))


def test_a_head_of_avalanche_in_a_fresh_model_will_do(two_tasks, path):
    two_tasks[0].model.export(path)
    network, _ = load_stable(path, SmallCNN(head=IncrementalClassifier(64)))
    assert type(network.fc) is nn.Linear


def test_parameters_that_are_not_finite_are_not_exported(path):
    strategy, _ = learned()
    strategy.model.stable.conv.weight[0, 0, 0, 0] = float("nan")
    with pytest.raises(ValueError, match="Expected finite parameters to export, got NaN"):
        strategy.model.export(path)
    assert not path.exists()
