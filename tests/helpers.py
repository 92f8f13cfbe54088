"""Small learnable streams, models and state snapshots that the tests share."""

import contextlib
import copy
import os
import random
import resource
import signal

import numpy as np
import pytest
import torch
from avalanche.benchmarks import (
    class_incremental_benchmark,
    dataset_benchmark,
    nc_benchmark,
    tensors_benchmark,
)
from avalanche.benchmarks.utils import as_classification_dataset
from avalanche.core import SupervisedPlugin
from avalanche.models import IncrementalClassifier, SimpleCNN, SimpleMLP, SlimResNet18, as_multitask
from PIL import Image
from torch import nn
from torch.optim import SGD
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.data import TensorDataset
from torchvision.models import resnet18
from torchvision.transforms import Compose, Normalize, ToTensor

from avalanche_dlcpa import DLCPAStrategy
from avalanche_dlcpa.self_supervised import HEADS

# Training ---------------------------------------------------------------------------------------


def assert_learns(strategy, experiences):
    """Train, after which each weight that the optimizer holds is another one, and finite.

    But for biases: those before a batch norm have no gradient.
    """
    before = {p: p.detach().clone() for p in weights_in(strategy.optimizer)}
    strategy.train(experiences)
    learned = [p for p in weights_in(strategy.optimizer) if p in before]
    assert learned
    assert all(p.isfinite().all() for p in learned)
    assert not any(torch.equal(p, before[p]) for p in learned)


def weights_in(optimizer):
    return [p for group in optimizer.param_groups for p in group["params"] if p.ndim > 1]


# Streams ----------------------------------------------------------------------------------------


class WithTargets(TensorDataset):
    """A tensor dataset that tells its targets, as torchvision's do."""

    @property
    def targets(self):
        return self.tensors[1].tolist()


class PILImages:
    """uint8 images as PIL with transforms of their own, as CIFAR's classes in torchvision."""

    def __init__(self, images, targets):
        self.images = (images * 255).byte().permute(0, 2, 3, 1).numpy()
        self.targets = targets.tolist()
        self.transform = Compose([ToTensor(), Normalize([0.5] * 3, [0.25] * 3)])

    def __getitem__(self, index):
        return self.transform(Image.fromarray(self.images[index])), self.targets[index]

    def __len__(self):
        return len(self.targets)


def images_of(labels, *, size=16, channels=3, seed=0):
    """Images in [0, 1] of easily told classes: a class is a colour and a coarse pattern."""
    corners = torch.tensor([[int(bit) for bit in f"{k:03b}"] for k in range(8)]).float()
    colors = corners[torch.tensor([1, 6, 2, 5, 4, 3, 0, 7])][torch.arange(24) % 8, :channels]
    patterns = torch.rand(24, 1, 2, 2, generator=torch.Generator().manual_seed(3)).round()
    prototypes = 0.7 * colors[:, :, None, None] + 0.2 * patterns
    prototypes = nn.functional.interpolate(prototypes, size=(size, size))
    generator = torch.Generator().manual_seed(seed)
    noise = torch.rand(len(labels), channels, size, size, generator=generator)
    return prototypes[labels] + 0.1 * noise


def samples(classes, *, per_class=40, size=16, channels=3, seed=0):
    """Images and labels of some classes, in random order."""
    labels = torch.tensor(sorted(classes)).repeat(per_class)
    labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))]
    return images_of(labels, size=size, channels=channels, seed=seed), labels


def two_splits(classes, *, per_class=40, **kwargs):
    """Training and test samples."""
    train = samples(classes, per_class=per_class, seed=0, **kwargs)
    return train, samples(classes, per_class=max(1, per_class // 2), seed=1, **kwargs)


def nc_stream(*, task_labels=False, from_zero=False, num_classes=6, num_experiences=3, **kwargs):
    train, test = (WithTargets(*part) for part in two_splits(range(num_classes), **kwargs))
    return nc_benchmark(
        train,
        test,
        n_experiences=num_experiences,
        task_labels=task_labels,
        shuffle=False,
        class_ids_from_zero_in_each_exp=from_zero,
    )


def class_incremental_stream(*, num_classes=6, num_experiences=3, **kwargs):
    """New-style stream: class sets, samples of two parts, no task labels."""
    train, test = (WithTargets(*part) for part in two_splits(range(num_classes), **kwargs))
    return class_incremental_benchmark(
        {"train": as_classification_dataset(train), "test": as_classification_dataset(test)},
        class_order=list(range(num_classes)),
        num_experiences=num_experiences,
    )


def tensors_stream(tasks=((0, 1), (2, 3), (4, 5)), *, task_labels=None, **kwargs):
    """A stream with the given classes in each experience, without task labels by default."""
    splits = [two_splits(classes, **kwargs) for classes in tasks]
    return tensors_benchmark(
        train_tensors=[train for train, _ in splits],
        test_tensors=[test for _, test in splits],
        task_labels=[0] * len(splits) if task_labels is None else task_labels,
    )


def cifar_style_stream(tasks=((10, 19), (11, 18), (12, 17)), **kwargs):
    """PIL images with ToTensor and Normalize, labels 10..19."""
    splits = [two_splits(classes, **kwargs) for classes in tasks]
    return dataset_benchmark(
        [PILImages(*train) for train, _ in splits], [PILImages(*test) for _, test in splits]
    )


STREAMS = {
    "nc": nc_stream,
    "nc with task labels": lambda **kw: nc_stream(task_labels=True, **kw),
    "nc with labels from zero": lambda **kw: nc_stream(task_labels=True, from_zero=True, **kw),
    "class incremental": class_incremental_stream,
    "tensors": tensors_stream,
    "CIFAR style": cifar_style_stream,
}

# Models -----------------------------------------------------------------------------------------


class SmallCNN(nn.Module):
    """Convolution, (batch norm,) pooling and a head named `fc`; 16 features."""

    def __init__(self, num_classes=6, *, batch_norm=True, channels=3, head=None):
        super().__init__()
        norm = nn.BatchNorm2d(16) if batch_norm else nn.Identity()
        self.conv = nn.Conv2d(channels, 16, 3, padding=1, stride=2)
        self.norm = norm
        self.fc = nn.Linear(64, num_classes) if head is None else head

    def forward(self, x):
        x = self.norm(self.conv(x)).relu()
        return self.fc(nn.functional.adaptive_avg_pool2d(x, 2).flatten(1))


class VersionedCNN(SmallCNN):
    """Its first version had the channels of its convolution the other way round."""

    _version = 2

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, *args):
        if local_metadata.get("version", 1) < 2:
            state_dict[f"{prefix}conv.weight"] = state_dict[f"{prefix}conv.weight"].flip(1)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)


