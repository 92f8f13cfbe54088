"""The Gaussian classifier in strategies: what it knows, when it answers, what it leaves alone."""

import copy
import io
import math

import numpy as np
import pytest
import torch
from avalanche.benchmarks import nc_benchmark, tensors_benchmark
from avalanche.checkpointing import maybe_load_checkpoint, save_checkpoint
from avalanche.models import PNN, IncrementalClassifier, NCMClassifier, as_multitask
from avalanche.models.dynamic_modules import TrainEvalModel
from avalanche.models.packnet import packnet_simple_mlp
from avalanche.training.plugins import EvaluationPlugin, ReplayPlugin, SupervisedPlugin
from avalanche.training.supervised import EWC, JointTraining, LwF, Naive
from helpers import (
    STREAMS,
    Probe,
    SmallCNN,
    WithTargets,
    assert_same_state,
    batch_of,
    mlp,
    samples,
    seed_everything,
    small_head,
    state_of,
    strategy_of,
    tensors_stream,
)
from matrix import proves
from torch import nn
from torch.optim import SGD

from avalanche_dlcpa import (
    CumulativeParameterAveragingPlugin,
    DualLearner,
    GaussianClassifierPlugin,
    frozen_extractor,
    gaussian_plugin,
)
from avalanche_dlcpa.class_statistics import class_statistics
from avalanche_dlcpa.frozen_extractor import optimized
from avalanche_dlcpa.gaussian import (
    drift_map,
    linear_discriminants,
    moved,
    ridge_of,
    shrinkage_of,
)
from avalanche_dlcpa.gaussian_plugin import COVARIANCE_PRIOR, MAP_PRIOR
from avalanche_dlcpa.metrics import scenario_metrics

SHAPE = {"per_class": 12, "size": 8}


def dlcpa(model=None, *, plugins=(), classifier="gaussian", seed=0, **kwargs):
    seed_everything(seed)
    metrics = scenario_metrics()
    strategy = strategy_of(
        SmallCNN() if model is None else model,
        classifier=classifier,
        plugins=list(plugins),
        evaluator=EvaluationPlugin(*metrics, loggers=[]),
        **kwargs,
    )
    return strategy, metrics


def other(kind=Naive, model=None, *, plugins=(), seed=0, lr=0.05, **kwargs):
    """A strategy of Avalanche's with a Gaussian plugin, unless others are given."""
    seed_everything(seed)
    model = SmallCNN() if model is None else model
    metrics = scenario_metrics()
    strategy = kind(
        model=model,
        optimizer=SGD(model.parameters(), lr=lr),
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=16,
        eval_mb_size=32,
        plugins=list(plugins) or [GaussianClassifierPlugin()],
        evaluator=EvaluationPlugin(*metrics, loggers=[]),
        **kwargs,
    )
    return strategy, metrics


def learn(strategy, stream, *, num=None):
    for experience in stream.train_stream[:num]:
        strategy.train(experience, eval_streams=[])
        strategy.eval(stream.test_stream)
    return strategy


def gaussian_of(strategy):
    return next(p for p in strategy.plugins if isinstance(p, GaussianClassifierPlugin))


def statistics_of(extractor, experience):
    """Brute force: all images at once, in float64 from the features on."""
    images, labels = batch_of(experience)
    classes = labels.unique()
    with torch.no_grad():
        features = extractor(images)
    columns = torch.searchsorted(classes, labels)
    return class_statistics(features, columns, num_classes=len(classes))


class Extractors(SupervisedPlugin):
    """Frozen copies of DLCPA's stable learner at the end of each experience."""

    def __init__(self):
        super().__init__()
        self.taken = []

    def after_training_exp(self, strategy, **kwargs):
        self.taken.append(copy.deepcopy(strategy.model.stable).eval())


# What it knows -----------------------------------------------------------------------------------


