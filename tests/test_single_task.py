"""STL, STL-me and STL-me with classifier finetuning."""

import copy
import functools

import pytest
import torch
from avalanche.benchmarks import nc_benchmark
from avalanche.benchmarks.scenarios.online import split_online_stream
from avalanche.evaluation.metrics import accuracy_metrics, loss_metrics
from avalanche.models import SimpleMLP
from avalanche.training.plugins import EvaluationPlugin, ReplayPlugin, SupervisedPlugin
from helpers import (
    STREAMS,
    Probe,
    SmallCNN,
    WithTargets,
    assert_same_state,
    batch_of,
    copies,
    optimized,
    samples,
    seed_everything,
    state_of,
    tensors_stream,
)
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, AdamW
from torch.optim.swa_utils import AveragedModel
from walker import holding, package_globals, reachable

from avalanche_dlcpa import DualLearner, SingleTaskStrategy
from avalanche_dlcpa.metrics import scenario_metrics
from avalanche_dlcpa.streams import split_digits

MEAN = {"predict_with": "mean"}
FINETUNED = {"predict_with": "mean", "finetune_epochs": 5, "finetune_lr": 0.1}
VARIANTS = {"STL": {}, "STL-me": MEAN, "STL-me finetuned": FINETUNED}
each_variant = pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)

small_stream = functools.partial(tensors_stream, size=8, per_class=12)


def stl(model=None, *, lr=0.05, optimizer=None, **kwargs):
    """A strategy with small mini-batches and without loggers."""
    model = SmallCNN() if model is None else model
    optimizer = optimizer or SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=0.01)
    defaults = {"train_mb_size": 8, "eval_mb_size": 64, "evaluator": None}
    return SingleTaskStrategy(model=model, optimizer=optimizer, **defaults | kwargs)


def mlp():
    return SimpleMLP(num_classes=10, input_size=64, hidden_size=32, drop_rate=0.0)


def extractors_of(model):
    return [m for m in (*model.earlier, model.extractor, model.mean) if m is not None]


def on_digits(options, *, task_labels=False):
    """Both scenarios' metrics after a run on the digits, evaluated after each experience."""
    seed_everything()
    class_il, task_il = scenario_metrics()
    strategy = stl(
        mlp(),
        train_epochs=4,
        evaluator=EvaluationPlugin(class_il, task_il),
        **options,
    )
    stream = split_digits(5, train_images_per_class=60, task_labels=task_labels)
    for index, experience in enumerate(stream.train_stream):
        strategy.train(experience)
        strategy.eval(stream.test_stream[: index + 1])
    return strategy, class_il, task_il


# Results ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def digits():
    """Accuracy matrices of the three variants, (Class-IL, Task-IL), and their last metrics."""
    runs = {}
    for name, options in VARIANTS.items():
        strategy, class_il, task_il = on_digits(options)
        metrics = strategy.evaluator.get_last_metrics()
        summary = {
            key.split("/")[0]: value for key, value in metrics.items() if key.count("/") == 2
        }
        runs[name] = class_il.matrix(), task_il.matrix(), summary
    return runs


def test_stl_is_the_upper_bound_of_task_il(digits):
    accuracy = {name: summary["TaskIL_ACC"] for name, (_, _, summary) in digits.items()}
    assert accuracy["STL"] > 0.95
    assert accuracy["STL"] > accuracy["STL-me"] + 0.02
    assert accuracy["STL-me finetuned"] > accuracy["STL-me"] + 0.02
    assert accuracy["STL-me"] > 0.6


def test_stl_forgets_nothing_in_task_il(digits):
    _, task_il, summary = digits["STL"]
    for task in range(5):
        assert (task_il[task:, task] == task_il[task, task]).all()
    assert summary["TaskIL_BWT"] == 0
    with_mean = digits["STL-me"][1]
    assert (with_mean[4, :4] != with_mean.diagonal()[:4]).any()  # the mean does not stand still


@pytest.mark.parametrize("name", VARIANTS)
def test_class_il_lies_between_chance_and_task_il(digits, name):
    _, _, summary = digits[name]
    assert 0.15 < summary["ClassIL_ACC"] < summary["TaskIL_ACC"]
    assert summary["ClassIL_BWT"] < 0


