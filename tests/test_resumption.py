"""A run that is broken off anywhere and started again ends with the very same bits."""

import copy
import random
import shutil
import warnings
from types import FunctionType

import numpy as np
import pytest
import torch
from avalanche.benchmarks import nc_benchmark, tensors_benchmark
from avalanche.evaluation.metrics import (
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
from avalanche.training.plugins import (
    EarlyStoppingPlugin,
    EvaluationPlugin,
    LRSchedulerPlugin,
    MASPlugin,
    ReplayPlugin,
    SupervisedPlugin,
)
from helpers import (
    STREAMS,
    SmallCNN,
    WithTargets,
    assert_same_state,
    samples,
    seed_everything,
    small_head,
    state_of,
    strategy_of,
    tensors_stream,
)
from torch import nn
from torch.optim import Adam
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, MultiStepLR
from torch.utils.data import DataLoader
from torchvision import tv_tensors
from walker import holding, reachable

from avalanche_dlcpa import GaussianClassifierPlugin, PaperViews
from avalanche_dlcpa.checkpoint import CheckpointFolder
from avalanche_dlcpa.metrics import scenario_metrics
from avalanche_dlcpa.self_supervised import SelfSupervisedHead

STREAM = tensors_stream(tasks=((0, 1), (2, 3)), per_class=20, size=8)  # 3 mini-batches an epoch
EPOCHS = 2


class BrokenOffError(Exception):
    """Stands for the kill; SIGKILL itself is in test_soak.py."""


class Run:
    """A strategy with metrics, and a script's loop over a stream."""

    def __init__(self, *, seed=5, stream=STREAM, at_once=False, loader=(), metrics=(), **kwargs):
        seed_everything(seed)
        self.stream, self.at_once, self.loader = stream, at_once, dict(loader)
        self.scenarios = scenario_metrics()
        evaluator = EvaluationPlugin(*self.scenarios, *metrics, loggers=[])
        kwargs = {
            name: option() if is_fresh(name, option) else option for name, option in kwargs.items()
        }
        kwargs = {"train_epochs": EPOCHS, "model": SmallCNN(), "momentum": 0.9} | kwargs
        self.strategy = strategy_of(**kwargs, evaluator=evaluator)
        self.results = []

    def go(self):
        strategy, stream = self.strategy, self.stream
        steps = [list(stream.train_stream)] if self.at_once else stream.train_stream
        for step in steps:
            torch.rand(3)  # a script may draw, too
            self.results.append(numbers(strategy.train(step, **self.loader)))
            self.results.append(numbers(strategy.eval(stream.test_stream)))
        return self

    def break_off_after(self, count):
        """Let the run end with the checkpoint of its so-manieth moment; whether it came to it."""
        folder, writes = self.strategy._run.folder, []
        write = folder.write

        def write_then_end(state):
            write(state)
            writes.append(state["position"])
            if len(writes) == count:
                raise BrokenOffError

        folder.write = write_then_end
        try:
            self.go()
        except BrokenOffError:
            return True
        return False

    def assert_same_as(self, other):
        strategy, whole = self.strategy, other.strategy
        assert_same_state(state_of(strategy.model, strategy.ssl), state_of(whole.model, whole.ssl))
        for ours, theirs in zip(self.scenarios, other.scenarios, strict=True):
            assert np.array_equal(ours.matrix(), theirs.matrix(), equal_nan=True)
        assert repr(self.results) == repr(other.results)
        assert vars(strategy.clock) == vars(whole.clock)
        ours, theirs = (dict(s.evaluator.get_all_metrics()) for s in (strategy, whole))
        assert ours.keys() == theirs.keys()
        for name, (x, y) in ours.items():
            assert x == theirs[name][0]
            if not name.endswith("/Acc_Matrix"):  # Avalanche goes on writing in the one given out
                values, expected = (numbers(enumerate(values)) for values in (y, theirs[name][1]))
                assert repr(values) == repr(expected)
        for ours, theirs in zip(optimizer_tensors(strategy), optimizer_tensors(whole), strict=True):
            assert torch.equal(ours, theirs)


def numbers(values):
    """Metric values but for pictures, which checkpoints do not hold, and pickled models."""
    kinds = (int, float, str, torch.Tensor)
    chosen = {name: value for name, value in dict(values).items() if isinstance(value, kinds)}
    return copy.deepcopy(chosen)


def optimizer_tensors(strategy):
    states = strategy.optimizer.state_dict()["state"].values()
    return [t for state in states for t in state.values() if isinstance(t, torch.Tensor)]


def is_fresh(name, option):
    """Whether it is to be made anew for each life."""
    kinds = {"views": type} | dict.fromkeys(("model", "ssl", "plugins"), FunctionType | type)
    return name in kinds and isinstance(option, kinds[name])


EVERY = {"every_minutes": 0}


def check_resuming(tmp_path, moments, *, every=EVERY, metrics=lambda: (), **options):
    """Break a run off at each moment, start it again, and compare with an undisturbed one."""
    whole = Run(metrics=metrics(), **options).go()
    for moment in moments:
        folder = tmp_path / str(moment)
        run = Run(metrics=metrics(), **options)
        run.strategy.resume(folder, **every)
        assert run.break_off_after(moment)
        again = Run(metrics=metrics(), seed=99, **options)  # nothing comes from the seed twice
        again.strategy.resume(folder, **every)
        again.go()
        again.assert_same_as(whole)
    return whole


# Where it is broken off ---------------------------------------------------------------------------


def test_from_every_checkpoint_of_a_run(tmp_path):
    # an experience: 3 iterations and the start of epoch 2, 3 iterations, `train`, `eval`
    check_resuming(
        tmp_path,
        range(1, 19),
        ssl=lambda: small_head("mocov2"),
        scheduler=lambda optimizer: MultiStepLR(optimizer, [1]),
        classifier_scheduler=lambda optimizer: MultiStepLR(optimizer, [1]),
    )


@pytest.mark.parametrize("ssl", ["mocov2", "byol", "simclr", "nnclr", "simsiam", None])
def test_with_every_kind_of_head(tmp_path, ssl):
    check_resuming(tmp_path, (2, 13), ssl=lambda: small_head(ssl))


class HalfCNN(SmallCNN):
    """In bfloat16, where the average is kept in float32 beside its rounding."""

    def __init__(self):
        super().__init__()
        self.bfloat16()

    def forward(self, x):
        return super().forward(x.bfloat16())


CASES = {
    "temporary classifier": {"plastic_classifier": "temporary"},
    "EMA": {"stable_update": "ema"},
    "copy": {"stable_update": "copy"},
    "plastic features": {"classifier_features": "plastic"},
    "momentum encoder": {"average_source": "momentum", "ssl": lambda: small_head("byol")},
    "batch statistics": {"bn_statistics": "batch"},
    "recalibrated": {"bn_statistics": "recalibrated"},
    "Gaussian classifier": {"classifier": "gaussian"},
    "half precision": {"model": HalfCNN},
    "dropout and a weighted criterion": {
        "model": lambda: SmallCNN(head=nn.Sequential(nn.Dropout(0.5), nn.Linear(64, 6))),
        "head": "fc.1",
        "criterion": nn.CrossEntropyLoss(label_smoothing=0.1),
    },
    "one call for all": {"at_once": True},
    "two workers": {"loader": {"num_workers": 2}},
    "evaluated amid training": {"eval_every": 1},
    "evaluated amid epochs": {"eval_every": 2, "peval_mode": "iteration"},
}


@pytest.mark.parametrize("name", CASES)
def test_with_every_option(tmp_path, name):
    check_resuming(tmp_path, (2, 10, 13), **CASES[name])


@pytest.mark.parametrize("name", STREAMS)
def test_on_every_kind_of_stream(tmp_path, name):
    stream = STREAMS[name](per_class=9, size=16)
    check_resuming(tmp_path, (4, 14), stream=stream, ssl=lambda: small_head("mocov2"))


class Noisy(WithTargets):
    """Draws from all global generators for every sample."""

    def __getitem__(self, index):
        image, label = super().__getitem__(index)
        return image + 0.1 * torch.rand(1) + 0.1 * random.random() + 0.1 * np.random.rand(), label


def noisy_stream():
    train, test = Noisy(*samples(range(4), per_class=20, size=8)), WithTargets(*samples(range(4)))
    return nc_benchmark(train, test, n_experiences=2, task_labels=False, shuffle=False)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_on_a_stream_that_draws(tmp_path, num_workers):
    options = {"stream": noisy_stream(), "loader": {"num_workers": num_workers}}
    check_resuming(tmp_path, (2, 12), **options, ssl=lambda: small_head("simclr"))


def test_with_another_number_of_workers_than_before(tmp_path):
    stream = noisy_stream()
    whole = Run(stream=stream).go()
    run = Run(stream=stream)
    run.strategy.resume(tmp_path, **EVERY)
    assert run.break_off_after(12)  # amid an epoch of the second experience
    again = Run(stream=stream, loader={"num_workers": 2})
    assert again.strategy.resume(tmp_path, **EVERY) == 1
    again.go().assert_same_as(whole)


def test_schedules_go_on_amid_an_experience(tmp_path):
    def scheduler(optimizer):
        return MultiStepLR(optimizer, [1])

    options = {"scheduler": scheduler, "classifier_scheduler": scheduler, "train_epochs": 3}
    check_resuming(tmp_path, (5, 18), **options)  # in the second epoch of three


def test_adam_goes_on_with_its_state(tmp_path):
    def options():
        model = SmallCNN()
        return {"model": model, "optimizer": Adam(model.parameters(), lr=0.01)}

    seed_everything()
    whole = Run(**options()).go()
    seed_everything()
    run = Run(**options())
    run.strategy.resume(tmp_path, **EVERY)
    assert run.break_off_after(12)
    again = Run(**options())
    assert again.strategy.resume(tmp_path, **EVERY) == 1
    again.go().assert_same_as(whole)


def test_twice_broken_off_and_only_at_the_ends_of_epochs(tmp_path):
    whole = Run().go()
    for moment in (2, 2):
        run = Run()
        run.strategy.resume(tmp_path, every_minutes=None)
        assert run.break_off_after(moment)
    again = Run()
    assert again.strategy.resume(tmp_path, every_minutes=None) == 1
    again.go().assert_same_as(whole)


def test_constants_that_views_guessed_from_the_first_experience_stay(tmp_path):
    (a, b), (c, d) = (samples(k, per_class=20, size=8) for k in ((0, 1), (2, 3)))
    stream = tensors_benchmark(
        [(9 * a, b), (5 * c, d)], [(9 * a, b), (5 * c, d)], task_labels=[0, 0]
    )
    with pytest.warns(UserWarning, match="Found no Normalize"):
        whole = check_resuming(tmp_path, (11,), stream=stream, ssl=lambda: small_head("simclr"))
    assert max(whole.strategy.views.std) > 8


# With Avalanche's plugins and metrics -------------------------------------------------------------


def many_metrics():
    return [
        accuracy_metrics(minibatch=True, epoch=True, epoch_running=True, stream=True),
        loss_metrics(minibatch=True, epoch=True, experience=True),
        forgetting_metrics(experience=True, stream=True),
        bwt_metrics(experience=True, stream=True),
        confusion_matrix_metrics(num_classes=6, save_image=False, stream=True),
    ]


def test_metrics_of_avalanche_count_on(tmp_path):
    check_resuming(tmp_path, (2, 5, 9, 12, 16), metrics=many_metrics)


def test_schedules_and_early_stopping_of_avalanche_go_on(tmp_path):
    def options():
        model = SmallCNN()
        optimizer = Adam(model.parameters(), lr=0.01)
        schedule = LRSchedulerPlugin(CosineAnnealingLR(optimizer, 5), step_granularity="iteration")
        stop = EarlyStoppingPlugin(patience=1, val_stream_name="train_stream")
        plugins = [schedule, stop]
        common = {"train_epochs": 4, "eval_every": 1, "metrics": accuracy_metrics(stream=True)}
        return {"model": model, "optimizer": optimizer, "plugins": plugins, **common}

    seed_everything()
    whole = Run(**options()).go()
    assert whole.strategy.clock.train_iterations < 2 * 4 * 3  # it stopped early
    for moment in (2, 5, 9, 12):
        seed_everything()
        run = Run(**options())
        run.strategy.resume(tmp_path / str(moment), **EVERY)
        assert run.break_off_after(moment)
        again = Run(**options())
        again.strategy.resume(tmp_path / str(moment), **EVERY)
        again.go().assert_same_as(whole)


class Counter(SupervisedPlugin):
    """A user's plugin: its plain attributes are kept without a word from it."""

    def __init__(self):
        super().__init__()
        self.sizes, self.by_class = [], {}

    def after_training_iteration(self, strategy, **kwargs):
        self.sizes.append(len(strategy.mb_y))
        for label in strategy.mb_y.tolist():
            self.by_class[label] = self.by_class.get(label, 0) + 1


class CountingHead(SelfSupervisedHead):
    def __init__(self):
        super().__init__()
        self.steps = 0

    def forward(self, plastic, view1, view2):
        self.steps += 1
        features = plastic(view1)
        return 0.01 * self.steps * (features - plastic(view2)).square().mean(), (features,)


class CountingViews:
    def __init__(self):
        self.steps, self.last = 0, torch.zeros(())

    def __call__(self, x):
        self.steps += 1
        self.last = 0.5 * self.last + x.mean()
        return x * (1 + 0.01 * self.steps), x.flip(-1) + self.last


def test_what_heads_and_views_of_ones_own_count_is_kept(tmp_path):
    check_resuming(tmp_path / "head", (2, 13), ssl=CountingHead, views=lambda x: (x, x.flip(-1)))
    check_resuming(
        tmp_path / "views", (2, 13), ssl=lambda: small_head("simclr"), views=CountingViews
    )


def test_a_file_cannot_change_what_a_head_is(tmp_path):
    broken_off(tmp_path, ssl=CountingHead, views=lambda x: (x, x.flip(-1)))
    folder = CheckpointFolder(tmp_path)
    state = folder.read()
    wrong = {"_modules": {"kind": "mapping", "items": []}, "__class__": "int", "steps": 7}
    state["learned"]["attributes"]["ssl"] = wrong
    folder.write({name: part for name, part in state.items() if name != "format"})
    again = Run(ssl=CountingHead, views=lambda x: (x, x.flip(-1)))
    modules = again.strategy.ssl._modules
    again.strategy.resume(tmp_path)
    assert type(again.strategy.ssl) is CountingHead
    assert again.strategy.ssl._modules is modules
    assert again.strategy.ssl.steps == 7


class LabelNoise(SupervisedPlugin):
    def before_training_iteration(self, strategy, **kwargs):
        strategy.mbatch[1] = strategy.mbatch[1].flip(0)


class OwnLoader(SupervisedPlugin):
    """Puts a loader in place that draws when it is asked for its first mini-batch."""

    def before_training_exp(self, strategy, **kwargs):
        dataset = strategy.adapted_dataset
        strategy.dataloader = DataLoader(dataset, 16, shuffle=True, collate_fn=dataset.collate_fn)


@pytest.mark.parametrize("plugin", [LabelNoise, OwnLoader])
def test_plugins_that_change_the_data(tmp_path, plugin):
    moments = (2, 4, 10) if plugin is LabelNoise else (4, 13)  # 4: between two epochs
    model = lambda: SmallCNN(batch_norm=False)  # noqa: E731
    check_resuming(tmp_path, moments, plugins=lambda: [plugin()], model=model)


class HalvingRun(Run):
    """A script that lowers the learning rate between its calls."""

    def go(self):
        for experience in self.stream.train_stream:
            for group in self.strategy.optimizer.param_groups:
                group["lr"] *= 0.5
            self.results.append(numbers(self.strategy.train(experience)))
            self.results.append(numbers(self.strategy.eval(self.stream.test_stream)))
        return self


@pytest.mark.parametrize("moment", [6, 8, 9, 12, 17])  # amid, after `train`, after `eval`, amid
def test_what_the_script_changes_between_its_calls_is_changed_once(tmp_path, moment):
    whole = HalvingRun().go()
    run = HalvingRun()
    run.strategy.resume(tmp_path, **EVERY)
    assert run.break_off_after(moment)
    again = HalvingRun()
    again.strategy.resume(tmp_path, **EVERY)
    again.go().assert_same_as(whole)
    assert again.strategy.optimizer.param_groups[0]["lr"] == 0.05 / 4


def test_what_a_plugin_remembers_is_kept(tmp_path):
    run = Run(plugins=lambda: [Counter()])
    run.strategy.resume(tmp_path, **EVERY)
    assert run.break_off_after(11)
    again = Run(plugins=lambda: [Counter()])
    again.strategy.resume(tmp_path, **EVERY)
    counter = again.go().strategy.plugins[0]
    assert counter.sizes == 4 * [16, 16, 8]
    assert counter.by_class == dict.fromkeys(range(4), 2 * 20)


def all_other_metrics():
    return [
        accuracy_matrix_metrics(),
        amca_metrics(),
        class_accuracy_metrics(epoch=True, experience=True, stream=True),
        forward_transfer_metrics(experience=True, stream=True),
        images_samples_metrics(on_train=True, on_eval=True),
        labels_repartition_metrics(on_train=True, on_eval=True),
        MAC_metrics(epoch=True),
        mean_scores_metrics(),
        topk_acc_metrics(top_k=2, epoch=True, stream=True),
        WeightCheckpoint(),
    ]


def test_all_other_metrics_of_avalanche_count_on(tmp_path):
    before_training = {"eval_every": 0, "loader": {"eval_streams": [STREAM.test_stream]}}
    check_resuming(tmp_path, (2, 5, 9, 12, 16), metrics=all_other_metrics, **before_training)


def what_is_measured_of_the_machine():
    return [
        cpu_usage_metrics(minibatch=True, epoch=True, experience=True, stream=True),
        disk_usage_metrics(epoch=True),
        gpu_usage_metrics(0, epoch=True),
        ram_usage_metrics(epoch=True, every=0.01),
        timing_metrics(epoch=True, experience=True, stream=True),
    ]


def test_measures_of_the_machine_start_anew(tmp_path):
    whole = Run(metrics=what_is_measured_of_the_machine()).go()
    for moment in (2, 9, 12, 16):
        run = Run(metrics=what_is_measured_of_the_machine())
        run.strategy.resume(tmp_path / str(moment), **EVERY)
        assert run.break_off_after(moment)
        again = Run(metrics=what_is_measured_of_the_machine())
        again.strategy.resume(tmp_path / str(moment), **EVERY)
        results = again.go().results
        assert [r.keys() for r in results] == [r.keys() for r in whole.results]
        times = [v for name, v in results[-1].items() if name.startswith("Time_")]
        assert times
        assert all(0 <= seconds < 100 for seconds in times)


def test_mas_goes_on_with_its_importances(tmp_path):
    check_resuming(tmp_path, (2, 9, 12), plugins=lambda: [MASPlugin(lambda_reg=1, verbose=False)])


def test_numbers_of_numpy_are_kept(tmp_path):
    check_resuming(
        tmp_path,
        (2, 12),
        lr=np.logspace(-3, -1, 5)[2],
        classifier_lr=np.float32(0.25),
        scheduler=lambda optimizer: LambdaLR(optimizer, lambda e: 0.5 * (1 + np.cos(e))),
    )


class Holder(SupervisedPlugin):
    """A user's plugin that comes to hold what a hook gives it."""

    def __init__(self, find):
        super().__init__()
        self.find, self.found = find, None

    def before_training(self, strategy, **kwargs):
        self.found = self.find(strategy)


def test_a_plugin_may_hold_the_strategy_and_its_parts(tmp_path):
    def found(strategy):
        return [strategy, strategy.model, strategy.optimizer]

    check_resuming(tmp_path, (2, 12), plugins=lambda: [Holder(found)])


def test_a_model_that_a_plugin_makes_on_the_way_is_not_lost_without_a_word(tmp_path):
    run = Run(plugins=lambda: [Holder(lambda strategy: copy.deepcopy(strategy.model))])
    run.strategy.resume(tmp_path, **EVERY)
    with pytest.warns(UserWarning, match=r"No checkpoint was written.* new ones at Holder.found"):
        run.go()
    assert not list(tmp_path.glob("*.pt"))


class Looking(SupervisedPlugin):
    """A user's plugin that evaluates before an experience, and uses what it is told."""

    def before_training_exp(self, strategy, **kwargs):
        name = "ClassIL_Acc_Exp/eval_phase/test_stream/Task000/Exp000"
        assert strategy.eval(STREAM.test_stream)[name] >= 0


def test_a_hook_that_evaluates_is_told_what_is_known(tmp_path):
    check_resuming(tmp_path, (2, 12), plugins=lambda: [Looking()])


class Counting(SupervisedPlugin):
    """A user's plugin that counts in place."""

    def __init__(self):
        super().__init__()
        self.seen = torch.zeros(4)

    def before_training_exp(self, strategy, **kwargs):
        self.seen[strategy.experience.classes_in_this_experience] += 1


def test_a_hook_that_counts_in_place_counts_once(tmp_path):
    run = Run(plugins=lambda: [Counting()])
    run.strategy.resume(tmp_path, **EVERY)
    assert run.break_off_after(11)  # amid the second experience
    again = Run(plugins=lambda: [Counting()])
    again.strategy.resume(tmp_path, **EVERY)
    assert again.go().strategy.plugins[0].seen.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("moment", [2, 7, 9, 12])  # in the first, after its calls, in the second
def test_a_script_knows_whether_it_has_come_to_the_checkpoint(tmp_path, moment):
    exported = []

    def go(run):
        for experience in STREAM.train_stream:
            run.strategy.train(experience)
            run.strategy.eval(STREAM.test_stream)
            if not run.strategy.is_replaying:
                exported.append(state_of(run.strategy.model.stable_model()))

    run = Run()
    assert not run.strategy.is_replaying
    go(run)
    whole = list(exported)
    exported.clear()
    broken = Run()
    broken.strategy.resume(tmp_path, **EVERY)
    broken.go = lambda: go(broken)
    assert broken.break_off_after(moment)
    again = Run()
    again.strategy.resume(tmp_path, **EVERY)
    go(again)
    assert len(exported) == len(whole) == 2  # each once, over both lives
    for state, expected in zip(exported, whole, strict=True):
        assert_same_state(state, expected)


class ImageHolder(SupervisedPlugin):
    def __init__(self):
        super().__init__()
        self.image = tv_tensors.Image(torch.zeros(3, 2, 2))


class Snake(SupervisedPlugin):
    def __init__(self):
        super().__init__()
        self.tail = self


@pytest.mark.parametrize(
    ("plugin", "message"),
    [
        (ImageHolder, r"got ImageHolder.image of type Image"),
        (Snake, "no reference to themselves, got one that does among Snake"),
    ],
)
def test_what_no_file_of_plain_data_holds_is_refused_at_once(tmp_path, plugin, message):
    with pytest.raises(ValueError, match=message):
        Run(plugins=lambda: [plugin()]).strategy.resume(tmp_path)


def test_a_plugin_whose_state_cannot_be_kept_is_refused_at_once(tmp_path):
    run = Run(plugins=lambda: [ReplayPlugin(mem_size=10)])
    with pytest.raises(ValueError, match=r"got ReplayPlugin.storage_policy of type .*state_dict"):
        run.strategy.resume(tmp_path)


# What is refused ----------------------------------------------------------------------------------


def broken_off(tmp_path, moment=10, **options):
    run = Run(**options)
    run.strategy.resume(tmp_path, **EVERY)
    assert run.break_off_after(moment)


@pytest.mark.parametrize(
    ("options", "difference"),
    [
        ({"model": lambda: SmallCNN(batch_norm=False)}, r"plastic.norm \(layer\)"),
        ({"model": lambda: with_dropout(0.9), "head": "fc.1"}, r"plastic.fc.0 \(layer\) .* 0.5"),
        ({"ssl": lambda: small_head("simclr")}, "head.projector"),
        ({"lr": 0.01}, "optimizer"),
        ({"supervised_weight": 1.0}, "supervised_weight 10.0, and this strategy 1.0"),
        ({"train_epochs": 3}, "train_epochs 2, and this strategy 3"),
        ({"train_mb_size": 8}, "train_mb_size 16, and this strategy 8"),
        ({"stable_update": "ema"}, "stable_update cumulative"),
        ({"ema_decay": 0.5}, "ema_decay 0.999, and this strategy 0.5"),
        ({"eval_every": 1}, "eval_every -1, and this strategy 1"),
        ({"criterion": nn.CrossEntropyLoss(label_smoothing=0.1)}, "criterion"),
        ({"criterion": nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0]))}, "criterion"),
        ({"plugins": lambda: [Counter()]}, "plugins"),
        ({"classifier": "gaussian"}, "plugins"),
        ({"metrics": accuracy_metrics(stream=True)}, "metrics"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(tmp_path, options, difference):
    first = {"model": lambda: with_dropout(0.5), "head": "fc.1"} if "head" in options else {}
    broken_off(tmp_path, **first)
    before = sorted(tmp_path.iterdir())
    other = Run(**options)
    state = state_of(other.strategy.model)
    with pytest.raises(ValueError, match=f"It is of another run: it has {difference}"):
        other.strategy.resume(tmp_path)
    assert_same_state(state_of(other.strategy.model), state)
    assert sorted(tmp_path.iterdir()) == before


def with_dropout(share):
    return SmallCNN(head=nn.Sequential(nn.Dropout(share), nn.Linear(64, 6)))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("fingerprint", [1], "Its fingerprint are not what"),
        ("calls", [{"foo": 1}], "Its calls are not what"),
        ("plugins", {}, "Its plugins are not what"),
    ],
)
def test_contents_of_another_kind_cost_that_checkpoint_alone(tmp_path, name, value, message):
    whole = Run().go()
    broken_off(tmp_path)
    folder = CheckpointFolder(tmp_path)
    state = folder.read()
    folder.write({k: v for k, v in state.items() if k != "format"} | {name: value})
    again = Run()
    with pytest.warns(UserWarning, match=message):
        again.strategy.resume(tmp_path, **EVERY)
    again.go().assert_same_as(whole)


