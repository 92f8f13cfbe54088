"""Whole iterations replayed as a graph: the same numbers, and back to hooks where it would not be.

On a CPU the step runs eagerly on the static tensors of a graph, so that everything but CUDA's own
capture is tested; tests marked gpu capture for real.
"""

import copy
import io
import logging
import random
import threading
from typing import NamedTuple

import numpy as np
import pytest
import torch
from avalanche.evaluation.metrics import accuracy_metrics, loss_metrics
from avalanche.logging import TextLogger
from avalanche.training.plugins import (
    EvaluationPlugin,
    LRSchedulerPlugin,
    ReplayPlugin,
)
from helpers import (
    WAITING_OPERATIONS,
    Operations,
    Probe,
    SmallCNN,
    assert_same_state,
    nc_stream,
    needs_cuda_build,
    seed_everything,
    small_head,
    state_of,
    strategy_of,
    tensors_stream,
)
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.optim import SGD, Adagrad, Adam
from torch.optim.lr_scheduler import MultiStepLR, StepLR
from torch.optim.optimizer import register_optimizer_step_post_hook

from avalanche_dlcpa import DLCPAStrategy, PaperViews, cuda_graph
from avalanche_dlcpa.classifier_scope import scope_of
from avalanche_dlcpa.graph_guards import HOOKS_AMID, on_host, what_stays
from avalanche_dlcpa.learning_steps import LearningSteps
from avalanche_dlcpa.loss_watch import LossWatch
from avalanche_dlcpa.self_supervised import HEADS
from benchmarks.step_comparison import StepComparison


class Counts(NamedTuple):
    num_captures: int
    num_replays: int


def counts(strategy):
    graph = strategy._graph
    return None if graph is None else Counts(graph.num_captures, graph.num_replays)


class OnStaticTensors:
    """What CUDA's capture does, but for the capture: the step runs on tensors that stay."""

    def __init__(self, fails_with=None):
        self.fails_with = fails_with
        self.steps = []

    def warm_up(self, run):
        return run()

    def capture(self, run):
        if self.fails_with is not None:
            raise self.fails_with
        self.steps.append(run)
        return run


@pytest.fixture
def graphs(monkeypatch):
    backend = OnStaticTensors()
    monkeypatch.setitem(cuda_graph.BACKENDS, "cpu", lambda device: backend)
    return backend


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.WARNING, logger="avalanche_dlcpa.cuda_graph")
    return caplog


def trained(*, cuda_graph, stream=None, ssl="mocov2", momentum=0.9, **kwargs):
    """Three experiences of 40 images, 3 epochs of 3 mini-batches, the last of which is smaller."""
    seed_everything()
    seen = Probe(after_training_epoch=counts)
    plugins = [*kwargs.pop("plugins", []), seen]
    metrics = [accuracy_metrics(epoch=True), loss_metrics(epoch=True)]
    evaluator = EvaluationPlugin(*kwargs.pop("metrics", metrics))
    strategy = strategy_of(
        SmallCNN(), ssl=small_head(ssl), cuda_graph=cuda_graph, plugins=plugins,
        evaluator=evaluator, momentum=momentum, lr=0.01, train_epochs=7, **kwargs,
    )  # fmt: skip
    stream = tensors_stream(size=8, per_class=20) if stream is None else stream
    metrics = [strategy.train(experience) for experience in stream.train_stream]
    return strategy, metrics, seen.seen["after_training_epoch"]


def assert_same_training(**kwargs):
    plain, expected, none = trained(cuda_graph=False, **kwargs)
    graphed, metrics, seen = trained(cuda_graph=True, **kwargs)
    assert set(none) == {None}
    assert metrics == expected
    assert_same_state(state_of(graphed.model, graphed.ssl), state_of(plain.model, plain.ssl))
    return seen


WAITING = [name for name in HEADS if HEADS[name].waits_for_device]


