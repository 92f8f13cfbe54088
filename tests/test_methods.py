import math

import numpy as np
import pytest
import torch
from avalanche.training.plugins import EvaluationPlugin
from helpers import Probe

from avalanche_dlcpa import NonFiniteLossError, SelfSupervisedLossPlugin, seed_everything
from avalanche_dlcpa.self_supervised import HEADS
from benchmarks import building
from benchmarks.building import BUFFER_SIZE
from benchmarks.cells import Cell
from benchmarks.grids import GRIDS
from benchmarks.hyperparameters import PUBLISHED, HyperparameterError
from benchmarks.methods import METHODS
from benchmarks.networks import ThreeLayerCNN, packnet_network
from benchmarks.run import run_cell
from benchmarks.settings import SETTINGS
from benchmarks.training import Training, build_strategy, expect_buildable

TWIN = "digits-cifar100-10"
NUM_TASKS = SETTINGS[TWIN].num_experiences


def first_of(method):
    """A trial of the first combination of its grid."""
    grid = GRIDS["digits"][METHODS[method].trains_as or method][0]
    values = {name: choices[0] for name, choices in grid.items()}
    return Cell(method, TWIN, 0, tuple(sorted(values.items())), validation=True)


def trained(method, *, setting=TWIN, train_epochs=2, **changes):
    """The strategy of a method after the whole stream of a digits setting."""
    plan, chosen = SETTINGS[setting], METHODS[method]
    stream = plan.make_stream(task_labels=chosen.needs_task_labels)
    seed_everything(0)
    strategy = chosen.build(
        ThreeLayerCNN(width=8),
        setting=plan,
        **{**dict(first_of(method).changes), "train_mb_size": 32, **changes},
        **({"views": plan.make_views()} if chosen.draws_views else {}),
        train_epochs=train_epochs,
        eval_mb_size=256,
        evaluator=EvaluationPlugin(),
    )
    for experience in stream.train_stream:
        strategy.train(experience, eval_streams=[])
    return strategy


@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns_and_is_judged_in_its_scenarios(method):
    result = run_cell(first_of(method))
    task_il = np.array(result["task_il"]["accuracy_matrix"], dtype=float)
    class_il = np.array(result["class_il"]["accuracy_matrix"], dtype=float)
    assert np.isfinite(task_il[-1]).all()
    assert np.isnan(class_il).all() == METHODS[method].needs_task_labels
    assert np.isnan(task_il[:-1]).all() == METHODS[method].learns_at_once
    assert result["memory"]["kept_bytes"] > 0
    assert result["training_seconds"] > 0


@pytest.mark.parametrize("method", ["der", "der++"])
def test_mini_batches_above_the_buffer_are_replayed_too(method):
    replaying = Probe(before_training_epoch=lambda s: s.replay_loader is not None)
    trained(method, train_mb_size=32, train_epochs=1, buffer_size=20, plugins=[replaying])
    assert replaying.seen["before_training_epoch"] == [False] + (NUM_TASKS - 1) * [True]


WITH_BUFFER = ("gem", "agem", "der", "der++", "replay", "icarl")


@pytest.mark.parametrize("method", WITH_BUFFER)
def test_a_buffer_is_filled_with_500_samples_and_no_more(method):
    kept = samples_kept(trained(method, setting="digits", train_epochs=1))
    assert 0.9 * BUFFER_SIZE <= kept <= BUFFER_SIZE


@pytest.mark.parametrize("method", WITH_BUFFER)
def test_a_buffer_can_be_given_another_size(method):
    assert 54 <= samples_kept(trained(method, train_epochs=1, buffer_size=60)) <= 60
    expected = "Expected `buffer_size` to be a whole number from "
    for size in (0, 9.5, True, "many"):
        with pytest.raises(HyperparameterError, match=expected + rf".* got {size!r}\.$"):
            trained(method, buffer_size=size)


def test_der_has_no_beta():
    with pytest.raises(HyperparameterError, match=r"that DER has, got beta 0\.5: name der\+\+"):
        trained("der", beta=0.5)


def test_a_buffer_of_less_than_a_sample_each_is_refused():
    with pytest.raises(HyperparameterError, match=r"from 5 on, a sample a task, got 4\."):
        trained("gem", setting="digits", buffer_size=4)
    with pytest.raises(HyperparameterError, match=r"from 10 on, a sample a class, got 9\."):
        trained("icarl", setting="digits", buffer_size=9)


