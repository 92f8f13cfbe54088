"""Step 1, plastic learning, with SimSiam (Chen and He, 2021) as L_ssl."""

from __future__ import annotations

from torch import Tensor, nn

from avalanche_dlcpa.self_supervised.head import SelfSupervisedHead, multilayer_perceptron


class SimSiam(SelfSupervisedHead):
    """Prediction of the other view's projection with a stopped gradient, no momentum encoder.

    Projector D-2048-2048-2048 with batch norm after each layer and predictor 2048-512-2048, as in
    its paper. Both views enter the cross-entropies.

    Args:
        hidden_features: Width of the projector's two hidden layers.
        out_features: Length of projections and predictions.
        predictor_features: Width of the predictor's hidden layer.

    Raises:
        ImportError: solo-learn is missing.
    """

    loss_name = "simsiam"
    projector: nn.Module
    predictor: nn.Module

    def __init__(
        self,
        *,
        hidden_features: int = 2048,
        out_features: int = 2048,
        predictor_features: int = 512,
    ):
        super().__init__()
        self.hidden_features = hidden_features
        self.out_features = out_features
        self.predictor_features = predictor_features

    def build(self, plastic: nn.Module, num_features: int) -> None:
        """Make projector and predictor."""
        hidden, out = self.hidden_features, self.out_features
        self.projector = multilayer_perceptron([num_features, hidden, hidden, out], last_norm=True)
        self.predictor = multilayer_perceptron([out, self.predictor_features, out])

    def forward(
        self, plastic: nn.Module, view1: Tensor, view2: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the loss, the mean of both directions, and the features of both views."""
        features1, features2 = plastic(view1), plastic(view2)
        projection1, projection2 = self.projector(features1), self.projector(features2)
        loss = self.loss(self.predictor(projection1), projection2)
        loss = (loss + self.loss(self.predictor(projection2), projection1)) / 2
        return loss, (features1, features2)
