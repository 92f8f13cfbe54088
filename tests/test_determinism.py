"""The same seed gives the same bits on a CPU: what that depends on, and what it does not."""

import hashlib
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from avalanche.benchmarks import dataset_benchmark
from avalanche.evaluation.metrics import loss_metrics
from avalanche.training.plugins import EvaluationPlugin, ReplayPlugin
from helpers import (
    PILImages,
    SmallCNN,
    assert_same_state,
    samples,
    small_head,
    state_of,
    strategy_of,
    tensors_stream,
)
from torch import nn
from torchvision.transforms import Compose, RandomCrop, ToTensor

from avalanche_dlcpa import seed_everything

TESTS = Path(__file__).parent


class Draws(SmallCNN):
    """Random numbers of torch in every forward pass in training."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(self.conv, nn.Dropout2d(0.2))


def run(
    *, seed=3, ssl="mocov2", num_workers=0, evaluations=0, stream=None, eval_streams=(), **options
):
    """Final weights of two experiences whose views, order and network draw random numbers."""
    seed_everything(seed)
    stream = stream or tensors_stream(((0, 1), (2, 3)), size=8, per_class=8)
    strategy = strategy_of(Draws(), ssl=small_head(ssl), train_epochs=2, **options)
    for experience in stream.train_stream:
        strategy.train(experience, eval_streams=list(eval_streams), num_workers=num_workers)
        for _ in range(evaluations):
            strategy.eval(stream.test_stream, num_workers=num_workers)
    return state_of(strategy.model, strategy.ssl)


def digest(state):
    return hashlib.sha256(b"".join(t.numpy().tobytes() for t in state.values())).hexdigest()


@pytest.fixture(scope="module")
def reference():
    return run()


def test_another_seed_gives_other_bits(reference):
    assert_same_state(run(), reference)
    assert digest(run(seed=4)) != digest(reference)


STREAM = tensors_stream(((0, 1), (2, 3)), size=8, per_class=8)
SAME = {
    "one worker": {"num_workers": 1},
    "two workers": {"num_workers": 2},
    "two workers, no image cache": {"num_workers": 2, "image_cache_bytes": 0},
    "no image cache": {"image_cache_bytes": 0},
    "evaluating between": {"evaluations": 2},
    "evaluating each epoch": {"eval_every": 1, "eval_streams": [STREAM.test_stream]},
    "evaluating between, two workers": {
        "evaluations": 1,
        "num_workers": 2,
        "image_cache_bytes": 0,
    },
}


@pytest.mark.parametrize("name", SAME)
def test_what_the_bits_do_not_depend_on(name, reference):
    assert_same_state(run(**SAME[name]), reference)


def test_another_process_with_workers_and_other_hashes(reference):
    script = (
        "from test_determinism import digest, run; import torch; torch.set_num_threads(1); "
        "print(digest(run(num_workers=2, image_cache_bytes=0, evaluations=1)))"
    )
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        cwd=TESTS,
        env={
            **os.environ,
            "PYTHONHASHSEED": "4711",
            "PYTHONPATH": os.pathsep.join(map(str, [TESTS.parent, TESTS, *sys.path])),
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert found.stdout.split()[-1] == digest(reference)


# Streams with random transforms of their own ------------------------------------------------------


class ShiftsAtRandom(nn.Module):
    """Draws from all three generators, as transforms of several libraries would."""

    def forward(self, image):
        return image + 0.1 * (random.random() + np.random.rand() + torch.rand(1))


class ToTensorOfItsOwn(ToTensor):
    """Is no transform that the image cache knows, and runs where the loader reads."""


def drawing_stream(*more, to_tensor=ToTensorOfItsOwn, per_class=8):
    def dataset(classes):
        images = PILImages(*samples(classes, size=8, per_class=per_class))
        images.transform = Compose([RandomCrop(8, padding=1), to_tensor(), *more])
        return images

    parts = [dataset(classes) for classes in ((0, 1), (2, 3))]
    return dataset_benchmark(parts, parts)


DRAWING = {
    "the cache's": lambda: drawing_stream(to_tensor=ToTensor),
    "torch's": drawing_stream,
    "of all generators": lambda: drawing_stream(ShiftsAtRandom()),
}


@pytest.mark.filterwarnings("ignore:Found no Normalize")
@pytest.mark.parametrize("name", DRAWING)
def test_random_transforms_do_not_depend_on_the_workers(name):
    reference, *others = (
        run(stream=DRAWING[name](), num_workers=num_workers, evaluations=evaluations)
        for num_workers, evaluations in ((0, 0), (1, 0), (2, 1), (0, 1))
    )
    assert digest(run(stream=DRAWING[name](), seed=4)) != digest(reference)
    for other in others:
        assert_same_state(other, reference)


@pytest.mark.filterwarnings("ignore:Found no Normalize")
def test_an_evaluation_with_random_transforms_does_not_depend_on_the_workers():
    evaluator = EvaluationPlugin(loss_metrics(experience=True))
    strategy = strategy_of(SmallCNN(), ssl=None, evaluator=evaluator)
    stream = drawing_stream(ShiftsAtRandom())
    strategy.train(stream.train_stream[0])
    losses = []
    for num_workers in (0, 1, 2):
        found = strategy.eval(stream.test_stream[:1], num_workers=num_workers)
        losses += [value for name, value in found.items() if name.startswith("Loss_Exp")]
    assert len(losses) == 3
    assert len(set(losses)) == 1


@pytest.mark.filterwarnings("ignore:Found no Normalize")
def test_replay_with_random_transforms_does_not_depend_on_the_workers():
    reference, *others = (
        run(
            stream=drawing_stream(
                ShiftsAtRandom(), per_class=32
            ),  # 4 orders of the memory an epoch
            num_workers=num_workers,
            plugins=[ReplayPlugin(mem_size=8)],
        )
        for num_workers in (0, 1, 2)
    )
    for other in others:
        assert_same_state(other, reference)


# The function -------------------------------------------------------------------------------------


def test_all_generators_are_seeded():
    def draws():
        return random.random(), np.random.rand(), torch.rand(1).item()

    seed_everything(7)
    first = draws()
    assert all(a != b for a, b in zip(draws(), first, strict=True))
    seed_everything(7)
    assert draws() == first


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_out_of_range_is_refused_before_anything_is_seeded(seed):
    seed_everything(1)
    before = torch.get_rng_state()
    with pytest.raises(ValueError, match=rf"`seed` to be from 0 to 4294967295, got {seed}"):
        seed_everything(seed)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_switch_of_deterministic_algorithms(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    settings = (
        torch.are_deterministic_algorithms_enabled,
        lambda: torch.backends.cudnn.benchmark,
        lambda: os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
    )
    try:
        seed_everything(0)
        assert [setting() for setting in settings] == [False, True, None]
        seed_everything(0, deterministic=True)
        assert [setting() for setting in settings] == [True, False, ":4096:8"]
        assert digest(run(ssl="byol")) == digest(run(ssl="byol"))  # nothing of ours is forbidden
    finally:
        torch.use_deterministic_algorithms(False)