def test_learned_contents_of_another_kind_are_told(tmp_path):
    broken_off(tmp_path)
    folder = CheckpointFolder(tmp_path)
    folder.write({k: v for k, v in folder.read().items() if k != "format"} | {"learned": {}})
    with pytest.raises(ValueError, match="got one with other contents"):
        Run().strategy.resume(tmp_path)


def test_another_seed_is_noticed(tmp_path):
    Run(seed=1).strategy.resume(tmp_path / "new")
    broken_off(tmp_path, seed=1)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*random states")
        Run(seed=1).strategy.resume(tmp_path)
    with pytest.warns(UserWarning, match="started from other random states"):
        Run(seed=2).strategy.resume(tmp_path)


def test_other_options_of_a_plugin_are_another_run(tmp_path):
    broken_off(tmp_path, plugins=lambda: [GaussianClassifierPlugin(map_prior=0.1)])
    with pytest.raises(
        ValueError, match=r"It is of another run: it has plugins .*'map_prior': 0\.1"
    ):
        Run(plugins=lambda: [GaussianClassifierPlugin(map_prior=1.0)]).strategy.resume(tmp_path)


def test_a_checkpoint_that_lacks_something_is_refused(tmp_path):
    run = Run()
    run.strategy.resume(tmp_path / "whole", **EVERY)
    assert run.break_off_after(1)
    folder = CheckpointFolder(tmp_path / "cut")
    state = CheckpointFolder(tmp_path / "whole").read()
    folder.write({name: part for name, part in state.items() if name not in ("calls", "format")})
    with pytest.raises(ValueError, match="It lacks calls"):
        Run().strategy.resume(tmp_path / "cut")


