"""The plugins on a strategy of Avalanche's: EWC whose models are averaged over experiences."""

from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.supervised import EWC
from torch.nn import CrossEntropyLoss
from torch.optim import SGD

from avalanche_dlcpa import ClassifierAlignmentPlugin, CumulativeParameterAveragingPlugin
from avalanche_dlcpa.backbones import resnet18
from avalanche_dlcpa.metrics import scenario_metrics
from avalanche_dlcpa.streams import split_digits

benchmark = split_digits(5)
model = resnet18(num_classes=10, in_channels=1, width=8)
class_il, task_il = scenario_metrics()

average = CumulativeParameterAveragingPlugin()  # evaluation answers with average.averaged_model
alignment = ClassifierAlignmentPlugin(average, lr=0.1)  # its last layer, trained anew
strategy = EWC(
    model=model,
    optimizer=SGD(model.parameters(), lr=0.05),
    criterion=CrossEntropyLoss(),
    ewc_lambda=1.0,
    train_mb_size=32,
    train_epochs=2,
    eval_mb_size=256,
    plugins=[average, alignment],
    evaluator=EvaluationPlugin(class_il, task_il),
)
for experience in benchmark.train_stream:
    strategy.train(experience)
    strategy.eval(benchmark.test_stream[: experience.current_experience + 1])

print("Task-IL accuracy on task j after learning task i:")
print(task_il.matrix().round(3))
