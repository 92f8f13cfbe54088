"""A loss that is not finite, or a plugin that raises: the last good state stays, and training can
go on from there.
"""

import math

import pytest
import torch
from avalanche.benchmarks import tensors_benchmark
from avalanche.core import SupervisedPlugin
from avalanche.models import SimpleCNN
from avalanche.training.plugins import ReplayPlugin
from helpers import (
    Probe,
    SmallCNN,
    assert_same_state,
    batch_of,
    copies,
    optimized,
    samples,
    small_head,
    state_of,
    strategy_of,
    tensors_stream,
)
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, WeightedRandomSampler

from avalanche_dlcpa import DLCPAStrategy, NonFiniteLossError
from avalanche_dlcpa.self_supervised import MoCoV2


def small_stream(**kwargs):
    return tensors_stream(**{"size": 8, "per_class": 8} | kwargs)


# Losses that are not finite -----------------------------------------------------------------------


def with_nan(*, at=13, channel=0):
    """An experience with NaN in one image, or in all."""
    images, labels = samples([2, 3], size=8, per_class=16)
    images[slice(None) if at is None else at, channel, 3, 3] = float("nan")
    return tensors_benchmark([(images, labels)], [(images, labels)], task_labels=[0]).train_stream[
        0
    ]


def snapshot(strategy):
    """All parameters and buffers, but for the queue, which every experience starts anew."""
    state = state_of(strategy.model, strategy.ssl)
    return {name: value for name, value in state.items() if not name.startswith("1.queue")}


def snapshot_before_update(strategy):
    """The same without MoCo's encoder, which moves by a step before the loss is known."""
    state, moves = snapshot(strategy), isinstance(strategy.ssl, MoCoV2)
    return {n: v for n, v in state.items() if not (moves and n.startswith("1.momentum_encoder"))}


@pytest.mark.parametrize("ssl", [None, "mocov2", "byol", "simclr", "nnclr"])
def test_nan_in_an_image_leaves_the_last_good_state(ssl):
    head = small_head(ssl)
    before = Probe(before_training_iteration=snapshot_before_update)
    strategy = strategy_of(
        SmallCNN(), ssl=head, views=lambda x: (x, x.flip(-1)), plugins=[before], train_mb_size=8,
        lr=0.01, momentum=0.9,
    )  # fmt: skip
    stream = small_stream()
    strategy.train(stream.train_stream[0])
    answers = strategy.eval(stream.test_stream)
    first = copies(strategy.model.plastic.parameters())
    broken = with_nan()
    match = r"finite loss, got nan in experience 0, epoch 0, iteration [0-3]\b.*before that mini"
    with pytest.raises(NonFiniteLossError, match=match):
        strategy.train(broken)
    before = before.seen["before_training_iteration"][-1]
    assert_same_state(snapshot_before_update(strategy), before)
    assert strategy.model.num_averaged == 1
    assert strategy.eval(stream.test_stream).keys() == answers.keys()

    strategy.train(small_stream(per_class=16).train_stream[1])  # the same, clean
    assert strategy.model.num_averaged == 2
    for q, p, r in zip(
        strategy.model.stable.parameters(), first, strategy.model.plastic.parameters(), strict=True
    ):
        torch.testing.assert_close(q, ((p + r) / 2).detach())


@pytest.mark.parametrize("channel", [0, 1, 2])
def test_nan_in_an_image_does_not_spoil_the_default_views(channel):
    strategy = strategy_of(SmallCNN(), ssl="simclr", lr=0.01)
    with pytest.raises(NonFiniteLossError):
        strategy.train(with_nan(channel=channel))
    strategy.train(small_stream(per_class=16).train_stream[1])
    assert all(parameter.isfinite().all() for parameter in strategy.model.parameters())


def test_nan_in_an_image_leaves_the_statistics_of_any_normalisation():
    model = SmallCNN()
    model.norm = nn.InstanceNorm2d(16, track_running_stats=True)
    strategy = strategy_of(model)
    before = state_of(strategy.model.plastic, strategy.model.stable)
    with pytest.raises(NonFiniteLossError):
        strategy.train(with_nan(at=None))
    assert_same_state(state_of(strategy.model.plastic, strategy.model.stable), before)


EXPLOSIONS = {
    "plastic learner": ({"lr": 1e3}, "finite classifier loss"),
    "plastic learner, seen a mini-batch later": ({"lr": 1e5}, "finite loss"),
    "plastic learner, momentum": ({"lr": 300.0, "momentum": 0.9}, "finite"),
    "plastic learner, MoCo": ({"lr": 1e3, "ssl": "mocov2"}, "finite"),
    "classifier": ({"classifier_lr": 1e38}, "finite"),
}