def test_views_of_other_constants_are_another_run(tmp_path):
    views = [PaperViews(mean=[mean], std=[0.25]) for mean in (0.5, 0.4)]
    first, second = (Run(ssl="simclr", views=view) for view in views)
    first.strategy.resume(tmp_path, **EVERY)
    assert first.break_off_after(1)
    with pytest.raises(ValueError, match="It is of another run: it has views"):
        second.strategy.resume(tmp_path)


def test_another_script_is_refused(tmp_path):
    broken_off(tmp_path)  # amid the second experience
    first, second = STREAM.train_stream
    run = Run()
    run.strategy.resume(tmp_path)
    with pytest.raises(ValueError, match="Expected the script to train on experience 0 of train"):
        run.strategy.train(second)
    run.strategy.train(first)
    with pytest.raises(ValueError, match=r"to evaluate 2 experiences \(0 to 1\) of test"):
        run.strategy.train(second)
    with pytest.raises(ValueError, match=r"goes on to evaluate 1 experiences \(0 to 0\) of test"):
        run.strategy.eval(STREAM.test_stream[:1])
    run.strategy.eval(STREAM.test_stream)
    with pytest.raises(ValueError, match="Expected the script to train on experience 1 of train"):
        run.strategy.train(first)


def test_another_order_of_samples_is_refused(tmp_path):
    broken_off(tmp_path)
    run = Run(loader={"shuffle": False})
    run.strategy.resume(tmp_path)
    with pytest.raises(ValueError, match="deliver the samples of the checkpoint in their order"):
        run.go()


