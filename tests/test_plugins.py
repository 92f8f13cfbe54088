"""The two plugins, each alone on Avalanche's own strategies."""

import copy
import itertools
import math

import pytest
import torch
from avalanche.benchmarks import nc_benchmark
from avalanche.evaluation.metrics import accuracy_metrics
from avalanche.models import IncrementalClassifier, SimpleMLP, as_multitask
from avalanche.training.plugins import EvaluationPlugin, ReplayPlugin, SupervisedPlugin
from avalanche.training.supervised import EWC, Naive
from avalanche.training.templates.base_sgd import PeriodicEval
from torch import nn
from torch.nn import CrossEntropyLoss
from torch.optim import SGD
from torch.optim.lr_scheduler import MultiStepLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import TensorDataset

from avalanche_dlcpa import ClassifierAlignmentPlugin, CumulativeParameterAveragingPlugin
from avalanche_dlcpa.alignment import ClassifierAlignment
from avalanche_dlcpa.metrics import task_il_metrics


def stream(num_classes=6, task_labels=False, per_class=16):
    y = torch.arange(num_classes * per_class) % num_classes
    x = torch.randn(len(y), 10) * 0.3 + torch.eye(10)[y]
    data = TensorDataset(x, y)
    return nc_benchmark(data, data, 3, task_labels=task_labels, shuffle=False)


def mlp(num_classes=6):
    return SimpleMLP(num_classes, input_size=10, hidden_size=16, drop_rate=0)


def with_batch_norm():
    return nn.Sequential(nn.Linear(10, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 6))


def growing():
    return nn.Sequential(nn.Linear(10, 16), nn.ReLU(), IncrementalClassifier(16, 2))


def multi_head():
    return as_multitask(mlp(2), "classifier")


def naive(model, plugins, kind=Naive, **arguments):
    return kind(
        model=model,
        optimizer=SGD(model.parameters(), lr=0.1),
        criterion=CrossEntropyLoss(),
        train_mb_size=8,
        train_epochs=2,
        eval_mb_size=32,
        plugins=plugins,
        evaluator=EvaluationPlugin(accuracy_metrics(experience=True, stream=True)),
        **arguments,
    )


class Snapshots(SupervisedPlugin):
    def __init__(self):
        super().__init__()
        self.taken = []

    def after_training_exp(self, strategy, **kwargs):
        self.taken.append(copy.deepcopy(strategy.model))


@pytest.mark.parametrize("kind", [Naive, EWC])
def test_the_averaged_model_is_torchs_average_of_the_snapshots(kind):
    average, snapshots = CumulativeParameterAveragingPlugin(), Snapshots()
    extra = {"ewc_lambda": 1.0} if kind is EWC else {}
    strategy = naive(mlp(), [average, snapshots], kind, **extra)
    for experience in stream().train_stream:
        strategy.train(experience)
    oracle = AveragedModel(mlp())
    for model in snapshots.taken:
        oracle.update_parameters(model)
    assert average.num_averaged == 3
    for ours, torchs in zip(
        average.averaged_model.parameters(), oracle.module.parameters(), strict=True
    ):
        torch.testing.assert_close(ours, torchs, rtol=1e-5, atol=1e-6)


def test_an_exponential_average_is_torchs():
    model = mlp()
    oracle = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    oracle.n_averaged.fill_(
        1
    )  # torch's would begin with the first step, ours begins with the model

    class EveryStep(SupervisedPlugin):
        def after_update(self, strategy, **kwargs):
            oracle.update_parameters(strategy.model)

    average = CumulativeParameterAveragingPlugin(update="ema", ema_decay=0.9)
    strategy = naive(model, [average, EveryStep()])
    for experience in stream().train_stream:
        strategy.train(experience)
    ours, torchs = average.averaged_model.parameters(), oracle.module.parameters()
    for mean, expected in zip(ours, torchs, strict=True):
        torch.testing.assert_close(mean, expected, rtol=1e-5, atol=1e-6)


