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


def recalibrate_batch_norm_(
    model: nn.Module, dataset: Any, *, batch_size: int, device: torch.device
) -> None:
    """Replace the running statistics of batch norm by the mean over a dataset, in place.

    Changes nothing else, and nothing in a model without batch norm. Layers that the images do not
    pass in training mode keep theirs, and normalise with them: frozen ones, and those of other
    tasks. The order of the images is drawn from a generator of its own. A last batch that is not
    full is left out, unless it is the only one.

    Args:
        model: Answers mini-batches. If it is in training mode, its layers in evaluation mode are
            frozen; else those that stay so when it is put into training mode.
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
    before = BuffersGuard(model)
    with _counting_from_zero(model) as layers, torch.no_grad():
        try:
            for batch in loader:
                parts = [part.to(device) for part in batch]
                avalanche_forward(model, parts[0], task_labels_in(parts, dataset))
            found = [copy.deepcopy(layer.state_dict()) for layer in layers]
        finally:
            before.restore()
    for layer, state in zip(layers, found, strict=True):
        if state.get("num_batches_tracked", 0) > 0:
            layer.load_state_dict(state)


@contextlib.contextmanager
def _counting_from_zero(model: nn.Module) -> Iterator[list[_BatchNorm]]:
    """Within this context the layers that are not frozen take the mean over all batches."""
    modes = [(module, module.training) for module in model.modules()]
    if not model.training:
        model.train()
    layers = [layer for layer in batch_norms(model) if layer.training]
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None
    try:
        yield layers
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
        for module, mode in modes:
            module.training = mode