def test_task_labels_give_the_task_il_of_the_run_without_them(digits):
    _, _, with_labels = on_digits({}, task_labels=True)
    torch.testing.assert_close(
        torch.tensor(with_labels.matrix()).tril(), torch.tensor(digits["STL"][1]).tril()
    )


@each_variant
@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.filterwarnings("ignore:Task-IL accuracy of experience")
def test_learns_any_stream(options, name):
    stream = STREAMS[name](size=8, per_class=12)
    accuracy = accuracy_metrics(experience=True)
    strategy = stl(train_epochs=6, evaluator=EvaluationPlugin(accuracy), **options)
    metrics = []
    for experience in stream.train_stream:
        strategy.train(experience)
        result = strategy.eval(stream.test_stream)  # tasks never trained, too
        metrics.append([value for key, value in result.items() if key.startswith("Top1_Acc_Exp")])
    assert len(metrics[-1]) == 3
    assert metrics[0][0] > 0.9
    assert metrics[0][1:] == [0, 0]  # no label of a task never trained is right by chance
    if "task labels" in name or "zero" in name:
        assert min(metrics[-1]) > 0.9 if not options else sum(metrics[-1]) > 1.5


# STL --------------------------------------------------------------------------------------------


def test_logits_of_an_old_task_stay_bit_identical():
    stream = small_stream(task_labels=[0, 1, 2])
    strategy = stl(train_epochs=2)
    x, _ = batch_of(stream.test_stream[0])
    strategy.train(stream.train_stream[0])
    before = strategy.model.eval()(x, 0)[:, :2]
    strategy.train(stream.train_stream[1:])
    after = strategy.model.eval()(x, 0)
    later, stored = strategy.model.extractor(x), strategy.model.earlier[0](x)
    assert torch.equal(after[:, :2], before)
    assert (after[:, 2:] < before.min() - 500).all()
    assert not torch.allclose(stored, later, atol=1e-3)  # and yet training went on


def test_without_task_labels_the_logits_of_all_networks_stand_side_by_side():
    stream = small_stream(tasks=((3, 0), (1, 5), (2, 4)))
    strategy = stl()
    x, _ = batch_of(stream.test_stream[1])
    networks = []
    for experience in stream.train_stream:
        strategy.train(experience)
        strategy.model.eval()
        networks.append(copy.deepcopy((strategy.model.extractor, strategy.model.classifier)))
    with torch.no_grad():
        answer = strategy.model(x)
        expected = torch.cat([gamma(theta(x)) for theta, gamma in networks], dim=1)
    assert torch.equal(answer, expected[:, [0, 2, 4, 1, 5, 3]])  # classes sorted within a task


def test_each_task_starts_from_the_extractor_of_the_previous_one():
    stream = small_stream()
    probe = Probe(before_training_exp=lambda s: state_of(s.model.extractor))
    ends = Probe(after_training_exp=lambda s: state_of(s.model.extractor))
    stl(plugins=[probe, ends]).train(stream.train_stream)
    starts, ends = probe.seen["before_training_exp"], ends.seen["after_training_exp"]
    assert_same_state(starts[1], ends[0])
    assert_same_state(starts[2], ends[1])
    assert not torch.equal(starts[0]["0.conv.weight"], ends[0]["0.conv.weight"])


# STL-me -----------------------------------------------------------------------------------------


def numbers_in_extractors(options, num_tasks):
    stream = small_stream(tasks=[(2 * t, 2 * t + 1) for t in range(num_tasks)], per_class=4)
    strategy = stl(**options)
    strategy.train(stream.train_stream)
    model = strategy.model
    return sum(t.numel() for m in extractors_of(model) for t in [*m.parameters(), *m.buffers()])


def test_memory_grows_with_the_tasks_in_stl_and_not_in_stl_me():
    one = sum(t.numel() for t in SmallCNN(head=nn.Identity()).state_dict().values())
    assert [numbers_in_extractors({}, t) for t in (2, 5)] == [2 * one, 5 * one]
    assert [numbers_in_extractors(MEAN, t) for t in (2, 5)] == [2 * one, 2 * one]