@pytest.mark.parametrize("train_mb_size", [8, 16])  # 16: the last iteration of the epoch explodes
@pytest.mark.parametrize("name", EXPLOSIONS)
def test_an_exploding_loss_leaves_the_last_good_state(name, train_mb_size):
    kwargs, match = EXPLOSIONS[name]
    kwargs = kwargs | ({"ssl": small_head("mocov2")} if "ssl" in kwargs else {})
    before = Probe(before_training_epoch=snapshot)
    strategy = strategy_of(
        SimpleCNN(6), plugins=[before], train_mb_size=train_mb_size, train_epochs=10, **kwargs
    )
    stream = tensors_stream(per_class=8)
    with pytest.raises(
        NonFiniteLossError, match=rf"{match}.* experience 0, epoch .*, iteration .* start of"
    ):
        strategy.train(stream.train_stream[0])
    assert_same_state(snapshot(strategy), before.seen["before_training_epoch"][-1])
    assert all(value.isfinite().all() for value in snapshot(strategy).values())
    images, _ = batch_of(stream.test_stream[0])
    if strategy.model.eval()(images).isfinite().all():
        strategy.eval(stream.test_stream)
    else:  # finite weights of an epoch before that are so large that their answers overflow
        with pytest.raises(NonFiniteLossError, match="finite logits at evaluation"):
            strategy.eval(stream.test_stream)


def test_an_update_that_no_loss_follows_is_looked_at():
    strategy = strategy_of(
        SimpleCNN(6),
        criterion=lambda logits, targets: 1e6 * cross_entropy(logits, targets),
        train_mb_size=16,  # one iteration
        classifier_lr=1e38,
    )
    match = r"Expected a finite update, got NaN or infinity in experience 0, epoch 0, iteration 0"
    with pytest.raises(NonFiniteLossError, match=match):
        strategy.train(tensors_stream(per_class=8).train_stream[0])
    assert all(value.isfinite().all() for value in snapshot(strategy).values())


@pytest.mark.parametrize(
    ("options", "parameters_of"),
    [
        ({"ssl": "simclr"}, lambda strategy: strategy.ssl.parameters()),
        ({"plastic_classifier": "temporary"}, lambda s: s.optimizer.param_groups[0]["params"][-2:]),
    ],
    ids=["self-supervised head", "temporary classifier"],
)
def test_what_the_last_update_of_an_epoch_breaks_goes_back_with_the_rest(options, parameters_of):
    class Overflow(SupervisedPlugin):
        is_first = True

        def before_update(self, strategy, **kwargs):
            if self.is_first:
                self.is_first = False
                for parameter in parameters_of(strategy):
                    parameter.grad.fill_(math.inf)

    strategy = strategy_of(SmallCNN(), train_epochs=3, plugins=[Overflow()], **options)
    experience = small_stream().train_stream[0]  # one iteration an epoch
    match = (
        r"a finite update, got NaN or infinity in experience 0, epoch 0, iteration 0: lower the "
        r"learning rate or `supervised_weight`\. Everything is back at the start of that epoch"
    )
    with pytest.raises(NonFiniteLossError, match=match):
        strategy.train(experience)
    assert all(value.isfinite().all() for value in snapshot(strategy).values())
    strategy.train(experience)
    assert all(value.isfinite().all() for value in snapshot(strategy).values())


def test_an_experience_without_a_mini_batch_is_refused_and_not_counted():
    strategy, stream = strategy_of(SmallCNN(), train_mb_size=64), small_stream()
    with pytest.raises(ValueError, match=r"got 16 samples for mini-batches of 64: leave out drop"):
        strategy.train(stream.train_stream[0], drop_last=True)
    assert strategy.model.num_averaged == 0
    strategy.train(stream.train_stream[0])
    assert strategy.model.num_averaged == 1


def test_a_sum_of_losses_beside_replay_is_refused():
    criterion = nn.CrossEntropyLoss(reduction="sum")
    strategy = strategy_of(SmallCNN(), criterion=criterion, plugins=[ReplayPlugin(mem_size=8)])
    first, second, *_ = small_stream().train_stream
    strategy.train(first)
    with pytest.raises(ValueError, match=r"reduction='mean' beside replayed samples.*got 'sum'"):
        strategy.train(second)


