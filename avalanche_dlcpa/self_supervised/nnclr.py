"""Step 1, plastic learning, with NNCLR (Dwibedi et al., 2021) as L_ssl."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from avalanche_dlcpa.arguments import expect_rate
from avalanche_dlcpa.precision import full_precision
from avalanche_dlcpa.self_supervised.head import multilayer_perceptron
from avalanche_dlcpa.self_supervised.queue import QueueHead


class NNCLR(QueueHead):
    """Contrast of a view with the nearest neighbour, in a queue, of the other view.

    Projector D-2048-2048-256 with batch norm after each layer and predictor 256-4096-256. The queue
    starts each task with random unit columns and is emptied at its end. Both views enter the
    cross-entropies.

    Args:
        temperature: Of the softmax over similarities. 0.2, as solo-learn uses for 32x32 images.
        queue_size: Number of past projections, at least the batch size.
        hidden_features: Width of the projector's two hidden layers.
        out_features: Length of projections and predictions.
        predictor_features: Width of the predictor's hidden layer.

    Raises:
        ImportError: solo-learn is missing.
    """

    loss_name = "nnclr"
    projector: nn.Module
    predictor: nn.Module

    def __init__(
        self,
        *,
        temperature: float = 0.2,
        queue_size: int = 65_536,
        hidden_features: int = 2048,
        out_features: int = 256,
        predictor_features: int = 4096,
    ):
        super().__init__()
        expect_rate("`temperature`", temperature)
        self.temperature = temperature
        self.queue_size = queue_size
        self.hidden_features = hidden_features
        self.out_features = out_features
        self.predictor_features = predictor_features

    def build(self, plastic: nn.Module, num_features: int) -> None:
        """Make projector, predictor and the queue (out_features, queue_size)."""
        hidden, out = self.hidden_features, self.out_features
        sizes = [num_features, hidden, hidden, out]
        self.projector = multilayer_perceptron(sizes, last_norm=True, last_affine=True)
        self.predictor = multilayer_perceptron([out, self.predictor_features, out])
        self.make_queue(out, self.queue_size)

    def forward(
        self, plastic: nn.Module, view1: Tensor, view2: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the loss, the mean of both directions, and the features of both views."""
        features1, features2 = plastic(view1), plastic(view2)
        projection1, projection2 = self.projector(features1), self.projector(features2)
        loss = self._direction(projection1, self.predictor(projection2))
        loss = (loss + self._direction(projection2, self.predictor(projection1))) / 2
        self._keys = F.normalize(full_precision(projection1.detach()), dim=1)
        return loss, (features1, features2)

    def _direction(self, projection: Tensor, prediction: Tensor) -> Tensor:
        with torch.autocast(projection.device.type, enabled=False):
            query = F.normalize(full_precision(projection.detach()), dim=1)
            similarity = query @ full_precision(self.queue)  # (B, Q)
        neighbours = self.queue.index_select(1, similarity.argmax(dim=1)).T  # (B, D)
        return self.loss(neighbours, prediction, self.temperature)
