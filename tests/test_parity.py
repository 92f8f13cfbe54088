"""Step-for-step parity with recorded runs of an independent implementation (fixtures/README.md)."""

from pathlib import Path

import numpy as np
import pytest
import torch
from avalanche.benchmarks import tensors_benchmark
from avalanche.training.plugins import SupervisedPlugin
from torch.nn import CrossEntropyLoss
from torch.optim import SGD
from torch.optim.lr_scheduler import MultiStepLR

from avalanche_dlcpa import DLCPAStrategy, cuda_graph
from avalanche_dlcpa.backbones import SmallImageResNet
from avalanche_dlcpa.self_supervised import MoCoV2, SimCLR

FIXTURES = Path(__file__).parent / "fixtures"
STEPS, EPOCHS, BATCH = 8, 2, 8


class Recording:
    def __init__(self, name):
        self.arrays = dict(np.load(FIXTURES / f"trajectory_{name}.npz"))

    def tensor(self, key):
        return torch.from_numpy(self.arrays[key].copy())

    def state(self, prefix):
        prefix += "/"
        keys = [key for key in self.arrays if key.startswith(prefix)]
        return {key.removeprefix(prefix): self.tensor(key) for key in keys}


class Playback(SupervisedPlugin):
    """Puts the recorded labels, queue and views where the strategy would have its own."""

    def __init__(self, recording):
        super().__init__()
        self.recording, self.task, self.step = recording, -1, 0
        self.num_replays = []

    def before_training_exp(self, strategy, **kwargs):
        self.task, self.step = self.task + 1, 0
        if isinstance(strategy.ssl, MoCoV2):
            strategy.ssl.queue.copy_(self.recording.tensor(f"task{self.task}/queue"))

    def before_training_iteration(self, strategy, **kwargs):
        labels = self.recording.tensor(f"task{self.task}/labels")[self.step]
        strategy.mbatch[1] = labels.to(strategy.device)

    def after_training_epoch(self, strategy, **kwargs):
        graph = strategy._graph
        self.num_replays.append(None if graph is None else graph.num_replays)

    def views(self, x):
        view1 = self.recording.tensor(f"task{self.task}/view1")[self.step]
        view2 = self.recording.tensor(f"task{self.task}/view2")[self.step]
        self.step += 1
        return view1.to(x.device), view2.to(x.device)


def recorded_strategy(name, head, average_source, **options):
    recording = Recording(name)
    model = SmallImageResNet((1, 1, 1, 1), num_classes=4, width=4, stem_relu=False)
    model.load_state_dict(
        recording.state("init/plastic")
        | {f"linear.{k}": v for k, v in recording.state("init/classifier").items()}
    )
    playback = Playback(recording)

    def schedule(optimizer):
        return MultiStepLR(optimizer, [EPOCHS - 1])

    strategy = DLCPAStrategy(
        model=model,
        optimizer=SGD(model.parameters(), lr=0.05),
        criterion=CrossEntropyLoss(),
        ssl=head,
        supervised_weight=10.0,
        classifier_lr=0.2,
        scheduler=schedule,
        classifier_scheduler=schedule,
        views=playback.views,
        average_source=average_source,
        train_mb_size=BATCH,
        train_epochs=EPOCHS,
        plugins=[playback],
        evaluator=None,
        **options,
    )
    strategy.model.stable.load_state_dict(recording.state("init/stable"))
    if isinstance(head, SimCLR):
        head.projector.load_state_dict(recording.state("init/projector"))
    else:
        head.momentum_encoder.load_state_dict(recording.state("init/momentum"))
    return recording, strategy


def replay_soon(monkeypatch):
    """Else an epoch of 4 iterations is over before there is a graph to speak of."""
    monkeypatch.setattr(cuda_graph.StepGraph, "warm_up_iterations", 2)  # the first is watched
    monkeypatch.setattr(cuda_graph.StepGraph, "min_replays", 0)


def num_replays_of(strategy):
    """Of each epoch; the learning rate changes at the second, and one iteration warms up again."""
    [counts] = [p.num_replays for p in strategy.plugins if isinstance(p, Playback)]
    return counts


