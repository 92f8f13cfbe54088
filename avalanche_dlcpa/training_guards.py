"""What keeps a training run from going wrong without a word: experiences, loaders, processes.

What is refused is a ValueError.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from avalanche.benchmarks import OnlineCLExperience
from avalanche.training.supervised import JointTraining
from avalanche.training.templates.base_sgd import PeriodicEval

from avalanche_dlcpa.random_states import preserved_random_states


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
            "cross-entropy is 0, and its classifier stays where it started. Give each experience "
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
