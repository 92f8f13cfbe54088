"""After `train` returns nothing reachable from the strategy holds samples or features, and the
memory grows by the classifiers alone.
"""

import functools

import pytest
import torch
from avalanche.benchmarks import tensors_benchmark
from avalanche.evaluation.metrics import accuracy_metrics, loss_metrics
from avalanche.training.plugins import EvaluationPlugin, ReplayPlugin, SupervisedPlugin
from avalanche.training.supervised import Naive
from helpers import SmallCNN, batch_of, small_head, strategy_of
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR
from walker import holding, package_globals, reachable, shaped_like, tensors_in

from avalanche_dlcpa import GaussianClassifierPlugin
from avalanche_dlcpa.self_supervised import HEADS
from avalanche_dlcpa.views import PaperViews

SHAPE = (3, 12, 10)  # of the images; no parameter has it
SEEN = {}  # what passed through the strategy; a global, which the walker does not follow


def record(name, rows):
    SEEN.setdefault(name, []).append(rows.detach().flatten(1).clone())


def recorded():
    return {name: torch.cat(parts) for name, parts in SEEN.items()}


def recording_views(x):
    record("samples", x)
    views = PaperViews()(x)
    for view in views:
        record("views", view)
    return views


def record_features(module, inputs, output):
    record(f"{output.shape[1]} features", output)
    record(f"{output.shape[1]} normalised", nn.functional.normalize(output, dim=1))


def stream_of(*, tasks=((0, 1), (2, 3)), per_class=8):
    generator = torch.Generator().manual_seed(0)

    def split(classes):
        labels = torch.tensor(classes).repeat(per_class)
        return torch.rand(len(labels), *SHAPE, generator=generator), labels

    splits = [split(classes) for classes in tasks]
    return tensors_benchmark(splits, splits, task_labels=[0] * len(splits))


def trained(ssl="mocov2", **kwargs):
    """A strategy after two experiences whose samples, views and features were recorded."""
    SEEN.clear()
    head = small_head(ssl)
    strategy = strategy_of(
        SmallCNN(), ssl=head, views=recording_views, momentum=0.9, lr=0.001, **kwargs
    )
    hooked = [strategy.model.plastic, strategy.model.stable]
    if head is not None:
        hooked += [m for n, m in head.named_children() if n in ("momentum_encoder", "projector")]
    for module in hooked:
        module.register_forward_hook(record_features)
    stream = stream_of()
    for experience in stream.train_stream:
        strategy.train(experience, eval_streams=[stream.test_stream])
    return strategy


def leaks_of(strategy):
    objects = reachable(strategy, *package_globals("avalanche_dlcpa"))
    leaks = {name: holding(objects, rows) for name, rows in recorded().items()}
    leaks["shapes"] = shaped_like(objects, SHAPE)
    return {name: found for name, found in leaks.items() if found}


@pytest.mark.parametrize("ssl", [None, *HEADS])
def test_nothing_stays_of_an_experience(ssl):
    strategy = trained(ssl)
    assert recorded().keys() >= {"samples", "views", "64 features", "64 normalised"}
    assert len(recorded()["samples"]) == 32
    assert leaks_of(strategy) == {}


@pytest.mark.parametrize(
    "options",
    [
        {"plastic_classifier": "temporary"},
        {"classifier_features": "plastic"},
        {"average_source": "momentum", "bn_statistics": "recalibrated"},
        {"train_mb_size": 15},  # leaves one sample out
        {"eval_every": 1},
        {"classifier": "gaussian"},
        {"scheduler": lambda optimizer: StepLR(optimizer, 1)},
    ],
)
@pytest.mark.filterwarnings("ignore:A mini-batch of one sample")
def test_nothing_stays_with_any_option(options):
    metrics = [
        accuracy_metrics(minibatch=True, epoch=True, stream=True),
        loss_metrics(minibatch=True, experience=True),
    ]
    strategy = trained(evaluator=EvaluationPlugin(*metrics), **options)
    strategy.eval(stream_of().test_stream)
    assert leaks_of(strategy) == {}


@pytest.mark.parametrize("views", [None, recording_views])
def test_nothing_stays_after_an_evaluation(views):
    SEEN.clear()
    strategy = strategy_of(SmallCNN(), views=views)
    strategy.model.stable.register_forward_hook(record_features)
    stream = stream_of()
    strategy.train(stream.train_stream[0])
    strategy.eval(stream.test_stream)
    record("samples", batch_of(stream.test_stream[0])[0])
    assert leaks_of(strategy) == {}