@pytest.mark.parametrize("bn_statistics", ["running", "recalibrated"])
def test_statistics_are_those_of_the_stable_features_and_old_ones_are_mapped(bn_statistics):
    extractors = Extractors()
    strategy, _ = dlcpa(plugins=[extractors], bn_statistics=bn_statistics, eval_mb_size=7)
    stream = tensors_stream(**SHAPE)
    learn(strategy, stream)
    found = [statistics_of(extractors.taken[0], stream.train_stream[0])]
    for step in (1, 2):
        images, labels = batch_of(stream.train_stream[step])
        before, now = extractors.taken[step - 1 : step + 1]
        with torch.no_grad():
            pairs = torch.cat([before(images).double(), now(images).double()], dim=1)
        pairs = class_statistics(pairs, labels - 2 * step, num_classes=2)
        drift = drift_map(pairs, ridge=ridge_of(pairs, prior=MAP_PRIOR))
        drifted = [moved(statistics, drift) for statistics in found]
        assert (drifted[0].means - found[0].means).abs().max() > 1e-3  # something to follow
        found = [*drifted, statistics_of(now, stream.train_stream[step])]
    plugin = gaussian_of(strategy)
    means, scatter = torch.cat([f.means for f in found]), sum(f.scatter for f in found)
    close = {"rtol": 1e-5, "atol": 1e-5}  # the passes are in float32
    torch.testing.assert_close(plugin.statistics.means, means, **close)
    torch.testing.assert_close(plugin.statistics.scatter, scatter, **close)
    assert plugin.keys == [(0, k) for k in range(6)]


@proves("plugins", "GaussianClassifierPlugin")
def test_the_model_answers_with_the_linear_discriminants_of_the_statistics():
    strategy, _ = dlcpa()
    stream = tensors_stream(**SHAPE)
    learn(strategy, stream)
    plugin, model = gaussian_of(strategy), strategy.model.eval()
    images, _ = batch_of(stream.test_stream[1])
    shrinkage = shrinkage_of(plugin.statistics, prior=COVARIANCE_PRIOR)
    weight, bias = linear_discriminants(plugin.statistics, shrinkage=shrinkage)
    with torch.no_grad():
        logits, features = model(images), model.features(images)
    expected = features.double() @ weight.T + bias
    torch.testing.assert_close(logits.double(), expected, rtol=1e-4, atol=1e-3)


def test_priors_are_used():
    stream = tensors_stream(**SHAPE)
    kinds = [{}, {"covariance_prior": math.inf}, {"map_prior": math.inf}]
    found = []
    for options in kinds:
        plugin = GaussianClassifierPlugin(**options)
        strategy, _ = dlcpa(plugins=[plugin], classifier="linear")
        learn(strategy, stream, num=2)
        found.append((plugin.statistics.means, strategy.model.gaussian.linears[0].weight))
    assert torch.equal(found[0][0], found[1][0])
    assert not torch.allclose(found[0][1], found[1][1])
    assert not torch.allclose(found[0][0], found[2][0])


def test_a_class_that_returns_adds_to_its_statistics():
    strategy, _ = dlcpa()
    stream = tensors_stream(tasks=((0, 1), (1, 2)), **SHAPE)
    learn(strategy, stream)
    plugin = gaussian_of(strategy)
    assert plugin.keys == [(0, 0), (0, 1), (0, 2)]
    assert plugin.statistics.counts.tolist() == [12, 24, 12]


def test_classes_are_counted_whatever_their_numbers_of_images():
    labels = torch.tensor([0] * 30 + [4] * 1 + [2] * 5)
    images = samples([0], per_class=len(labels), size=8)[0]
    stream = tensors_benchmark([(images, labels)], [(images, labels)], task_labels=[0])
    strategy, _ = dlcpa()
    learn(strategy, stream)
    plugin = gaussian_of(strategy)
    assert plugin.keys == [(0, 0), (0, 2), (0, 4)]
    assert plugin.statistics.counts.tolist() == [30, 5, 1]


def test_one_class_and_one_image_an_experience():
    images, labels = samples(range(3), per_class=1, size=8)
    parts = [(images[labels == k], labels[labels == k]) for k in range(3)]
    stream = tensors_benchmark(parts, parts, task_labels=[0, 0, 0])
    strategy, metrics = other(model=mlp(3, size=8))
    learn(strategy, stream)
    assert gaussian_of(strategy).statistics.counts.tolist() == [1, 1, 1]
    assert metrics[0].matrix()[-1].tolist() == [1, 1, 1]


