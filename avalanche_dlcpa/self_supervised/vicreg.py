"""Step 1, plastic learning, with VICReg (Bardes et al., 2022) as L_ssl."""

from __future__ import annotations

from torch import Tensor, nn

from avalanche_dlcpa.self_supervised.head import SelfSupervisedHead, multilayer_perceptron


class VICReg(SelfSupervisedHead):
    """Invariance between the two views' projections, with variance and covariance regularisation.

    Weights 25, 25 and 1 as in its paper; projector D-2048-2048-2048 with batch norm, the size that
    solo-learn uses for images of 32x32. Both views enter the cross-entropies.

    Args:
        hidden_features: Width of the projector's two hidden layers.
        out_features: Length of the projections.

    Raises:
        ImportError: solo-learn is missing.
    """

    loss_name = "vicreg"
    waits_for_device = True  # solo-learn's loss indexes by a mask
    projector: nn.Module

    def __init__(self, *, hidden_features: int = 2048, out_features: int = 2048):
        super().__init__()
        self.hidden_features = hidden_features
        self.out_features = out_features

    def build(self, plastic: nn.Module, num_features: int) -> None:
        """Make the projector."""
        hidden = self.hidden_features
        self.projector = multilayer_perceptron([num_features, hidden, hidden, self.out_features])

    def forward(
        self, plastic: nn.Module, view1: Tensor, view2: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the VICReg loss and the features of both views; see `SelfSupervisedHead`."""
        features1, features2 = plastic(view1), plastic(view2)
        loss = self.loss(self.projector(features1), self.projector(features2))
        return loss, (features1, features2)
