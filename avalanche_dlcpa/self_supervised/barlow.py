"""Step 1, plastic learning, with Barlow Twins (Zbontar et al., 2021) as L_ssl."""

from __future__ import annotations

from torch import Tensor, nn

from avalanche_dlcpa.self_supervised.head import SelfSupervisedHead, multilayer_perceptron


class BarlowTwins(SelfSupervisedHead):
    """Cross-correlation of the two views' projections, driven towards the identity.

    Projector D-512-512-512 with batch norm: the loss is a sum over the squared width, and with the
    2048 units that solo-learn takes for images of 32x32 it outgrows the cross-entropies of Eq. 6 in
    small batches (it diverged in a test with SGD). Both views enter the cross-entropies.

    Args:
        off_diagonal: Weight of the off-diagonal entries. 5e-3 as in its paper.
        scale: Factor of the whole loss. 0.025, solo-learn's default.
        hidden_features: Width of the projector's two hidden layers.
        out_features: Length of the projections.

    Raises:
        ImportError: solo-learn is missing.
    """

    loss_name = "barlow"
    waits_for_device = True  # solo-learn's loss indexes by a mask
    projector: nn.Module

    def __init__(
        self,
        *,
        off_diagonal: float = 5e-3,
        scale: float = 0.025,
        hidden_features: int = 512,
        out_features: int = 512,
    ):
        super().__init__()
        self.off_diagonal = off_diagonal
        self.scale = scale
        self.hidden_features = hidden_features
        self.out_features = out_features

    def build(self, plastic: nn.Module, num_features: int) -> None:
        """Make the projector."""
        hidden = self.hidden_features
        self.projector = multilayer_perceptron([num_features, hidden, hidden, self.out_features])

    def forward(
        self, plastic: nn.Module, view1: Tensor, view2: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the Barlow Twins loss and the features of both views; see `SelfSupervisedHead`."""
        features1, features2 = plastic(view1), plastic(view2)
        projection1, projection2 = self.projector(features1), self.projector(features2)
        # solo-learn's loss has a batch norm in float32
        loss = self.loss(projection1.float(), projection2.float(), self.off_diagonal, self.scale)
        return loss, (features1, features2)
