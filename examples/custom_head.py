"""A self-supervised head of one's own: predict which of four rotations the second view has."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD

from avalanche_dlcpa import DLCPAStrategy, SelfSupervisedHead
from avalanche_dlcpa.backbones import resnet18
from avalanche_dlcpa.streams import split_digits


class RotationHead(SelfSupervisedHead):
    """Rotation prediction (Gidaris et al., 2018)."""

    def build(self, plastic, num_features):
        self.classifier = nn.Linear(num_features, 4)

    def forward(self, plastic, view1, view2):
        turns = torch.arange(len(view2), device=view2.device) % 4
        quarters = [torch.rot90(view2, k, dims=(2, 3)) for k in range(4)]
        rotated = torch.stack(quarters).gather(
            0, turns.view(1, -1, 1, 1, 1).expand(1, *view2.shape)
        )[0]
        loss = F.cross_entropy(self.classifier(plastic(rotated)), turns)
        return loss, (plastic(view1),)  # the first view enters the cross-entropies


benchmark = split_digits(5)
model = resnet18(num_classes=10, in_channels=1, width=8)
strategy = DLCPAStrategy(
    model=model,
    optimizer=SGD(model.parameters(), lr=0.05),
    ssl=RotationHead(),
    train_mb_size=32,
    train_epochs=2,
    eval_mb_size=256,
)
for experience in benchmark.train_stream[:2]:
    strategy.train(experience)
print(strategy.eval(benchmark.test_stream[:2]))
