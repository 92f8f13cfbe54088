"""What layers remember beside their tensors, and what plugins change, goes on in a resumed run."""

import pytest
import torch
from avalanche.core import SupervisedPlugin
from helpers import SmallCNN, clone, seed_everything, small_head
from resuming import EPOCHS, EVERY, STREAM, Run, check_resuming
from torch import nn

from avalanche_dlcpa.layer_states import layer_states, set_layer_states_
from avalanche_dlcpa.self_supervised import SelfSupervisedHead


class Fading(nn.Module):
    """A layer of which less is left with each pass in training, without a tensor of its own."""

    def __init__(self):
        super().__init__()
        self.num_passes = 0

    def forward(self, x):
        self.num_passes += self.training
        return x / (1 + 0.05 * self.num_passes)


class FadingCNN(SmallCNN):
    def __init__(self):
        super().__init__()
        self.norm = nn.Sequential(self.norm, Fading())


WITH_COPIES = {
    "momentum encoder": {"ssl": lambda: small_head("byol"), "average_source": "momentum"},
    "Gaussian classifier": {"classifier": "gaussian"},  # with the learner before the experience
}


@pytest.mark.parametrize("name", WITH_COPIES)
def test_a_model_that_counts(tmp_path, name):
    check_resuming(tmp_path, (9,), model=FadingCNN, **WITH_COPIES[name])


class Growing(SmallCNN):
    """A network with buffers that grow or come in training, and a head that has one, too."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(0))
        self.register_buffer("last", None)

    def forward(self, x):
        if self.training:
            mean = x.detach().mean()[None]
            self.seen, self.last = torch.cat([self.seen, mean]), mean
            if not hasattr(self.norm, "first"):
                self.norm.register_buffer("first", mean)
        return super().forward(x)


class GrowingHead(SelfSupervisedHead):
    def build(self, plastic, num_features):
        self.layer = nn.Linear(num_features, num_features)

    def forward(self, plastic, view1, view2):
        if not hasattr(self, "first"):
            self.register_buffer("first", view1.mean()[None])
        features = plastic(view1)
        return (self.layer(features) - self.first).square().mean(), (features,)


def test_buffers_that_grow_or_come_in_training(tmp_path):
    views = lambda x: (x, x.flip(-1))  # noqa: E731
    whole = check_resuming(tmp_path, (2, 9, 14), model=Growing, ssl=GrowingHead, views=views)
    assert len(whole.strategy.model.plastic.seen) == len(STREAM.train_stream) * EPOCHS * 3


class Changing(SupervisedPlugin):
    """Changes something of a strategy after each epoch."""

    def __init__(self, change):
        super().__init__()
        self.change = change

    def after_training_epoch(self, strategy, **kwargs):
        self.change(strategy)


def raise_dropout(strategy):
    strategy.model.plastic.fc[0].p += 0.2


def freeze_convolution(strategy):
    strategy.model.plastic.conv.requires_grad_(False)


def freeze_batch_norm(strategy):
    strategy.model.plastic.norm.eval()


def freeze_projector(strategy):
    strategy.ssl.projector.requires_grad_(False)


def lower_weight(strategy):
    strategy.supervised_weight *= 0.5


def take_plastic_features(strategy):
    strategy.classifier_features = "plastic"


def narrow_passes(strategy):
    strategy.precision = "bf16"


CHANGES = [
    *(raise_dropout, freeze_convolution, freeze_batch_norm),
    *(freeze_projector, lower_weight, take_plastic_features, narrow_passes),
]


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_plugin_changes_amid_an_experience(tmp_path, change):
    check_resuming(
        tmp_path,
        (5,),  # in the second epoch
        model=lambda: SmallCNN(head=nn.Sequential(nn.Dropout(0.1), nn.Linear(64, 6))),
        head="fc.1",
        ssl=lambda: small_head("simclr"),
        plugins=lambda: [Changing(change)],
    )


def test_what_a_hook_holds_stays_the_same_object(tmp_path):
    def model():
        tapped = SmallCNN()
        tapped.seen = seen = []
        tapped.conv.register_forward_pre_hook(lambda *_: seen.append(1))
        tapped.norm.register_forward_pre_hook(lambda *_: tapped.seen.clear())
        return tapped

    run = Run(model=model)
    run.strategy.resume(tmp_path, **EVERY)
    assert run.break_off_after(4)
    again = Run(model=model)
    seen = again.strategy.model.plastic.seen
    again.strategy.resume(tmp_path, **EVERY)
    assert again.strategy.model.plastic.seen is seen


def test_layers_keep_their_own_tensors_and_take_over_the_rest():
    seed_everything()
    here, there = nn.LSTM(4, 4), nn.LSTM(4, 4)
    there.dropout, there.steps, there.names = 0.5, None, {"a": [1, (2.5, "b")]}
    there.weight_hh_l0.requires_grad_(False)
    own = clone(here).state_dict()
    set_layer_states_(here, layer_states(there))
    assert (here.dropout, here.steps, here.names) == (0.5, None, {"a": [1, (2.5, "b")]})
    assert [name for name, p in here.named_parameters() if not p.requires_grad] == ["weight_hh_l0"]
    assert all(torch.equal(own[name], tensor) for name, tensor in here.state_dict().items())
    assert all(a is b for a, b in zip(here._flat_weights, here.parameters(), strict=True))