def test_replayed_samples_do_not_count():
    strategy, _ = other(plugins=[ReplayPlugin(mem_size=10), GaussianClassifierPlugin()])
    learn(strategy, tensors_stream(**SHAPE))
    plugin = gaussian_of(strategy)
    assert plugin.keys == [(0, k) for k in range(6)]
    assert plugin.statistics.counts.tolist() == [12] * 6


def test_images_come_without_augmentation():
    (images, labels), _ = samples(range(2), per_class=8, size=8), None
    stream = nc_benchmark(
        WithTargets(images, labels),
        WithTargets(images, labels),
        1,
        task_labels=False,
        train_transform=lambda x: 100 * x,
        eval_transform=lambda x: x,
    )
    strategy, _ = other(lr=1e-9)
    learn(strategy, stream)
    assert gaussian_of(strategy).statistics.means.abs().max() < 10


# When it answers, and what it leaves alone -------------------------------------------------------


@pytest.mark.parametrize("name", STREAMS)
def test_both_scenarios_on_every_kind_of_stream(name):
    stream = STREAMS[name](per_class=24, size=16)
    strategy, (class_il, task_il) = dlcpa(train_epochs=3, lr=0.02)
    learn(strategy, stream)
    assert task_il.matrix()[-1].mean() > 0.8
    labelled = "labels" in name
    assert math.isnan(class_il.matrix()[-1].mean()) == labelled
    assert labelled or class_il.matrix()[-1].mean() > 0.5


def test_training_is_the_same_as_with_linear_classifiers():
    states = []
    for classifier in ("linear", "gaussian"):
        strategy, _ = dlcpa(classifier=classifier, ssl=small_head("mocov2"))
        learn(strategy, tensors_stream(**SHAPE))
        strategy.model.gaussian = None
        states.append(state_of(strategy.model, strategy.ssl))
    assert_same_state(*states)


@pytest.mark.parametrize("kind", [Naive, EWC, LwF])
def test_training_of_other_strategies_is_the_same_without_it(kind):
    options = {EWC: {"ewc_lambda": 1.0}, LwF: {"alpha": 1.0, "temperature": 2.0}}.get(kind, {})
    states = []
    for plugin in (GaussianClassifierPlugin(), Probe(after_training=lambda strategy: None)):
        strategy, _ = other(kind, plugins=[plugin], **options)
        learn(strategy, tensors_stream(**SHAPE))
        states.append(state_of(strategy.model))
    assert_same_state(*states)


@pytest.mark.parametrize("kind", [Naive, EWC, LwF])
def test_it_knows_old_classes_where_the_head_of_a_strategy_has_forgotten_them(kind):
    options = {EWC: {"ewc_lambda": 1.0}, LwF: {"alpha": 1.0, "temperature": 2.0}}.get(kind, {})
    found = []
    for plugins in ([Probe()], [GaussianClassifierPlugin()]):
        strategy, (class_il, _) = other(kind, plugins=plugins, train_epochs=3, **options)
        learn(strategy, tensors_stream(per_class=24, size=8))
        found.append(class_il.matrix()[-1])
    assert found[1].mean() > found[0].mean() + 0.2
    assert found[1].min() > 0.5


def test_amid_an_experience_the_trained_classifiers_answer():
    seen = []

    def note(strategy):
        seen.append(strategy.model.gaussian is not None)

    strategy, _ = dlcpa(plugins=[Probe(before_eval=note)], eval_every=1, train_epochs=2)
    stream = tensors_stream(**SHAPE)
    for experience in stream.train_stream[:2]:
        strategy.train(experience, eval_streams=[stream.test_stream])
    # an experience: at its start, after each epoch, at its end
    assert seen == [False, False, False, True, True, False, False, True]
    strategy.eval(stream.test_stream)
    assert seen[-1]


def test_amid_an_experience_another_model_answers_for_itself():
    plugin, seen = GaussianClassifierPlugin(), []

    def note(strategy):
        own = strategy.model(strategy.mb_x)
        seen.append(torch.equal(strategy.mb_output, own))

    options = {"eval_every": 1, "train_epochs": 2}
    strategy, _ = other(plugins=[plugin, Probe(after_eval_iteration=note)], **options)
    stream = tensors_stream(tasks=((0, 1), (2, 3)), **SHAPE)
    for experience in stream.train_stream:
        strategy.train(experience, eval_streams=[stream.test_stream[:1]])
    # an experience: at its start, after each epoch, at its end
    assert seen == [True, True, True, False, False, True, True, False]


