"""The three steps of an iteration as one CUDA graph: launched together, not kernel by kernel.

With the paper's batches of 32 images a GPU is done with most kernels before Python has asked for
the next one. A graph asks for all of them at once.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor

from avalanche_dlcpa.files import first_line

Function = Callable[[], tuple[Tensor, ...]]

_ALREADY_WARNED: dict[Any, Any] = {}  # so that what is warned of once stays so

logger = logging.getLogger(__name__)


class Backend(Protocol):
    """How a kind of device runs a step that is to be captured."""

    def warm_up(self, run: Function) -> tuple[Tensor, ...]:
        """Run the step, and be ready to capture it."""

    def capture(self, run: Function) -> Function:
        """Record the step without running it, and return what runs it.

        Raises:
            RuntimeError: It cannot be captured.
        """


class CudaGraphs:
    """Capture by ``torch.cuda.graph``.

    Args:
        device: On which the step runs, whichever is torch's current one.
    """

    def __init__(self, device: torch.device):
        self.device = device
        self._waits = False

    def warm_up(self, run: Function) -> tuple[Tensor, ...]:
        """Run on a stream of its own, as a capture does, so that no state is bound to another."""
        side, current = _side_stream(self.device), torch.cuda.current_stream(self.device)
        side.wait_stream(current)
        with torch.cuda.stream(side), _synchronizations() as found:
            outputs = run()
        self._waits = bool(found)
        current.wait_stream(side)
        for output in outputs:
            output.record_stream(current)
        return outputs

    def capture(self, run: Function) -> Function:
        """Record the step; what it returns is overwritten by the next replay.

        A step that waits for the device is not tried: CUDA would break off the capture, after which
        not every version of torch draws random numbers again.
        """
        if self._waits:
            raise RuntimeError("an operation of the iteration waits for the device")
        current = torch.cuda.current_stream(self.device)
        with torch.cuda.device(self.device):
            graph, side = torch.cuda.CUDAGraph(), _side_stream(self.device)
            try:
                with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
                    outputs = run()
            except RuntimeError:
                torch.cuda.set_stream(current)  # where CUDA broke it off, torch leaves the other
                raise

        def replay() -> tuple[Tensor, ...]:
            with torch.cuda.device(self.device):
                graph.replay()
            return outputs

        return replay


@functools.cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all steps: libraries keep memory for each stream that they ever ran on."""
    return torch.cuda.Stream(device)


@contextlib.contextmanager
def _synchronizations() -> Iterator[list[str]]:
    """What torch warns of within this context: operations that wait for the device."""
    before = torch.cuda.get_sync_debug_mode()
    found: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode(before)
    for warning in caught:
        text = str(warning.message)
        if "synchronizing CUDA operation" in text:
            found.append(text)
        elif "Synchronization debug mode" not in text:  # torch's warning of the mode itself
            place = (warning.category, warning.filename, warning.lineno)
            warnings.warn_explicit(warning.message, *place, registry=_ALREADY_WARNED)


BACKENDS: dict[str, Callable[[torch.device], Backend]] = {"cuda": CudaGraphs}


class StepGraph:
    """A step that is captured after a few iterations and replayed from then on.

    A mini-batch of another size (the last of an epoch) runs as it always did. Whatever a graph
    holds fixed is compared in each iteration; where it has changed (a learning rate), the step is
    captured anew after an iteration without a graph, in which an optimizer makes the state of
    parameters that are new to it. Where that would happen all the time, it is captured no longer,
    nor is a step that changes what a replay would not.

    Args:
        step: Tensors -> tensors without gradients. Everything else that it reads and writes on the
            device must stay where it is in memory.
        fixed: What a graph holds fixed, to be compared with ``==``, such as learning rates.
        on_host: What a replay would leave as it is, to be compared with ``==`` before and after
            the iterations that warm up.
        backend: Of the device.

    Attributes:
        num_captures: How often the step was captured.
        num_replays: How many iterations of the present capture were replayed.
        gave_up: Whether it is captured no longer.
    """

    warm_up_iterations = 3
    min_replays = 8  # a capture takes the time of some iterations

    def __init__(
        self,
        step: Callable[..., tuple[Tensor, ...]],
        *,
        fixed: Callable[[], Any],
        on_host: Callable[[], Any],
        backend: Backend,
    ):
        self.step = step
        self.fixed = fixed
        self.on_host = on_host
        self.backend = backend
        self.num_captures = self.num_replays = 0
        self._num_warm = 0
        self._inputs: tuple[Tensor, ...] = ()
        self._captured: Any = None
        self._replay: Function | None = None
        self.gave_up = False

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Run the step on a mini-batch, replayed where it can be."""
        if self.gave_up:
            return self.step(*inputs)
        if self._replay is None and (not self._inputs or len(inputs[0]) > len(self._inputs[0])):
            # The first may be the rest of an epoch, where a run was resumed.
            self._inputs, self._num_warm = tuple(torch.empty_like(x) for x in inputs), 0
        if not _alike(inputs, self._inputs):
            return self.step(*inputs)
        if self._num_warm < self.warm_up_iterations:
            self._num_warm += 1
            return self._warm_up(inputs)
        fixed = self.fixed()
        if self._replay is not None and fixed != self._captured:
            self._forget_capture()
            return self(*inputs)
        if self._replay is None:
            self._capture(fixed)
        if self._replay is None:
            return self.step(*inputs)
        torch._foreach_copy_(list(self._inputs), list(inputs))
        self.num_replays += 1
        return tuple(output.clone() for output in self._replay())

    def _warm_up(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        before = self.on_host()
        outputs = self.backend.warm_up(functools.partial(self.step, *inputs))
        if self.on_host() != before:
            self._give_up("a part of the model or the criterion draws or counts on the host")
        return outputs

    def _forget_capture(self) -> None:
        self._replay, self._num_warm = None, self.warm_up_iterations - 1
        if self.num_replays < self.min_replays:
            self._give_up(
                "learning rates, what a layer keeps or the like change within "
                f"{self.min_replays} iterations"
            )

    def _capture(self, fixed: Any) -> None:
        try:
            self._replay = self.backend.capture(functools.partial(self.step, *self._inputs))
        except RuntimeError as error:
            self._give_up(first_line(error).rstrip("."))
            return
        self._captured, self.num_replays = fixed, 0
        self.num_captures += 1

    def _give_up(self, reason: str) -> None:
        self._replay, self.gave_up = None, True
        report(reason)


def report(reason: str) -> None:
    """Say in one line why a step is not replayed as a graph."""
    logger.warning("Iterations run without a CUDA graph: %s.", reason)


def _alike(inputs: tuple[Tensor, ...], others: tuple[Tensor, ...]) -> bool:
    shapes, own = ([(x.shape, x.dtype) for x in tensors] for tensors in (inputs, others))
    return shapes == own