def test_a_sampler_of_ones_own_is_no_replay():
    class Balanced(DLCPAStrategy):
        def make_train_dataloader(self, **kwargs):
            data = self.adapted_dataset
            sampler = WeightedRandomSampler([1.0] * len(data), len(data))
            self.dataloader = DataLoader(
                data, batch_size=8, sampler=sampler, collate_fn=data.collate_fn
            )

    model = SmallCNN()
    strategy = Balanced(
        model=model,
        optimizer=SGD(model.parameters(), lr=0.01),
        criterion=nn.CrossEntropyLoss(reduction="sum"),
        ssl=None,
        train_mb_size=8,
        evaluator=None,
    )
    strategy.train(small_stream().train_stream[0])
    assert strategy.model.num_averaged == 1


def test_after_an_exploding_loss_a_smaller_learning_rate_does():
    strategy = strategy_of(SimpleCNN(6), lr=1e5, train_mb_size=8)
    stream = tensors_stream(per_class=8)
    with pytest.raises(NonFiniteLossError):
        strategy.train(stream.train_stream[0])
    strategy.optimizer.param_groups[0]["lr"] = 0.01
    strategy.train(stream.train_stream[0])
    images, labels = batch_of(stream.test_stream[0])
    assert cross_entropy(strategy.model.eval()(images), labels) < 10


def test_a_queue_too_short_for_replay_is_refused_before_an_update():
    before = Probe(before_training_iteration=snapshot)
    strategy = strategy_of(
        SmallCNN(),
        ssl=MoCoV2(queue_size=8),
        train_mb_size=8,
        plugins=[ReplayPlugin(mem_size=8), before],
    )
    stream = small_stream().train_stream
    strategy.train(stream[0])
    with pytest.raises(ValueError, match=r"`queue_size` .* mini-batch size 16, got 8: pass a head"):
        strategy.train(stream[1])
    assert_same_state(snapshot(strategy), before.seen["before_training_iteration"][-1])


def test_label_smoothing_beside_replay_is_finite():
    strategy = strategy_of(
        SmallCNN(),
        criterion=nn.CrossEntropyLoss(label_smoothing=0.1),
        plugins=[ReplayPlugin(mem_size=8)],
    )
    strategy.train(small_stream().train_stream)
    assert strategy.model.num_averaged == 3


# Other breakdowns ---------------------------------------------------------------------------------


class Breaks:
    """Raises in one iteration of the second experience, once."""

    def __init__(self, hook, options):
        self.probe = Probe(**{hook: self.maybe})
        self.armed = True
        self.strategy = strategy_of(
            SmallCNN(), plugins=[self.probe], train_mb_size=8, momentum=0.9, **options
        )

    def maybe(self, strategy):
        if self.armed and strategy.clock.train_exp_counter == 1:
            self.armed = False
            raise RuntimeError("the disk is full")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"plastic_classifier": "temporary"},
        {"stable_update": "ema"},
        {"ssl": "simclr", "bn_statistics": "recalibrated"},
    ],
)
@pytest.mark.parametrize(
    "hook", ["before_training_exp", "before_forward", "after_update", "after_training_epoch"]
)
def test_a_plugin_that_raises_can_be_tried_again(hook, options):
    stream = small_stream()
    strategy = Breaks(hook, options).strategy
    strategy.train(stream.train_stream[0])
    held = {id(p) for p in optimized(strategy.optimizer)}
    first = copies(strategy.model.stable.parameters())
    with pytest.raises(RuntimeError, match="the disk is full"):
        strategy.train(stream.train_stream[1])
    strategy.eval(stream.test_stream)
    strategy.train(stream.train_stream[1])
    assert strategy.model.num_averaged == 2
    assert {id(p) for p in optimized(strategy.optimizer)} == held
    assert [layer.out_features for layer in strategy.model.classifiers.layers] == [2, 2]
    if options.get("stable_update") != "ema":
        stable, plastic = strategy.model.stable, strategy.model.plastic
        for q, p, r in zip(stable.parameters(), first, plastic.parameters(), strict=True):
            torch.testing.assert_close(q, ((p + r) / 2).detach())


@pytest.mark.parametrize("which", ["scheduler", "classifier_scheduler"])
@pytest.mark.parametrize("garbage", [lambda o: None, lambda o: 3, ReduceLROnPlateau])
def test_a_function_that_makes_no_scheduler(which, garbage):
    steps = Probe(after_training_iteration=lambda strategy: None)
    strategy = strategy_of(SmallCNN(), plugins=[steps], **{which: garbage})
    with pytest.raises((ValueError, TypeError), match=f"`{which}`"):
        strategy.train(small_stream().train_stream[0])
    assert steps.seen["after_training_iteration"] == []  # not after an hour