def mlp(num_classes=6, *, size=16, channels=3, hidden_size=32, drop_rate=0.0):
    return SimpleMLP(
        num_classes=num_classes,
        input_size=channels * size * size,
        hidden_size=hidden_size,
        drop_rate=drop_rate,
    )


MODELS = {
    "SimpleMLP": mlp,
    "SimpleCNN": lambda: SimpleCNN(num_classes=6),
    "SlimResNet18": lambda: SlimResNet18(nclasses=6, nf=8),
    "resnet18": lambda: resnet18(num_classes=6),
    "IncrementalClassifier": lambda: SmallCNN(head=IncrementalClassifier(64)),
    "as_multitask": lambda: as_multitask(SlimResNet18(nclasses=2, nf=8), "linear"),
}
IMAGE_SIZE = {"SlimResNet18": 32, "as_multitask": 32}


SMALL_HEADS = {  # arguments that suit small mini-batches and a quick test
    "mocov2": {"queue_size": 128},
    "byol": {"hidden_features": 32, "out_features": 48},
    "vicreg": {"hidden_features": 32, "out_features": 48},
    "barlow": {"hidden_features": 32, "out_features": 48},
    "simsiam": {"hidden_features": 32, "out_features": 48, "predictor_features": 16},
    "nnclr": {
        "queue_size": 128,
        "hidden_features": 32,
        "out_features": 48,
        "predictor_features": 16,
    },
}


def small_head(name):
    """A self-supervised head by its name; None for None."""
    return None if name is None else HEADS[name](**SMALL_HEADS.get(name, {}))


def strategy_of(model, *, lr=0.05, momentum=0.0, optimizer=None, **kwargs):
    """A strategy with small mini-batches and without loggers."""
    if optimizer is None:
        optimizer = SGD(model.parameters(), lr=lr, momentum=momentum)
    defaults = {"train_mb_size": 16, "eval_mb_size": 64, "evaluator": None, "ssl": None}
    return DLCPAStrategy(model=model, optimizer=optimizer, **defaults | kwargs)


class Probe(SupervisedPlugin):
    """Calls a function at a hook and keeps what it returns."""

    def __init__(self, **functions):
        super().__init__()
        self.seen = {hook: [] for hook in functions}
        for hook, function in functions.items():
            setattr(self, hook, self._keep(hook, function))

    def _keep(self, hook, function):
        return lambda strategy, **kwargs: self.seen[hook].append(function(strategy))


def batch_of(experience):
    images, labels = zip(*[sample[:2] for sample in experience.dataset], strict=True)
    return torch.stack(images), torch.tensor(labels)


# State ------------------------------------------------------------------------------------------


def seed_everything(seed=0):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def state_of(*modules):
    """Copies of all parameters and buffers, by name."""
    return {
        f"{index}.{name}": tensor.detach().clone()
        for index, module in enumerate(modules)
        if module is not None
        for name, tensor in module.state_dict().items()
    }


def assert_same_state(actual, expected):
    """Bit for bit."""
    assert actual.keys() == expected.keys()
    different = [
        name
        for name, tensor in expected.items()
        if not torch.equal(actual[name].nan_to_num(1e9), tensor.nan_to_num(1e9))
    ]
    assert not different


def copies(parameters):
    return [parameter.detach().clone() for parameter in parameters]


def optimized(optimizer):
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def clone(module):
    return copy.deepcopy(module)


# Files ------------------------------------------------------------------------------------------


class Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@contextlib.contextmanager
def small_disk():
    """Files may grow to 4,000 bytes and no further, as on a disk that is full.

    Also those that pytest itself writes: to be left before it reports.
    """
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


class Operations(TorchDispatchMode):
    """Names of all operations, of those with results on the CPU, and the devices of all results."""

    def __init__(self):
        super().__init__()
        self.names, self.on_host, self.devices = set(), set(), set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        self.names.add(name)
        result = func(*args, **(kwargs or {}))
        places = {getattr(leaf, "device", None) for leaf in tree_leaves(result)}
        self.on_host |= {name} if torch.device("cpu") in places else set()
        self.devices |= places
        return result


WAITING_OPERATIONS = {
    *("_local_scalar_dense", "nonzero", "masked_select"),
    *("lift_fresh", "index", "index_put_"),
}

# Without a device its tensors can be faked, by a CUDA build; by torch 2.6 with a device alone.
needs_cuda_build = pytest.mark.skipif(
    not torch.backends.cuda.is_built()
    or (torch.__version__ < "2.7" and not torch.cuda.is_available()),
    reason="needs a CUDA build, but no device; with torch 2.6 a device, too",
)