@pytest.mark.parametrize("ssl", WAITING)
def test_a_loss_that_waits_for_the_device_is_not_captured(graphs, log, ssl):
    assert set(assert_same_training(ssl=ssl)) == {None}
    assert f"the loss of {HEADS[ssl].__name__} waits for the device" in log.text


def test_the_rest_of_an_epoch_does_not_decide_what_is_captured():
    def step(x):
        return (2 * x,)

    graph = cuda_graph.StepGraph(
        step, fixed=lambda: 0, on_host=lambda: 0, backend=OnStaticTensors()
    )
    for size in (3, 8, 3, 8, 8, 8):
        x = torch.arange(float(size))
        assert torch.equal(graph(x)[0], 2 * x)
    assert graph.num_captures == 1
    assert graph.num_replays == 1


@pytest.mark.parametrize("ssl", [None, *sorted(set(HEADS) - set(WAITING))])
def test_a_replayed_step_is_the_step_hook_by_hook(graphs, log, ssl):
    seen = assert_same_training(ssl=ssl)
    # 3 of the 14 full mini-batches of an experience warm up
    assert [graph.num_replays for graph in seen] == 3 * [0, 1, 3, 5, 7, 9, 11]
    assert {graph.num_captures for graph in seen[1:7]} == {1}
    assert not log.records


@pytest.mark.parametrize(
    "options",
    [
        {"plastic_classifier": "temporary"},
        {"classifier_features": "plastic"},
        {"stable_update": "ema"},
        {"average_source": "momentum"},
        {"precision": "bf16"},
        {"views": lambda x: (x + torch.rand(len(x), 1, 1, 1), x.flip(-1))},
        {"image_cache_bytes": 0},
    ],
    ids=lambda options: next(iter(options)),
)
def test_every_option_is_replayed(graphs, log, options):
    seen = assert_same_training(**options)
    assert seen[-1].num_replays == 11
    assert not log.records


def test_task_labels_are_replayed(graphs):
    stream = nc_stream(task_labels=True, from_zero=True, size=8, per_class=20)
    assert assert_same_training(stream=stream)[-1].num_replays == 11


def test_views_of_ones_own_stay_outside(graphs):
    """A graph would repeat the numbers that they drew when it was captured."""
    drawn = []

    def views(x):
        drawn.append(len(x))
        return x, x.flip(-1)

    trained(cuda_graph=True, views=views)
    assert drawn == 3 * 7 * [16, 16, 8]


def test_another_learning_rate_is_captured_anew(graphs, log):
    def scheduler(optimizer):
        return MultiStepLR(optimizer, [6])

    seen = assert_same_training(scheduler=scheduler)
    assert seen[6].num_captures == 2
    assert seen[6].num_replays == 1  # after an iteration without
    seen = assert_same_training(classifier_scheduler=scheduler)
    assert seen[6].num_captures == 2
    assert not log.records


def test_a_learning_rate_that_always_changes_ends_the_graph(graphs, log):
    seen = assert_same_training(scheduler=lambda optimizer: StepLR(optimizer, 1, gamma=0.9))
    assert {graph.num_captures for graph in seen} == {0, 1}
    assert "change within 8 iterations" in log.text


@pytest.mark.parametrize(
    "change",
    [
        lambda strategy: setattr(strategy, "supervised_weight", 1.0),
        lambda strategy: setattr(strategy.ssl, "temperature", 0.5),
        lambda strategy: strategy.model.plastic.conv.requires_grad_(False),
        lambda strategy: strategy.model.plastic.norm.eval(),
        lambda strategy: setattr(strategy.model.plastic.norm, "momentum", 0.5),
        lambda strategy: strategy.optimizer.load_state_dict(
            copy.deepcopy(strategy.optimizer.state_dict())
        ),
        lambda strategy: moved(strategy.model.plastic.conv.weight),
        lambda strategy: moved(strategy.model.stable.norm.running_mean),
        lambda strategy: setattr(strategy, "precision", "bf16"),
        lambda strategy: setattr(strategy, "classifier_features", "plastic"),
        lambda strategy: setattr(strategy.model.plastic, "slope", 0.5),
        lambda strategy: setattr(strategy.model.plastic, "mask", torch.ones(3)),
        lambda strategy: replaced(strategy.model.stable.norm, "running_mean"),
    ],
    ids=[
        *("weight", "temperature", "frozen layer", "frozen statistics", "momentum", "optimizer"),
        *("moved weights", "moved statistics", "precision", "classifier features"),
        *("number of a layer", "tensor of a layer", "replaced statistics"),
    ],
)
def test_what_a_graph_holds_fixed_may_change_at_an_epoch(graphs, change):
    def at_last_epoch(strategy):
        if strategy.clock.train_exp_epochs == 6:
            change(strategy)

    seen = assert_same_training(plugins=[Probe(before_training_epoch=at_last_epoch)])
    assert seen[6].num_captures == 2


