"""Trained linear heads, set right against each other by the Gaussian: one of its variants."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from avalanche_dlcpa.class_statistics import ClassStatistics

DRAWN = 50  # features a class
STEPS = 50  # of L-BFGS


def recalibration(
    weight: Tensor, bias: Tensor, tasks: Tensor, statistics: ClassStatistics, *, shrinkage: float
) -> tuple[Tensor, Tensor]:
    """A scale and an offset a task that make the heads fit together on Gaussian classes.

    They minimise the cross entropy of all classes on features drawn from the Gaussians. Within a
    task they change no answer, so Task-IL stays as it is. Source, of the two numbers: Wu et al.,
    "Large Scale Incremental Learning", which fits them on kept samples.

    Args:
        weight: Of the heads side by side, (K, D).
        bias: (K,).
        tasks: Number of the task of each class, from 0 on, (K,).
        statistics: Of the K classes.
        shrinkage: Of the covariance.

    Returns:
        Scale and offset for the logits of each class, (K,) each.
    """
    num_classes, size = statistics.means.shape
    covariance = statistics.scatter / statistics.counts.sum()
    identity = torch.eye(size, dtype=covariance.dtype)
    scale = covariance.diagonal().mean()
    factor = torch.linalg.cholesky((1 - shrinkage) * covariance + shrinkage * scale * identity)
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(num_classes, DRAWN, size, generator=generator, dtype=covariance.dtype)
    features = (statistics.means.unsqueeze(1) + noise @ factor.T).flatten(0, 1)
    logits = features @ weight.double().T + bias.double()
    labels = torch.arange(num_classes).repeat_interleave(DRAWN)
    free = torch.zeros(2, int(tasks.max()) + 1, dtype=logits.dtype, requires_grad=True)
    optimizer = torch.optim.LBFGS([free], max_iter=STEPS, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        log_scales, offsets = free
        loss = F.cross_entropy(logits * log_scales.exp()[tasks] + offsets[tasks], labels)
        loss.backward()
        return loss

    with torch.enable_grad():
        optimizer.step(closure)
    log_scales, offsets = free.detach()
    return log_scales.exp()[tasks], offsets[tasks]
