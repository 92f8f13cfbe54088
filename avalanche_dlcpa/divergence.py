"""Losses, updates and logits that are not finite, and the way back to what was sound."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from avalanche_dlcpa.buffers import BuffersGuard


class NonFiniteLossError(ValueError):
    """The loss became NaN or infinite, or the logits did at evaluation.

    Where a mini-batch itself was at fault (a corrupt image), the model is as it was before it; a
    momentum encoder has taken its small step.
    Where training diverged, everything is back at the start of that epoch, or where it was resumed.
    The message says which.
    """


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


def not_finite(
    name: str, value: object, *, way_out: str, experience: Any, epoch: int, iteration: int
) -> str:
    """The words of a `NonFiniteLossError`.

    Args:
        name: What is not finite, such as "classifier loss".
        value: Of it.
        way_out: What to do about it.
        experience: The experience in training.
        epoch: Of the experience, counted from 0.
        iteration: Of the epoch, counted from 0.
    """
    return (
        f"Expected a finite {name}, got {value} in experience {experience.current_experience}, "
        f"epoch {epoch}, iteration {iteration}: {way_out}."
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
