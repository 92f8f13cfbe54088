"""Step 2, stable updating: the stable learner is the running mean of the plastic one (Eq. 7-8)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from avalanche_dlcpa.arguments import expect_choice, expect_decay

STABLE_UPDATES = ("cumulative", "ema", "copy")
EMA_DECAY = 0.999  # of ablation (c), the paper's Section "Ablation Study"


@torch.no_grad()
def cumulative_average_(
    average: Iterable[Tensor], previous: Iterable[Tensor], source: Iterable[Tensor], t: int
) -> None:
    """Write the mean over t experiences into ``average``, in place.

    ``average <- (source + (t - 1) * previous) / t`` (Eq. 8), computed as
    ``previous + (source - previous) / t``, which loses nothing when t is large.

    Args:
        average: Receives the mean.
        previous: The mean at the end of experience t - 1. May be kept in a wider dtype than
            ``average``, which then receives the rounded mean.
        source: The parameters that experience t is training, shaped as ``average``.
        t: Number of the experience, counted from 1.

    Raises:
        ValueError: ``t`` below 1.

    Example:
        >>> mean = [torch.zeros(2)]
        >>> cumulative_average_(mean, [torch.tensor([1.0, 2.0])], [torch.tensor([4.0, 2.0])], t=3)
        >>> mean[0].tolist()
        [2.0, 2.0]
    """
    if t < 1:
        raise ValueError(f"Expected `t` to be at least 1, got {t}.")
    average, previous, source = list(average), list(previous), list(source)
    tensors = [*average, *previous, *source]
    if all(x.is_cuda for x in tensors) and len({x.dtype for x in tensors}) == 1:
        # a few kernels for all of them; on a CPU this would be one pass more through memory
        torch._foreach_copy_(average, previous)
        torch._foreach_lerp_(average, source, 1 / t)
        return
    for mean, before, now in zip(average, previous, source, strict=True):
        if mean.dtype == before.dtype == now.dtype:
            torch.lerp(before, now, 1 / t, out=mean)
        else:
            mean.copy_(torch.lerp(before, now.to(before.dtype), 1 / t))


@torch.no_grad()
def exponential_average_(
    average: Iterable[Tensor], source: Iterable[Tensor], *, decay: float = EMA_DECAY
) -> None:
    """Move ``average`` towards ``source`` by a share of 1 - decay, in place: ablation (c)."""
    average = list(average)
    source = [now.to(mean.dtype) for mean, now in zip(average, source, strict=True)]
    torch._foreach_lerp_(average, source, 1 - decay)


class ParameterAverage:
    """The state and order of stable updating: one snapshot, whatever the number of experiences.

    Between `begin` and `end` every `update_` writes the mean over the past experiences and the
    present one into the averaged parameters. An experience that was broken off (an exception) and
    is begun again starts from the same snapshot. For parameters of less than 32 bits the mean is
    kept in float32, and the averaged parameters are its rounding.

    Args:
        average: The parameters that receive the mean.
        update: ``"cumulative"`` (the paper), ``"ema"`` (ablation c) or ``"copy"`` (ablation d).
        ema_decay: Of ``"ema"``, a step; it looks back some 1 / (1 - decay) steps.

    Raises:
        ValueError: Unknown ``update``, or ``ema_decay`` not between 0 and 1.
    """

    def __init__(
        self,
        average: Sequence[Tensor],
        *,
        update: str = "cumulative",
        ema_decay: float = EMA_DECAY,
    ):
        expect_decay(ema_decay)
        expect_choice("update", update, STABLE_UPDATES)
        self.average = list(average)
        self.update = update
        self.ema_decay = float(ema_decay)
        self._previous: list[Tensor] = []
        self._t = 1
        self._begun = False

    @torch.no_grad()
    def begin(self, num_averaged: int) -> None:
        """Start an experience: take the snapshot that its mean is built on.

        Args:
            num_averaged: Number of experiences in the average so far.
        """
        if self._begun and self.update != "ema":  # whose steps may have been taken back
            return
        self._begun = True
        self._t = num_averaged + 1
        if not self._previous:
            self._previous = [p.detach().to(_wide(p.dtype), copy=True) for p in self.average]
        for before, mean in zip(self._previous, self.average, strict=True):
            # A narrow average that still is the snapshot's rounding must not overwrite it.
            if mean.dtype == before.dtype or not torch.equal(before.to(mean.dtype), mean):
                before.copy_(mean)

    @torch.no_grad()
    def update_(self, source: Iterable[Tensor]) -> None:
        """Write the mean that includes ``source`` into the averaged parameters, in place."""
        if self.update == "cumulative":
            cumulative_average_(self.average, self._previous, source, self._t)
        elif self.update == "ema":
            # Kept wide like the mean: in few bits its small steps would be lost, one by one.
            is_narrow = any(_wide(mean.dtype) != mean.dtype for mean in self.average)
            wide = self._previous if is_narrow else self.average
            exponential_average_(wide, source, decay=self.ema_decay)
            if is_narrow:
                self._round_()
        else:
            torch._foreach_copy_(self.average, list(source))

    @torch.no_grad()
    def end(self, source: Iterable[Tensor], *, comes_back: bool = True) -> None:
        """Finish an experience: keep its mean, also where that is wider than its rounding.

        A plugin may have put other weights back since the last update, such as those of the best
        epoch: the mean and the copy are of ``source`` as it is now.

        Args:
            source: See `update_`.
            comes_back: Whether what puts weights back puts back those of ``source``, too. Else
                averaged parameters that are not of ``source`` count as they are.
        """
        source = list(source)
        if not comes_back and not self._is_of(source):
            self._begun = False
            return
        if self.update == "cumulative":
            cumulative_average_(self._previous, self._previous, source, self._t)
            self._round_()
        elif self.update == "copy":
            self.update_(source)
        self._begun = False

    def _is_of(self, source: list[Tensor]) -> bool:
        """Whether the averaged parameters are what `update_` writes of a source."""
        written = [mean.clone() for mean in self.average]
        if self.update == "cumulative":
            cumulative_average_(written, self._previous, source, self._t)
        elif self.update == "copy":
            torch._foreach_copy_(written, source)
        return all(map(torch.equal, written, self.average))

    def _round_(self) -> None:
        """Give the averaged parameters the values of the wide mean.

        One by one: on a GPU, `torch._foreach_copy_` of before 2026 takes all targets for the dtype
        of the first (torch's issue 173383).
        """
        for mean, wide in zip(self.average, self._previous, strict=True):
            mean.copy_(wide)

    def state_dict(self) -> dict[str, Any]:
        """The snapshot and where in an experience the average is; not the average itself."""
        return {"previous": list(self._previous), "t": self._t, "begun": self._begun}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` told, on the devices of the averaged parameters."""
        devices = [mean.device for mean in self.average[: len(state["previous"])]]
        self._previous = [
            before.to(device, copy=True)
            for before, device in zip(state["previous"], devices, strict=True)
        ]
        self._t, self._begun = state["t"], state["begun"]


def _wide(dtype: torch.dtype) -> torch.dtype:
    return dtype if torch.finfo(dtype).bits >= 32 else torch.float32
