"""Buffers of a model, such as the statistics of batch norm: copied, kept, and put back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from avalanche.models import IncrementalClassifier
from torch import Tensor, nn

from avalanche_dlcpa.self_supervised.queue import QueueHead

Buffers = dict[str, Tensor | None]


@torch.no_grad()
def copy_buffers_(target: nn.Module, source: nn.Module) -> None:
    """Give ``target`` what ``source``, built alike, has for buffers, in place.

    Beside the statistics of batch norm these are, for example, the vectors of a spectral norm.
    A head that has grown in one of the two alone keeps its own.
    """
    theirs = dict(source.named_modules())
    for name, module in target.named_modules():
        for key, value in theirs[name]._buffers.items() if name in theirs else ():
            if not (isinstance(module, IncrementalClassifier) and _differ(module, theirs[name])):
                _put_(module._buffers, key, value)


def _differ(head: nn.Module, other: nn.Module) -> bool:
    return [b.shape for b in head.buffers()] != [b.shape for b in other.buffers()]


@torch.no_grad()
def fit_buffers_(
    module: nn.Module,
    state: Mapping[str, Any],
    device: torch.device,
    *,
    within: tuple[str, ...] = ("",),
) -> None:
    """Make room for buffers of a ``state_dict`` that have grown or appeared in training, in place.

    Args:
        module: One as it was before training.
        state: Of it, after.
        device: Where those buffers lie.
        within: How the names of those buffers may begin.
    """
    parts = dict(module.named_modules())
    for key, saved in state.items():
        path, _, name = key.rpartition(".")
        part = parts.get(path)
        if part is None or not isinstance(saved, Tensor) or not key.startswith(within):
            continue
        if not hasattr(part, name):
            part.register_buffer(name, None)
        own = part._buffers.get(name, saved)  # a parameter stays as it is
        if own is None or own.shape != saved.shape:
            part._buffers[name] = torch.empty_like(saved, device=device)


class BuffersGuard:
    """Keeps buffers as they were before a forward pass.

    A forward pass in training mode writes them before anyone can see that its loss is not finite.

    Args:
        modules: The modules whose buffers are kept, but for the queues of self-supervised heads,
            which every experience starts anew.
    """

    def __init__(self, *modules: nn.Module):
        self._places = _parts_of(modules)
        self._kept: list[Buffers] = [{} for _ in self._places]
        self.keep()

    def guards(self, *modules: nn.Module) -> bool:
        """Whether it keeps the buffers of these modules, and they have had no new parts since."""
        return self._places == _parts_of(modules)

    def _now(self, place: int) -> Buffers:
        """Those of a module there are: some make new ones in the place of others."""
        part = self._places[place]
        if isinstance(part, QueueHead):
            return {name: buffer for name, buffer in part._buffers.items() if name != "queue"}
        return part._buffers

    @torch.no_grad()
    def keep(self) -> None:
        """Remember the buffers."""
        ours, theirs = [], []
        for place, kept in enumerate(self._kept):
            now = self._now(place)
            if kept.keys() != now.keys():
                kept.clear()
            for name, buffer in now.items():
                known = kept.get(name)
                if buffer is None or known is None or known.shape != buffer.shape:
                    kept[name] = None if buffer is None else buffer.detach().clone()
                else:
                    ours.append(known)
                    theirs.append(buffer)
        if ours:
            torch._foreach_copy_(ours, theirs)

    @torch.no_grad()
    def restore(self) -> None:
        """Put the remembered buffers back."""
        for place, kept in enumerate(self._kept):
            buffers = self._places[place]._buffers
            for name in self._now(place).keys() - kept.keys():
                del buffers[name]
            for name, value in kept.items():
                _put_(buffers, name, value)


def _parts_of(modules: Iterable[nn.Module]) -> list[nn.Module]:
    return [part for module in modules for part in module.modules()]


def _put_(buffers: Buffers, name: str, value: Tensor | None) -> None:
    """Write a value into a buffer, or a copy of it in its place where it cannot be written."""
    buffer = buffers.get(name)
    if value is None or buffer is None or buffer.shape != value.shape or _overlaps(buffer):
        buffers[name] = None if value is None else value.detach().clone()
    else:
        buffer.copy_(value)


def _overlaps(tensor: Tensor) -> bool:
    """Whether several entries lie in one place, as those of an expanded tensor."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.layout is torch.strided and any(n > 1 and step == 0 for n, step in pairs)