def test_an_alignment_does_not_depend_on_evaluations_amid_training():
    heads = []
    for eval_every in (-1, 1):
        torch.manual_seed(0)
        average = CumulativeParameterAveragingPlugin()
        plugins = [average, ClassifierAlignmentPlugin(average)]
        strategy = naive(with_batch_norm(), plugins, eval_every=eval_every)
        torch.manual_seed(1)
        for experience in stream().train_stream:
            strategy.train(experience, shuffle=False)
        heads.append(copy.deepcopy(average.averaged_model.state_dict()))
    assert heads[0].keys() == heads[1].keys()
    assert all(torch.equal(heads[0][name], heads[1][name]) for name in heads[0])


def test_a_head_that_grows_twice_draws_once():
    states = []
    for plugins in ([], [CumulativeParameterAveragingPlugin()]):
        torch.manual_seed(0)
        strategy = naive(growing(), plugins)
        for experience in stream().train_stream:
            strategy.train(experience)
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


def test_rows_that_a_head_grows_are_averaged_since_they_exist():
    average, snapshots = CumulativeParameterAveragingPlugin(), Snapshots()
    strategy = naive(growing(), [average, snapshots])
    bench = stream()
    for experience in bench.train_stream:
        strategy.train(experience)
        strategy.eval(bench.test_stream)  # grows the head of the averaged model only
    weights = [model[2].classifier.weight.detach() for model in snapshots.taken]
    assert [len(w) for w in weights] == [2, 4, 6]
    mean = average.averaged_model[2].classifier.weight
    torch.testing.assert_close(mean[:2], sum(w[:2] for w in weights) / 3)
    torch.testing.assert_close(mean[2:4], sum(w[2:4] for w in weights[1:]) / 2)
    torch.testing.assert_close(mean[4:], weights[2][4:])


def test_evaluation_answers_with_the_average_and_training_goes_on_with_the_model():
    average = CumulativeParameterAveragingPlugin()
    strategy = naive(mlp(), [average])
    model, bench = strategy.model, stream()
    for experience in bench.train_stream:
        strategy.train(experience)
    seen = []

    class Watch(SupervisedPlugin):
        def after_eval_forward(self, strategy, **kwargs):
            seen.append((strategy.model, strategy.mb_x, strategy.mb_output))

    strategy.plugins.append(Watch())
    before = copy.deepcopy(model.state_dict())
    strategy.eval(bench.test_stream)
    assert strategy.model is model
    assert model.training
    for answering, x, output in seen:
        assert answering is average.averaged_model
        torch.testing.assert_close(output, average.averaged_model(x))
        assert not torch.allclose(output, model(x))
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


def test_after_an_evaluation_that_raised_training_goes_on_with_the_model():
    class Broken(SupervisedPlugin):
        raises = False

        def after_eval_forward(self, strategy, **kwargs):
            if self.raises:
                raise KeyboardInterrupt

    def trained(*, breaks):
        torch.manual_seed(0)
        broken = Broken()
        average = CumulativeParameterAveragingPlugin()
        strategy, bench = naive(with_batch_norm(), [average, broken]), stream()
        first, second, _ = bench.train_stream
        strategy.train(first)
        broken.raises = breaks
        if breaks:
            with pytest.raises(KeyboardInterrupt):
                strategy.eval(bench.test_stream)
        broken.raises = False
        torch.manual_seed(1)
        strategy.train(second)
        return {**strategy.model.state_dict(), "mean": average.averaged_model[0].weight}

    expected = trained(breaks=False)
    for name, value in trained(breaks=True).items():
        assert torch.equal(value, expected[name]), name


def test_training_is_the_same_with_and_without_the_plugin():
    states = []
    for plugins in ([], [CumulativeParameterAveragingPlugin()]):
        torch.manual_seed(0)
        model = with_batch_norm()
        model.insert(3, nn.Dropout(0.5))  # draws, also where batch norm is recalibrated
        strategy = naive(model, plugins)
        strategy.train(stream().train_stream)
        states.append(strategy.model.state_dict())
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name]), name