@pytest.mark.parametrize("options", [MEAN, FINETUNED], ids=["STL-me", "STL-me finetuned"])
def test_the_mean_extractor_is_the_mean_of_the_tasks_extractors(options):
    stream = small_stream()
    strategy = stl(**options)
    reference, snapshots = AveragedModel(strategy.model.extractor), []
    for experience in stream.train_stream:
        strategy.train(experience)
        reference.update_parameters(strategy.model.extractor)
        snapshots.append(copies(strategy.model.extractor.parameters()))
        exact = [
            torch.stack([p.double() for p in parts]).mean(dim=0)
            for parts in zip(*snapshots, strict=True)
        ]
        mean = list(strategy.model.mean.parameters())
        torch.testing.assert_close(mean, list(reference.module.parameters()))
        torch.testing.assert_close([p.double() for p in mean], exact, rtol=1e-5, atol=1e-7)
    assert int(strategy.model.num_averaged) == 3


def test_batch_norm_of_the_mean_has_the_statistics_of_its_own_activations():
    stream = small_stream()
    strategy = stl(train_mb_size=24, **MEAN)  # one mini-batch is the whole experience
    strategy.train(stream.train_stream)
    mean = strategy.model.mean
    with torch.no_grad():
        activations = mean.conv(batch_of(stream.train_stream[2])[0]).transpose(0, 1).flatten(1)
    torch.testing.assert_close(mean.norm.running_mean, activations.mean(dim=1))
    torch.testing.assert_close(mean.norm.running_var, activations.var(dim=1))
    other = strategy.model.extractor.norm.running_mean
    assert not torch.allclose(mean.norm.running_mean, other, atol=1e-3)


def test_the_three_variants_train_the_very_same_networks():
    stream = small_stream()
    trained = []
    for options in VARIANTS.values():
        seed_everything()
        classifiers = Probe(after_training_epoch=lambda s: state_of(s.model.classifier))
        strategy = stl(plugins=[classifiers], **options)
        strategy.train(stream.train_stream)
        trained.append(
            (state_of(strategy.model.extractor), classifiers.seen["after_training_epoch"])
        )
    for extractor, classifiers in trained[1:]:
        assert_same_state(extractor, trained[0][0])
        for ours, theirs in zip(classifiers, trained[0][1], strict=True):
            assert_same_state(ours, theirs)


# Finetuning -------------------------------------------------------------------------------------


class StartOfFinetuning(SupervisedPlugin):
    """Notes each Gamma_t as trained, before it is finetuned."""

    def __init__(self):
        super().__init__()
        self.gammas = []

    def after_training_epoch(self, strategy, **kwargs):
        if strategy.clock.train_exp_epochs == strategy.train_epochs - 1:
            self.gammas.append(copy.deepcopy(strategy.model.classifier))


def cross_entropies(extractor, classifiers, stream):
    """Of each classifier on the features of its own task's training data."""
    with torch.no_grad():
        batches = [batch_of(experience) for experience in stream]
        return [
            float(cross_entropy(gamma(extractor.eval()(x)), y - y.min()))
            for gamma, (x, y) in zip(classifiers, batches, strict=False)
        ]


def test_finetuning_improves_every_classifier_on_the_mean_features():
    stream = small_stream().train_stream
    trained = StartOfFinetuning()
    strategy = stl(train_epochs=2, plugins=[trained], **FINETUNED)
    for index, experience in enumerate(stream):
        strategy.train(experience)
        mean, finetuned = strategy.model.mean, strategy.model.classifiers.linears
        before = cross_entropies(mean, trained.gammas, stream)
        after = cross_entropies(mean, finetuned, stream)
        assert len(after) == index + 1
        assert all(a < b for a, b in zip(after, before, strict=True))


