"""SimCLR and BYOL with labels on the first view alone, as MoCoV2 has them: a control.

In the authors' runs both views of an image enter the cross-entropies where a head encodes both with
the plastic learner. What that is worth, beside the loss, the difference to these tells.
"""

from __future__ import annotations

from torch import Tensor, nn

from avalanche_dlcpa.self_supervised import BYOL, SimCLR
from avalanche_dlcpa.self_supervised.head import SelfSupervisedHead


class _OneLabelledView(SelfSupervisedHead):
    def forward(
        self, plastic: nn.Module, view1: Tensor, view2: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the loss of both views and the features of ``view1``."""
        loss, (features, _) = super().forward(plastic, view1, view2)
        return loss, (features,)


class SimCLROneLabelledView(_OneLabelledView, SimCLR):
    """SimCLR, with labels on the first view alone."""


class BYOLOneLabelledView(_OneLabelledView, BYOL):
    """BYOL, with labels on the first view alone."""