def moved(tensor):
    tensor.data = tensor.data.clone()


def replaced(module, name):
    setattr(module, name, getattr(module, name).clone())


def test_a_sparse_buffer_has_its_place():
    model = SmallCNN()
    model.register_buffer("neighbours", torch.eye(3).to_sparse())
    strategy = strategy_of(model)
    fixed = what_stays(strategy)
    before = fixed()
    assert fixed() == before
    strategy.model.plastic.neighbours = torch.eye(3).to_sparse()
    assert fixed() != before


class Held:
    def __init__(self, run):
        self.run, self.lock = run, threading.Lock()

    def __call__(self):
        return self.run()


class OfNoCopy(OnStaticTensors):
    """Its replays can be pickled as little as those of CUDA."""

    def capture(self, run):
        return Held(super().capture(run))


def test_a_strategy_is_copied_in_the_middle_of_an_experience(monkeypatch):
    monkeypatch.setitem(cuda_graph.BACKENDS, "cpu", lambda device: OfNoCopy())
    copies = []

    def take(strategy):
        if strategy._graph.num_replays:
            copies.append(copy.deepcopy(strategy))

    strategy, _, seen = trained(cuda_graph=True, plugins=[Probe(after_training_epoch=take)])
    assert max(graph.num_captures for graph in seen) > 0
    assert copies
    last = copies[-1]
    assert last._graph is None
    expected = state_of(strategy.model.plastic)
    assert_same_state(state_of(last.model.plastic), expected)  # of the last epoch


def test_a_learning_rate_in_a_tensor_that_changes_in_place_is_noticed():
    strategy = strategy_of(SmallCNN(), lr=torch.tensor(0.1))
    fixed = what_stays(strategy)
    before = fixed()
    assert fixed() == before
    strategy.optimizer.param_groups[0]["lr"].fill_(0.05)  # as torch's schedulers do
    assert fixed() != before


def test_a_state_that_is_loaded_amid_an_experience_is_trained_on(graphs):
    kept = {}

    def go_back(strategy):
        if strategy.clock.train_exp_epochs == 2:
            kept[0] = copy.deepcopy(strategy.state_dict())
        elif strategy.clock.train_exp_epochs == 4:
            strategy.load_state_dict(copy.deepcopy(kept[0]))

    seen = assert_same_training(plugins=[Probe(before_training_epoch=go_back)])
    # warmed up and captured anew: an older graph would write where the average was
    assert [graph.num_replays for graph in seen[:7]] == [0, 1, 3, 5, 0, 1, 3]


def test_a_state_that_is_loaded_amid_an_epoch_brings_no_graph_that_somebody_would_mind(graphs):
    used, kept = [], []

    def note(strategy):
        used.append(strategy._graph is not None)
        if strategy.clock.train_exp_iterations == 0:
            kept.append(copy.deepcopy(strategy.state_dict()))
        if strategy.clock.train_exp_iterations == 2:
            strategy.load_state_dict(kept[0])

    watch = Probe(before_training_iteration=note, before_update=lambda strategy: None)
    strategy = strategy_of(SmallCNN(), plugins=[watch], train_epochs=2)
    strategy.train(tensors_stream(size=8).train_stream[0])
    assert set(used) == {False}