@pytest.mark.parametrize("num_classes", [10, 100, 200])
def test_icarl_keeps_no_more_than_its_buffer_after_any_class(num_classes):
    memory = building.icarl_memory(num_classes)
    kept = [math.ceil(memory / seen) * seen for seen in range(1, num_classes + 1)]
    assert max(kept) <= BUFFER_SIZE
    more = [math.ceil((memory + 1) / seen) * seen for seen in range(1, num_classes + 1)]
    assert max(more) > BUFFER_SIZE


def samples_kept(strategy):
    """How many samples of the stream the plugins keep."""
    kept = 0
    for plugin in strategy.plugins:
        if hasattr(plugin, "memory_x"):
            kept += sum(len(x) for x in plugin.memory_x.values())  # GEM
        elif hasattr(plugin, "buffers"):
            kept += sum(len(buffer) for buffer in plugin.buffers)  # AGEM
        elif hasattr(plugin, "storage_policy"):
            kept += len(plugin.storage_policy.buffer)  # Replay
        elif hasattr(plugin, "x_memory"):
            kept += sum(len(x) for x in plugin.x_memory)  # iCaRL
    if hasattr(strategy, "storage_policy"):
        kept += len(strategy.storage_policy.buffer)  # DER
    return kept


def test_stl_never_forgets_and_stl_me_keeps_one_extractor():
    result = run_cell(first_of("stl"))
    assert result["task_il"]["BWT"] == 0.0
    own, mean = (sum(p.numel() for p in trained(m).model.parameters()) for m in ("stl", "stl-me"))
    features = sum(p.numel() for p in ThreeLayerCNN(width=8).features.parameters())
    assert own - mean >= (NUM_TASKS - 2) * features


@pytest.mark.parametrize(("method", "moves"), [("naive-heads", False), ("lwf-heads", True)])
def test_a_head_a_task_learns_from_other_tasks_by_distillation_alone(method, moves):
    def head(strategy):
        newest = list(strategy.model.classifier.classifiers.values())[-1]
        return {name: value.clone() for name, value in newest.state_dict().items()}

    kept = Probe(after_training_exp=head)
    strategy = trained(method, plugins=[kept])
    heads = list(strategy.model.classifier.classifiers.values())
    assert len(heads) == NUM_TASKS
    before = kept.seen["after_training_exp"]
    moved = [
        not torch.equal(h.classifier.weight, b["classifier.weight"])
        for h, b in zip(heads, before, strict=True)
    ]
    assert moved == [moves] * (NUM_TASKS - 1) + [False]


def test_without_epochs_of_finetuning_classifiers_are_those_of_the_mean():
    rate = ("lr", 0.05)
    without = run_cell(Cell("stl-me-finetuned", TWIN, 0, (("finetune_epochs", 0), rate)))
    mean = run_cell(Cell("stl-me", TWIN, 0, (rate,)))
    assert without["class_il"] == mean["class_il"]


@pytest.mark.parametrize(
    "method", ["naive", "lwf", "der++", "gem", "icarl", "packnet", "stl", "stl-me-finetuned"]
)
def test_a_baseline_takes_the_schedule_of_dlcpa(method):
    def rates(method, **changes):
        probe = Probe(before_training_epoch=lambda s: s.optimizer.param_groups[0]["lr"])
        trained(method, train_epochs=3, lr=0.01, plugins=[probe], **changes)
        return probe.seen["before_training_epoch"]

    expected = NUM_TASKS * [0.01, 0.01, pytest.approx(0.001)]
    assert rates(method, last_epochs=1) == rates("dlcpa-mocov2") == expected
    assert rates(method, last_epochs=0) == 3 * NUM_TASKS * [0.01]


def test_packnet_gives_every_task_the_same_share_of_the_weights():
    cell = Cell("packnet", TWIN)
    training = Training(cell, cell.hyperparameters, dataset_root=None, device="cpu")
    assert list(training.steps())[-1] == NUM_TASKS
    strategy = training.strategy
    for name, module in strategy.model.named_modules():
        if hasattr(module, "task_index"):
            counts = torch.bincount(module.task_index.flatten().int(), minlength=NUM_TASKS)
            shares = counts[:NUM_TASKS] / counts.sum()
            assert shares.tolist() == pytest.approx([1 / NUM_TASKS] * NUM_TASKS, abs=0.03), name