def test_an_experience_that_was_broken_off_starts_from_where_the_last_had_ended():
    class Stop(SupervisedPlugin):
        active = False

        def after_training_iteration(self, strategy, **kwargs):
            if self.active and strategy.clock.train_exp_iterations == 1:
                raise KeyboardInterrupt

    stop = Stop()
    strategy, _ = dlcpa(plugins=[stop])
    stream = tensors_stream(**SHAPE)
    learn(strategy, stream, num=1)
    before = state_of(strategy.model.stable)
    stop.active = True
    with pytest.raises(KeyboardInterrupt):
        strategy.train(stream.train_stream[1])
    stop.active = False
    assert strategy.model.gaussian is None
    extractors = []
    strategy.plugins.insert(
        0, Probe(after_training_exp=lambda s: extractors.append(gaussian_of(s)._previous.module))
    )
    strategy.train(stream.train_stream[1])
    assert_same_state(state_of(*extractors), before)


@pytest.mark.parametrize("hook", ["before_eval_forward", "after_eval_iteration", "before_eval_exp"])
@pytest.mark.parametrize("first", [False, True])
def test_other_forward_passes_at_evaluation_do_not_disturb_it(hook, first):
    def look(strategy):
        with torch.no_grad():
            strategy.model(torch.rand(5, 3, 8, 8))

    stream = tensors_stream(**SHAPE)
    found = []
    for looks in (False, True):
        plugins = [GaussianClassifierPlugin()]
        if looks:
            plugins.insert(0 if first else 1, Probe(**{hook: look}))
        strategy, metrics = other(plugins=plugins)
        learn(strategy, stream)
        found.append(metrics[1].matrix())
    assert np.array_equal(*found, equal_nan=True)


def test_after_an_evaluation_that_broke_off_no_features_pile_up():
    strategy, _ = other()
    stream = tensors_stream(**SHAPE)
    learn(strategy, stream, num=1)
    strategy.plugins.append(Probe(after_eval_forward=lambda s: 1 / 0))
    with pytest.raises(ZeroDivisionError):
        strategy.eval(stream.test_stream)
    for _ in range(3):
        strategy.model(torch.rand(5, 3, 8, 8))
    assert not gaussian_of(strategy)._features


def test_it_is_solved_for_once_and_evaluation_is_a_linear_layer(monkeypatch):
    strategies = [dlcpa()[0], other()[0]]
    stream = tensors_stream(**SHAPE)
    for strategy in strategies:
        learn(strategy, stream)
    for name in ("linear_discriminants", "followed", "experience_statistics"):
        monkeypatch.setattr(gaussian_plugin, name, None)
    for strategy in strategies:
        strategy.eval(stream.test_stream)
    assert len(strategies[0].model.gaussian.linears) == 1


def test_the_cost_is_one_pass_over_the_images_with_each_extractor(monkeypatch):
    counts, batches = [], []

    def statistics_of_a_batch(features, columns, *, num_classes):
        batches.append(len(features))  # never those of the whole experience
        return class_statistics(features, columns, num_classes=num_classes)

    monkeypatch.setattr(frozen_extractor, "class_statistics", statistics_of_a_batch)

    def counting(extractor, images):
        passes = optimized(extractor, images)

        def count(x):
            counts.append(len(x))
            return passes(x)

        return count

    monkeypatch.setattr(frozen_extractor, "optimized", counting)
    strategy, _ = dlcpa(train_mb_size=8, eval_mb_size=10)
    stream = tensors_stream(**SHAPE)
    strategy.train(stream.train_stream[0])
    assert counts == batches == [10, 10, 4]
    counts.clear()
    strategy.train(stream.train_stream[1])
    assert sum(counts) == 2 * 24


HEADS = {
    "linear": SmallCNN,
    "growing": lambda: SmallCNN(head=IncrementalClassifier(64)),
    "multi-task": lambda: as_multitask(SmallCNN(num_classes=2), "fc"),
}


