"""Checkpoints of other runs, damaged ones and full disks; and what checkpoints never cost."""

import copy
import shutil
import warnings

import pytest
import torch
from avalanche.evaluation.metrics import (
    accuracy_metrics,
)
from helpers import (
    SmallCNN,
    assert_same_state,
    small_head,
    state_of,
    strategy_of,
)
from resuming import (
    EVERY,
    STREAM,
    Run,
    broken_off,
)
from test_resumption_of_plugins import Counter
from torch import nn
from walker import holding, reachable

from avalanche_dlcpa import GaussianClassifierPlugin, PaperViews
from avalanche_dlcpa.checkpoint import CheckpointFolder


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


class Scaled(nn.CrossEntropyLoss):
    """A criterion with a tensor of its own."""

    def __init__(self, scale):
        super().__init__()
        self.register_buffer("scale", torch.tensor(scale))

    def forward(self, logits, targets):
        return self.scale * super().forward(logits, targets)


def test_a_checkpoint_of_a_criterion_with_other_tensors_is_refused(tmp_path):
    broken_off(tmp_path, criterion=Scaled(1.0))
    with pytest.raises(ValueError, match="It is of another run: it has criterion"):
        Run(criterion=Scaled(2.0)).strategy.resume(tmp_path)


def with_dropout(share):
    return SmallCNN(head=nn.Sequential(nn.Dropout(share), nn.Linear(64, 6)))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("fingerprint", [1], "Its fingerprint are not what"),
        ("calls", [{"foo": 1}], "Its calls are not what"),
        ("calls", [5], "Its calls are not what"),
        ("calls", [{"name": 1, "results": {}, "random": None}], "Its calls are not what"),
        ("calls", [{"name": "", "results": 1, "random": None}], "Its calls are not what"),
        ("calls", [{"name": "", "results": {}, "random": 1}], "Its calls are not what"),
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


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy])
def test_a_copy_of_a_strategy_leaves_its_checkpoints_alone(tmp_path, copied):
    run = Run()
    run.strategy.resume(tmp_path, **EVERY)
    assert run.break_off_after(7)  # after the first experience and its evaluation
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    what_if = copied(run.strategy)
    what_if.train(STREAM.train_stream[1])
    what_if.eval(STREAM.test_stream)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before
    again = Run()
    assert again.strategy.resume(tmp_path, **EVERY) == 1
    again.go().assert_same_as(Run().go())


def test_a_resumed_run_holds_no_samples(tmp_path):
    broken_off(tmp_path, 9)
    run = Run()
    run.strategy.resume(tmp_path, **EVERY)
    run.go()
    images = torch.stack([x for e in STREAM.train_stream for x, *_ in e.dataset]).flatten(1)
    assert not holding(reachable(run.strategy), images)


def test_a_folder_that_cannot_be_written_is_told_before_training(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with (
        pytest.warns(UserWarning, match="could not be locked"),
        pytest.raises(ValueError, match=r"that can be written, got '.*file.run' .*: name another"),
    ):
        Run().strategy.resume(tmp_path / "file" / "run")


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
    broken_off(tmp_path, 10)
    newest = max(tmp_path.iterdir())
    newest.write_bytes(newest.read_bytes()[:1000])
    run = Run()
    with pytest.warns(UserWarning, match="cut short or altered"):
        run.strategy.resume(tmp_path, **EVERY)
    run.go().assert_same_as(Run().go())


def test_a_state_is_loaded_where_training_will_be():
    """Avalanche moves a model to its device no sooner than in training."""
    fresh = strategy_of(SmallCNN(), ssl=small_head("mocov2"), device="meta")
    fresh.load_state_dict(strategy_of(SmallCNN(), ssl=small_head("mocov2")).state_dict())
    parameters = [*fresh.model.parameters(), *fresh.ssl.parameters()]
    assert {parameter.device.type for parameter in parameters} == {"meta"}


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
