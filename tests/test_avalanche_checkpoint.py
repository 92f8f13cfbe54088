"""Avalanche's own `save_checkpoint` and `maybe_load_checkpoint`, between experiences."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from avalanche.checkpointing import maybe_load_checkpoint, save_checkpoint
from avalanche.training.plugins import EvaluationPlugin
from helpers import SmallCNN, seed_everything, small_head, state_of, strategy_of, tensors_stream
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import StepLR

from avalanche_dlcpa.metrics import scenario_metrics
from avalanche_dlcpa.pickling import let_dill_find

TESTS = Path(__file__).parent


def make_strategy(seed=0, optimizer=SGD):
    seed_everything(seed)
    model = SmallCNN()
    return strategy_of(
        model,
        optimizer=optimizer(model.parameters(), lr=0.01),
        ssl=small_head("mocov2"),
        train_epochs=2,
        scheduler=lambda optimizer: StepLR(optimizer, 1),
        evaluator=EvaluationPlugin(*scenario_metrics(), loggers=[]),
    )


def learn(strategy, first):
    """The rest of the stream, as a script with Avalanche's checkpoints does."""
    stream = tensors_stream(tasks=((0, 1), (2, 3)), per_class=10, size=8)
    for experience in stream.train_stream[first:]:
        strategy.train(experience)
        strategy.eval(stream.test_stream)
        yield experience


def end_of(strategy):
    matrices = [torch.from_numpy(m.matrix()).nan_to_num(-1) for m in strategy.evaluator.metrics]
    return {**state_of(strategy.model, strategy.ssl), **dict(enumerate(matrices))}


@pytest.fixture
def hidden_submodules(monkeypatch):
    """torch.optim as it is after its import, whatever was repaired before."""
    for name in ("sgd", "adam", "adamw", "optimizer"):
        monkeypatch.delattr(torch.optim, name, raising=False)


@pytest.mark.usefixtures("hidden_submodules")
@pytest.mark.parametrize("optimizer", [SGD, Adam, AdamW])
def test_saved_between_experiences_and_loaded(tmp_path, optimizer):
    strategy = make_strategy(optimizer=optimizer)
    for _ in learn(strategy, 0):
        if strategy.clock.train_exp_counter == 1:
            save_checkpoint(strategy, tmp_path / "run.pt")
    other, first = maybe_load_checkpoint(make_strategy(7, optimizer), tmp_path / "run.pt")
    assert first == 1
    list(learn(other, first))
    ours, theirs = end_of(other), end_of(strategy)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_what_is_loaded_writes_no_checkpoints_of_the_run_that_was_saved(tmp_path):
    strategy = make_strategy()
    strategy.resume(tmp_path / "run")
    first = next(learn(strategy, 0)).current_experience
    save_checkpoint(strategy, tmp_path / "run.pt")
    before = sorted((tmp_path / "run").iterdir())
    other, exp = maybe_load_checkpoint(make_strategy(7), tmp_path / "run.pt")
    assert exp == first + 1
    list(learn(other, exp))
    assert sorted((tmp_path / "run").iterdir()) == before


def test_a_fresh_process_ends_with_the_same_bits(tmp_path):
    strategy = make_strategy()
    for _ in learn(strategy, 0):
        if strategy.clock.train_exp_counter == 1:
            save_checkpoint(strategy, tmp_path / "run.pt")
    script = (
        "import sys, torch, test_avalanche_checkpoint as t\n"
        "torch.set_num_threads(1)\n"
        "strategy, first = t.maybe_load_checkpoint(t.make_strategy(7), sys.argv[1] + '/run.pt')\n"
        "list(t.learn(strategy, first))\n"
        "torch.save(t.end_of(strategy), sys.argv[1] + '/end.pt')\n"
    )
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, str(tmp_path)], check=True, cwd=TESTS
    )
    ours, theirs = torch.load(tmp_path / "end.pt", weights_only=True), end_of(strategy)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.usefixtures("hidden_submodules")
def test_the_repair_touches_only_what_is_missing(monkeypatch):
    weights = list(SmallCNN().parameters())
    let_dill_find(SGD(weights))
    assert torch.optim.sgd is sys.modules["torch.optim.sgd"]
    assert not hasattr(torch.optim, "adam")
    own = object()
    monkeypatch.setattr(torch.optim, "adam", own, raising=False)
    let_dill_find(Adam(weights))
    assert torch.optim.adam is own
