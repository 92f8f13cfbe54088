"""Step 1, plastic learning, with BYOL (Grill et al., 2020) as L_ssl."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from avalanche_dlcpa.arguments import expect_momentum
from avalanche_dlcpa.self_supervised.head import (
    SelfSupervisedHead,
    momentum_copy,
    momentum_update_,
    multilayer_perceptron,
)


class BYOL(SelfSupervisedHead):
    """Prediction of a momentum encoder's projection of the other view; both views take both parts.

    Projector D-512-1024 and predictor 1024-512-1024, each linear, batch norm, ReLU, linear, as in
    the authors' runs. The momentum encoder and projector follow after each optimizer step. Both
    views enter the cross-entropies.

    Args:
        momentum: Of the momentum encoder and projector. The authors never published theirs.
        hidden_features: Width of the hidden layers of projector and predictor.
        out_features: Length of projections and predictions.

    Raises:
        ImportError: solo-learn is missing.
    """

    loss_name = "byol"
    has_momentum_encoder = True
    projector: nn.Module
    predictor: nn.Module
    momentum_projector: nn.Module

    def __init__(
        self, *, momentum: float = 0.99, hidden_features: int = 512, out_features: int = 1024
    ):
        super().__init__()
        expect_momentum(momentum)
        self.momentum = momentum
        self.hidden_features = hidden_features
        self.out_features = out_features

    def build(self, plastic: nn.Module, num_features: int) -> None:
        """Make projector, predictor and the momentum copies."""
        hidden, out = self.hidden_features, self.out_features
        self.projector = multilayer_perceptron([num_features, hidden, out])
        self.predictor = multilayer_perceptron([out, hidden, out])
        self.momentum_encoder = momentum_copy(plastic)
        self.momentum_projector = momentum_copy(self.projector)

    def forward(
        self, plastic: nn.Module, view1: Tensor, view2: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the loss, summed over both directions, and the features of both views."""
        features1, features2 = plastic(view1), plastic(view2)
        prediction1 = self.predictor(self.projector(features1))
        prediction2 = self.predictor(self.projector(features2))
        target1, target2 = self._target(view1), self._target(view2)
        loss = self.loss(prediction1, target2) + self.loss(prediction2, target1)
        return loss, (features1, features2)

    @torch.no_grad()
    def _target(self, view: Tensor) -> Tensor:
        assert self.momentum_encoder is not None
        return self.momentum_projector(self.momentum_encoder(view))

    def after_update(self, plastic: nn.Module) -> None:
        """Move the momentum encoder and projector."""
        assert self.momentum_encoder is not None
        momentum_update_(self.momentum_encoder, plastic, momentum=self.momentum)
        momentum_update_(self.momentum_projector, self.projector, momentum=self.momentum)
