"""Step 1, plastic learning: the loss of MoCo over a long queue, fast on a CPU.

solo-learn's `moco_loss_func` is the reference. It writes the logits of a mini-batch to all of the
queue, 8 MB for 32 images and 65,536 keys, and goes over them about ten times, forward and backward.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

BLOCK = 16_384  # columns of the queue: the logits of a mini-batch to them stay in the caches


def info_nce(queries: Tensor, keys: Tensor, queue: Tensor, temperature: float) -> Tensor:
    """Mean cross-entropy of each query with its own key among that and all of a queue.

    Block after block of the queue enters a running log-sum-exp and the mean of the candidates under
    the softmax, which is all that the gradient needs: nothing of size (B, Q) is kept.

    Args:
        queries: (B, D), the only argument that a gradient flows to, and once.
        keys: (B, D).
        queue: (D, Q).
        temperature: What similarities are divided by.

    Returns:
        A scalar.

    Source: van den Oord et al., 2018, Eq. 4; the running sum: Milakov and Gimelshein, 2018.

    Example:
        >>> info_nce(torch.eye(2), torch.eye(2), torch.zeros(2, 1), temperature=1.0)
        tensor(0.3133)
    """
    return _InfoNCE.apply(queries, keys, queue, temperature)


class _InfoNCE(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, keys: Tensor, queue: Tensor, temperature: float
    ) -> Tensor:
        scaled = queries / temperature
        positive = (scaled * keys).sum(dim=1)
        # The first candidate is the query's own key: weights are relative to exp(largest).
        largest, total, weighted = positive, torch.ones_like(positive), keys.clone()
        for candidates in queue.T.split(BLOCK):  # fastest where each lies in one piece
            logits = candidates @ scaled.T
            before, largest = largest, torch.maximum(largest, logits.amax(dim=0))
            shrink = (before - largest).exp_()
            weights = logits.sub_(largest).exp_()
            total.mul_(shrink).add_(weights.sum(dim=0))
            weighted.mul_(shrink.unsqueeze(1)).addmm_(weights.T, candidates)
        average = weighted / total.unsqueeze(1)
        ctx.save_for_backward((average - keys).div_(temperature * len(queries)))
        return (largest + total.log() - positive).mean()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        (of_queries,) = ctx.saved_tensors
        return of_queries * gradient, None, None, None