def test_what_an_optimizer_makes_anew_is_there_before_a_capture(monkeypatch):
    """Else each replay would start its momentum from nothing."""
    lacking = []

    class Checked(OnStaticTensors):
        def capture(self, run):
            optimizer = strategies[-1].optimizer
            trained = [p for g in optimizer.param_groups for p in g["params"] if p.requires_grad]
            lacking.append([p for p in trained if "momentum_buffer" not in optimizer.state[p]])
            return run

    def thaw(strategy):
        strategies.append(strategy)
        strategy.model.plastic.conv.requires_grad_(strategy.clock.train_exp_epochs >= 6)

    strategies = []
    monkeypatch.setitem(cuda_graph.BACKENDS, "cpu", lambda device: Checked())
    assert_same_training(plugins=[Probe(before_training_epoch=thaw)])
    assert lacking == [[], []] * 3


@pytest.mark.parametrize("hook", HOOKS_AMID)
def test_metrics_that_act_amid_an_iteration_are_heard(graphs, log, hook):
    class Listening(type(accuracy_metrics(epoch=True)[0])):
        pass

    setattr(Listening, hook, lambda self, strategy: None)
    _, _, seen = trained(cuda_graph=True, metrics=[Listening()])
    assert set(seen) == {None}
    assert f"Listening acts in `{hook}`" in log.text


@pytest.mark.parametrize("hook", HOOKS_AMID)
def test_loggers_that_act_amid_an_iteration_are_heard(graphs, log, hook):
    class Listening(TextLogger):
        pass

    setattr(Listening, hook, lambda self, strategy, metrics, **_: None)
    seen, model = Probe(after_training_epoch=counts), SmallCNN()
    strategy = DLCPAStrategy(
        model=model, optimizer=SGD(model.parameters(), lr=0.1), ssl=None, train_mb_size=16,
        evaluator=EvaluationPlugin(loggers=[Listening(io.StringIO())]), plugins=[seen],
    )  # fmt: skip
    strategy.train(tensors_stream(size=8).train_stream[0])
    assert seen.seen["after_training_epoch"] == [None]
    assert f"Listening acts in `{hook}`" in log.text


class Counting(nn.CrossEntropyLoss):
    """A loss that grows with every step, by a number on the host."""

    calls = 0

    def forward(self, logits, targets):
        self.calls += 1
        return (1 + self.calls / 100) * super().forward(logits, targets)


