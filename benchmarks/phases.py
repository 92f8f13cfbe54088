"""Where the time of a DLCPA iteration goes: a stopwatch on its phases."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

from avalanche_dlcpa import DLCPAStrategy

REST = "Avalanche"
PHASES = (
    "loading",
    "views",
    "plastic forward and backward",
    "momentum forward",
    "self-supervised loss",
    "classifiers and losses",
    "optimiser",
    "averaging",
    "stable forward",
    "alignment",
    REST,
)


class Phases:
    """Seconds by phase; a phase within another takes its time off the outer one.

    Args:
        synchronize: Waits for the device, before each look at the clock.
    """

    def __init__(self, synchronize: Callable[[], None] = lambda: None):
        self.synchronize = synchronize
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self._stack = [REST]
        self._since = time.perf_counter()

    def begin(self) -> None:
        """Start the clock."""
        self.synchronize()
        self._since = time.perf_counter()

    def credit(self) -> None:
        """Give the time since the last look to the present phase."""
        self.synchronize()
        now = time.perf_counter()
        self.seconds[self._stack[-1]] += now - self._since
        self._since = now

    def become(self, name: str) -> None:
        """Go on as another phase."""
        self.credit()
        self._stack[-1] = name

    def timed(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        """The same function, as a phase."""

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            self.credit()
            self._stack.append(name)
            try:
                return function(*args, **kwargs)
            finally:
                self.credit()
                self._stack.pop()

        return wrapper

    def shares(self) -> dict[str, float]:
        """The share of each phase in all the time, in their order."""
        total = sum(self.seconds.values())
        return {name: self.seconds[name] / total for name in PHASES}


@contextlib.contextmanager
def watched(strategy: DLCPAStrategy, phases: Phases) -> Iterator[None]:
    """Within this context, an epoch of a strategy is timed by phase.

    What a phase does of itself is not listed twice: the views within a forward pass count as views.
    Metrics, hooks and the loop itself are the rest, Avalanche.
    """
    ssl, model = strategy.ssl, strategy.model
    functions = [
        (strategy, "_unpack_minibatch", "loading"),
        (strategy, "_make_views", "views"),
        (model.plastic, "forward", "plastic forward and backward"),
        (strategy, "backward", "plastic forward and backward"),
        (strategy, "forward", "classifiers and losses"),
        (strategy, "criterion", "classifiers and losses"),
        (strategy.optimizer, "zero_grad", "optimiser"),
        (strategy, "optimizer_step", "optimiser"),
        (strategy._average, "update_", "averaging"),
        (model.stable, "forward", "stable forward"),
        (strategy, "_after_training_iteration", "alignment"),
    ]
    if ssl is not None:
        functions += [(ssl, name, "self-supervised loss") for name in ("forward", "after_update")]
        if ssl.momentum_encoder is not None:
            functions.append((ssl.momentum_encoder, "forward", "momentum forward"))
    loader, graph = strategy.dataloader, strategy._graph
    strategy._graph = None  # it knows no phases
    for owner, name, phase in functions:
        setattr(owner, name, phases.timed(getattr(owner, name), phase))
    strategy.dataloader = _TimedLoader(loader, phases)
    try:
        yield
    finally:
        strategy.dataloader, strategy._graph = loader, graph
        for owner, name, _ in functions:
            delattr(owner, name)


class _TimedLoader:
    """A loader whose mini-batches are the phase of loading."""

    def __init__(self, loader: Any, phases: Phases):
        self.loader, self.phases = loader, phases

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        batches = self.phases.timed(iter, "loading")(self.loader)
        fetch = self.phases.timed(functools.partial(next, batches, None), "loading")
        return iter(fetch, None)
