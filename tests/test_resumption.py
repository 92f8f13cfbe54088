"""A run that is broken off anywhere and started again ends with the very same bits."""

import errno
import os
import random
import stat
import warnings

import numpy as np
import pytest
import torch
from avalanche.benchmarks import nc_benchmark, tensors_benchmark
from helpers import (
    STREAMS,
    SmallCNN,
    VersionedCNN,
    WithTargets,
    samples,
    seed_everything,
    small_head,
    strategy_of,
    tensors_stream,
)
from resuming import (
    EVERY,
    Run,
    check_resuming,
)
from torch import nn
from torch.optim import Adagrad, Adam
from torch.optim.lr_scheduler import MultiStepLR


def test_from_every_checkpoint_of_a_run(tmp_path):
    # an experience: 2 iterations of 3, the start of epoch 2, 2 iterations, `train`, `eval`
    check_resuming(
        tmp_path,
        range(1, 15),
        ssl=lambda: small_head("mocov2"),
        scheduler=lambda optimizer: MultiStepLR(optimizer, [1]),
        classifier_scheduler=lambda optimizer: MultiStepLR(optimizer, [1]),
    )


@pytest.mark.parametrize("ssl", ["mocov2", "byol", "simclr", "nnclr", "simsiam", None])
def test_with_every_kind_of_head(tmp_path, ssl):
    check_resuming(tmp_path, (2, 10), ssl=lambda: small_head(ssl))


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
    "two workers": {"loader": {"num_workers": 2}, "image_cache_bytes": 0},
    "evaluated amid training": {"eval_every": 1},
    "evaluated amid epochs": {"eval_every": 2, "peval_mode": "iteration"},
}


@pytest.mark.parametrize("name", CASES)
def test_with_every_option(tmp_path, name):
    check_resuming(tmp_path, (2, 8, 10), **CASES[name])


def test_a_model_that_migrates_states_of_old_code(tmp_path):
    byol = lambda: small_head("byol")  # noqa: E731
    options = {"model": VersionedCNN, "ssl": byol, "classifier": "gaussian"}
    check_resuming(tmp_path, (9,), **options)  # amid the second experience


@pytest.mark.parametrize("name", STREAMS)
def test_on_every_kind_of_stream(tmp_path, name):
    stream = STREAMS[name](per_class=9, size=16)
    check_resuming(tmp_path, (3, 11), stream=stream, ssl=lambda: small_head("mocov2"))


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
    check_resuming(tmp_path, (2, 10), **options, ssl=lambda: small_head("simclr"))


def test_with_another_number_of_workers_than_before(tmp_path):
    stream = noisy_stream()
    whole = Run(stream=stream).go()
    run = Run(stream=stream)
    run.strategy.resume(tmp_path, **EVERY)
    assert run.break_off_after(10)  # amid an epoch of the second experience
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
    assert run.break_off_after(10)
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


@pytest.mark.parametrize("kind", [Adagrad, Adam])
def test_optimizers_that_have_a_state_before_the_strategy(tmp_path, kind):
    def run():
        seed_everything(5)
        model = SmallCNN()
        optimizer = kind(model.parameters(), lr=1e-3)
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        optimizer.zero_grad()
        return Run(model=model, optimizer=optimizer)

    whole = run().go()
    first = run()
    first.strategy.resume(tmp_path, **EVERY)
    assert first.break_off_after(4)
    again = run()
    again.strategy.resume(tmp_path, **EVERY)
    again.go().assert_same_as(whole)


def test_a_relative_folder_stays_where_it_is(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    run = Run()
    run.strategy.resume("runs", **EVERY)
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert run.break_off_after(4)
    assert not list((tmp_path / "elsewhere").iterdir())
    assert list((tmp_path / "runs").glob("*.pt"))


def test_folders_that_cannot_be_synced_hold_the_last_checkpoints_alone(tmp_path, monkeypatch):
    sync = os.fsync

    def of_files_alone(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", of_files_alone)
    run = Run()
    run.strategy.resume(tmp_path, **EVERY)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="No checkpoint")
        assert run.break_off_after(7)
    assert 1 <= len(list(tmp_path.glob("*.pt"))) <= 3


@pytest.mark.gpu
def test_a_criterion_with_tensors_on_the_device(tmp_path):
    class Tempered(nn.CrossEntropyLoss):
        def __init__(self):
            super().__init__()
            self.register_buffer("temperature", torch.tensor([2.0]))

        def forward(self, logits, targets):
            return super().forward(logits / self.temperature, targets)

    strategy = strategy_of(SmallCNN(), criterion=Tempered().cuda(), device="cuda")
    strategy.resume(tmp_path)
    strategy.train(tensors_stream(size=8).train_stream[0])
    again = strategy_of(SmallCNN(), criterion=Tempered().cuda(), device="cuda")
    assert again.resume(tmp_path) == 1


def test_constants_that_views_guessed_from_the_first_experience_stay(tmp_path):
    (a, b), (c, d) = (samples(k, per_class=20, size=8) for k in ((0, 1), (2, 3)))
    stream = tensors_benchmark(
        [(9 * a, b), (5 * c, d)], [(9 * a, b), (5 * c, d)], task_labels=[0, 0]
    )
    with pytest.warns(UserWarning, match="Found no Normalize"):
        whole = check_resuming(tmp_path, (9,), stream=stream, ssl=lambda: small_head("simclr"))
    assert min(whole.strategy.views.std) < 1 / 8
