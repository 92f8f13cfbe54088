"""What keeps a training run from going wrong without a word: loaders, losses, processes."""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import random
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, cast

import numpy as np
import torch
from avalanche.benchmarks import OnlineCLExperience
from avalanche.training.supervised import JointTraining
from avalanche.training.templates.base_sgd import PeriodicEval
from torch import Tensor, nn
from torch.optim import Optimizer


class NonFiniteLossError(ValueError):
    """The loss became NaN or infinite, or the logits did at evaluation.

    Where a mini-batch itself was at fault (a corrupt image), the model is as it was before it; a
    momentum encoder has taken its small step.
    Where training diverged, everything is back at the start of that epoch, or where it was resumed.
    The message says which.
    """


class AtLeastTwo:
    """A loader without its mini-batches of one sample, with a warning at the first it leaves out.

    Batch norm and the contrastive losses are undefined on one sample, and the last mini-batch of an
    epoch may hold just one.

    Attributes:
        loader: Yields mini-batches, sequences of tensors with a leading sample axis.
    """

    def __init__(self) -> None:
        self.loader: Any = None
        self.warned = False

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        for batch in self.loader:
            if len(batch[0]) >= 2:
                yield batch
            elif not self.warned:
                self.warned = True
                warnings.warn(
                    "A mini-batch of one sample was skipped, since batch norm and contrastive "
                    "losses need two; choose another train_mb_size to use every sample.",
                    stacklevel=2,
                )


class BuffersGuard:
    """Keeps buffers, such as the statistics of batch norm, as they were before a forward pass.

    A forward pass in training mode writes them before anyone can see that its loss is not finite.

    Args:
        modules: The modules whose buffers are kept, but for queues, which every experience starts
            anew.
    """

    def __init__(self, *modules: nn.Module):
        self._places = [
            (part._buffers, name)
            for module in modules
            for part in module.modules()
            for name, buffer in part._buffers.items()
            if buffer is not None and not (part is module and name == "queue")
        ]
        self._kept: list[Tensor] = []
        self.keep()

    def keep(self) -> None:
        """Remember the buffers there are: some modules put new tensors in their place."""
        now = [cast(Tensor, buffers[name]) for buffers, name in self._places]
        if [buffer.shape for buffer in now] != [buffer.shape for buffer in self._kept]:
            self._kept = [buffer.clone() for buffer in now]
        elif now:
            torch._foreach_copy_(self._kept, now)

    def restore(self) -> None:
        """Put the remembered buffers back."""
        for (buffers, name), kept in zip(self._places, self._kept, strict=True):
            buffer = cast(Tensor, buffers[name])
            if buffer.shape == kept.shape:
                buffer.copy_(kept)
            else:
                buffers[name] = kept.clone()