@pytest.mark.parametrize("update", ["cumulative", "copy"])
def test_weights_that_are_put_back_at_the_end_are_those_that_count(update):
    """As EarlyStoppingPlugin and others do with the best epoch."""

    class First(SupervisedPlugin):
        def after_training_epoch(self, strategy, **kwargs):
            if strategy.clock.train_exp_epochs == 0:
                self.best = copy.deepcopy(strategy.model.state_dict())

        def after_training_exp(self, strategy, **kwargs):
            strategy.model.load_state_dict(self.best)

    average = CumulativeParameterAveragingPlugin(update=update)
    strategy = naive(mlp(), [First(), average])
    trained = []
    for experience in stream().train_stream:
        strategy.train(experience)
        trained.append([p.detach().clone() for p in strategy.model.parameters()])
        used = trained if update == "cumulative" else trained[-1:]
        mean = [torch.stack(snapshots).mean(dim=0) for snapshots in zip(*used, strict=True)]
        averaged = [p.detach() for p in average.averaged_model.parameters()]
        torch.testing.assert_close(averaged, mean)


def test_batch_norm_statistics_are_those_of_the_averaged_model_on_the_data():
    average = CumulativeParameterAveragingPlugin()
    strategy = naive(with_batch_norm(), [average])
    bench = stream()
    for experience in bench.train_stream[:2]:
        strategy.train(experience)
    x = torch.stack([sample[0] for sample in bench.train_stream[1].dataset])
    linear, norm = average.averaged_model[0], average.averaged_model[1]
    torch.testing.assert_close(norm.running_mean, linear(x).mean(0), rtol=1e-4, atol=1e-5)


def test_evaluation_amid_the_first_experience_equals_the_model_itself():
    average = CumulativeParameterAveragingPlugin()
    strategy = naive(with_batch_norm(), [average])
    bench, compared = stream(), []

    class Watch(SupervisedPlugin):
        def after_training_epoch(self, strategy, **kwargs):
            results = strategy.eval(bench.test_stream[:1])
            model = copy.deepcopy(strategy.model).eval()
            x, y, _ = zip(*bench.test_stream[0].dataset, strict=True)
            right = (model(torch.stack(x)).argmax(1) == torch.tensor(y)).float().mean()
            name = "Top1_Acc_Exp/eval_phase/test_stream/Task000/Exp000"
            compared.append((results[name], right.item()))

    strategy.plugins.insert(1, Watch())
    strategy.train(bench.train_stream[0])
    assert len(compared) == 2
    assert all(ours == pytest.approx(own) for ours, own in compared)


def test_alignment_trains_the_head_of_the_average_on_its_features_alone():
    average = CumulativeParameterAveragingPlugin()
    alignment = ClassifierAlignmentPlugin(average, lr=0.5)
    strategy = naive(mlp(), [average, alignment])
    bench = stream()
    start = copy.deepcopy(strategy.model.classifier.weight.detach())
    captured = {}

    class OneStep(SupervisedPlugin):
        def before_training_iteration(self, strategy, **kwargs):
            mean = average.averaged_model
            captured["head"] = copy.deepcopy(mean.classifier)

        def after_update(self, strategy, **kwargs):  # after the averaging plugin's
            captured["mean"] = copy.deepcopy(average.averaged_model)

        def after_training_iteration(self, strategy, **kwargs):  # after the alignment plugin's
            head, mean = captured["head"], captured["mean"]
            features = mean.get_features(strategy.mb_x).detach()
            logits = head(features)[:, :2]
            grads = torch.autograd.grad(
                nn.functional.cross_entropy(logits, strategy.mb_y), list(head.parameters())
            )
            ours = average.averaged_model.classifier
            for now, old, grad in zip(ours.parameters(), head.parameters(), grads, strict=True):
                torch.testing.assert_close(now, old - 0.5 * grad, rtol=1e-5, atol=1e-6)
            captured["checked"] = captured.get("checked", 0) + 1

    strategy.plugins.insert(2, OneStep())
    strategy.train(bench.train_stream[0])
    assert captured["checked"] == 8
    aligned = average.averaged_model.classifier.weight
    assert torch.equal(aligned[2:], start[2:])  # only the classes of the experience
    assert not torch.allclose(aligned[:2], strategy.model.classifier.weight[:2])


