"""DLCPA in the place of EWC: the same keyword arguments, the same loop.

Two epochs, and views for natural images on digits: this shows the loop, not what DLCPA can do.
"""

from avalanche.training.plugins import EvaluationPlugin
from torch.nn import CrossEntropyLoss
from torch.optim import SGD

from avalanche_dlcpa import DLCPAStrategy, seed_everything
from avalanche_dlcpa.backbones import resnet18
from avalanche_dlcpa.metrics import scenario_metrics
from avalanche_dlcpa.streams import split_digits

seed_everything(0)
benchmark = split_digits(5)
model = resnet18(num_classes=10, in_channels=1, width=8)
class_il, task_il = scenario_metrics()

# strategy = EWC(ewc_lambda=100, model=model, ...)
strategy = DLCPAStrategy(
    model=model,
    optimizer=SGD(model.parameters(), lr=0.05),
    criterion=CrossEntropyLoss(),
    train_mb_size=32,
    train_epochs=2,
    eval_mb_size=256,
    evaluator=EvaluationPlugin(class_il, task_il),
)
for experience in benchmark.train_stream:
    strategy.train(experience)
    strategy.eval(benchmark.test_stream[: experience.current_experience + 1])

print("accuracy on task j after learning task i, Class-IL:")
print(class_il.matrix().round(3))
print("and Task-IL:")
print(task_il.matrix().round(3))