class Remembering(nn.CrossEntropyLoss):
    """A loss beside a running mean, which each step puts in the place of the one before."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, logits, targets):
        loss = super().forward(logits, targets)
        self.mean = 0.9 * self.mean + 0.1 * loss.detach()
        return loss / (1 + self.mean)


def test_a_tensor_that_each_step_replaces_ends_the_graph(graphs, log):
    """Each replay would read the one that was there when the step was captured."""
    plain, expected, _ = trained(cuda_graph=False, ssl=None, criterion=Remembering())
    graphed, metrics, seen = trained(cuda_graph=True, ssl=None, criterion=Remembering())
    assert metrics == expected
    assert_same_state(state_of(graphed.model), state_of(plain.model))
    assert {graph.num_replays for graph in seen} == {0, 1}  # the first reads what it shall
    assert "what a layer keeps or the like change within 8 iterations" in log.text


class Drawing(SmallCNN):
    """A network that leaves out its noise at random, as the host draws."""

    def __init__(self, draw):
        super().__init__()
        self.draw = draw

    def forward(self, x):
        return super().forward(x + 0.1 if self.draw() < 0.5 else x)


class DrawingByItself(SmallCNN):
    """The same, of a generator of its own."""

    def __init__(self):
        super().__init__()
        self.generator = torch.Generator().manual_seed(0)

    def forward(self, x):
        is_noisy = torch.rand((), generator=self.generator) < 0.5
        return super().forward(x + 0.1 if is_noisy else x)


@pytest.mark.parametrize(
    ("make_model", "criterion"),
    [
        (DrawingByItself, nn.CrossEntropyLoss),
        (lambda: Drawing(random.random), nn.CrossEntropyLoss),
        (lambda: Drawing(np.random.rand), nn.CrossEntropyLoss),
        (SmallCNN, Counting),
    ],
    ids=["own generator", "Python", "NumPy", "counts"],
)
def test_what_draws_or_counts_on_the_host_is_not_captured(graphs, log, make_model, criterion):
    def weights(*, cuda_graph):
        seed_everything()
        strategy = strategy_of(
            make_model(), ssl=small_head("simclr"), criterion=criterion(), train_epochs=4,
            cuda_graph=cuda_graph,
        )  # fmt: skip
        strategy.train(tensors_stream(size=8, per_class=20).train_stream[0])
        return state_of(strategy.model)

    graphed = weights(cuda_graph=True)
    assert not graphs.steps
    assert "a part of the model or the criterion draws or counts on the host" in log.text
    assert_same_state(graphed, weights(cuda_graph=False))


def test_the_generator_of_the_host_is_watched_where_the_device_has_its_own():
    strategy = strategy_of(SmallCNN())
    state = on_host(strategy)
    before = state()
    torch.rand(1)
    assert state() == before  # it is the device's
    strategy.device = torch.device("meta")
    before = state()
    assert state() == before
    torch.rand(1)
    assert state() != before


def test_a_tensor_that_counts_on_the_host_is_watched_where_the_device_is_another():
    strategy = strategy_of(SmallCNN())
    strategy.model.plastic.calls = torch.zeros(())
    state = on_host(strategy)
    before = state()
    strategy.model.plastic.calls += 1
    assert state() == before  # it is the device's
    strategy.device = torch.device("meta")
    before = state()
    assert state() == before
    strategy.model.plastic.calls += 1
    assert state() != before


def test_a_replay_returns_columns_for_classes_that_were_evaluated_meanwhile(graphs):
    def widen(strategy):
        if strategy.clock.train_exp_epochs == 6:
            strategy.model.classifiers.widen(9)  # as an evaluation of other experiences does

    seed_everything()
    seen = Probe(
        before_training_epoch=widen,
        after_training_iteration=lambda s: s.mb_output.shape[1],
        after_training_epoch=counts,
    )
    strategy = strategy_of(SmallCNN(), ssl=small_head("simclr"), train_epochs=8, plugins=[seen])
    strategy.train(tensors_stream(size=8, per_class=20).train_stream[0])
    widths = seen.seen["after_training_iteration"]  # of three mini-batches an epoch
    assert max(widths[:18]) < 9
    assert set(widths[18:]) == {9}
    assert [one.num_captures for one in seen.seen["after_training_epoch"]][5:] == [1, 2, 2]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda p: Adam(p, lr=1e-3), "Adam may count on the host: pass capturable=True"),
        (lambda p: Adagrad(p, lr=1e-3, lr_decay=0.1), "Adagrad may count on the host"),
        (lambda p: type("Own", (SGD,), {})(p, lr=1e-3), "Own may count on the host"),
        (lambda p: hooked(SGD(p, lr=1e-3)), "a hook acts in each step of SGD"),
    ],
    ids=["Adam", "Adagrad", "a subclass", "a hook"],
)
def test_optimizers_that_a_graph_may_freeze_are_not_graphed(graphs, log, make, reason):
    model = SmallCNN()
    seen = Probe(after_training_epoch=counts)
    strategy = strategy_of(
        model, optimizer=make(model.parameters()), plugins=[seen], train_epochs=4
    )
    strategy.train(tensors_stream(size=8).train_stream[0])
    assert set(seen.seen["after_training_epoch"]) == {None}
    assert reason in log.text


def hooked(optimizer):
    optimizer.register_step_post_hook(lambda *_: None)
    return optimizer


def test_a_hook_on_all_optimizers_is_heard(graphs, log):
    handle = register_optimizer_step_post_hook(lambda *_: None)
    try:
        _, _, seen = trained(cuda_graph=True)
    finally:
        handle.remove()
    assert set(seen) == {None}
    assert "a hook acts in each step of all optimizers" in log.text


@pytest.mark.parametrize("hook", HOOKS_AMID)
def test_plugins_that_act_amid_an_iteration_are_heard(graphs, log, hook):
    plugin = Probe(**{hook: lambda strategy: None})
    _, _, seen = trained(cuda_graph=True, plugins=[plugin])
    assert set(seen) == {None}
    assert f"{type(plugin).__name__} acts in `{hook}`" in log.text
    assert len(log.records) == 3  # a line an experience


@pytest.mark.parametrize(
    ("watch", "reason"),
    [
        (lambda m: m.norm.register_forward_hook(print), "each pass through 'plastic.norm'"),
        (lambda m: m.conv.register_forward_pre_hook(print), "each pass through 'plastic.conv'"),
        (lambda m: m.norm.register_full_backward_hook(print), "each pass through 'plastic.norm'"),
        (lambda m: m.conv.weight.register_hook(print), "each gradient of 'plastic.conv.weight'"),
        (
            lambda m: m.conv.weight.register_post_accumulate_grad_hook(print),
            "each gradient of 'plastic.conv.weight'",
        ),
        (
            lambda m: nn.modules.module.register_module_forward_hook(lambda *_: None),
            "each pass through all modules",
        ),
    ],
)
def test_hooks_of_a_model_are_heard(graphs, log, watch, reason):
    model, seen = SmallCNN(), Probe(after_training_epoch=counts)
    handle = watch(model)
    strategy = strategy_of(model, ssl=small_head("simclr"), plugins=[seen])
    strategy.train(tensors_stream(size=8).train_stream[0])
    handle.remove()
    assert seen.seen["after_training_epoch"] == [None]
    assert reason in log.text


def test_hooks_that_come_later_are_heard_from_then_on(graphs, log):
    heard = []

    def listen(strategy):
        if strategy.clock.train_exp_epochs == 3:
            norm = strategy.model.plastic.norm
            norm.register_forward_hook(lambda *_: heard.append(strategy.clock.train_exp_epochs))

    model, seen = SmallCNN(), Probe(before_training_epoch=listen, after_training_epoch=counts)
    strategy = strategy_of(model, ssl=small_head("simclr"), plugins=[seen], train_epochs=5)
    strategy.train(tensors_stream(size=8, per_class=20).train_stream[0])
    assert [graph is None for graph in seen.seen["after_training_epoch"]] == 3 * [False] + 2 * [
        True
    ]
    assert set(heard) == {3, 4}
    assert "each pass through 'plastic.norm'" in log.text


def test_another_number_of_views_is_no_mini_batch_of_the_graph():
    graph = cuda_graph.StepGraph(
        lambda *views: (sum(views),), fixed=lambda: 0, on_host=lambda: 0, backend=OnStaticTensors()
    )
    for _ in range(5):
        assert graph(torch.ones(4), torch.ones(4))[0].tolist() == 4 * [2]
    assert graph(torch.ones(4))[0].tolist() == 4 * [1]
    assert graph.num_replays == 2


def test_a_head_of_ones_own_is_not_graphed(graphs, log):
    class Own(HEADS["simclr"]):
        pass

    strategy = strategy_of(
        SmallCNN(), ssl=Own(), plugins=[seen := Probe(after_training_epoch=counts)]
    )
    strategy.train(tensors_stream(size=8).train_stream[0])
    assert seen.seen["after_training_epoch"] == [None]
    assert "Own may count or draw on the host" in log.text


def test_replay_is_not_graphed(graphs, log):
    _, _, seen = trained(cuda_graph=True, plugins=[ReplayPlugin(mem_size=16)])
    assert None not in seen[:7]
    assert set(seen[7:]) == {None}
    assert "mixes in samples of other experiences" in log.text


def test_a_subclass_with_an_iteration_of_its_own_is_heard(graphs, log):
    class Louder(DLCPAStrategy):
        def criterion(self):
            return 2 * super().criterion()

    model = SmallCNN()
    strategy = Louder(
        model=model, optimizer=SGD(model.parameters(), lr=0.1), ssl=None, train_mb_size=16,
        evaluator=None, plugins=[Probe(after_training_epoch=lambda s: s._graph)],
    )  # fmt: skip
    strategy.train(tensors_stream(size=8).train_stream[0])
    assert strategy.plugins[0].seen["after_training_epoch"] == [None]
    assert "Louder has a `criterion` of its own" in log.text


def test_what_cannot_be_captured_goes_on_without(monkeypatch, log):
    error = RuntimeError("Cannot copy between CPU and CUDA tensors during capture.\nMore words.")
    monkeypatch.setitem(
        cuda_graph.BACKENDS, "cpu", lambda device: OnStaticTensors(fails_with=error)
    )
    assert {graph.num_replays for graph in assert_same_training()} == {0}
    assert log.messages[0] == (
        "Iterations run without a CUDA graph: Cannot copy between CPU and CUDA tensors during "
        "capture."
    )


def test_a_learning_rate_of_avalanches_plugin_is_seen(graphs):
    model = SmallCNN()
    optimizer = SGD(model.parameters(), lr=0.01)
    plugin = LRSchedulerPlugin(MultiStepLR(optimizer, [6]), reset_lr=False)
    graphs_seen = Probe(after_training_epoch=lambda s: s._graph.num_captures)
    strategy = strategy_of(
        model, optimizer=optimizer, plugins=[plugin, graphs_seen], train_epochs=7
    )
    strategy.train(tensors_stream(size=8).train_stream[0])
    assert graphs_seen.seen["after_training_epoch"][-2:] == [1, 2]


def test_nothing_of_an_experience_stays(graphs):
    strategy, _, _ = trained(cuda_graph=True)
    assert strategy._graph is None
    assert strategy._graph_loss.numel() == 0


# Without one, on tensors of a GPU that have no values -------------------------------------------


@pytest.fixture
def without_values(monkeypatch):
    """What torch cannot do with such tensors: copy or move modules, and go backward."""

    def copied(tensor, memo):
        return memo.setdefault(id(tensor), torch.empty_like(tensor))

    monkeypatch.setattr(torch.Tensor, "__deepcopy__", copied)
    monkeypatch.setattr(nn.Module, "to", lambda module, *_, **__: module)
    monkeypatch.setattr(torch.autograd, "grad", lambda _, xs: tuple(map(torch.empty_like, xs)))
    with FakeTensorMode():
        yield torch.device("cuda:0")


def operations_of_an_iteration(device, monkeypatch, ssl, **options):
    """Those of the whole iteration, the second of an experience, but for the backward pass."""
    with device:
        strategy = strategy_of(
            SmallCNN(), ssl=small_head(ssl), device=str(device), momentum=0.9,
            views=PaperViews(mean=[0.5, 0.4, 0.3], std=[0.2]), **options,
        )  # fmt: skip
        strategy.model_suits = True  # which the first pass of a run looks for, on the host
        if strategy.ssl is not None:
            strategy.ssl.before_training_exp()
        model = strategy.model
        model.classifiers.add(0, [3, 1, 2])
        scope = scope_of(model.classifiers, 0, [3, 1, 2], mixed=False)
        steps = LearningSteps(strategy, scope=scope, temporary=None, watch=LossWatch(device))
        strategy._average.begin(0)
        strategy._alignment.begin(p for layer in scope.layers for p in layer.parameters())

    def backward(loss):
        for parameter in (p for group in strategy.optimizer.param_groups for p in group["params"]):
            parameter.grad = torch.empty_like(parameter)

    monkeypatch.setattr(torch.Tensor, "backward", backward)
    x = torch.empty(16, 3, 8, 8, device=device)
    y = torch.empty(16, dtype=torch.long, device=device)
    for _ in range(2):
        with Operations() as operations:
            steps.whole(scope.targets(y, None), strategy._make_views(x))
    return operations


@needs_cuda_build
@pytest.mark.parametrize("ssl", [None, *sorted(set(HEADS) - set(WAITING))])
def test_no_operation_of_an_iteration_waits_for_the_device_or_copies_to_it(
    without_values, monkeypatch, ssl
):
    operations = operations_of_an_iteration(without_values, monkeypatch, ssl)
    by_places = {"index"}  # by numbers, not by a mask, which would not go through without values
    assert not operations.names & (WAITING_OPERATIONS - by_places)
    assert "_foreach_lerp_" in operations.names  # down to the average
    assert operations.devices <= {None, without_values, torch.device("cpu")}
    assert operations.on_host <= {"empty"}  # of nothing, in the place of the mini-batch


@needs_cuda_build
def test_a_loss_that_looks_at_a_number_would_be_noticed(without_values, monkeypatch):
    class Looking(nn.CrossEntropyLoss):
        def forward(self, logits, targets):
            return super().forward(logits, targets) * float(logits.sum())

    with pytest.raises(DataDependentOutputException):
        operations_of_an_iteration(without_values, monkeypatch, None, criterion=Looking())


# Where a GPU is ----------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("ssl", [None, *sorted(set(HEADS) - set(WAITING))])
def test_a_replay_on_a_gpu_leaves_the_state_of_an_eager_iteration(ssl, precision):
    steps = StepComparison()
    options = {"ssl": ssl, "precision": precision, "plugins": [steps], "device": "cuda"}
    trained(cuda_graph=True, **options)
    assert steps.num_compared == 3 * (11 - 1)  # the first of an experience captures
    assert steps.noise < 1e-2
    assert steps.difference < max(1e-3, 3 * steps.noise)


@pytest.mark.gpu
@pytest.mark.parametrize("ssl", [None, *sorted(set(HEADS) - set(WAITING))])
@pytest.mark.parametrize("cuda_graph", [False, True])
def test_no_iteration_waits_for_a_gpu(cuda_graph, ssl):
    """But for metrics: Avalanche's accuracy and loss do so in each."""

    def forbid(strategy):
        is_warm = strategy.clock.train_exp_epochs > 4  # the capture in epoch 1 does wait
        torch.cuda.set_sync_debug_mode("error" if is_warm else "default")

    guard = Probe(
        before_training_iteration=forbid,
        after_training_iteration=lambda s: torch.cuda.set_sync_debug_mode("default"),
    )
    try:
        trained(cuda_graph=cuda_graph, ssl=ssl, device="cuda", plugins=[guard], metrics=[])
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@pytest.mark.parametrize("capturable", [False, True])
def test_adam_is_captured_where_it_can_be(log, capturable):
    model = SmallCNN()
    optimizer = Adam(model.parameters(), lr=1e-3, capturable=capturable)
    seen = Probe(after_training_epoch=counts)
    strategy = strategy_of(
        model, optimizer=optimizer, ssl=small_head("simclr"), plugins=[seen], train_epochs=4,
        device="cuda",
    )  # fmt: skip
    strategy.train(tensors_stream(size=8).train_stream[0])
    last = seen.seen["after_training_epoch"][-1]
    assert (last is not None and last.num_replays > 0) == capturable
    assert ("capturable" in log.text) != capturable
    assert all(parameter.isfinite().all() for parameter in model.parameters())


@pytest.mark.gpu
def test_a_model_that_waits_for_the_device_trains_on_without(log):
    class Waiting(SmallCNN):
        def forward(self, x):
            return super().forward(x + 0 * x.sum().item())

    seen = Probe(after_training_epoch=counts)
    strategy = strategy_of(
        Waiting(), ssl=small_head("simclr"), plugins=[seen], train_epochs=4, device="cuda"
    )
    stream = tensors_stream(size=8)
    for experience in stream.train_stream:  # random numbers can be drawn as before
        strategy.train(experience)
    assert {graph.num_captures for graph in seen.seen["after_training_epoch"]} == {0}
    assert "an operation of the iteration waits for the device" in log.text