class LastGoodState:
    """A copy of everything that training changes, renewed once an epoch.

    Args:
        optimizer: Its state is kept, too.
        modules: The modules whose parameters and buffers are kept, see `BuffersGuard`.
    """

    def __init__(self, optimizer: Optimizer, *modules: nn.Module):
        self.optimizer = optimizer
        self.parameters = [p.detach() for module in modules for p in module.parameters()]
        self.copies: list[Tensor] = []
        self.buffers = BuffersGuard(*modules)
        self.optimizer_state: dict[str, Any] = {}

    def keep(self) -> None:
        """Renew the copy."""
        self.copies = [parameter.clone() for parameter in self.parameters]
        self.buffers.keep()
        self.optimizer_state = copy.deepcopy(self.optimizer.state_dict())

    def restore(self) -> None:
        """Put the copy back."""
        torch._foreach_copy_(self.parameters, self.copies)
        self.buffers.restore()
        self.optimizer.load_state_dict(self.optimizer_state)


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether none of the tensors, on one device, holds NaN or infinity; waits for it once."""
    flags = [tensor.isfinite().all() for tensor in tensors]
    return not flags or bool(torch.stack(flags).all())


def not_finite(name: str, value: object, *, experience: Any, epoch: int, iteration: int) -> str:
    """The words of a `NonFiniteLossError`.

    Args:
        name: What it is a loss of.
        value: Of the loss.
        experience: The experience in training.
        epoch: Of the experience, counted from 0.
        iteration: Of the epoch, counted from 0.
    """
    return (
        f"Expected a finite {name}, got {value} in experience {experience.current_experience}, "
        f"epoch {epoch}, iteration {iteration}: look at the samples of that mini-batch, or lower "
        "the learning rate or `supervised_weight`."
    )


def expect_finite_logits(strategy: Any) -> None:
    """Refuse to judge logits (B, K) that are not finite, as the largest of them means nothing.

    Raises:
        NonFiniteLossError: Says how many images of which experience.
    """
    strange = ~strategy.mb_output.isfinite().all(dim=1)
    if strange.any():
        experience = strategy.experience
        raise NonFiniteLossError(
            f"Expected finite logits at evaluation, got NaN or infinity for {int(strange.sum())} "
            f"of {len(strange)} images of a mini-batch of experience "
            f"{experience.current_experience} of {experience.origin_stream.name}: look for corrupt "
            "images there, or, if it is all of them, lower the learning rate. Nothing was changed."
        )


@contextlib.contextmanager
def preserved_random_states(device: torch.device) -> Iterator[None]:
    """Within this context random numbers may be drawn that nobody outside it misses.

    Covers Python, NumPy, torch on the CPU and on the given device.
    """
    python, numpy = random.getstate(), np.random.get_state()
    devices = [device] if device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def expect_one_by_one(strategy: Any) -> None:
    """Refuse a strategy whose plugins do not see all that it trains on."""
    if isinstance(strategy, JointTraining):
        raise ValueError(
            "Expected a strategy that learns experience after experience, got JointTraining: its "
            "plugins see the first alone."
        )


def expect_whole_experience(experience: Any, *, why: str) -> None:
    """Refuse a piece of an experience."""
    if isinstance(experience, OnlineCLExperience):
        raise ValueError(
            f"Expected whole experiences, got a piece of an online stream: {why}, so leave out "
            "split_online_stream(...)."
        )


def warn_of_one_class(classes: list[int]) -> None:
    """Say that an experience of one class teaches little, once in a run."""
    if len(classes) == 1:
        warnings.warn(
            "An experience has one class alone, from which there is nothing to tell it: its "
            "supervised loss is 0, and its classifier stays where it started. Give each experience "
            "two classes or more.",
            stacklevel=2,
        )


def expect_two_samples(experience: Any) -> None:
    """Refuse an experience of one sample."""
    if len(experience.dataset) < 2:
        raise ValueError(
            f"Expected experience {experience.current_experience} to hold at least 2 samples for "
            "a self-supervised loss or batch norm, got 1."
        )


def expect_mini_batch(strategy: Any) -> None:
    """Refuse an experience whose loader has nothing to train on."""
    if len(strategy.dataloader) == 0:
        raise ValueError(
            f"Expected a mini-batch in experience {strategy.experience.current_experience}, got "
            f"{len(strategy.adapted_dataset)} samples for mini-batches of "
            f"{strategy.train_mb_size}: leave out drop_last, or lower `train_mb_size`."
        )


def expect_one_strategy(plugin: Any, clock: Any, strategy: Any, *, why: str) -> None:
    """Refuse a plugin that belongs to another strategy.

    Args:
        plugin: Of whoever asks.
        clock: Of the strategy that it was trained with; None before that. Avalanche's checkpoints
            put the parts of a strategy, such as its clock, into another one.
        strategy: About to train.
        why: A second one would be wrong.
    """
    if clock not in (None, strategy.clock):
        raise ValueError(
            f"Expected one strategy for a {type(plugin).__name__}, got a second one: {why}, make a "
            "new plugin."
        )


def evaluate_at_end_(strategy: Any, *, draws: bool) -> None:
    """Have ``eval_every`` evaluate at the end of an experience, also after its last epoch.

    Avalanche leaves that out, as nothing would have changed in between; it has where the end of an
    experience makes what predicts.

    Args:
        strategy: In training.
        draws: Whether its evaluations draw random numbers, which training shall not miss.
    """
    for plugin in strategy.plugins:
        if isinstance(plugin, PeriodicEval) and plugin.eval_every > -1 and not plugin.do_final:
            if draws:
                vars(plugin)["after_training_exp"] = functools.partial(_evaluate_apart, plugin)
            else:
                plugin.do_final = True


def _evaluate_apart(plugin: PeriodicEval, strategy: Any, **kwargs: Any) -> None:
    del vars(plugin)["after_training_exp"]  # for one experience alone
    with preserved_random_states(strategy.device):
        plugin._peval(strategy, **kwargs)


def refuse_distributed() -> None:
    """Raise where several processes would train together.

    Raises:
        ValueError: Started by torchrun, or in a process group, of more than one process.
    """
    group = torch.distributed.is_available() and torch.distributed.is_initialized()
    size = torch.distributed.get_world_size() if group else int(os.environ.get("WORLD_SIZE") or 1)
    if size > 1:
        raise ValueError(
            f"Expected one process, got a group of {size}: DLCPA does not average over processes. "
            "Start it without torchrun, or one run on each device."
        )
