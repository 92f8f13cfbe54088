"""Data of one's own: any tensors or torch datasets, through Avalanche's benchmark builders."""

import torch
from avalanche.benchmarks import nc_benchmark
from torch.optim import SGD
from torch.utils.data import TensorDataset

from avalanche_dlcpa import DLCPAStrategy, PaperViews
from avalanche_dlcpa.backbones import resnet18

# Images already normalised with mean 0.5 and deviation 0.25: the views must know these constants.
# Where the stream has a torchvision Normalize, the views find the constants by themselves.
labels = torch.arange(400) % 4
images = (torch.rand(400, 3, 16, 16) * 0.5 + labels.view(-1, 1, 1, 1) / 8 - 0.5) / 0.25
dataset = TensorDataset(images, labels)

benchmark = nc_benchmark(dataset, dataset, n_experiences=2, task_labels=False, shuffle=False)
model = resnet18(num_classes=4, width=8)
strategy = DLCPAStrategy(
    model=model,
    optimizer=SGD(model.parameters(), lr=0.05),
    views=PaperViews(mean=[0.5], std=[0.25]),
    train_mb_size=32,
    train_epochs=2,
    eval_mb_size=256,
)
for experience in benchmark.train_stream:
    strategy.train(experience)
    print(strategy.eval(benchmark.test_stream))