def test_finetuning_starts_from_the_trained_classifiers_each_time():
    stream = small_stream().train_stream
    trained = StartOfFinetuning()
    strategy = stl(train_mb_size=24, plugins=[trained], **FINETUNED)  # one step an epoch
    for experience in stream:
        strategy.train(experience)
        for task, gamma in enumerate(trained.gammas):
            expected = copy.deepcopy(gamma)
            sgd = SGD(expected.parameters(), lr=0.1)
            x, y = batch_of(stream[task])
            with torch.no_grad():
                features = strategy.model.mean.eval()(x)
            for _ in range(5):
                sgd.zero_grad()
                cross_entropy(expected(features), y - y.min()).backward()
                sgd.step()
            actual = strategy.model.classifiers.linears[task]
            torch.testing.assert_close(actual.weight, expected.weight)
            torch.testing.assert_close(actual.bias, expected.bias)


def test_finetuning_leaves_the_extractors_untouched():
    stream = small_stream().train_stream
    strategies = []
    for options in (MEAN, FINETUNED):
        seed_everything()
        strategies.append(stl(**options))
        strategies[-1].train(stream)
    plain, finetuned = (state_of(s.model.extractor, s.model.mean) for s in strategies)
    assert_same_state(finetuned, plain)
    gammas = [state_of(s.model.classifiers) for s in strategies]
    assert not torch.equal(gammas[0]["0.layers.0.weight"], gammas[1]["0.layers.0.weight"])
    for strategy in strategies:
        assert all(module.training for module in strategy.model.modules())
        assert all(parameter.grad is None for parameter in strategy.model.parameters())


def test_finetuning_sees_images_without_augmentation():
    flipped = []

    def flip(x):
        flipped.append(x)
        return x.flip(-1)

    data = WithTargets(*samples((0, 1), per_class=12, size=8))
    stream = nc_benchmark(data, data, 1, False, train_transform=flip, eval_transform=None)
    counts = Probe(after_training_epoch=lambda s: len(flipped))
    stl(plugins=[counts], **FINETUNED).train(stream.train_stream)
    assert counts.seen["after_training_epoch"] == [24]
    assert len(flipped) == 24


# Optimizer --------------------------------------------------------------------------------------


@each_variant
def test_earlier_classifiers_do_not_move_during_the_training_of_later_tasks(options):
    def state(strategy):
        return [state_of(layer) for layer in strategy.model.classifiers.linears]

    starts, ends = Probe(before_training_exp=state), Probe(after_training_epoch=state)
    model = SmallCNN()
    optimizer = AdamW(model.parameters(), lr=0.01, weight_decay=0.5)
    strategy = stl(model, optimizer=optimizer, plugins=[starts, ends], **options)
    strategy.train(small_stream().train_stream)
    starts, ends = starts.seen["before_training_exp"], ends.seen["after_training_epoch"]
    for task in range(3):
        for start, end in zip(starts[task][:task], ends[task][:task], strict=True):
            assert_same_state(end, start)
        assert not torch.equal(starts[task][task]["0.weight"], ends[task][task]["0.weight"])


def test_the_optimizer_holds_the_extractor_and_the_current_classifier():
    def held(strategy):
        wanted = [*strategy.model.extractor.parameters(), *strategy.model.classifier.parameters()]
        ours = optimized(strategy.optimizer)
        return sorted(map(id, ours)) == sorted(map(id, wanted)), len(strategy.optimizer.state)

    probe = Probe(before_training_exp=held)
    stl(plugins=[probe]).train(small_stream().train_stream)
    assert probe.seen["before_training_exp"] == [(True, 0)] * 3  # and no momentum of earlier tasks


def test_the_classifier_takes_the_place_of_the_head_in_its_parameter_group():
    model = SmallCNN()
    groups = [
        {"params": [*model.conv.parameters(), *model.norm.parameters()]},
        {"params": model.fc.parameters(), "lr": 0.5},
    ]
    strategy = stl(model, optimizer=SGD(groups, lr=0.01))
    strategy.train(small_stream().train_stream[:2])
    current = list(map(id, strategy.model.classifier.parameters()))
    assert list(map(id, strategy.optimizer.param_groups[1]["params"])) == current


