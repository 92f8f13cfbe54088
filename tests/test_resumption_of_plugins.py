"""Plugins, metrics, heads and scripts of one's own go on where a run was broken off."""

import copy

import numpy as np
import pytest
import torch
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
    LRSchedulerPlugin,
    MASPlugin,
    ReplayPlugin,
    SupervisedPlugin,
)
from helpers import (
    SmallCNN,
    VersionedCNN,
    assert_same_state,
    seed_everything,
    small_head,
    state_of,
)
from resuming import (
    EVERY,
    STREAM,
    Run,
    broken_off,
    check_resuming,
    numbers,
)
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, MultiStepLR
from torch.utils.data import DataLoader
from torchvision import tv_tensors

from avalanche_dlcpa.checkpoint import CheckpointFolder
from avalanche_dlcpa.self_supervised import SelfSupervisedHead


def many_metrics():
    return [
        accuracy_metrics(minibatch=True, epoch=True, epoch_running=True, stream=True),
        loss_metrics(minibatch=True, epoch=True, experience=True),
        forgetting_metrics(experience=True, stream=True),
        bwt_metrics(experience=True, stream=True),
        confusion_matrix_metrics(num_classes=6, save_image=False, stream=True),
    ]


def test_metrics_of_avalanche_count_on(tmp_path):
    check_resuming(tmp_path, (2, 4, 7, 10, 12), metrics=many_metrics)


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
    for moment in (2, 4, 7, 10):
        seed_everything()
        run = Run(**options())
        run.strategy.resume(tmp_path / str(moment), **EVERY)
        assert run.break_off_after(moment)
        again = Run(**options())
        again.strategy.resume(tmp_path / str(moment), **EVERY)
        again.go().assert_same_as(whole)


class StopAfter(SupervisedPlugin):
    """Ends an experience after so many of its iterations, or at the end of its first epoch."""

    def __init__(self, iterations=None):
        super().__init__()
        self.iterations = iterations

    def after_training_iteration(self, strategy, **kwargs):
        if strategy.clock.train_exp_iterations + 1 == self.iterations:
            strategy.stop_training()

    def after_training_epoch(self, strategy, **kwargs):
        if self.iterations is None:
            strategy.stop_training()


@pytest.mark.parametrize("iterations", [None, 2, 3])
def test_from_every_checkpoint_of_experiences_that_a_plugin_ends(tmp_path, iterations):
    options = {
        "plugins": lambda: [StopAfter(iterations)],
        "ssl": lambda: small_head("mocov2"),
        "scheduler": lambda optimizer: MultiStepLR(optimizer, [1]),
        "train_epochs": 3,
    }
    whole = check_resuming(tmp_path, range(1, 7), **options)
    assert whole.strategy.clock.train_iterations == 2 * (iterations or 3)


class Thawing(Run):
    """A script that lets the optimizer train the first layer from the second experience on."""

    def __init__(self, **kwargs):
        model = SmallCNN()
        model.conv.requires_grad_(False)
        rest = [p for p in model.parameters() if p.requires_grad]
        super().__init__(model=model, optimizer=SGD(rest, lr=0.05), **kwargs)

    def go(self):
        for step in self.stream.train_stream:
            if step.current_experience == 1:
                first = self.strategy.model.plastic.conv.requires_grad_(True)
                self.strategy.optimizer.add_param_group({"params": [*first.parameters()]})
            self.results.append(numbers(self.strategy.train(step)))
            self.results.append(numbers(self.strategy.eval(self.stream.test_stream)))
        return self


def test_a_run_whose_script_adds_a_group_to_the_optimizer_goes_on(tmp_path):
    seed_everything()
    whole = Thawing().go()
    for moment, num_learned in ((6, 1), (9, 1), (13, 2)):
        folder = tmp_path / str(moment)
        seed_everything()
        run = Thawing()
        run.strategy.resume(folder, **EVERY)
        assert run.break_off_after(moment)
        seed_everything()
        again = Thawing()
        assert again.strategy.resume(folder, **EVERY) == num_learned
        again.go().assert_same_as(whole)
    again = Thawing()
    again.strategy.resume(folder)
    with pytest.raises(ValueError, match=r"groups of \[\d+, 2\] parameters, .* got groups of \["):
        Run.go(again)  # a script that does not


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
    check_resuming(tmp_path / "head", (2, 10), ssl=CountingHead, views=lambda x: (x, x.flip(-1)))
    check_resuming(
        tmp_path / "views", (2, 10), ssl=lambda: small_head("simclr"), views=CountingViews
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
    moments = (2, 3, 8) if plugin is LabelNoise else (3, 10)  # 3: between two epochs
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


@pytest.mark.parametrize("moment", [5, 6, 7, 10, 13])  # amid, after `train`, after `eval`, amid
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
    assert run.break_off_after(9)
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
    check_resuming(tmp_path, (2, 4, 7, 10, 12), metrics=all_other_metrics, **before_training)


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
    for moment in (2, 7, 10, 12):
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
    check_resuming(tmp_path, (2, 7, 10), plugins=lambda: [MASPlugin(lambda_reg=1, verbose=False)])


def test_numbers_of_numpy_are_kept(tmp_path):
    check_resuming(
        tmp_path,
        (2, 10),
        lr=np.logspace(-3, -1, 5)[2],
        classifier_lr=np.float32(0.25),
        scheduler=lambda optimizer: LambdaLR(optimizer, lambda e: 0.5 * (1 + np.cos(e))),
    )


class VersionedTeacher(SupervisedPlugin):
    def __init__(self):
        super().__init__()
        self.teacher = VersionedCNN()


def test_a_model_of_a_plugin_is_not_taken_for_one_of_old_code(tmp_path):
    run = Run(plugins=lambda: [VersionedTeacher()])
    run.strategy.resume(tmp_path, **EVERY)
    assert run.break_off_after(2)
    again = Run(plugins=lambda: [VersionedTeacher()], seed=99)
    again.strategy.resume(tmp_path, **EVERY)
    ours, theirs = (one.strategy.plugins[0].teacher for one in (again, run))
    assert_same_state(state_of(ours), state_of(theirs))


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

    check_resuming(tmp_path, (2, 10), plugins=lambda: [Holder(found)])


class Clipping(SupervisedPlugin):
    """A user's plugin that clips gradients of parameters that it holds, and keeps their norms."""

    def __init__(self, parameters=None):
        super().__init__()
        self.parameters = None if parameters is None else list(parameters)
        self.norms = []

    def before_update(self, strategy, **kwargs):
        if self.parameters is None:
            self.parameters = list(strategy.model.plastic.conv.parameters())
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, 0.1)
        self.norms.append(float(norm))