@pytest.mark.parametrize(
    ("head", "labelled"),
    [("linear", False), ("growing", False), *((name, True) for name in HEADS)],
)
def test_every_kind_of_head(head, labelled):
    strategy, (_, task_il) = other(model=HEADS[head](), train_epochs=3)
    stream = STREAMS["nc with task labels" if labelled else "nc"](per_class=24, size=8)
    learn(strategy, stream)
    assert task_il.matrix()[-1].min() > 0.7
    assert gaussian_of(strategy).keys == [(k // 2 if labelled else 0, k) for k in range(6)]


def test_labels_that_restart_in_each_task():
    stream = STREAMS["nc with labels from zero"](per_class=24, size=8)
    strategy, (_, task_il) = other(model=HEADS["multi-task"]())
    learn(strategy, stream)
    assert gaussian_of(strategy).keys == [(t, k) for t in range(3) for k in range(2)]
    assert task_il.matrix()[-1].min() > 0.7


def test_a_batch_of_several_tasks_for_a_multi_task_model():
    stream = STREAMS["nc with task labels"](per_class=24, size=8)
    answers = []
    probe = Probe(after_eval_iteration=lambda s: answers.append((s.mb_output, s.mb_y)))
    strategy, _ = other(model=HEADS["multi-task"](), plugins=[GaussianClassifierPlugin(), probe])
    learn(strategy, stream)
    answers.clear()
    whole = stream.test_stream[2].dataset.concat(stream.test_stream[0].dataset)
    experience = copy.copy(stream.test_stream[0])
    experience.dataset = whole.subset(torch.randperm(len(whole)).tolist())
    experience.classes_in_this_experience = [0, 1, 4, 5]
    strategy.evaluator.active = False
    strategy.eval([experience])
    outputs, labels = (torch.cat(part) for part in zip(*answers, strict=True))
    assert (outputs.argmax(1) == labels).float().mean() > 0.8


def test_with_the_averaged_model_of_another_strategy():
    average, plugin = CumulativeParameterAveragingPlugin(), GaussianClassifierPlugin()
    strategy, metrics = other(plugins=[average, plugin])
    stream = tensors_stream(per_class=24, size=8)
    learn(strategy, stream)
    images, labels = batch_of(stream.train_stream[2])
    seen = []
    model = copy.deepcopy(average.averaged_model).eval()
    model.fc.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        model(images)
    means = torch.stack([seen[0][labels == k].mean(0) for k in (4, 5)])
    torch.testing.assert_close(plugin.statistics.means[4:].float(), means, rtol=1e-4, atol=1e-4)
    assert metrics[0].matrix()[-1].mean() > 0.5
    assert strategy.model is not average.averaged_model


def test_an_untrained_task_has_no_right_answer():
    stream = STREAMS["nc with labels from zero"](per_class=12, size=8)
    strategy, _ = dlcpa()
    strategy.train(stream.train_stream[0])
    images, _ = batch_of(stream.test_stream[1])
    with torch.no_grad():
        answer = strategy.model.eval()(images, 1)
    assert (answer.argmax(1) == 2).all()


@pytest.mark.parametrize(
    ("dtype", "precision"),
    [
        *((dtype, "float32") for dtype in (torch.float32, torch.float64, torch.bfloat16)),
        *((dtype, "bf16") for dtype in (torch.float32, torch.bfloat16)),
    ],
)
def test_precisions(dtype, precision):
    class Typed(SmallCNN):
        def forward(self, x):
            return super().forward(x.to(dtype))

    strategy, metrics = dlcpa(Typed().to(dtype), precision=precision)
    learn(strategy, tensors_stream(per_class=24, size=8))
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    assert strategy.model.gaussian.linears[0].weight.dtype == wide
    assert gaussian_of(strategy).statistics.means.dtype == torch.float64
    assert metrics[1].matrix()[-1].mean() > 0.7


# Checkpoints -------------------------------------------------------------------------------------


def test_the_state_of_the_model_holds_it():
    strategy, _ = dlcpa()
    stream = tensors_stream(**SHAPE)
    learn(strategy, stream)
    file = io.BytesIO()
    torch.save(strategy.model.state_dict(), file)
    file.seek(0)
    model = DualLearner(SmallCNN(num_classes=1)).eval()
    model.load_state_dict(torch.load(file, weights_only=True))
    images, _ = batch_of(stream.test_stream[0])
    with torch.no_grad():
        ours, theirs = model(images), strategy.model.eval()(images)
    assert torch.equal(ours, theirs)
    assert not any(p.requires_grad for p in model.gaussian.parameters())
    answers = [m(images, torch.full((len(images),), 9)) for m in (model, strategy.model)]
    assert torch.equal(*answers)  # of a task never trained: none of the classes
    strategy.model.gaussian = None
    model.load_state_dict(strategy.model.state_dict())
    assert model.gaussian is None


@pytest.mark.parametrize("make", [dlcpa, other])
def test_avalanches_checkpoints_hold_it(tmp_path, make):
    stream = tensors_stream(tasks=((0, 1), (2, 3)), **SHAPE)
    strategy, metrics = make()
    learn(strategy, stream, num=1)
    save_checkpoint(strategy, tmp_path / "run.pt")
    again, first = maybe_load_checkpoint(make(seed=7)[0], tmp_path / "run.pt")
    for one in (strategy, again):
        for experience in stream.train_stream[first:]:
            seed_everything()
            one.train(experience)
            one.eval(stream.test_stream)
    ours, theirs = gaussian_of(again).statistics, gaussian_of(strategy).statistics
    assert_same_state(vars(ours), vars(theirs))
    assert (again.evaluator.metrics[0].matrix() == metrics[0].matrix()).all()


def test_a_state_of_the_plugin_answers_alike():
    stream = tensors_stream(**SHAPE)
    strategy, _ = other()
    learn(strategy, stream, num=2)
    fresh, plugin = other()[0], gaussian_of(strategy)
    fresh.model.load_state_dict(strategy.model.state_dict())
    gaussian_of(fresh).load_state_dict(plugin.state_dict())
    gaussian_of(fresh).head = plugin.head
    seen = []
    for one in (strategy, fresh):
        one.plugins.append(Probe(after_eval_iteration=lambda s: seen.append(s.mb_output)))
        one.evaluator.active = False
        one.eval(stream.test_stream[:1])
    assert torch.equal(*seen)


def test_a_state_of_other_priors_is_refused():
    state = GaussianClassifierPlugin(covariance_prior=7).state_dict()
    own, given = rf"\[{COVARIANCE_PRIOR}, {MAP_PRIOR}\]", rf"\[7.0, {MAP_PRIOR}\]"
    with pytest.raises(ValueError, match=f"{own}, got {given}"):
        GaussianClassifierPlugin().load_state_dict(state)


# What is refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"covariance_prior": 0.0}, "`covariance_prior` to be above 0, got 0.0"),
        ({"covariance_prior": "auto"}, "`covariance_prior` to be above 0, got auto"),
        ({"map_prior": -1}, "`map_prior` to be above 0, got -1"),
        ({"map_prior": math.nan}, "`map_prior` to be above 0, got nan"),
    ],
)
def test_priors_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        GaussianClassifierPlugin(**options)