def test_weight_and_bias_of_the_classifier_take_the_groups_of_those_of_the_head():
    model = SmallCNN()
    named = dict(model.named_parameters())
    groups = [
        {"params": [p for name, p in named.items() if name.endswith("weight")], "lr": 0.5},
        {"params": [p for name, p in named.items() if name.endswith("bias")], "weight_decay": 0.0},
    ]
    strategy = stl(model, optimizer=SGD(groups, lr=0.01))
    strategy.train(small_stream().train_stream[:2])
    weights, biases = (group["params"] for group in strategy.optimizer.param_groups)
    assert weights[-1] is strategy.model.classifier.weight
    assert biases[-1] is strategy.model.classifier.bias
    assert (len(weights), len(biases)) == (len(groups[0]["params"]), len(groups[1]["params"]))


@pytest.mark.parametrize("finetune_epochs", [0, 2])
def test_the_mean_keeps_the_statistics_of_layers_that_a_plugin_freezes(finetune_epochs):
    freeze = Probe(before_training_epoch=lambda strategy: strategy.model.extractor.norm.eval())
    strategy = stl(predict_with="mean", finetune_epochs=finetune_epochs, plugins=[freeze])
    for experience in small_stream().train_stream:
        strategy.train(experience)
        assert torch.equal(strategy.model.mean.norm.running_mean, torch.zeros(16))


def test_one_step_is_the_step_of_plain_torch_on_extractor_and_classifier():
    stream = small_stream(tasks=((0, 1), (2, 5)))
    start = Probe(
        before_training_exp=lambda s: copy.deepcopy((s.model.extractor, s.model.classifier))
    )
    strategy = stl(train_mb_size=24, plugins=[start], lr=0.1)
    x, y = batch_of(stream.train_stream[1])
    strategy.train(stream.train_stream)
    network = nn.Sequential(*start.seen["before_training_exp"][1])
    sgd = SGD(network.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    cross_entropy(network(x), (y == 5).long()).backward()  # over the task's classes alone
    sgd.step()
    actual = [*strategy.model.extractor.parameters(), *strategy.model.classifier.parameters()]
    torch.testing.assert_close(actual, list(network.parameters()))


def test_rows_of_the_given_head_start_the_classifiers():
    model = SmallCNN(num_classes=4)
    rows = model.fc.weight.detach().clone()
    probe = Probe(before_training_exp=lambda s: s.model.classifier.weight.detach().clone())
    stl(model, plugins=[probe]).train(small_stream(tasks=((3, 1), (0, 9))).train_stream)
    first, second = probe.seen["before_training_exp"]
    assert torch.equal(first, rows[[1, 3]])
    assert torch.equal(second[0], rows[0])


# Avalanche --------------------------------------------------------------------------------------


class AddsToTheLoss(SupervisedPlugin):
    """What a self-supervised loss plugin does: a term on the extractor's features."""

    def __init__(self, weight):
        super().__init__()
        self.weight, self.outputs, self.losses = weight, [], []

    def before_backward(self, strategy, **kwargs):
        labels = torch.tensor(sorted(set(strategy.mb_y.tolist())))
        inside = strategy.mb_output[:, labels]
        expected = cross_entropy(inside, torch.searchsorted(labels, strategy.mb_y))
        self.losses.append((strategy.loss.item(), expected.item()))
        self.outputs.append(strategy.mb_output.detach())
        features = strategy.model.extractor(strategy.mb_x)
        strategy.loss = strategy.loss + self.weight * features.square().mean()


def test_a_plugin_may_add_to_the_loss():
    stream = small_stream()
    norms = []
    for weight in (0.0, 5.0):
        plugin = AddsToTheLoss(weight)
        strategy = stl(train_epochs=3, plugins=[plugin], train_mb_size=24)
        strategy.train(stream.train_stream[:2])
        x, _ = batch_of(stream.train_stream[1])
        norms.append(strategy.model.eval().extractor(x).square().mean().item())
        # the loss is the cross-entropy of mb_output over the classes of the task
        assert all(abs(loss - expected) < 1e-5 for loss, expected in plugin.losses)
        assert [tuple(output.shape) for output in plugin.outputs] == [(24, 2)] * 3 + [(24, 4)] * 3
        assert all(
            (output[:, :2] < output[:, 2:].min() - 500).all() for output in plugin.outputs[3:]
        )
    assert norms[1] < 0.5 * norms[0]


def test_other_classes_answer_in_training_only_for_the_current_task():
    strategy = stl()
    stream = small_stream()
    strategy.train(stream.train_stream[:2])
    x, _ = batch_of(stream.train_stream[0])
    answer = strategy.model.train()(x)
    assert (answer.argmax(dim=1) >= 2).all()


@each_variant
def test_evaluation_does_not_change_training(options):
    stream = small_stream()
    states = []
    for evaluations in ({}, {"eval_every": 1}):
        seed_everything()
        model = nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.Dropout(), nn.Linear(16, 6))
        strategy = stl(model, train_epochs=3, **evaluations, **options)
        for experience in stream.train_stream:
            strategy.train(experience, eval_streams=[stream.test_stream])
            if evaluations:
                strategy.eval(stream.test_stream)
        states.append(state_of(strategy.model))
    assert_same_state(states[1], states[0])


