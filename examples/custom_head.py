"""A self-supervised head of one's own: predict which of four rotations the second view has.

Ends with a Task-IL of 1 and 0.93 and a Class-IL of 0.86 and 0.42 on two tasks of digits, give or
take what machines round differently.
"""

import torch
import torch.nn.functional as F
from avalanche.training.plugins import EvaluationPlugin
from torch import nn
from torch.optim import SGD

from avalanche_dlcpa import DLCPAStrategy, PaperViews, SelfSupervisedHead, seed_everything
from avalanche_dlcpa.backbones import resnet18
from avalanche_dlcpa.metrics import scenario_metrics
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


seed_everything(0)
benchmark = split_digits(5)
model = resnet18(num_classes=10, in_channels=1, width=8)
class_il, task_il = scenario_metrics()
strategy = DLCPAStrategy(
    model=model,
    optimizer=SGD(model.parameters(), lr=0.01),
    ssl=RotationHead(),
    views=PaperViews(min_crop_area=0.75),
    train_mb_size=32,
    train_epochs=8,
    eval_mb_size=256,
    evaluator=EvaluationPlugin(class_il, task_il),
)
for experience in benchmark.train_stream[:2]:
    strategy.train(experience)
    strategy.eval(benchmark.test_stream[: experience.current_experience + 1])

print("accuracy on task j after learning task i, Class-IL:")
print(class_il.matrix().round(2))
print("and Task-IL:")
print(task_il.matrix().round(2))
