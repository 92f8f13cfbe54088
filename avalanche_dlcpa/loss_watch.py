"""What keeps a diverged training from going on without a word, where nobody may wait for losses."""

from __future__ import annotations

import torch
from torch import Tensor

LOSSES = ("loss", "classifier loss")  # of an iteration, in their order
_NEVER = torch.iinfo(torch.long).max


class LossWatch:
    """The first iteration of an epoch whose losses were not finite, remembered on their device.

    Looking at a number on the host makes it wait for the device; this looks once an epoch.

    Args:
        device: Of the losses.
    """

    def __init__(self, device: torch.device):
        self._iteration = torch.zeros((), dtype=torch.long, device=device)
        self._first = torch.full((len(LOSSES),), _NEVER, device=device)

    def begin(self, iteration: int) -> None:
        """Start an epoch, or go on in one.

        Args:
            iteration: The number of its next iteration.
        """
        self._iteration.fill_(iteration)
        self._first.fill_(_NEVER)

    def note(self, loss: Tensor, name: str) -> None:
        """Remember whether a loss is finite, without waiting for the device.

        Args:
            loss: A tensor of one element.
            name: One of `LOSSES`; the last one ends the iteration.
        """
        first = self._first[LOSSES.index(name)]
        fails_at = torch.where(loss.detach().isfinite().all(), _NEVER, self._iteration)
        torch.minimum(first, fails_at, out=first)
        if name == LOSSES[-1]:
            self._iteration.add_(1)

    def first_failure(self) -> tuple[str, int] | None:
        """Name and iteration of the first loss that was not finite, once the device has got there.

        Example:
            >>> watch = LossWatch(torch.device("cpu"))
            >>> for value in (1.0, float("nan"), float("nan")):
            ...     watch.note(torch.tensor(0.5), "loss")
            ...     watch.note(torch.tensor(value), "classifier loss")
            >>> watch.first_failure()
            ('classifier loss', 1)
        """
        first = self._first.tolist()
        iteration = min(first)
        return None if iteration == _NEVER else (LOSSES[first.index(iteration)], iteration)