@pytest.mark.parametrize("options", [{}, MEAN], ids=["STL", "STL-me"])
def test_an_evaluation_amid_an_experience_includes_the_extractor_as_it_is(options):
    stream = small_stream()
    accuracy = accuracy_metrics(stream=True)
    strategy = stl(train_epochs=6, lr=0.1, evaluator=EvaluationPlugin(accuracy), **options)
    amid = Probe(
        after_training_epoch=lambda s: next(
            value
            for key, value in s.eval([stream.test_stream[0]]).items()
            if key.startswith("Top1_Acc_Stream/eval")
        )
    )
    strategy.plugins.insert(0, amid)
    strategy.train(stream.train_stream[0])
    assert amid.seen["after_training_epoch"][-1] > 0.9


def test_the_mean_amid_an_experience_counts_it_once():
    stream = small_stream()
    strategy = stl(**MEAN)
    strategy.train(stream.train_stream[0])
    first = copies(strategy.model.extractor.parameters())

    def compare(s):
        s.eval([stream.test_stream[0]])
        s.eval([stream.test_stream[0]])
        now = s.model.extractor.parameters()
        mean = [(a + b) / 2 for a, b in zip(first, now, strict=True)]
        torch.testing.assert_close(list(s.model.mean.parameters()), mean)
        statistics = s.model.mean.norm.running_mean, s.model.mean.norm.running_var
        theirs = s.model.extractor.norm.running_mean, s.model.extractor.norm.running_var
        assert all(map(torch.equal, statistics, theirs))

    probe = Probe(after_training_iteration=compare)
    strategy.plugins.append(probe)
    strategy.train(stream.train_stream[1])
    assert len(probe.seen["after_training_iteration"]) == 3


@each_variant
def test_an_experience_that_broke_off_is_begun_again(options):
    stream = small_stream()
    strategy = stl(**options)
    strategy.train(stream.train_stream[0])

    def fail(s):
        if s.clock.train_exp_iterations == 1:
            raise KeyboardInterrupt

    failing = Probe(after_training_iteration=fail)
    strategy.plugins.append(failing)
    with pytest.raises(KeyboardInterrupt):
        strategy.train(stream.train_stream[1])
    strategy.eval(stream.test_stream)
    strategy.plugins.remove(failing)
    strategy.train(stream.train_stream[1:])
    assert len(strategy.model.classifiers.layers) == 3
    assert len(strategy.model.earlier) == (0 if options else 2)
    assert int(strategy.model.num_averaged) == 3


@pytest.mark.parametrize("options", [{}, MEAN], ids=["STL", "STL-me"])
def test_nothing_stays_of_an_experience(options):
    stream = small_stream(size=12)
    evaluator = EvaluationPlugin(
        accuracy_metrics(epoch=True, stream=True), loss_metrics(epoch=True)
    )
    strategy = stl(evaluator=evaluator, **options)
    strategy.train(stream.train_stream)
    strategy.eval(stream.test_stream)
    rows = torch.cat([batch_of(e)[0] for e in (*stream.train_stream, *stream.test_stream)])
    objects = reachable(strategy, *package_globals("avalanche_dlcpa"))
    assert holding(objects, rows.flatten(1)) == []
    assert all(parameter.grad is None for parameter in strategy.model.parameters())


