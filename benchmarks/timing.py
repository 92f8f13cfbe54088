"""Clocks in a DLCPA training: of epochs, of the unavoidable passes in between, of iterations."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from avalanche.core import SupervisedPlugin
from torch import Tensor

from avalanche_dlcpa import DLCPAStrategy
from avalanche_dlcpa.buffers import BuffersGuard
from avalanche_dlcpa.cuda_graph import BACKENDS, StepGraph
from avalanche_dlcpa.precision import autocast
from avalanche_dlcpa.self_supervised import HEADS
from benchmarks.phases import REST, Phases, watched

# Passes of a mini-batch: views through the plastic learner (forward and backward) and, without
# gradients, through the stable learner; views through the momentum encoder. Others: (2, 0).
NUM_PASSES = {"none": (1, 0), "mocov2": (1, 1), "byol": (2, 2)}


class EpochTimer(SupervisedPlugin):
    """Times epochs without the unavoidable passes that it adds; the last epoch by phase.

    A CPU may be faster in one second than in the next: there the passes of an iteration come right
    after it. A GPU, where whoever waits for it is late for what follows, does all of an epoch's
    after it.

    Args:
        rounds: How many epochs are timed; one more before them warms up, one after them is watched.
    """

    def __init__(self, rounds: int):
        super().__init__()
        self.rounds = rounds
        self.iteration_ms: list[float] = []
        self.passes_ms: list[float] = []
        self.phases: Phases | None = None
        self._watch: Any = None
        self._since, self._paused, self._passes = 0.0, 0.0, 0.0

    @property
    def epochs(self) -> int:
        """How many epochs the strategy has to train."""
        return self.rounds + 2

    def before_training_epoch(self, strategy: Any, **kwargs: Any) -> None:
        """Start to watch the last epoch."""
        if strategy.clock.train_exp_epochs == self.epochs - 1:
            self.phases = Phases(_synchronizer(strategy.device))
            self._watch = watched(strategy, self.phases)
            self._watch.__enter__()
            self.phases.begin()

    def after_training_iteration(self, strategy: Any, **kwargs: Any) -> None:
        """Alignment has ended, the hooks of other plugins follow."""
        if self.phases is not None:
            self.phases.become(REST)
        elif strategy.device.type == "cpu":
            self._time_passes(strategy, 1)

    def after_training_epoch(self, strategy: Any, **kwargs: Any) -> None:
        """Take the time of the epoch, and that of as many passes."""
        if self.phases is not None:
            self.phases.credit()
            self._watch.__exit__(None, None, None)
            return
        num_iterations = len(strategy.dataloader)
        _synchronizer(strategy.device)()
        epoch = time.perf_counter() - self._since - self._paused
        if strategy.device.type != "cpu":
            self._time_passes(strategy, num_iterations)
        if strategy.clock.train_exp_epochs > 0:
            self.iteration_ms.append(1e3 * epoch / num_iterations)
            self.passes_ms.append(1e3 * self._passes / num_iterations)
        self._since, self._paused, self._passes = time.perf_counter(), 0.0, 0.0

    def _time_passes(self, strategy: DLCPAStrategy, count: int) -> None:
        start = time.perf_counter()
        self._passes += seconds_of_passes(strategy, count)
        self._paused += time.perf_counter() - start


def seconds_of_passes(strategy: DLCPAStrategy, count: int) -> float:
    """How long the unavoidable passes of so many iterations take; training goes on as if not.

    On a CPU nothing warms up: the iteration just before did.
    """
    guard = BuffersGuard(*(part for part in (strategy.model, strategy.ssl) if part is not None))
    run, synchronize = unavoidable_passes(strategy), _synchronizer(strategy.device)
    if strategy.device.type != "cpu":
        run()
        synchronize()
    start = time.perf_counter()
    for _ in range(count):
        run()
    synchronize()
    seconds = time.perf_counter() - start
    guard.restore()
    return seconds


def unavoidable_passes(strategy: DLCPAStrategy) -> Callable[[], Any]:
    """The passes of one iteration alone, on images like those of the present mini-batch.

    Where the strategy replays its iterations as a CUDA graph they are one as well, since launching
    their kernels one by one can be avoided.
    """
    model, ssl = strategy.model, strategy.ssl
    name = "none" if ssl is None else next(n for n, head in HEADS.items() if type(ssl) is head)
    num_views, num_keys = NUM_PASSES.get(name, (2, 0))
    size = (strategy.train_mb_size, *strategy.mb_x.shape[1:])
    views = [torch.randn(size, device=strategy.device) for _ in range(2)]

    def run() -> tuple[Tensor, ...]:
        with torch.enable_grad(), autocast(strategy.precision, strategy.device):
            features = [model.plastic(view) for view in views[:num_views]]
        torch.cat(features).float().mean().backward()
        with torch.no_grad(), autocast(strategy.precision, strategy.device):
            for view in views[:num_keys]:
                assert ssl is not None
                assert ssl.momentum_encoder is not None
                ssl.momentum_encoder(view)
            model.stable(torch.cat(views[:num_views]))
        model.plastic.zero_grad(set_to_none=True)
        return ()

    if strategy._graph is None or strategy._graph.gave_up:
        return run
    backend = BACKENDS[strategy.device.type](strategy.device)
    for _ in range(StepGraph.warm_up_iterations):
        backend.warm_up(run)
    return backend.capture(run)


def _synchronizer(device: torch.device) -> Callable[[], None]:
    if device.type != "cuda":
        return lambda: None
    return functools.partial(torch.cuda.synchronize, device)


class EpochTimes(SupervisedPlugin):
    """Median milliseconds of the iterations of each epoch of an experience, but its first.

    Attributes:
        medians: Of the present experience, one an epoch.
        between: Called after each epoch, in no epoch's time; None: nothing is.
    """

    def __init__(self) -> None:
        super().__init__()
        self.medians: list[float] = []
        self.between: Callable[[], None] | None = None
        self._milliseconds: list[float] = []
        self._since: float | None = None

    def before_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """Forget the experience before."""
        self.medians = []

    def before_training_epoch(self, strategy: Any, **kwargs: Any) -> None:
        """Forget the epoch before."""
        self._milliseconds, self._since = [], None

    def before_training_iteration(self, strategy: Any, **kwargs: Any) -> None:
        """Take the time since the same point of the last iteration."""
        _synchronizer(strategy.device)()
        now = time.perf_counter()
        if self._since is not None:
            self._milliseconds.append(1e3 * (now - self._since))
        self._since = now

    def after_training_epoch(self, strategy: Any, **kwargs: Any) -> None:
        """Take the median."""
        self.medians.append(statistics.median(self._milliseconds))
        if self.between is not None:
            self.between()
