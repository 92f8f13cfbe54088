"""Each replayed iteration beside the same one without a graph, from the same state.

Two trainings side by side would not tell a wrong graph from a right one: early in a training, what
sums in another order differ by grows tenfold and more in an iteration (measured with noise of 1e-6
on gradients, SimCLR, learning rate 0.005: a thousandth of what training changed after 2
iterations, 0.4 after 4, more than all of it after 10).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from avalanche.core import SupervisedPlugin
from torch import Tensor, nn

from avalanche_dlcpa.cuda_graph import StepGraph

Parts = dict[str, list[Tensor]]


class StepComparison(SupervisedPlugin):
    """Has each replay of a `DLCPAStrategy` follow two eager runs of its iteration.

    Attributes:
        num_compared: Of how many replays.
        difference: The norm of what a replay made otherwise than the first eager run, over the norm
            of what that run changed: the largest over iterations and parts of the state (learners,
            classifiers, head, each of their buffers, optimizers).
        noise: The same of the second eager run.
    """

    def __init__(self) -> None:
        super().__init__()
        self.num_compared = 0
        self.difference = self.noise = 0.0

    def before_training_epoch(self, strategy: Any, **kwargs: Any) -> None:
        """Step in between the strategy and its graph."""
        if isinstance(strategy._graph, StepGraph):
            strategy._graph = _Compared(strategy._graph, strategy, self)


class _Compared:
    """In the place of a graph."""

    def __init__(self, graph: StepGraph, strategy: Any, found: StepComparison):
        self.graph, self.strategy, self.found = graph, strategy, found

    @property
    def num_replays(self) -> int:
        return self.graph.num_replays

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        if self.graph._replay is None:  # optimizers may still have to make their state
            return self.graph(*inputs)
        device = self.strategy.device
        parts, random = _state(self.strategy), _random_state(device)
        before = _copy(parts)
        self.graph.step(*inputs)
        expected = _copy(parts)
        _restore(parts, before)
        _set_random_state(random, device)
        self.graph.step(*inputs)
        noise = _difference(parts, expected, before)
        _restore(parts, before)
        _set_random_state(random, device)
        num_replays = self.graph.num_replays
        outputs = self.graph(*inputs)
        if self.graph.num_replays > num_replays:
            self.found.num_compared += 1
            difference = _difference(parts, expected, before)
            self.found.difference = max(self.found.difference, difference)
            self.found.noise = max(self.found.noise, noise)
        return outputs


def _state(strategy: Any) -> Parts:
    """All that an iteration changes, as the tensors themselves."""
    model, now = strategy.model, strategy._now
    modules = {
        "plastic": model.plastic,
        "stable": model.stable,
        "classifiers": model.classifiers,
        "head": strategy.ssl,
        "temporary": now.temporary,
    }
    parts: Parts = {}
    for name, module in modules.items():
        if isinstance(module, nn.Module):
            parts[name] = [parameter.detach() for parameter in module.parameters()]
            parts |= {f"{name}: {key}": [value] for key, value in module.named_buffers()}
    optimizers = {"optimizer": strategy.optimizer, "alignment": strategy._alignment.optimizer}
    for name, optimizer in optimizers.items():
        states = [value for state in optimizer.state.values() for value in state.values()]
        parts[name] = [v for v in states if isinstance(v, Tensor)]
    parts["average"] = strategy._average._previous
    if now.watch is not None:
        parts["watch"] = [now.watch._iteration, now.watch._first]
    return parts


def _copy(parts: Parts) -> Parts:
    return {name: [tensor.clone() for tensor in tensors] for name, tensors in parts.items()}


def _restore(parts: Parts, saved: Parts) -> None:
    for name, tensors in parts.items():
        for tensor, value in zip(tensors, saved[name], strict=True):
            tensor.copy_(value)


def _difference(parts: Parts, expected: Parts, before: Parts) -> float:
    """The largest of all parts; infinity where one is NaN, or changes that should not."""
    found = [0.0]
    for name, tensors in parts.items():
        off, changed = _distance(tensors, expected[name]), _distance(expected[name], before[name])
        found.append(0.0 if off == 0 else off / changed if changed else float("inf"))
    return float("inf") if any(map(math.isnan, found)) else max(found)


def _distance(some: list[Tensor], others: list[Tensor]) -> float:
    squares = [(a.double() - b.double()).square().sum() for a, b in zip(some, others, strict=True)]
    return float(sum(float(square) for square in squares)) ** 0.5


def _random_state(device: torch.device) -> Tensor:
    return torch.get_rng_state() if device.type == "cpu" else torch.cuda.get_rng_state(device)


def _set_random_state(state: Tensor, device: torch.device) -> None:
    if device.type == "cpu":
        torch.set_rng_state(state)
    else:
        torch.cuda.set_rng_state(state, device)