def test_finetuning_keeps_the_data_as_documented():
    stream = small_stream(size=12)
    strategy = stl(**FINETUNED)
    strategy.train(stream.train_stream)
    for experience in stream.train_stream:
        assert holding(reachable(strategy), batch_of(experience)[0].flatten(1))


# Errors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"predict_with": "best"}, r"Expected `predict_with` to be one of own, mean, got 'best'"),
        ({"finetune_epochs": 1}, r"Expected predict_with='mean' with `finetune_epochs` above 0"),
        (MEAN | {"finetune_epochs": -1}, r"`finetune_epochs` to be .* at least 0, got -1"),
        (MEAN | {"finetune_epochs": 1.5}, r"`finetune_epochs` to be .* at least 0, got 1.5"),
        (FINETUNED | {"finetune_lr": 0}, r"`finetune_lr` to be finite and above 0, got 0"),
        (FINETUNED | {"finetune_lr": float("nan")}, r"`finetune_lr` to be finite .* got nan"),
        ({"head": "conv"}, r"Expected `head` to name a linear layer of \['fc'\], got 'conv'"),
    ],
)
def test_bad_arguments_leave_model_and_optimizer_as_they_were(options, message):
    model = SmallCNN()
    optimizer = SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=message):
        stl(model, optimizer=optimizer, **options)
    assert isinstance(model.fc, nn.Linear)
    assert len(optimized(optimizer)) == len(list(model.parameters()))


def test_refuses_an_optimizer_of_another_model():
    with pytest.raises(ValueError, match="Expected `optimizer` to hold every parameter"):
        stl(optimizer=SGD(SmallCNN().parameters(), lr=0.1))


def test_refuses_a_model_that_was_taken_apart():
    dual = DualLearner(SmallCNN())
    with pytest.raises(ValueError, match="Expected a `model` with its head"):
        stl(dual)


def test_refuses_several_processes(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="Expected one process, got a group of 2"):
        stl()


def test_refuses_classes_that_come_back():
    stream = small_stream(tasks=((0, 1), (1, 2)))
    strategy = stl()
    strategy.train(stream.train_stream[0])
    with pytest.raises(ValueError, match=r"no earlier experience had, got \[1\] of task label 0"):
        strategy.train(stream.train_stream[1])
    with pytest.raises(ValueError, match=r"no earlier experience had, got \[0, 1\]"):
        strategy.train(stream.train_stream[0])


def test_refuses_replay():
    stream = small_stream()
    strategy = stl(plugins=[ReplayPlugin(mem_size=8)])
    strategy.train(stream.train_stream[0])
    with pytest.raises(
        ValueError, match=r"mini-batches of the experience alone, .* classes \[0, 1"
    ):
        strategy.train(stream.train_stream[1])


def test_refuses_replay_of_labels_that_restart():
    stream = small_stream(tasks=((0, 1), (0, 1)), task_labels=[0, 1])
    strategy = stl(plugins=[ReplayPlugin(mem_size=8)])
    strategy.train(stream.train_stream[0])
    with pytest.raises(ValueError, match="mini-batches of the experience alone"):
        strategy.train(stream.train_stream[1])


def test_refuses_pieces_of_an_online_stream():
    pieces = split_online_stream(small_stream().train_stream, experience_size=8)
    with pytest.raises(ValueError, match="Expected whole experiences, got a piece"):
        stl().train(next(iter(pieces)))


def test_labels_that_restart_need_task_labels():
    stream = small_stream(tasks=((0, 1), (0, 1)), task_labels=[0, 1])
    strategy = stl()
    strategy.train(stream.train_stream)
    x, _ = batch_of(stream.test_stream[0])
    with pytest.raises(ValueError, match="Expected `task_labels`"):
        strategy.model.eval()(x)
