"""Step 1, plastic learning, with MoCo v2 (He et al., 2020; Chen et al., 2020) as L_ssl."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from avalanche_dlcpa.arguments import expect_momentum, expect_rate
from avalanche_dlcpa.precision import full_precision, in_full_precision
from avalanche_dlcpa.self_supervised.head import momentum_copy, momentum_update_
from avalanche_dlcpa.self_supervised.info_nce import info_nce
from avalanche_dlcpa.self_supervised.queue import QueueHead


class MoCoV2(QueueHead):
    """Contrast of the first view with a momentum encoder's key of the second and a queue of others.

    As in the authors' runs there is no projector: the normalised features themselves are compared,
    the momentum encoder moves before it encodes the keys, and only the first view enters the
    cross-entropies. On a CPU the loss is `info_nce`, which equals solo-learn's.

    Args:
        temperature: Of the softmax over similarities. 0.07 in the authors' runs.
        momentum: Of the momentum encoder. 0.999 in the authors' runs.
        queue_size: Number of negatives, at least the batch size. 65,536 in the authors' runs.

    Raises:
        ImportError: solo-learn is missing.
    """

    loss_name = "moco"
    has_momentum_encoder = True

    def __init__(
        self, *, temperature: float = 0.07, momentum: float = 0.999, queue_size: int = 65_536
    ):
        super().__init__()
        expect_rate("`temperature`", temperature)
        expect_momentum(momentum)
        self.temperature = temperature
        self.momentum = momentum
        self.queue_size = queue_size

    def build(self, plastic: nn.Module, num_features: int) -> None:
        """Make the momentum encoder and the queue (D, queue_size)."""
        self.momentum_encoder = momentum_copy(plastic)
        self.make_queue(num_features, self.queue_size)

    def forward(
        self, plastic: nn.Module, view1: Tensor, view2: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the InfoNCE loss and the features of ``view1``; see `SelfSupervisedHead`."""
        assert self.momentum_encoder is not None
        features = plastic(view1)
        momentum_update_(self.momentum_encoder, plastic, momentum=self.momentum)
        with torch.no_grad():
            self._keys = F.normalize(full_precision(self.momentum_encoder(view2)), dim=1)
        queries = F.normalize(full_precision(features), dim=1)
        arguments = (queries, self._keys, self.queue, self.temperature)
        if self.queue.device.type == "cpu":  # the same, and faster there
            return in_full_precision(info_nce, *arguments), (features,)
        return self.loss(*arguments), (features,)