def refused(strategy, message):
    with pytest.raises(ValueError, match=message):
        strategy.train(tensors_stream(**SHAPE).train_stream[0])


def test_strategies_that_do_not_suit_are_refused_before_training():
    with pytest.raises(ValueError, match="`classifier` to be one of linear, gaussian, got 'lda'"):
        dlcpa(classifier="lda")
    refused(dlcpa(bn_statistics="batch")[0], "Expected bn_statistics 'running' or")
    refused(dlcpa(plugins=[GaussianClassifierPlugin()])[0], "Expected one GaussianClassifierPlugin")
    order = [GaussianClassifierPlugin(), CumulativeParameterAveragingPlugin()]
    refused(other(plugins=order)[0], r"plugins=\[average, gaussian\]")
    with pytest.raises(ValueError, match="got JointTraining"):
        other(JointTraining)[0].train(tensors_stream(**SHAPE).train_stream)


def test_a_plugin_that_comes_late_would_not_know_the_classes_before_it():
    stream = tensors_stream(**SHAPE)
    naive, _ = other(plugins=[Probe()])
    naive.train(stream.train_stream[0])
    naive.plugins.append(GaussianClassifierPlugin())
    dual = dlcpa(classifier="linear")[0]
    dual.train(stream.train_stream[0])
    for strategy in (naive, dlcpa(dual.model)[0]):
        with pytest.raises(ValueError, match="GaussianClassifierPlugin from the first experience"):
            strategy.train(stream.train_stream[1])


