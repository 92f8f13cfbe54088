"""The self-supervised loss as a plugin, on Avalanche's own strategies."""

import copy

import pytest
import torch
from avalanche.benchmarks import tensors_benchmark
from avalanche.checkpointing import maybe_load_checkpoint, save_checkpoint
from avalanche.models import PNN, IncrementalClassifier, as_multitask
from avalanche.training.plugins import LRSchedulerPlugin, ReplayPlugin, SupervisedPlugin
from avalanche.training.supervised import (
    AGEM,
    DER,
    EWC,
    GEM,
    MAS,
    Cumulative,
    LwF,
    Naive,
    Replay,
    StreamingLDA,
    SynapticIntelligence,
)
from helpers import (
    Probe,
    SmallCNN,
    assert_same_state,
    batch_of,
    cifar_style_stream,
    copies,
    nc_stream,
    seed_everything,
    small_head,
    state_of,
)
from torch import nn
from torch.nn import CrossEntropyLoss
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import StepLR
from walker import holding, reachable, shaped_like

from avalanche_dlcpa import DualLearner, SelfSupervisedLossPlugin
from avalanche_dlcpa.pickling import let_dill_find
from avalanche_dlcpa.self_supervised import MoCoV2, SelfSupervisedHead

SIZE = 8


class NoisyViews:
    """Two noisy copies of a mini-batch, with random numbers of their own."""

    def __init__(self):
        self.generator = torch.Generator().manual_seed(7)

    def __call__(self, x):
        noise = torch.randn(2, *x.shape, generator=self.generator, dtype=x.dtype)
        view1, view2 = x + 0.3 * noise
        return view1, view2


class FirstViews(SupervisedPlugin):
    """Puts the first view in the place of the mini-batch, and does nothing else."""

    def __init__(self):
        super().__init__()
        self.views = NoisyViews()

    def before_forward(self, strategy, **kwargs):
        strategy.mbatch[0] = self.views(strategy.mb_x)[0]


class Features(nn.Module):
    """What `SmallCNN` computes below its head, on its own modules."""

    def __init__(self, model):
        super().__init__()
        self.conv, self.norm = model.conv, model.norm

    def forward(self, x):
        x = self.norm(self.conv(x)).relu()
        return nn.functional.adaptive_avg_pool2d(x, 2).flatten(1)


def stream(**kwargs):
    return nc_stream(num_classes=4, num_experiences=2, per_class=12, size=SIZE, **kwargs)


def ssl_plugin(ssl="simclr", *, weight=0.5, views=None, **kwargs):
    head = small_head(ssl) if isinstance(ssl, str) else ssl
    return SelfSupervisedLossPlugin(head, weight=weight, views=views or NoisyViews(), **kwargs)


def baseline(model, plugins, kind=Naive, *, optimizer=None, **kwargs):
    """One of Avalanche's strategies with small mini-batches and without loggers."""
    defaults = {"train_mb_size": 8, "eval_mb_size": 32, "evaluator": None}
    return kind(
        model=model,
        optimizer=optimizer or SGD(model.parameters(), lr=0.05),
        criterion=CrossEntropyLoss(),
        plugins=plugins,
        **defaults | kwargs,
    )


def seeding():
    """Fixes the random numbers of the head: its layers, and its queue in each experience."""
    return Probe(before_training_exp=lambda strategy: torch.manual_seed(5))


def trained(plugins, kind=Naive, *, model=None, task_labels=False, **kwargs):
    """The model after two experiences, from the same start and with the same mini-batches."""
    torch.manual_seed(1)
    strategy = baseline(model or SmallCNN(4), [seeding(), *plugins], kind, **kwargs)
    for experience in stream(task_labels=task_labels).train_stream:
        strategy.train(experience, shuffle=False)
    return strategy.model