def test_packnet_forgets_nothing_and_has_norms_and_a_head_for_each_task():
    cell = first_of("packnet")
    training = Training(cell, cell.hyperparameters, dataset_root=None, device="cpu")
    model = training.strategy.model
    images, first_task = torch.randn(4, 1, 8, 8), torch.zeros(4, dtype=torch.int64)
    answers = [model.eval()(images, first_task) for _ in training.steps()]
    assert len(answers) == cell.num_experiences
    assert all(torch.equal(answer, answers[0]) for answer in answers)
    assert training.found()["task_il"]["BWT"] == 0.0
    added = [p for name, p in model.named_parameters() if name.endswith("wrappee.bias")]
    assert len(added) == 3
    assert not any(bias.any() for bias in added)
    norms = [module.norms for module in model.modules() if hasattr(module, "norms")]
    assert len(norms) == 3
    for of_tasks in norms:
        assert len(of_tasks) == NUM_TASKS
        means = [norm.running_mean for norm in of_tasks]
        learned = means[: cell.num_experiences]
        assert all(mean.abs().max() > 0 for mean in learned)
        assert not any(mean.any() for mean in means[cell.num_experiences :])
        assert len({tuple(mean.tolist()) for mean in learned}) == cell.num_experiences


def test_packnet_networks_answer_as_before_but_for_the_head():
    network = ThreeLayerCNN(width=8).train()
    images, first_task = torch.randn(4, 1, 8, 8), torch.zeros(4, dtype=torch.int64)
    features = network.features(images)
    model = packnet_network(network, num_tasks=2)
    given = []
    head = next(module for module in model.modules() if hasattr(module, "heads"))
    head.register_forward_pre_hook(lambda _, args: given.extend(args))
    model.train()(images, first_task)
    torch.testing.assert_close(given[0], features)


def test_an_ablation_differs_from_dlcpa_by_what_it_says():
    full = trained("dlcpa-mocov2")
    assert (full.plastic_classifier, full.classifier_features) == ("aligned", "stable")
    assert trained("dlcpa-a").ssl is None
    assert trained("dlcpa-b").plastic_classifier == "temporary"
    assert trained("dlcpa-e").classifier_features == "plastic"
    copied = trained("dlcpa-d").model
    pairs = zip(copied.plastic.parameters(), copied.stable.parameters(), strict=True)
    assert all(torch.equal(plastic, stable) for plastic, stable in pairs)
    ema = trained("dlcpa-c").model
    moved = [
        (plastic - stable).abs().max()
        for plastic, stable in zip(ema.plastic.parameters(), ema.stable.parameters(), strict=True)
    ]
    assert max(moved) > 1e-3  # 0.999 a step lags behind after a few dozen steps


def test_si_is_more_than_naive_on_a_cpu():
    naive, si = trained("naive", lr=0.01), trained("si", lr=0.01, strength=1.0)
    pairs = zip(naive.model.parameters(), si.model.parameters(), strict=True)
    assert any(not torch.equal(plain, held) for plain, held in pairs)


def test_avalanches_si_holds_nearly_all_weights_alike_under_sgd():
    plugin = next(p for p in trained("si", lr=0.1, strength=1.0).plugins if hasattr(p, "ewc_data"))
    importances = torch.cat([entry.data for entry in plugin.ewc_data[1].values()])
    moved = importances[importances > 0]
    assert len(moved) > 0.9 * len(importances)
    assert (moved == 1e-3).float().mean() > 0.9


def test_the_old_network_of_lwf_answers_as_it_is_evaluated():
    modes = []

    def note(strategy):
        lwf = next(p.lwf for p in strategy.plugins if hasattr(p, "lwf"))
        if lwf.prev_model is not None:
            modes.append((lwf.prev_model.training, strategy.model.training))

    trained("lwf", lr=0.01, strength=1.0, plugins=[Probe(after_training_iteration=note)])
    assert set(modes) == {(False, True)}


def test_every_head_has_a_method():
    assert {f"dlcpa-{name}" for name in HEADS} <= METHODS.keys()


def test_a_baseline_can_be_given_the_self_supervised_loss():
    plain = first_of("naive")
    with_ssl = Cell("naive", TWIN, 0, (*plain.changes, ("ssl", "simclr")), validation=True)
    results = [run_cell(cell) for cell in (plain, with_ssl)]
    assert results[1]["hyperparameters"]["ssl"] == "simclr"
    assert results[0]["task_il"] != results[1]["task_il"]