def test_nothing_stays_in_a_plugin_of_another_strategy():
    SEEN.clear()
    model = SmallCNN()
    model.fc.register_forward_pre_hook(lambda _, inputs: record("64 features", inputs[0]))
    plugin = GaussianClassifierPlugin()
    strategy = Naive(
        model=model,
        optimizer=SGD(model.parameters(), lr=0.001),
        train_mb_size=8,
        eval_mb_size=8,
        plugins=[plugin],
        evaluator=EvaluationPlugin(accuracy_metrics(stream=True)),
    )
    stream = stream_of()
    for experience in stream.train_stream:
        record("samples", batch_of(experience)[0])
        strategy.train(experience)
        strategy.eval(stream.test_stream)
    assert plugin.statistics is not None
    looked_at = 8 + 8  # a copy, in training and in evaluation mode
    assert recorded()["64 features"].shape == (looked_at + 32 + 2 * 32, 64)
    assert leaks_of(strategy) == {}


def test_replay_keeps_what_the_user_asks_it_to_keep():
    strategy = trained(plugins=[ReplayPlugin(mem_size=8)])
    assert "samples" in leaks_of(strategy)


# The walker finds what is there -------------------------------------------------------------------


class Remembers(SupervisedPlugin):
    def __init__(self, rows):
        super().__init__()
        self.memory = {"some": [(rows,)]}


def in_a_closure(strategy, rows):
    strategy.criterion_of_mine = lambda: rows.sum()


def in_a_graph(strategy, rows):
    weight = torch.ones_like(rows, requires_grad=True)
    strategy.last = (weight * rows).sum()  # saves rows for the backward pass


def in_a_gradient(strategy, rows):
    parameter = next(strategy.model.parameters())
    parameter.grad = torch.zeros_like(parameter)
    parameter.grad.view(-1)[: rows.numel()] = rows.flatten()


def in_a_generator(strategy, rows):
    def generator():
        yield rows

    strategy.loader_of_mine = generator()


PLACES = {
    "attribute": lambda s, rows: setattr(s, "kept", rows),
    "buffer": lambda s, rows: s.model.plastic.register_buffer("kept", rows),
    "a small part": lambda s, rows: setattr(s, "kept", rows[0, :4]),  # of the same storage
    "transposed": lambda s, rows: setattr(s, "kept", rows.T.contiguous()),
    "other type": lambda s, rows: setattr(s, "kept", rows.double()),
    "numpy": lambda s, rows: setattr(s, "kept", rows.numpy()),
    "plugin": lambda s, rows: s.plugins.append(Remembers(rows)),
    "partial": lambda s, rows: setattr(s, "kept", functools.partial(print, rows)),
    "optimizer state": lambda s, rows: s.optimizer.state[rows].update(buffer=rows),
    "head": lambda s, rows: s.ssl.queue[:, 0].copy_(rows[0, :64]),
    "hook": lambda s, rows: s.model.stable.register_forward_hook(lambda *_, kept=rows: None),
    "closure": in_a_closure,
    "graph": in_a_graph,
    "gradient": in_a_gradient,
    "generator": in_a_generator,
}


@pytest.mark.parametrize("place", PLACES)
def test_the_walker_finds_a_planted_sample(place):
    strategy = trained()
    assert leaks_of(strategy) == {}
    name = "64 normalised" if place == "head" else "samples"
    PLACES[place](strategy, recorded()[name][:1].clone())
    objects = reachable(strategy)
    assert holding(objects, recorded()[name])


def test_the_walker_finds_images_by_their_shape():
    strategy = trained()
    strategy.kept = torch.rand(2, *SHAPE)  # say, a view that nobody recorded
    assert leaks_of(strategy).keys() == {"shapes"}


# Memory -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{}, {"average_source": "momentum"}, {"classifier": "gaussian"}]
)
def test_memory_grows_by_the_new_classifiers_only(options):
    tasks = [(2 * task, 2 * task + 1) for task in range(50)]
    stream = stream_of(tasks=tasks, per_class=4)
    strategy = strategy_of(
        SmallCNN(),
        ssl=small_head("mocov2"),
        momentum=0.9,
        train_mb_size=8,
        lr=1e-4,
        scheduler=lambda optimizer: StepLR(optimizer, 1),
        classifier_scheduler=lambda optimizer: StepLR(optimizer, 1),
        **options,
    )

    def numbers():
        kept = [*strategy.model.parameters(), *strategy.model.buffers()]
        kept += [*strategy.ssl.parameters(), *strategy.ssl.buffers()]
        objects = reachable(strategy)
        everything = sum(flat.numel() for _, flat in tensors_in(objects))
        return sum(tensor.numel() for tensor in kept), everything, len(objects)

    strategy.train(stream.train_stream[:2])
    strategy.eval(stream.test_stream[0])
    kept, everything, objects = numbers()
    strategy.train(stream.train_stream[2:])
    strategy.eval(stream.test_stream[0])
    kept_later, everything_later, objects_later = numbers()
    classifiers = 48 * (2 * 64 + 2)
    statistics = 48 * 2 * (64 + 1) if "classifier" in options else 0  # means and counts
    layers = 2 if statistics else 1
    assert kept_later - kept == layers * classifiers
    # beside them only the task and class label of each column
    most = layers * (classifiers + 48 * 2 * 2) + statistics
    assert everything_later - everything <= most
    assert objects_later - objects < 48 * 100  # a module and its parameters take some 50