def largest_difference(ours, theirs):
    pairs = zip(ours.parameters(), theirs.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


# The loss -----------------------------------------------------------------------------------------


def sgd(features, others):
    return SGD([*features, *others], lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01)


def sgd_with_groups(features, others):
    low = {"params": list(features), "lr": 0.01, "momentum": 0.9}
    return SGD([low, {"params": list(others), "lr": 0.1}], lr=1.0)


def adam(features, others):
    return Adam([*features, *others], lr=0.003, betas=(0.8, 0.9))


def adamw(features, others):
    return AdamW([*features, *others], lr=0.003, weight_decay=0.1)


@pytest.mark.parametrize(
    ("ssl", "make_optimizer"),
    [
        ("mocov2", sgd),
        ("byol", sgd),
        ("simclr", sgd),
        ("simclr", sgd_with_groups),
        ("simclr", adam),
        ("simclr", adamw),
    ],
)
def test_naive_equals_a_loop_by_hand_with_one_optimizer(ssl, make_optimizer):
    experience = stream().train_stream[0]
    start = SmallCNN(4)

    model = copy.deepcopy(start)
    optimizer = make_optimizer(Features(model).parameters(), model.fc.parameters())
    schedule = LRSchedulerPlugin(StepLR(optimizer, 1, gamma=0.1))
    plugin = ssl_plugin(ssl, weight=0.3)
    strategy = baseline(
        model, [seeding(), plugin, schedule], optimizer=optimizer, train_epochs=3, train_mb_size=6
    )
    strategy.train(experience, shuffle=False)

    expected = copy.deepcopy(start)
    features, head, views = Features(expected), small_head(ssl), NoisyViews()
    torch.manual_seed(5)
    head.build(features, 64)
    head.before_training_exp()
    optimizer = make_optimizer(features.parameters(), expected.fc.parameters())
    trainable = [parameter for parameter in head.parameters() if parameter.requires_grad]
    optimizer.param_groups[0]["params"] += trainable
    schedule = StepLR(optimizer, 1, gamma=0.1)
    images, labels = batch_of(experience)
    for _ in range(3):
        for x, y in zip(images.split(6), labels.split(6), strict=True):
            view1, view2 = views(x)
            loss = nn.functional.cross_entropy(expected(view1), y)
            loss = loss + 0.3 * head(features, view1, view2)[0]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            head.after_update(features)
        schedule.step()

    for name, tensor in expected.state_dict().items():  # statistics of batch norm, too
        torch.testing.assert_close(model.state_dict()[name], tensor, rtol=0, atol=1e-6)
    for name, parameter in head.named_parameters():
        torch.testing.assert_close(plugin.ssl.get_parameter(name), parameter, rtol=0, atol=1e-6)
    assert largest_difference(model, start) > 1e-3


@pytest.mark.parametrize("ssl", ["simclr", "mocov2"])
def test_without_weight_it_is_the_strategy_on_the_first_views(ssl):
    without = trained([FirstViews()])
    assert largest_difference(trained([ssl_plugin(ssl, weight=0.0)]), without) == 0
    assert largest_difference(trained([ssl_plugin(ssl, weight=0.1)]), without) > 1e-4


def test_the_default_weight_is_one_over_lambda():
    default = SelfSupervisedLossPlugin(small_head("simclr"), views=NoisyViews())
    with_it = ssl_plugin(weight=1 / 10)
    assert largest_difference(trained([default]), trained([with_it])) == 0


def test_the_head_starts_each_experience_without_momentum():
    def last_step(strategy):
        return plugin.ssl.projector[0].weight.detach().clone()

    plugin, probe = ssl_plugin(), Probe(before_training_epoch=last_step, after_update=last_step)
    model = SmallCNN(4)
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    strategy = baseline(model, [plugin, probe], optimizer=optimizer)
    bench = stream()
    strategy.train(bench.train_stream[0])
    with torch.no_grad():
        plugin.weight = 0.0  # no gradient: the head moves by what is left of the last experience
    strategy.train(bench.train_stream[1])
    assert not torch.equal(probe.seen["after_update"][0], probe.seen["before_training_epoch"][0])
    assert torch.equal(probe.seen["after_update"][-1], probe.seen["before_training_epoch"][1])


class LinearHead(SelfSupervisedHead):
    """A head that has its layer from the start."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 8)

    def forward(self, plastic, view1, view2):
        features1, features2 = plastic(view1), plastic(view2)
        loss = nn.functional.mse_loss(self.layer(features1), features2[:, :8])
        return loss, (features1, features2)


def test_a_head_in_the_users_optimizer_is_stepped_once():
    heads = []
    for given in (False, True):
        torch.manual_seed(0)
        head, model = LinearHead(), SmallCNN(4)
        parameters = [*model.parameters(), *(head.parameters() if given else [])]
        trained([ssl_plugin(head)], model=model, optimizer=SGD(parameters, lr=0.05))
        heads.append(head)
    assert largest_difference(*heads) == 0
    torch.manual_seed(0)
    assert largest_difference(heads[0], LinearHead()) > 1e-4


# Any strategy -------------------------------------------------------------------------------------


STRATEGIES = {
    "EWC": (EWC, {"ewc_lambda": 10.0}),
    "LwF": (LwF, {"alpha": 1.0, "temperature": 2.0}),
    "GEM": (GEM, {"patterns_per_exp": 8, "memory_strength": 0.5}),
    "AGEM": (AGEM, {"patterns_per_exp": 8, "sample_size": 8}),
    "DER": (DER, {"mem_size": 16}),
    "Replay": (Replay, {"mem_size": 16}),
    "SI": (SynapticIntelligence, {"si_lambda": 10.0}),
    "MAS": (MAS, {"lambda_reg": 0.1}),
    "Cumulative": (Cumulative, {}),
}


@pytest.mark.parametrize("ssl", ["simclr", "mocov2"])
@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_gets_the_loss_and_keeps_its_own_way(name, ssl):
    kind, options = STRATEGIES[name]

    def losses_of(weight, kind, options):
        probe = Probe(after_backward=lambda strategy: float(strategy.loss.detach()))
        model = trained([ssl_plugin(ssl, weight=weight), probe], kind, **options)
        return model, torch.tensor(probe.seen["after_backward"])

    model, losses = losses_of(0.5, kind, options)
    without, losses_without = losses_of(0.0, kind, options)
    naive, losses_of_naive = losses_of(0.5, Naive, {})
    assert losses.isfinite().all()
    assert losses[0] > losses_without[0] + 1e-3  # the first step starts from the same weights
    assert largest_difference(model, without) > 1e-4
    # Cumulative differs in the number of mini-batches; Avalanche's SI on a CPU takes views of the
    # parameters for copies of them, so that its penalty is 0, with and without the plugin.
    if name not in ("Cumulative", "SI"):
        torch.testing.assert_close(losses[:3], losses_of_naive[:3])  # the first experience
        assert largest_difference(model, naive) > 1e-4


def test_views_are_made_of_the_mini_batch_with_the_samples_of_a_replay_plugin():
    sizes = []

    def views(x):
        sizes.append(len(x))
        return x, x.flip(-1)

    trained([ReplayPlugin(mem_size=8, batch_size_mem=4), ssl_plugin(views=views)])
    assert sizes == [8, 8, 8, 12, 12, 12]


# The model ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ssl", ["simclr", "mocov2"])
def test_there_is_no_second_set_of_weights(ssl):
    def counted(strategy):
        found = [node for node in reachable(strategy) if isinstance(node, nn.Parameter)]
        return sum(parameter.numel() for parameter in found)

    def expected(strategy):
        owners = [*strategy.model.parameters(), *plugin.ssl.parameters()]
        return sum(parameter.numel() for parameter in owners)

    plugin, probe = ssl_plugin(ssl), Probe(after_update=lambda s: (counted(s), expected(s)))
    model = SmallCNN(4)
    baseline(model, [plugin, probe]).train(stream().train_stream[0])
    assert [found for found, _ in probe.seen["after_update"]] == [
        wanted for _, wanted in probe.seen["after_update"]
    ]
    # supervised, then for L_ssl: the first view alone with MoCo, both with SimCLR
    passes = 2 if ssl == "mocov2" else 3
    assert model.norm.num_batches_tracked == passes * len(probe.seen["after_update"])


def test_a_head_that_grows():
    def growing():
        torch.manual_seed(0)
        return SmallCNN(head=IncrementalClassifier(64, 2))

    models = []
    for weight in (0.0, 0.5):
        plugin = ssl_plugin("mocov2", weight=weight)
        strategy = baseline(growing(), [seeding(), plugin])
        bench, convs = stream(), []
        for experience in bench.train_stream:
            strategy.train(experience, shuffle=False)
            convs.append(strategy.model.conv.weight.detach().clone())
            strategy.eval(bench.test_stream)
        assert len(strategy.model.fc.classifier.weight) == 4
        assert not torch.equal(*convs)
        models.append(strategy.model.conv)
    assert largest_difference(*models) > 1e-4


def test_a_model_with_a_head_for_each_task():
    convs = []
    for weight in (0.0, 0.5):
        torch.manual_seed(0)
        model = as_multitask(SmallCNN(2), "fc")
        trained([ssl_plugin(weight=weight)], model=model, task_labels=True)
        convs.append(model.get_submodule("model.conv"))
    assert largest_difference(*convs) > 1e-4


@pytest.mark.parametrize("ssl", ["simclr", "mocov2", "byol"])
def test_frozen_statistics_stay(ssl):
    model, plugin = SmallCNN(4), ssl_plugin(ssl)
    freeze = Probe(before_training_epoch=lambda strategy: strategy.model.norm.eval())
    strategy = baseline(model, [plugin, freeze])
    strategy.train(stream().train_stream[0])
    frozen = [model]
    if ssl != "simclr":
        frozen.append(plugin.ssl.momentum_encoder)
    assert all(torch.equal(one.norm.running_mean, torch.zeros(16)) for one in frozen)


def test_a_model_that_is_replaced_amid_an_experience():
    class Replacing(SupervisedPlugin):
        def before_training_epoch(self, strategy, **kwargs):
            strategy.model = copy.deepcopy(strategy.model)
            strategy.make_optimizer()

    expected = trained([ssl_plugin()])
    assert largest_difference(trained([ssl_plugin(), Replacing()]), expected) == 0


def test_the_head_is_in_training_mode():
    bench, plugin = stream(), ssl_plugin("byol")
    strategy = baseline(SmallCNN(4), [plugin])
    strategy.train(bench.train_stream[0])
    plugin.ssl.eval()  # say, to look at its projections
    strategy.train(bench.train_stream[1])
    assert all(module.training for module in plugin.ssl.modules())


def test_no_gradient_of_the_head_outlives_the_experience():
    plugin = ssl_plugin("byol")
    baseline(SmallCNN(4), [plugin]).train(stream().train_stream[0])
    assert all(parameter.grad is None for parameter in plugin.ssl.parameters())


def test_a_broken_iteration_leaves_no_gradient_behind():
    class Breaking(SupervisedPlugin):
        def after_backward(self, strategy, **kwargs):
            raise KeyboardInterrupt

    def projector(breaks):
        torch.manual_seed(0)
        plugin, model = ssl_plugin(views=lambda x: (x, x.flip(-1))), SmallCNN(4, batch_norm=False)
        strategy = baseline(model, [seeding(), plugin])
        experience = stream().train_stream[0]
        strategy.train(experience, shuffle=False)
        if breaks:
            strategy.plugins.append(Breaking())
            with pytest.raises(KeyboardInterrupt):
                strategy.train(experience, shuffle=False)
            strategy.plugins.pop()
        strategy.train(experience, shuffle=False)
        return plugin.ssl.projector

    assert largest_difference(projector(breaks=False), projector(breaks=True)) == 0


def test_a_copy_of_the_strategy_goes_on_alike():
    bench, plugin = stream(), ssl_plugin("byol")
    strategy = baseline(SmallCNN(4), [plugin])
    strategy.train(bench.train_stream[0])
    resumed = copy.deepcopy(strategy)
    for each in (strategy, resumed):
        torch.manual_seed(0)
        each.train(bench.train_stream[1])
    assert resumed.model is not strategy.model
    assert largest_difference(resumed.model, strategy.model) == 0
    assert largest_difference(resumed.plugins[0].ssl, plugin.ssl) == 0


def test_double_precision():
    model = SmallCNN(4).double()
    plugin = ssl_plugin("byol", views=lambda x: NoisyViews()(x.double()))
    baseline(model, [plugin]).train(stream().train_stream[0])
    assert {parameter.dtype for parameter in plugin.ssl.parameters()} == {torch.float64}


def test_paper_views_are_fitted_to_the_stream():
    plugin = SelfSupervisedLossPlugin("simclr")
    bench = cifar_style_stream(tasks=((0, 1),), per_class=4, size=SIZE)
    baseline(SmallCNN(4), [plugin]).train(bench.train_stream[0])
    assert (plugin.views.mean, plugin.views.std) == ((0.5,) * 3, (0.25,) * 3)


# Exemplar-free ------------------------------------------------------------------------------------


SHAPE = (3, 12, 10)  # of the images; no parameter has it
SEEN = {}  # what passed through; a global, which the walker does not follow


def record(name, rows):
    SEEN.setdefault(name, []).append(rows.detach().flatten(1).clone())


def recording_views(x):
    views = torch.rand_like(x), torch.rand_like(x)
    for name, images in zip(("samples", "first views", "second views"), (x, *views), strict=True):
        record(name, images)
    return views


def record_features(module, inputs, output):
    features = output if isinstance(output, torch.Tensor) else torch.cat(output[1])
    record("features", features)
    record("normalised", nn.functional.normalize(features, dim=1))


@pytest.mark.parametrize("ssl", ["simclr", "mocov2", "byol", "nnclr"])
def test_nothing_stays_of_an_experience(ssl):
    SEEN.clear()
    plugin = ssl_plugin(ssl, views=recording_views)
    plugin.ssl.register_forward_hook(record_features)
    model = SmallCNN(4)
    strategy = baseline(model, [plugin], optimizer=SGD(model.parameters(), lr=0.001, momentum=0.9))
    splits = [(torch.rand(16, *SHAPE), torch.arange(16) % 2 + 2 * task) for task in (0, 1)]
    bench = tensors_benchmark(splits, splits, task_labels=[0, 0])
    strategy.train(bench.train_stream[0])
    if plugin.ssl.momentum_encoder is not None:
        plugin.ssl.momentum_encoder.register_forward_hook(record_features)
    strategy.train(bench.train_stream[1])
    assert len(torch.cat(SEEN["samples"])) == 32
    objects = reachable(strategy, plugin)
    leaks = {name: holding(objects, torch.cat(rows)) for name, rows in SEEN.items()}
    assert {name for name, found in leaks.items() if found} == set()
    assert shaped_like(objects, SHAPE) == []


# Errors -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"ssl": None}, ValueError, "Expected `ssl` to be a name or a .*Head, got None"),
        ({"ssl": "moco"}, ValueError, "Did you mean 'mocov2'"),
        ({"ssl": 3}, TypeError, "Expected `ssl` to be a name"),
        ({"weight": -0.1}, ValueError, "`weight` to be a finite number of at least 0, got -0.1"),
        ({"weight": float("nan")}, ValueError, "`weight` to be a finite number.*got nan"),
        ({"weight": "1"}, ValueError, "`weight` to be a finite number"),
        ({"views": 3}, TypeError, "Expected `views` to be a function, got int"),
    ],
)
def test_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        SelfSupervisedLossPlugin(**{"ssl": "simclr"} | arguments)


def test_a_strategy_with_a_loss_of_its_own():
    model = DualLearner(SmallCNN(4))
    naive = Naive(model=model, optimizer=SGD(model.parameters(), lr=0.1), plugins=[ssl_plugin()])
    with pytest.raises(ValueError, match="use the argument `ssl` of DLCPAStrategy"):
        naive.train(stream().train_stream[0])


def test_a_strategy_without_a_loss():
    strategy = StreamingLDA(
        slda_model=Features(SmallCNN()),
        criterion=CrossEntropyLoss(),
        input_size=64,
        num_classes=4,
        plugins=[ssl_plugin()],
    )
    with pytest.raises(ValueError, match="one loss in each iteration, got StreamingLDA"):
        strategy.train(stream().train_stream[0])


def test_a_second_strategy():
    plugin, bench = ssl_plugin(), stream()
    first, second = (baseline(SmallCNN(4), [plugin]) for _ in range(2))
    first.train(bench.train_stream[0])
    with pytest.raises(ValueError, match=r"Expected one strategy .* make a new plugin"):
        second.train(bench.train_stream[0])
    first.train(bench.train_stream[1])


def test_a_network_that_grows_below_its_head():
    model = PNN(num_layers=1, in_features=3 * SIZE * SIZE, hidden_features_per_column=8)
    with pytest.raises(ValueError, match="cannot follow a network that grows"):
        trained([ssl_plugin()], model=model, task_labels=True)


@pytest.mark.parametrize(
    ("plugins", "options", "updates", "message"),
    [
        ([], {"train_mb_size": 1}, 0, "mini-batches of at least 2 samples .*, got 1"),
        ([], {"train_mb_size": 23}, 1, "mini-batches of at least 2 samples .*, got 1"),
        ([], {"train_mb_size": 20}, 0, "`queue_size` to be at least .* 20, got 16"),
        (
            [ReplayPlugin(mem_size=9, batch_size_mem=9)],
            {},
            3,
            "`queue_size` to be at least .* 17, got 16",
        ),
    ],
)
def test_mini_batches_are_refused_before_an_update(plugins, options, updates, message):
    probe = Probe(after_update=lambda strategy: copies(strategy.model.parameters()))
    model = SmallCNN(4)
    start = copies(model.parameters())
    plugin = ssl_plugin(MoCoV2(queue_size=16 if "queue" in message else 64))
    strategy = baseline(model, [*plugins, plugin, probe], **options)
    with pytest.raises(ValueError, match=message):
        strategy.train(stream().train_stream)
    assert len(probe.seen["after_update"]) == updates
    last = [start, *probe.seen["after_update"]][-1]
    assert all(torch.equal(a, b) for a, b in zip(last, model.parameters(), strict=True))


def test_one_view_is_not_enough():
    strategy = baseline(SmallCNN(4), [ssl_plugin(views=lambda x: (x,))])
    with pytest.raises(ValueError, match="a tuple of 2 tensors of 8 samples"):
        strategy.train(stream().train_stream[0])


def test_the_name_of_the_head():
    plugin = ssl_plugin(head="conv")
    with pytest.raises(ValueError, match=r"`head` to name a linear layer of .*'fc'"):
        baseline(SmallCNN(4), [plugin]).train(stream().train_stream[0])


def test_avalanches_checkpoints_hold_it(tmp_path):
    def make():
        model = SmallCNN()
        plugin = SelfSupervisedLossPlugin(small_head("mocov2"))
        optimizer = SGD(model.parameters(), lr=0.05)
        let_dill_find(optimizer)
        return Naive(
            model=model, optimizer=optimizer, plugins=[plugin], train_mb_size=16, evaluator=None
        )

    stream = nc_stream(size=SIZE)
    strategy = make()
    strategy.train(stream.train_stream[0])
    save_checkpoint(strategy, tmp_path / "run.pt")
    again, first = maybe_load_checkpoint(make(), tmp_path / "run.pt")
    assert first == 1
    states = []
    for one in (strategy, again):
        seed_everything()
        one.train(stream.train_stream[1])
        states.append(state_of(one.model, one.plugins[0].ssl))
    assert_same_state(*states)