def test_a_linear_strategy_does_not_answer_with_an_earlier_gaussian():
    stream = tensors_stream(**SHAPE)
    gaussian = learn(dlcpa()[0], stream, num=1)
    strategy, metrics = dlcpa(gaussian.model, classifier="linear", train_epochs=5)
    assert strategy.model.gaussian is not None
    learn(strategy, stream)
    assert strategy.model.gaussian is None
    assert metrics[1].matrix()[-1, 1] > 0.5


def task_wise_models():
    network = SmallCNN(head=nn.Identity())
    return {
        "PNN": PNN(num_layers=2, in_features=192, hidden_features_per_column=8),
        "PackNetModel": packnet_simple_mlp(num_classes=6, input_size=192, hidden_size=8),
        "TrainEvalModel": TrainEvalModel(network, nn.Linear(64, 6), NCMClassifier()),
    }


@pytest.mark.parametrize("name", ["PNN", "PackNetModel", "TrainEvalModel"])
def test_models_whose_features_depend_on_the_task_are_refused(name):
    strategy, _ = other(model=task_wise_models()[name])
    refused(strategy, f"one feature extractor for all tasks and a linear head, got {name}:")


def test_criteria_with_a_weight_for_each_class_can_judge_untrained_tasks():
    stream = STREAMS["nc with task labels"](per_class=12, size=8)
    strategy, _ = other(model=as_multitask(SmallCNN(), "fc"))
    strategy.train(stream.train_stream[0])
    width = len(strategy.model.eval()(torch.rand(1, 3, 8, 8), 0)[0])
    widths = Probe(after_eval_iteration=lambda s: s.mb_output.shape[1])
    strategy.plugins.append(widths)
    strategy.eval(stream.test_stream)
    assert set(widths.seen["after_eval_iteration"]) == {width}


def test_what_cannot_be_solved_leaves_everything_as_it_was(monkeypatch):
    strategy, _ = dlcpa()
    stream = tensors_stream(**SHAPE)
    learn(strategy, stream, num=1)
    plugin = gaussian_of(strategy)
    before = plugin.statistics

    def fails(*_, **__):
        raise ValueError("too low a value")

    monkeypatch.setattr(gaussian_plugin, "linear_discriminants", fails)
    with pytest.raises(ValueError, match="too low a value"):
        strategy.train(stream.train_stream[1])
    assert plugin.statistics is before
    assert len(plugin.keys) == 2


def test_a_second_strategy_is_refused():
    plugin = GaussianClassifierPlugin()
    learn(other(plugins=[plugin])[0], tensors_stream(**SHAPE), num=1)
    refused(other(plugins=[plugin])[0], "Expected one strategy for a GaussianClassifierPlugin")


def test_features_that_are_not_finite_are_refused_and_nothing_is_forgotten():
    strategy, _ = other()
    stream = tensors_stream(**SHAPE)
    learn(strategy, stream, num=1)
    known = gaussian_of(strategy).statistics
    images, labels = samples((2, 3), per_class=4, size=8)
    images[1] = math.nan
    bad = tensors_benchmark([(images, labels)], [(images, labels)], task_labels=[0])
    with pytest.raises(ValueError, match="Expected finite features, got NaN"):
        strategy.train(bad.train_stream[0])
    assert gaussian_of(strategy).statistics is known


def test_labels_beside_the_classes_of_the_experience_are_refused():
    stream = tensors_stream(**SHAPE)
    experience = stream.train_stream[0]
    experience.classes_in_this_experience = [0, 3]
    strategy, _ = other()
    with pytest.raises(ValueError, match=r"among its classes \[0, 3\], got \[1\]"):
        strategy.train(experience)