@pytest.mark.parametrize(
    ("model", "task_labels"),
    [(mlp, False), (growing, False), (with_batch_norm, False), (multi_head, True)],
)
def test_the_aligned_average_classifies_every_task(model, task_labels):
    average = CumulativeParameterAveragingPlugin()
    strategy = naive(model(), [average, ClassifierAlignmentPlugin(average, lr=0.5)])
    (task_il,) = task_il_metrics()
    strategy.evaluator.metrics.append(task_il)
    strategy.train_epochs = 10
    bench = stream(task_labels=task_labels)
    for experience in bench.train_stream:
        strategy.train(experience, eval_streams=[])
        strategy.eval(bench.test_stream[: experience.current_experience + 1])
    assert task_il.matrix()[-1].min() > 0.8


def test_an_evaluation_that_grows_the_head_amid_an_experience_does_not_stop_the_alignment():
    average = CumulativeParameterAveragingPlugin()
    evaluations = PeriodicEval(1, do_initial=False)  # which would grow it before training
    plugins = [average, ClassifierAlignmentPlugin(average, lr=0.5), evaluations]
    strategy = naive(growing(), plugins)
    bench = stream()
    weights = []

    class Watch(SupervisedPlugin):
        def before_training_epoch(self, strategy, **kwargs):
            weights.append(average.averaged_model[2].classifier.weight.clone())

    strategy.plugins.insert(2, Watch())
    strategy.train_epochs = 3
    strategy.train(bench.train_stream[0], eval_streams=[bench.test_stream])
    assert [len(rows) for rows in weights] == [2, 6, 6]
    changes = [(b[:2] - a[:2]).abs().max() for a, b in itertools.pairwise(weights)]
    assert min(changes) > 1e-3


def test_alignment_alone_trains_the_strategys_own_head_further():
    plain, aligned = [], []
    for weights, plugins in ((plain, []), (aligned, [ClassifierAlignmentPlugin(lr=0.1)])):
        torch.manual_seed(0)
        strategy = naive(mlp(), plugins)
        strategy.train(stream().train_stream[0])
        weights += [strategy.model.classifier.weight.detach()]
    assert not torch.allclose(plain[0][:2], aligned[0][:2])


def test_a_step_of_the_alignment_follows_its_own_loss_alone():
    layer, features = nn.Linear(4, 3), torch.randn(5, 4)
    before = copy.deepcopy(layer)
    alignment = ClassifierAlignment(0.5)
    alignment.begin(layer.parameters())
    layer(features).square().sum().backward()  # of another loss, which Avalanche leaves there
    alignment.step_(layer(features).sum())
    torch.testing.assert_close(layer.weight, before.weight - 0.5 * features.sum(0).expand(3, 4))
    torch.testing.assert_close(layer.bias, before.bias - 0.5 * 5)
    assert layer.weight.grad is None


@pytest.mark.parametrize("from_zero", [False, True])
def test_replayed_samples_do_not_reach_the_alignment_of_a_head_of_their_own(from_zero):
    y = torch.arange(64) % 4
    data = TensorDataset(torch.randn(64, 10) * 0.3 + torch.eye(10)[y], y)
    bench = nc_benchmark(
        data, data, 2, task_labels=True, shuffle=False, class_ids_from_zero_in_each_exp=from_zero
    )
    average = CumulativeParameterAveragingPlugin()
    alignment = ClassifierAlignmentPlugin(average, lr=0.5)
    strategy = naive(multi_head(), [average, alignment, ReplayPlugin(20)])
    strategy.train(bench.train_stream[0])
    heads = average.averaged_model.classifier.classifiers
    first = copy.deepcopy(heads["0"].state_dict())
    replayed = []

    class Look(SupervisedPlugin):
        def after_training_iteration(self, strategy, **kwargs):
            is_own = strategy.mbatch[-1] == 1
            assert torch.equal(alignment._own(strategy), is_own)
            replayed.append(int((~is_own).sum()))

    strategy.plugins.append(Look())
    strategy.train(bench.train_stream[1])
    assert sum(replayed) > 0
    assert all(torch.equal(value, first[name]) for name, value in heads["0"].state_dict().items())
    found = strategy.eval(bench.test_stream)
    assert found["Top1_Acc_Exp/eval_phase/test_stream/Task001/Exp001"] > 0.9