def test_when_and_how_often(tmp_path):
    run = Run()
    for wrong in ({"every_epochs": 0}, {"every_minutes": -1}):
        with pytest.raises(ValueError, match="Expected `every_epochs` to be at least 1 and"):
            run.strategy.resume(tmp_path, **wrong)
    run.strategy.resume(tmp_path)
    with pytest.raises(ValueError, match="Expected `resume` once and before training"):
        run.strategy.resume(tmp_path)
    with pytest.raises(ValueError, match="Expected no persistent_workers"):
        run.strategy.train(STREAM.train_stream[0], num_workers=1, persistent_workers=True)


# Without any harm ---------------------------------------------------------------------------------


def test_keeping_checkpoints_changes_nothing(tmp_path):
    run = Run(ssl=lambda: small_head("mocov2"))
    run.strategy.resume(tmp_path, **EVERY)
    run.go().assert_same_as(Run(ssl=lambda: small_head("mocov2")).go())


def test_a_resumed_run_holds_no_samples(tmp_path):
    broken_off(tmp_path, 11)
    run = Run()
    run.strategy.resume(tmp_path, **EVERY)
    run.go()
    images = torch.stack([x for e in STREAM.train_stream for x, *_ in e.dataset]).flatten(1)
    assert not holding(reachable(run.strategy), images)


