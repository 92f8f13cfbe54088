"""Batch norm of averaged parameters: whose statistics it uses, and how they are computed anew.

Averaging the statistics over tasks is worse than computing them with the averaged parameters
(design decision, measured on CIFAR-100 in the lab setting).
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import torch
from avalanche.models import avalanche_forward
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.swa_utils import update_bn
from torch.utils.data import DataLoader

from avalanche_dlcpa.buffers import BuffersGuard
from avalanche_dlcpa.experiences import task_labels_in


def batch_norms(module: nn.Module) -> list[_BatchNorm]:
    """The batch norm layers of a module, in its own order."""
    return [layer for layer in module.modules() if isinstance(layer, _BatchNorm)]


@contextlib.contextmanager
def batch_statistics(module: nn.Module) -> Iterator[None]:
    """Within this context batch norm uses the statistics of each batch and keeps its buffers."""
    layers = batch_norms(module)
    modes = [(layer.training, layer.track_running_stats) for layer in layers]
    for layer in layers:
        layer.training, layer.track_running_stats = True, False
    try:
        yield
    finally:
        for layer, mode in zip(layers, modes, strict=True):
            layer.training, layer.track_running_stats = mode


class _OnBatch(nn.Module):
    """A model that is called with a whole mini-batch of an Avalanche loader."""

    def __init__(self, model: nn.Module, dataset: Any, device: torch.device):
        super().__init__()
        self.model, self.dataset, self.device = model, dataset, device

    def forward(self, batch: Any) -> None:
        parts = [part.to(self.device) for part in batch]
        avalanche_forward(self.model, parts[0], task_labels_in(parts, self.dataset))


def recalibrate_batch_norm_(
    model: nn.Module, dataset: Any, *, batch_size: int, device: torch.device
) -> None:
    """Replace the running statistics of batch norm by the mean over a dataset, in place.

    Changes nothing else, and nothing in a model without batch norm. Layers that the images do not
    pass in training mode keep theirs: frozen ones, and those of other tasks. The order of the
    images is drawn from a generator of its own. A last batch that is not full is left out, unless
    it is the only one.

    Args:
        model: Answers mini-batches.
        dataset: An Avalanche dataset, with the transforms of evaluation.
        batch_size: Images in a batch.
        device: Of the model.
    """
    if not batch_norms(model):
        return
    loader = DataLoader(
        dataset,
        batch_size=batch_size,
        shuffle=True,
        generator=torch.Generator().manual_seed(0),
        drop_last=len(dataset) >= batch_size,
        collate_fn=dataset.collate_fn,
    )
    others = BuffersGuard(model)
    update_bn(([batch] for batch in loader), _OnBatch(model, dataset, device))
    found = [layer.state_dict() for layer in copy.deepcopy(batch_norms(model))]
    others.restore()
    for layer, state in zip(batch_norms(model), found, strict=True):
        if state.get("num_batches_tracked", 0) > 0:
            layer.load_state_dict(state)