@pytest.mark.parametrize(
    "method", [name for name, m in METHODS.items() if not (m.draws_views or m.needs_task_labels)]
)
def test_every_baseline_can_be_given_the_loss_as_it_is_in_dlcpa(method):
    cell = Cell(method, TWIN, 0, (("ssl", "mocov2"),))
    own = Cell("dlcpa-mocov2", TWIN).hyperparameters
    assert cell.hyperparameters["ssl_weight"] == 1 / own["supervised_weight"]
    training = Training(cell, cell.hyperparameters, dataset_root=None, device="cpu")
    plugin = next(p for p in training.strategy.plugins if isinstance(p, SelfSupervisedLossPlugin))
    assert plugin.ssl.queue_size == own["queue_size"] == 1024
    assert plugin.weight == cell.hyperparameters["ssl_weight"]
    assert list(training.steps())[-1] == NUM_TASKS
    assert np.isfinite(training.found()["task_il"]["ACC"])


@pytest.mark.parametrize("setting", GRIDS)
def test_every_grid_has_all_hyperparameters_of_its_method_and_no_others(setting):
    for method, grids in GRIDS[setting].items():
        for grid in grids:
            changes = tuple(sorted((name, choices[0]) for name, choices in grid.items()))
            expect_buildable(Cell(method, setting, 0, changes, validation=True))


def test_gem_says_that_it_diverged():
    changes = (("lr", 30.0), ("memory_strength", 0.5))
    with pytest.raises(NonFiniteLossError, match=r"of size \d.*: lower the learning rate"):
        run_cell(Cell("gem", TWIN, 0, changes, validation=True))


def test_every_method_of_a_lab_grid_has_the_same_budget_unless_it_was_widened():
    budgets = {}
    for setting, grids in GRIDS.items():
        for method, of_method in grids.items():
            assert method in METHODS
            sizes = [int(np.prod([len(choices) for choices in g.values()])) for g in of_method]
            budgets.setdefault(setting, {})[method] = sum(sizes)
    assert budgets["lab-cifar100-10-small-crops"] == {"dlcpa-mocov2": 8}
    widened = ["stl-me-finetuned", "gem", "der", "der++", "ewc", "lwf", "mas", "si", "packnet"]
    widened += [f"dlcpa-{name}" for name in (*"abcde", "mocov2", "byol", "simclr")]
    eight = dict.fromkeys(GRIDS["lab-cifar100-10"], 8)
    assert budgets["lab-cifar100-10"] == {**eight, **dict.fromkeys(widened, 16)}
    own = {name for name, method in METHODS.items() if method.trains_as is None}
    assert set(GRIDS["lab-cifar100-10"]) == own


@pytest.mark.parametrize("ssl", ["simclr", "byol"])
def test_the_control_differs_in_the_labels_of_the_second_view_alone(ssl):
    cells = [Cell(f"dlcpa-{name}", TWIN) for name in (ssl, f"{ssl}-one-view")]
    assert cells[0].hyperparameters == cells[1].hyperparameters
    images = torch.rand(2, 8, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    found = []
    for cell in cells:
        seed_everything(0)
        options, setting = {**cell.hyperparameters}, SETTINGS[TWIN]
        strategy = build_strategy(cell, setting, options, plugins=[], device="cpu")
        found.append(strategy.ssl(strategy.model.plastic, *images))
    (loss, both), (loss_of_control, labelled) = found
    assert torch.equal(loss, loss_of_control)
    assert len(both) == 2
    (features,) = labelled
    assert torch.equal(features, both[0])


def test_a_gaussian_classifier_trains_as_its_method_does():
    plain, gaussian = trained("dlcpa-simclr"), trained("dlcpa-simclr-gaussian")
    pairs = zip(plain.model.stable.parameters(), gaussian.model.stable.parameters(), strict=True)
    assert all(torch.equal(ours, theirs) for ours, theirs in pairs)
    assert gaussian.model.gaussian is not None
    cells = [Cell(method, "digits") for method in ("dlcpa-simclr", "dlcpa-simclr-gaussian")]
    assert cells[0].hyperparameters == cells[1].hyperparameters


def test_published_hyperparameters_are_those_of_the_paper():
    cifar100, tiny = PUBLISHED["cifar100-10"], PUBLISHED["tiny-10"]
    assert (cifar100["dlcpa-byol"]["lr"], tiny["dlcpa-byol"]["lr"]) == (0.005, 0.02)
    assert {v["supervised_weight"] for v in (cifar100["dlcpa-a"], tiny["dlcpa-e"])} == {10.0}
    assert cifar100["der++"] == {"lr": 0.03, "alpha": 0.1, "beta": 0.5}
    assert (cifar100["gem"]["lr"], tiny["gem"]["lr"]) == (0.03, 0.05)