def test_a_disk_that_is_full_stops_nothing(tmp_path):
    run = Run()
    run.strategy.resume(tmp_path / "run", **EVERY)
    folder = run.strategy._run.folder.path
    shutil.rmtree(folder)
    folder.write_text("in the way")
    with pytest.warns(UserWarning, match="No checkpoint could be written"):
        run.go()
    run.assert_same_as(Run().go())


def test_a_damaged_checkpoint_costs_a_little_time_and_no_numbers(tmp_path):
    broken_off(tmp_path, 12)
    newest = max(tmp_path.iterdir())
    newest.write_bytes(newest.read_bytes()[:1000])
    run = Run()
    with pytest.warns(UserWarning, match="cut short or altered"):
        run.strategy.resume(tmp_path, **EVERY)
    run.go().assert_same_as(Run().go())


def test_the_model_alone_is_loaded_into_a_fresh_one():
    trained, fresh = Run().go().strategy.model, Run().strategy.model
    fresh.load_state_dict(trained.state_dict())
    assert fresh.classifiers.keys == trained.classifiers.keys == [(0, k) for k in range(4)]
    assert_same_state(state_of(fresh), state_of(trained))
    x = STREAM.test_stream[1].dataset[0][0][None]
    assert torch.equal(fresh.eval()(x), trained.eval()(x)[:, :4])
    layers = list(fresh.classifiers.layers)
    fresh.load_state_dict(trained.state_dict())  # an optimizer may hold these
    assert all(a is b for a, b in zip(layers, fresh.classifiers.layers, strict=True))