REPLAYED = 2 * [2, 3]


def without_tf32():
    """Convolutions of cuDNN in full precision; `flags` would switch cuDNN off by default."""
    return torch.backends.cudnn.flags(enabled=True, allow_tf32=False)


def test_full_precision_is_one_of_cudnn():
    with without_tf32():
        assert torch.backends.cudnn.enabled
        assert not torch.backends.cudnn.allow_tf32


def two_tasks():
    images = torch.rand(STEPS // EPOCHS * BATCH, 3, 16, 16)
    tasks = [(images, torch.arange(len(images)) % 2 + 2 * task) for task in range(2)]
    return tensors_benchmark(train_tensors=tasks, test_tensors=tasks, task_labels=[0, 0])


def assert_state(module, expected):
    state = module.state_dict()
    assert expected.keys() <= state.keys()
    for key, value in expected.items():
        torch.testing.assert_close(
            state[key].cpu(), value, rtol=1e-4, atol=1e-4, msg=lambda m, k=key: f"{k}: {m}"
        )


class OnStaticTensors:
    """A graph but for CUDA's capture: the step runs on tensors that stay."""

    num_captures = 0

    def warm_up(self, run):
        return run()

    def capture(self, run):
        self.num_captures += 1
        return run


def assert_follows(recording, strategy):
    for task, experience in enumerate(two_tasks().train_stream):
        strategy.train(experience)
        at = f"task{task}"
        assert_state(strategy.model.plastic, recording.state(f"{at}/plastic"))
        assert_state(strategy.model.stable, recording.state(f"{at}/stable"))
        if isinstance(strategy.ssl, SimCLR):
            assert_state(strategy.ssl.projector, recording.state(f"{at}/projector"))
        else:
            assert_state(strategy.ssl.momentum_encoder, recording.state(f"{at}/momentum"))
        classifier = recording.state(f"{at}/classifier")
        layers = strategy.model.classifiers.layers
        learned = 2 * (task + 1)
        for part in ("weight", "bias"):
            ours = torch.cat([getattr(layer, part) for layer in layers])
            torch.testing.assert_close(ours.cpu(), classifier[part][:learned], rtol=1e-4, atol=1e-4)


with_each_head = pytest.mark.parametrize(
    ("name", "head", "average_source"),
    [
        ("simclr", SimCLR, "plastic"),
        ("mocov2", lambda: MoCoV2(queue_size=64), "momentum"),
    ],
)


@pytest.mark.parametrize("path", ["hook by hook", "avalanche's loader", "graph", "channels last"])
@with_each_head
def test_training_follows_the_recorded_weights(name, head, average_source, path, monkeypatch):
    backend = OnStaticTensors()
    if path == "graph":
        monkeypatch.setitem(cuda_graph.BACKENDS, "cpu", lambda device: backend)
        replay_soon(monkeypatch)
    options = {"image_cache_bytes": 0} if path == "avalanche's loader" else {}
    recording, strategy = recorded_strategy(name, head(), average_source, **options)
    if path == "channels last":
        strategy.model.to(memory_format=torch.channels_last)
        strategy.ssl.to(memory_format=torch.channels_last)
    assert_follows(recording, strategy)
    assert backend.num_captures == (4 if path == "graph" else 0)  # the learning rate changes
    assert num_replays_of(strategy) == (REPLAYED if path == "graph" else 4 * [None])


@pytest.mark.gpu
@pytest.mark.parametrize("is_graph", [False, True])
@with_each_head
def test_training_on_a_gpu_follows_the_recorded_weights(
    name, head, average_source, is_graph, monkeypatch
):
    """Without TF32, whose convolutions are right to a thousandth."""
    replay_soon(monkeypatch)
    options = {"device": "cuda", "cuda_graph": is_graph}
    recording, strategy = recorded_strategy(name, head(), average_source, **options)
    with without_tf32():
        assert_follows(recording, strategy)
    assert num_replays_of(strategy) == (REPLAYED if is_graph else 4 * [None])
