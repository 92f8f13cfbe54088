"""Runs that are broken off and started again, for the tests of resumption."""

import copy
import random
from types import FunctionType

import numpy as np
import torch
from avalanche.training.plugins import (
    EvaluationPlugin,
)
from helpers import (
    SmallCNN,
    assert_same_state,
    seed_everything,
    state_of,
    strategy_of,
    tensors_stream,
)

from avalanche_dlcpa.metrics import scenario_metrics

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
        self.results, self.drawn = [], []

    def go(self):
        strategy, stream = self.strategy, self.stream
        steps = [list(stream.train_stream)] if self.at_once else stream.train_stream
        for step in steps:
            self.drawn.append((torch.rand(3), np.random.rand(), random.random()))
            self.results.append(numbers(strategy.train(step, **self.loader)))
            self.drawn.append((torch.rand(3), np.random.rand(), random.random()))
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
        assert repr(self.drawn[1:]) == repr(other.drawn[1:])  # but before the first call
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


def broken_off(tmp_path, moment=9, **options):
    run = Run(**options)
    run.strategy.resume(tmp_path, **EVERY)
    assert run.break_off_after(moment)
