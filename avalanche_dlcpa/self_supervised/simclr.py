"""Step 1, plastic learning, with SimCLR (Chen et al., 2020) as L_ssl."""

from __future__ import annotations

from torch import Tensor, nn

from avalanche_dlcpa.arguments import expect_rate
from avalanche_dlcpa.self_supervised.head import SelfSupervisedHead, multilayer_perceptron


class SimCLR(SelfSupervisedHead):
    """Contrast of the two views of an image with those of the other images of the batch (NT-Xent).

    Projector D-D-64 without biases, each view in a forward pass of its own, both views in the
    cross-entropies, as in the authors' runs.

    Args:
        temperature: Of the softmax over similarities. 0.5 in the authors' runs.
        out_features: Length of the projections. 64 in the authors' runs.

    Raises:
        ImportError: solo-learn is missing.
    """

    loss_name = "simclr"
    projector: nn.Module

    def __init__(self, *, temperature: float = 0.5, out_features: int = 64):
        super().__init__()
        expect_rate("`temperature`", temperature)
        self.temperature = temperature
        self.out_features = out_features

    def build(self, plastic: nn.Module, num_features: int) -> None:
        """Make the projector."""
        sizes = [num_features, num_features, self.out_features]
        self.projector = multilayer_perceptron(sizes, bias=False, batch_norm=False)

    def forward(
        self, plastic: nn.Module, view1: Tensor, view2: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the NT-Xent loss and the features of both views; see `SelfSupervisedHead`."""
        features1, features2 = plastic(view1), plastic(view2)
        loss = self.loss(self.projector(features1), self.projector(features2), self.temperature)
        return loss, (features1, features2)
