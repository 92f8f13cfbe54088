"""Batch norm statistics that are computed anew: of which layers, and with what below them."""

import pytest
import torch
from avalanche.models import as_multitask
from avalanche.training.plugins import SupervisedPlugin
from avalanche.training.supervised import Naive
from helpers import SmallCNN, nc_stream, small_head, strategy_of, tensors_stream
from torch import nn
from torch.optim import SGD

from avalanche_dlcpa import ClassifierAlignmentPlugin, CumulativeParameterAveragingPlugin
from avalanche_dlcpa.batch_norm import recalibrate_batch_norm_

CPU = torch.device("cpu")


class FrozenNorm(nn.BatchNorm2d):
    """Stays in evaluation mode, whatever it is asked for."""

    def train(self, mode=True):
        return super().train(False)


def network(norm=nn.BatchNorm2d):
    torch.manual_seed(0)
    first, second = norm(4), nn.BatchNorm2d(4)
    first.running_mean.fill_(-1.0)
    first.running_var.fill_(9.0)
    layers = [nn.Conv2d(3, 4, 3), first, nn.ReLU(), nn.Conv2d(4, 4, 3), second, nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, 6)).train()


def naive(model, *plugins):
    return Naive(
        model=model,
        optimizer=SGD(model.parameters(), lr=0.05),
        train_mb_size=8,
        plugins=list(plugins),
        evaluator=None,
    )


def dataset():
    return tensors_stream(size=8, per_class=8).train_stream[0].dataset.eval()


def recalibrate(model):
    data = dataset()
    recalibrate_batch_norm_(model, data, batch_size=len(data), device=CPU)
    return torch.stack([sample[0] for sample in data])


def frozen_by_mode():
    model = network()
    model[1].eval()
    return model


@pytest.mark.parametrize("make", [lambda: network(FrozenNorm), frozen_by_mode])
def test_a_frozen_layer_keeps_its_statistics_and_normalises_with_them(make):
    model = make()
    images = recalibrate(model)
    assert model[1].running_mean.unique().tolist() == [-1.0]
    assert model[1].running_var.unique().tolist() == [9.0]
    below = model[:4].eval()(images).detach()
    torch.testing.assert_close(model[4].running_mean, below.mean(dim=(0, 2, 3)))
    torch.testing.assert_close(model[4].running_var, below.var(dim=(0, 2, 3)))


def test_a_model_in_evaluation_mode_is_recalibrated_whole_and_stays_in_it():
    model = network().eval()
    images = recalibrate(model)
    assert not any(module.training for module in model.modules())
    assert model[1].momentum == 0.1
    torch.testing.assert_close(model[1].running_mean, model[0](images).mean(dim=(0, 2, 3)))


def test_where_an_image_cannot_be_read_all_stays_as_it_was():
    model = network()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(RuntimeError, match="channels"):
        recalibrate_batch_norm_(
            model,
            tensors_stream(size=8, channels=1).train_stream[0].dataset,
            batch_size=8,
            device=CPU,
        )
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model[1].momentum == 0.1


def test_the_mean_of_one_experience_is_the_model_whose_layers_a_plugin_freezes():
    class Freeze(SupervisedPlugin):
        def before_training_epoch(self, strategy, **kwargs):
            strategy.model[1].eval()

    average, model = CumulativeParameterAveragingPlugin(), network()
    strategy = naive(model, Freeze(), average)
    strategy.train(tensors_stream(size=8, per_class=8).train_stream[0])
    assert average.averaged_model[1].running_mean.unique().tolist() == [-1.0]
    assert not torch.equal(average.averaged_model[4].running_mean, torch.zeros(4))


def test_an_alignment_leaves_layers_alone_that_a_plugin_freezes():
    class Freeze(SupervisedPlugin):
        def before_training_epoch(self, strategy, **kwargs):
            strategy.model[1].eval()

    average, model = CumulativeParameterAveragingPlugin(), network()
    strategy = naive(model, Freeze(), average, ClassifierAlignmentPlugin(average))
    stream = tensors_stream(size=8, per_class=8)
    for experience in stream.train_stream:
        strategy.train(experience)
        strategy.eval(stream.test_stream[0])
    assert model[1].running_mean.unique().tolist() == [-1.0]
    assert average.averaged_model[1].running_mean.unique().tolist() == [-1.0]
    assert not torch.equal(average.averaged_model[4].running_mean, torch.zeros(4))


@pytest.mark.parametrize("bn_statistics", ["running", "recalibrated"])
@pytest.mark.parametrize("ssl", [None, "simclr", "mocov2", "byol"])
def test_all_that_follows_the_plastic_learner_freezes_what_a_plugin_freezes_in_it(
    ssl, bn_statistics
):
    class Freeze(SupervisedPlugin):
        def before_training_epoch(self, strategy, **kwargs):
            strategy.model.plastic[1].eval()

    strategy = strategy_of(
        network(), ssl=small_head(ssl), bn_statistics=bn_statistics, plugins=[Freeze()]
    )
    stream = tensors_stream(size=8, per_class=8)
    for experience in stream.train_stream:
        strategy.train(experience)
        strategy.eval(stream.test_stream[0])
    assert strategy.model.plastic[1].running_mean.unique().tolist() == [-1.0]
    followers = [strategy.model.stable]
    if ssl in ("mocov2", "byol"):
        followers.append(strategy.ssl.momentum_encoder)
    for follower in followers:
        assert follower[1].running_mean.unique().tolist() == [-1.0]
        assert not torch.equal(follower[4].running_mean, torch.zeros(4))


def test_heads_that_an_evaluation_adds_to_the_average_do_no_harm():
    stream = nc_stream(task_labels=True, per_class=8)
    model = as_multitask(SmallCNN(2), "fc")
    average = CumulativeParameterAveragingPlugin()
    strategy = naive(model, average)
    for experience in stream.train_stream:
        strategy.train(experience)
        strategy.eval(stream.test_stream)  # of tasks, too, that have no head yet
    assert average.num_averaged == len(stream.train_stream)