@pytest.mark.parametrize("is_given", [False, True])
@pytest.mark.parametrize("moment", [2, 3, 9])
def test_a_plugin_may_hold_parameters_of_the_model(tmp_path, is_given, moment):
    def run():
        seed_everything(0)
        model = SmallCNN()
        plugin = Clipping(model.conv.parameters() if is_given else None)
        return Run(model=model, plugins=[plugin]), plugin

    whole, clipped = run()
    whole.go()
    first, _ = run()
    first.strategy.resume(tmp_path, **EVERY)
    assert first.break_off_after(moment)
    again, plugin = run()
    again.strategy.resume(tmp_path, **EVERY)
    again.go().assert_same_as(whole)
    assert plugin.norms == clipped.norms
    assert min(plugin.norms) > 0
    assert plugin.parameters[0] is again.strategy.model.plastic.conv.weight


class HoldingHead(SelfSupervisedHead):
    """One that keeps its own parameters, and those of the plastic learner, in lists."""

    def build(self, plastic, num_features):
        self.layer = torch.nn.Linear(num_features, num_features)
        self.slow = torch.nn.Linear(num_features, num_features).requires_grad_(False)
        self.pairs = [(slow, fast) for slow, fast in zip(
            self.slow.parameters(), self.layer.parameters(), strict=True
        )]  # fmt: skip

    def forward(self, plastic, view1, view2):
        features = plastic(view1)
        loss = (self.layer(features) - self.slow(plastic(view2))).square().mean()
        return loss, (features,)

    def after_update(self, plastic):
        for slow, fast in self.pairs:
            slow.data.lerp_(fast.data, 0.1)


def test_a_head_may_hold_its_parameters_in_lists(tmp_path):
    options = {"ssl": HoldingHead, "views": lambda x: (x, x.flip(-1))}
    check_resuming(tmp_path, (2, 3, 10), **options)


def test_layers_that_are_frozen_amid_an_epoch(tmp_path):
    class Freeze(SupervisedPlugin):
        def __init__(self):
            super().__init__()
            self.count = 0

        def before_training_iteration(self, strategy, **kwargs):
            self.count += 1
            if self.count == 2:
                strategy.model.plastic.norm.eval()

    check_resuming(tmp_path, range(1, 6), plugins=lambda: [Freeze()])


def test_a_model_that_a_plugin_makes_on_the_way_is_not_lost_without_a_word(tmp_path):
    run = Run(plugins=lambda: [Holder(lambda strategy: copy.deepcopy(strategy.model))])
    run.strategy.resume(tmp_path, **EVERY)
    with pytest.warns(UserWarning, match=r"No checkpoint was written.* new ones at Holder.found"):
        run.go()
    assert not list(tmp_path.glob("*.pt"))


class LossOfEpochs(SupervisedPlugin):
    """One that looks at the last mini-batch after each epoch."""

    def __init__(self):
        super().__init__()
        self.losses = []

    def after_training_epoch(self, strategy, **kwargs):
        self.losses.append((float(strategy.loss), strategy.mb_output.shape[0]))


def test_a_hook_after_an_epoch_sees_its_last_mini_batch(tmp_path):
    looking = LossOfEpochs()
    Run(plugins=[looking]).go()
    for moment in range(1, 6):
        folder, again = tmp_path / str(moment), LossOfEpochs()
        broken_off(folder, moment, plugins=lambda: [LossOfEpochs()])
        run = Run(plugins=[again])
        run.strategy.resume(folder, **EVERY)
        run.go()
        assert again.losses == looking.losses


class Looking(SupervisedPlugin):
    """A user's plugin that evaluates before an experience, and uses what it is told."""

    def before_training_exp(self, strategy, **kwargs):
        name = "ClassIL_Acc_Exp/eval_phase/test_stream/Task000/Exp000"
        assert strategy.eval(STREAM.test_stream)[name] >= 0


def test_a_hook_that_evaluates_is_told_what_is_known(tmp_path):
    check_resuming(tmp_path, (2, 10), plugins=lambda: [Looking()])


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
    assert run.break_off_after(9)  # amid the second experience
    again = Run(plugins=lambda: [Counting()])
    again.strategy.resume(tmp_path, **EVERY)
    assert again.go().strategy.plugins[0].seen.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("moment", [2, 5, 7, 10])  # in the first, after its calls, in the second
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