def test_replayed_samples_of_other_tasks_do_not_reach_the_alignment():
    average = CumulativeParameterAveragingPlugin()
    alignment = ClassifierAlignmentPlugin(average, lr=0.5)
    strategy = naive(mlp(), [average, alignment, ReplayPlugin(20)])
    bench = stream()
    strategy.train(bench.train_stream[0])
    rows = average.averaged_model.classifier.weight[:2].clone()
    strategy.train(bench.train_stream[1])
    assert torch.equal(average.averaged_model.classifier.weight[:2], rows)


def test_the_schedule_of_the_alignment_starts_anew_in_each_experience():
    alignment = ClassifierAlignmentPlugin(lr=0.4, scheduler=lambda o: MultiStepLR(o, [1]))
    rates = []

    class Watch(SupervisedPlugin):
        def before_training_epoch(self, strategy, **kwargs):
            rates.append(alignment.alignment.optimizer.param_groups[0]["lr"])

    strategy = naive(mlp(), [alignment, Watch()])
    for experience in stream().train_stream[:2]:
        strategy.train(experience)
    assert rates == pytest.approx([0.4, 0.04, 0.4, 0.04])


def test_the_alignment_wants_the_averaging_plugin_before_it():
    average = CumulativeParameterAveragingPlugin()
    alignment = ClassifierAlignmentPlugin(average)
    strategy = naive(mlp(), [alignment, average])
    words = r"plugin before the alignment plugin, got it after: pass plugins=\[average, alignment\]"
    with pytest.raises(ValueError, match=words):
        strategy.train(stream().train_stream[0])


def test_a_head_that_shares_its_weight_is_refused():
    size = stream().train_stream[0].dataset[0][0].numel()
    layers = [nn.Linear(size, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6)]
    layers[4].weight = layers[2].weight
    tied = nn.Sequential(nn.Flatten(), *layers)
    average = CumulativeParameterAveragingPlugin()
    for plugins in ([ClassifierAlignmentPlugin()], [average, ClassifierAlignmentPlugin(average)]):
        with pytest.raises(ValueError, match=r"got '5', which shares one with '3\.weight': give"):
            naive(copy.deepcopy(tied), plugins).train(stream().train_stream[0])


def test_bad_arguments():
    with pytest.raises(ValueError, match=r"`ema_decay`.*below 1, got nan"):
        CumulativeParameterAveragingPlugin(ema_decay=math.nan)
    with pytest.raises(ValueError, match="one of cumulative, ema, copy, got 'mean'"):
        CumulativeParameterAveragingPlugin(update="mean")
    with pytest.raises(ValueError, match="`lr` to be finite and above 0, got 0"):
        ClassifierAlignmentPlugin(lr=0)
    alone = ClassifierAlignmentPlugin(CumulativeParameterAveragingPlugin())
    with pytest.raises(ValueError, match=r"plugins=\[average, alignment\]"):
        naive(mlp(), [alone]).train(stream().train_stream[0])


@pytest.mark.parametrize("kind", ["alone", "average"])
def test_an_alignment_refuses_a_weight_for_each_class(kind):
    average = CumulativeParameterAveragingPlugin()
    beside = {
        "alone": [ClassifierAlignmentPlugin()],
        "average": [average, ClassifierAlignmentPlugin(average)],
    }
    strategy = naive(mlp(), beside[kind])
    strategy._criterion = CrossEntropyLoss(weight=torch.ones(6))
    with pytest.raises(ValueError, match=r"weight for each class, got one of 6.* Leave `weight"):
        strategy.train(stream().train_stream[0])
