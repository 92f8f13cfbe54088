"""`benchmarks.gaussian` on digits: one training, all variants, table and figure."""

import copy
import dataclasses
import functools
import json
import math
import re
import statistics
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import tensors_stream
from test_class_statistics import cloud
from test_folder_lock import OtherProcess

from avalanche_dlcpa import GaussianClassifierPlugin, seed_everything
from avalanche_dlcpa.class_statistics import ClassStatistics, class_statistics
from avalanche_dlcpa.gaussian import linear_discriminants
from avalanche_dlcpa.gaussian_plugin import COVARIANCE_PRIOR, MAP_PRIOR
from avalanche_dlcpa.metrics import scenario_metrics
from avalanche_dlcpa.random_states import preserved_random_states
from benchmarks import (
    gaussian,
    gaussian_cost,
    gaussian_judge,
    gaussian_report,
    gaussian_training,
    two_layer_map,
)
from benchmarks.cells import Cell
from benchmarks.experiments import SCENARIOS
from benchmarks.gaussian_training import StudiedTraining, TimedGaussian
from benchmarks.gaussian_variants import (
    COVARIANCE_PRIORS,
    MAP_PRIORS,
    TITLES,
    Combinations,
    Observed,
    Variants,
    combination_of,
)
from benchmarks.hyperparameters import chosen_values
from benchmarks.markup import as_markdown
from benchmarks.methods import METHODS
from benchmarks.recalibration import recalibration
from benchmarks.run import run_cell
from benchmarks.settings import SETTINGS, _few_images
from benchmarks.training import build_strategy, summary_of

TWIN = "digits-cifar100-10"
METHOD = "dlcpa-mocov2"
RESULTS = Path(__file__).parents[1] / "benchmarks" / "results" / "gaussian"


@pytest.fixture(scope="module")
def networks(tmp_path_factory):
    """Of a training on digits, whose validation split is held out."""
    return tmp_path_factory.mktemp("networks")


@pytest.fixture(scope="module")
def found(networks):
    return gaussian.study(StudiedTraining(METHOD, TWIN, 1), networks)


def matrix_of(result, scenario):
    return np.array(result[scenario]["accuracy_matrix"], dtype=float)


def test_all_variants_are_judged_in_both_scenarios_after_every_experience(found):
    assert found["variants"].keys() == TITLES.keys()
    for variant in found["variants"].values():
        for scenario in ("class_il", "task_il"):
            matrix = matrix_of(variant, scenario)
            assert matrix.shape == (5, 5)
            assert np.isfinite(matrix[np.tril_indices(5)]).all()
            assert np.isnan(matrix[np.triu_indices(5, k=1)]).all()
    assert found["plugin_seconds"] > 0
    assert json.loads(json.dumps(found)) == found


@pytest.mark.parametrize(("variant", "method"), [("linear", METHOD), ("map", f"{METHOD}-gaussian")])
def test_linear_heads_and_the_drift_map_are_what_single_runs_evaluate(
    found, variant, method, monkeypatch
):
    hold_out(monkeypatch)
    assert_same_accuracies(found["variants"][variant], run_cell(Cell(method, TWIN, 1)), variant)


@pytest.mark.parametrize("variant", ["linear", "map"])
def test_on_another_method_the_drift_map_is_what_the_plugin_answers(variant, tmp_path_factory):
    training = StudiedTraining("naive", TWIN, 1, num_experiences=3)
    judged = gaussian.study(training, tmp_path_factory.getbasetemp() / "naive")["variants"]
    stream, metrics = training.stream(None), scenario_metrics()
    seed_everything(1)
    strategy = build_strategy(
        Cell("naive", TWIN, 1),
        training.plan,
        training.words["hyperparameters"],
        plugins=[GaussianClassifierPlugin()] if variant == "map" else [],
        metrics=metrics,
        device="cpu",
    )
    for experience in stream.train_stream[:3]:
        strategy.train(experience, eval_streams=[])
        with preserved_random_states(torch.device("cpu")):  # Naive's evaluation draws
            strategy.eval(stream.test_stream[:3])
    single = {
        scenario: {"accuracy_matrix": metric.matrix()}
        for scenario, metric in zip(("class_il", "task_il"), metrics, strict=True)
    }
    assert_same_accuracies(judged[variant], single, variant)


def hold_out(monkeypatch):
    """Let single runs hold the validation split out, as the study does."""
    split = SETTINGS[TWIN].make_stream
    held_out = functools.partial(split, validation_fraction=0.1)
    plan = dataclasses.replace(
        SETTINGS[TWIN], make_stream=lambda **options: held_out(**{**options, **held_out.keywords})
    )
    monkeypatch.setitem(SETTINGS, TWIN, plan)


def assert_same_accuracies(judged, single, variant):
    for scenario in ("class_il", "task_il"):
        ours, theirs = matrix_of(judged, scenario), matrix_of(single, scenario)
        difference = np.abs(ours - theirs)[np.tril_indices(len(ours))].max()
        assert difference <= (0 if variant == "linear" else 0.02)  # float64 against float32


def test_with_few_images_a_class_the_statistics_are_of_these(networks, found):
    training = StudiedTraining(METHOD, TWIN, 1)
    stream = training.stream(None)
    judge = gaussian_judge.Judge(
        Variants(covariance_prior=4, map_prior=0.2), stream.test_stream, images_per_class=3
    )
    images, labels = gaussian_judge.images_and_labels(stream.train_stream[1])
    rows = [int(row) for k in labels.unique() for row in (labels == k).nonzero()[:3]]
    few, names = judge._few(stream.train_stream[1])
    assert torch.equal(few, images[sorted(rows)])
    assert torch.equal(names, labels[sorted(rows)])
    again = gaussian.study(training, networks, images_per_class=3)
    assert again["images_per_class"] == 3
    assert again["variants"]["linear"] == found["variants"]["linear"]
    assert again["variants"]["map"] != found["variants"]["map"]


def test_networks_that_are_there_are_judged_without_training_again(found, networks, monkeypatch):
    def refuse(*arguments, **options):
        raise AssertionError("trained again")

    monkeypatch.setattr(StudiedTraining, "run", refuse)
    again = gaussian.study(StudiedTraining(METHOD, TWIN, 1), networks, validation=True)
    assert again["judged_on"] == "valid_stream"
    assert again["training_seconds"] == found["training_seconds"]
    assert again["provenance"]["training"] == found["provenance"]["training"]
    with pytest.raises(ValueError, match=r"'seed': 2.* got those of .*'seed': 1.*remove the"):
        gaussian.study(StudiedTraining(METHOD, TWIN, 2), networks)


def test_a_training_longer_than_its_stream_is_refused_before_it_begins(tmp_path):
    with pytest.raises(ValueError, match=f"at most 5 experiences of {TWIN}, got 6"):
        gaussian.study(StudiedTraining("naive", TWIN, 0, num_experiences=6), tmp_path)


def test_two_processes_do_not_train_into_one_folder(tmp_path):
    other = OtherProcess(tmp_path)
    with pytest.raises(ValueError, match="that no other process uses"):
        gaussian.study(StudiedTraining("naive", TWIN, 0), tmp_path)
    other.end()


def test_a_training_that_was_cut_short_starts_anew(tmp_path):
    training = StudiedTraining("naive", TWIN, 0, num_experiences=2, epochs=1)
    (tmp_path / "experience0.pt").write_bytes(b"cut short")
    result = gaussian.study(training, tmp_path)
    assert result["num_experiences"] == 2
    assert matrix_of(result["variants"]["oracle"], "class_il").shape == (2, 2)


def test_on_the_validation_split_every_combination_is_judged_and_the_test_set_left_alone(
    tmp_path, monkeypatch
):
    read = set()
    load = gaussian_judge.images_and_labels

    def watched(experience):
        read.add(experience.origin_stream.name)
        return load(experience)

    monkeypatch.setattr(gaussian_judge, "images_and_labels", watched)
    training = StudiedTraining(METHOD, TWIN, 0, num_experiences=2, epochs=1)
    result = gaussian.study(training, tmp_path, validation=True)
    assert read == {"train", "valid"}
    assert result["judged_on"] == "valid_stream"
    assert len(result["variants"]) == 2 * len(COVARIANCE_PRIORS) * len(MAP_PRIORS) + 1
    assert combination_of(4, math.inf) in result["variants"]


@pytest.mark.parametrize(
    ("method", "setting", "message"),
    [
        ("packnet", TWIN, "is not told the task, .* got packnet"),
        ("joint", TWIN, "experience after experience, .* got joint"),
        ("stl", TWIN, "linear heads on one extractor, got stl"),
        ("icarl", TWIN, "linear heads on one extractor, got icarl"),
        ("dlcpa-byol-gaussian", TWIN, "linear heads on one extractor, got dlcpa-byol-gaussian"),
        ("packnet", "lab-cifar100-10", "got packnet"),
        ("mas", "lab-cifar100", "Expected hyperparameters of mas in lab-cifar100, got none"),
        ("naiv", TWIN, "Did you mean 'naive'"),
        ("naive", "digitz", "Did you mean 'digits'"),
    ],
)
def test_what_does_not_suit_is_refused(method, setting, message):
    with pytest.raises(ValueError, match=message):
        StudiedTraining(method, setting, 0)


# Variants ----------------------------------------------------------------------------------------


def learned(learner, *, steps=2, drift=lambda x: 1.5 * x + 1):
    """Two experiences of three classes each, whose features move."""
    for step in range(steps):
        old, columns = cloud(60, seed=step)
        heads = torch.randn(6, 5, generator=torch.Generator().manual_seed(step)), torch.zeros(6)
        before = old if step else None
        learner.learn(Observed(drift(old), before, columns + 3 * step, *heads))
    return learner


def test_under_linear_drift_the_map_is_the_oracle():
    variants = learned(Variants(covariance_prior=2, map_prior=1e-9))
    assert variants.classes == list(range(6))
    first = 1.5 * (1.5 * cloud(60)[0] + 1) + 1
    second = 1.5 * cloud(60, seed=1)[0] + 1
    labels = torch.cat([cloud(60)[1], cloud(60, seed=1)[1] + 3])
    variants.oracle = class_statistics(torch.cat([first, second]), labels, num_classes=6)
    features = torch.cat([first, second])[::7]
    scores = variants.scores(features, torch.zeros(len(features), 6))
    torch.testing.assert_close(scores["map"], scores["oracle"], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(scores["ensemble"].argmax(1), scores["map"].argmax(1))
    torch.testing.assert_close(scores["no-residual"], scores["map"], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(scores["two-layers"], scores["map"], rtol=1e-4, atol=1e-4)
    for other in ("stored", "mean-drift", "nearest-mean", "class-covariances"):
        assert not torch.allclose(scores[other], scores["map"], atol=1e-2)


def test_a_hidden_layer_follows_a_drift_that_is_not_linear():
    def drift(x):
        return (x - 3.5).abs() + 0.1 * x

    variants = learned(Variants(covariance_prior=2, map_prior=1e-2), drift=drift)
    old, columns = drift(cloud(60)[0]), cloud(60)[1]
    truth = class_statistics(drift(old), columns, num_classes=3).means
    errors = {
        name: (known.means[:3] - truth).norm()
        for name, known in (("map", variants._known["map"]), ("two", variants._two_layers))
    }
    assert errors["two"] < 0.7 * errors["map"]


def test_the_mean_of_a_rectified_gaussian_is_that_of_many_samples():
    means, deviations = torch.tensor([-2.0, 0.0, 0.5, 3.0]), torch.tensor([1.0, 2.0, 0.1, 0.0])
    noise = torch.randn(200_000, 4, generator=torch.Generator().manual_seed(0))
    drawn = (means + deviations * noise).relu().mean(dim=0)
    ours = two_layer_map.mean_of_rectified(means, deviations)
    torch.testing.assert_close(ours, drawn, atol=0.01, rtol=0)


def test_recalibration_undoes_what_scaled_and_shifted_one_task():
    generator = torch.Generator().manual_seed(0)
    means = 1.5 * torch.randn(6, 8, generator=generator).double()
    statistics = ClassStatistics(
        torch.full((6,), 100.0).double(), means, 600 * torch.eye(8).double()
    )
    weight, bias = linear_discriminants(statistics, shrinkage=0.1)  # fit together as they are
    tasks = torch.tensor([0, 0, 0, 1, 1, 1])
    scales = torch.tensor([1.0, 1, 1, 0.2, 0.2, 0.2]).double()
    offsets = torch.tensor([0.0, 0, 0, 20, 20, 20]).double()
    spoilt = (scales.unsqueeze(1) * weight, scales * bias + offsets)
    ours = recalibration(*spoilt, tasks, statistics, shrinkage=0.1)
    restored = ours[0].unsqueeze(1) * spoilt[0], ours[0] * spoilt[1] + ours[1]

    def answers(layer):
        return (means @ layer[0].T + layer[1]).argmax(dim=1).tolist()

    assert answers(spoilt) != list(range(6))
    assert answers(restored) == list(range(6))
    ratios = (ours[0] * scales)[[0, 3]]
    assert ratios[1] == pytest.approx(ratios[0].item(), rel=0.3)
    assert (ours[0] > 0).all()


def test_class_covariances_by_hand():
    variants = learned(Variants(covariance_prior=3, map_prior=1), steps=1)
    features, columns = cloud(60)
    features = 1.5 * features + 1
    test = features[:9]
    ours = variants.scores(test, torch.zeros(9, 3))["class-covariances"]
    for k in range(3):
        own = features[columns == k].double().numpy()
        covariance = np.cov(own.T, bias=True)
        share = 3 * 5 / (len(own) + 3 * 5)
        sphere = np.trace(covariance) / 5 * np.eye(5)
        covariance = (1 - share) * covariance + share * sphere
        deviations = np.sqrt(np.diag(covariance))
        inverse = np.linalg.inv(covariance / np.outer(deviations, deviations))
        apart = test.double().numpy() - own.mean(axis=0)
        distances = np.einsum("bi,ij,bj->b", apart, inverse, apart)
        np.testing.assert_allclose(ours[:, k], -distances, rtol=1e-6)


def test_combinations_hold_the_variants():
    variants = learned(Variants(covariance_prior=2, map_prior=0.1))
    variants.oracle = variants._known["map"]
    combinations = learned(Combinations())
    features = cloud(10, seed=9)[0]
    one = variants.scores(features, torch.zeros(10, 6))
    all_ = combinations.scores(features, torch.zeros(10, 6))
    assert torch.equal(one["map"], all_[combination_of(2, 0.1)])
    assert torch.equal(one["mean-drift"], all_[combination_of(2, math.inf)])
    logits = torch.randn(10, 6)
    one = variants.scores(features, logits)["ensemble"]
    all_ = combinations.scores(features, logits)[f"{combination_of(2, 0.1)}, with linear heads"]
    torch.testing.assert_close(one.log_softmax(1), all_.log_softmax(1))


# Report ------------------------------------------------------------------------------------------


def synthetic(accuracies, *, seed=0, judged_on="test_stream", method=METHOD, images_per_class=None):
    def summary(accuracy):
        return summary_of(np.where(np.tri(5, dtype=bool), accuracy, np.nan))

    return {
        "method": method,
        "setting": "lab-cifar100-10",
        "seed": seed,
        "hyperparameters": {},
        "images_per_class": images_per_class,
        "covariance_prior": 2.0,
        "map_prior": 0.1,
        "epochs": 10,
        "num_experiences": 5,
        "judged_on": judged_on,
        "training_seconds": 100.0,
        "plugin_seconds": 2.0,
        "provenance": {"training": {"commit": "abc1234"}},
        "variants": {
            name: {"class_il": summary(accuracy), "task_il": summary(accuracy + 0.3)}
            for name, accuracy in accuracies.items()
        },
    }


ACCURACIES = dict(
    zip(TITLES, (0.2, 0.15, 0.18, 0.26, 0.26, 0.25, 0.28, 0.22, 0.24, 0.27, 0.2), strict=True)
)


def test_the_table_has_means_deviations_cost_and_the_share_of_the_oracle():
    other = {name: accuracy + 0.02 for name, accuracy in ACCURACIES.items()}
    runs = [synthetic(ACCURACIES), synthetic(other, seed=1)]
    table = gaussian_report.variants_table(runs)
    entries = {row.label: [entry.text for entry in row.entries] for row in table.rows}
    assert entries["Gaussian, drift map"][0] == "27.00 ± 1.41"
    assert entries["trained linear heads"][1] == "51.00 ± 1.41"
    assert gaussian_report.gain_share(runs, "class_il") == pytest.approx(0.06 / 0.08)
    assert "75 % (Class-IL) and 75 % (Task-IL)" in table.notes[1]
    assert "2.0 %" in table.notes[2]
    assert gaussian_report.gain_share([synthetic(dict.fromkeys(TITLES, 0.3))], "task_il") is None


def test_methods_beside_each_other():
    better = {name: accuracy + 0.1 for name, accuracy in ACCURACIES.items()}
    other = [synthetic(better, method="naive"), synthetic(ACCURACIES, seed=1, method="naive")]
    groups = {("lab", METHOD): [synthetic(ACCURACIES)], ("lab", "naive"): other}
    table = gaussian_report.overview_table(groups)
    assert table.heads[2] == ("Class-IL", "Gaussian, drift map")
    assert [row.label for row in table.rows] == [METHODS[METHOD].title, "Naive"]
    texts = [[entry.text for entry in row.entries] for row in table.rows]
    assert texts[0] == ["20.00", "15.00", "26.00", "28.00", "50.00", "45.00", "56.00", "58.00"]
    assert texts[1][:2] == ["25.00 ± 7.07", "20.00 ± 7.07"]


def test_the_title_tells_how_many_tasks_were_learned():
    run = {**synthetic(ACCURACIES), "setting": "lab-cifar100", "num_experiences": 10}
    title = gaussian_report.variants_table([run]).title
    assert title.endswith(": CIFAR-100, 200 images a class, ResNet-18 of width 16, 10 tasks")
    run["num_experiences"] = 6
    assert "first 6 of 10 tasks" in gaussian_report.variants_table([run]).title


def test_the_report_of_a_folder(tmp_path):
    few = {"linear": 0.6, "one": 0.3, "other": 0.2}
    all_ = {"linear": 0.4, "one": 0.3, "other": 0.35}
    for seed in (0, 1):
        (tmp_path / f"a_seed{seed}.json").write_text(json.dumps(synthetic(ACCURACIES, seed=seed)))
        for images, found in ((None, all_), (12, few)):
            options = {"judged_on": "valid_stream", "images_per_class": images}
            trial = synthetic(found, seed=seed, **options)
            (tmp_path / f"b_seed{seed}_{images}.json").write_text(json.dumps(trial))
    page = gaussian_report.write_report(tmp_path).read_text()
    assert "| Gaussian, drift map | 26.00 ± 0.00 |" in page
    together = "| 20.00 ± 0.00 | 15.00 ± 0.00 | 26.00 ± 0.00 | 28.00 ± 0.00 |"
    assert f"| {METHODS[METHOD].title} {together}" in page
    heads = "| combination | Class-IL, 12 images | Class-IL, all images | Class-IL, mean |"
    assert heads in page
    lines = [
        line for line in page.splitlines() if line.startswith(("| one", "| other", "| linear |"))
    ]
    assert lines[0].startswith("| one | 30.00 | 30.00 | 30.00 | 60.00 | 60.00 | 60.00 |")
    assert lines[1].startswith("| other | 20.00 | 35.00 | 27.50 |")
    assert lines[2] == "| linear | – | 40.00 | – | – | 70.00 | – |"
    assert "2 seeds, 5 experiences; so many images" in page
    (figure,) = tmp_path.glob("*.png")
    assert f"({figure.name})" in page
    assert figure.stat().st_size > 5000
    older = {name: accuracy for name, accuracy in ACCURACIES.items() if name != "two-layers"}
    (tmp_path / "c_seed2.json").write_text(json.dumps(synthetic(older, seed=2)))
    with pytest.raises(ValueError, match="with the same variants, got different ones"):
        gaussian_report.write_report(tmp_path)
    odd = copy.deepcopy(synthetic(ACCURACIES, seed=2))
    odd["map_prior"] = 0.2
    (tmp_path / "c_seed2.json").write_text(json.dumps(odd))
    with pytest.raises(ValueError, match=r"with one map_prior, got \[0.1, 0.1, 0.2\]"):
        gaussian_report.write_report(tmp_path)
    few_images = synthetic(ACCURACIES, seed=2, images_per_class=3)
    (tmp_path / "c_seed2.json").write_text(json.dumps(few_images))
    with pytest.raises(ValueError, match=r"with one images_per_class, got \[None, None, 3\]"):
        gaussian_report.write_report(tmp_path)


def test_only_runs_alike_are_beside_each_other(tmp_path):
    runs = [
        synthetic(ACCURACIES),
        synthetic(ACCURACIES, method="naive"),
        {**synthetic(ACCURACIES, method="ewc"), "num_experiences": 4},
        synthetic(ACCURACIES, method="lwf", images_per_class=12),
    ]
    for run in runs:
        (tmp_path / f"{run['method']}_seed0.json").write_text(json.dumps(run))
    page = gaussian_report.page_of(tmp_path)
    found = []
    for section in page.split("## ")[1:4]:
        title, *lines = section.splitlines()
        labels = [line.split(" | ")[0] for line in lines if line.startswith("| ")][2:]
        found.append((title.rpartition("width 16, ")[2], labels))
    assert found == [
        ("5 tasks", ["| Naive", f"| {METHODS[METHOD].title}"]),
        ("4 tasks", ["| EWC"]),
        ("5 tasks, statistics of 12 images a class", ["| LwF"]),
    ]


def test_an_oracle_that_gains_nothing_and_unequal_seeds_are_told(tmp_path):
    flat = dict.fromkeys(ACCURACIES, 0.2)
    notes = gaussian_report.variants_table([synthetic(flat)]).notes
    assert not any("The drift map has" in note for note in notes)
    of = {"judged_on": "valid_stream"}
    trials = [synthetic({"one": 0.3}, seed=seed, **of) for seed in (0, 1)]
    trials.append(synthetic({"one": 0.2}, images_per_class=12, **of))
    (note,) = gaussian_report.combinations_table(trials).notes
    assert note.startswith("Seeds: 1 of 12 images, 2 of all images, 5 experiences; so many")


def test_the_readme_and_the_page_show_the_results():
    page = (RESULTS / "gaussian.md").read_text()
    assert page == gaussian_report.page_of(RESULTS)
    assert {png.name for png in RESULTS.glob("*.png")} == set(re.findall(r"\((\S+\.png)\)", page))
    groups = gaussian_report.load(RESULTS, "test_stream")
    table = as_markdown(gaussian_report.overview_table(groups))
    assert table in (RESULTS.parents[2] / "README.md").read_text()
    for runs in groups.values():
        assert [run["seed"] for run in runs] == [0, 1, 2]
        priors = {(run["covariance_prior"], run["map_prior"]) for run in runs}
        assert priors == {(COVARIANCE_PRIOR, MAP_PRIOR)}


def test_what_the_readme_says_of_the_classifiers():
    text = " ".join((RESULTS.parents[2] / "README.md").read_text().split())
    groups = gaussian_report.load(RESULTS, "test_stream")
    found = {
        (method, variant): 100
        * np.mean([[r["variants"][variant][s]["ACC"] for s in SCENARIOS] for r in runs], axis=0)
        for (_, method), runs in groups.items()
        for variant in TITLES
    }
    for (setting, method), runs in groups.items():
        chosen = chosen_values()[setting][method]
        assert all(run["hyperparameters"] == chosen["hyperparameters"] for run in runs)
    others = ("naive", "ewc", "lwf")

    def gains(variant, base):
        return np.array([found[name, variant] - found[name, base] for name in others]).round()

    assert "gains nine to eighteen points of Class-IL and eight to twenty-four of Task-IL" in text
    assert gains("map", "linear").min(axis=0).tolist() == [9, 8]
    assert gains("map", "linear").max(axis=0).tolist() == [18, 24]
    assert "both have more than twenty points more Task-IL" in text
    assert gains("map", "linear")[:2, 1].tolist() == [21, 24]
    assert "ahead of Naive and EWC by eleven points of Class-IL and ten of Task-IL" in text
    lead = np.array([found[METHOD, "map"] - found[name, "map"] for name in others]).round()
    assert lead[:2].tolist() == [[11, 10], [11, 10]]
    assert "Beside LwF it has two points more Class-IL and one less Task-IL" in text
    assert lead[2].tolist() == [2, -1]
    assert "three points above that of DLCPA in Class-IL and four in Task-IL" in text
    assert (found["lwf", "oracle"] - found[METHOD, "oracle"]).round().tolist() == [3, 4]
    assert "each with its own heads, ten points and five" in text
    assert (found[METHOD, "linear"] - found["lwf", "linear"]).round().tolist() == [10, 5]
    assert "LwF loses 31 points of Task-IL, DLCPA 12" in text
    lost = [found[name, "map"] - found[name, "stored"] for name in ("lwf", METHOD)]
    assert np.array(lost)[:, 1].round().tolist() == [31, 12]
    assert "a little worse with DLCPA and LwF and three points worse with the others" in text
    assert gains("class-covariances", "map")[:2].tolist() == [[-3, -3], [-3, -3]]
    for method in ("dlcpa-a", METHOD, "lwf"):
        less = found[method, "class-covariances"] - found[method, "map"]
        assert (less < 0).all()
        assert (less > -1).all()


def test_the_defaults_are_the_best_on_the_validation_split():
    [runs] = gaussian_report.load(RESULTS, "valid_stream").values()
    best = gaussian_report.combinations_table(runs).rows[0].label
    assert best == combination_of(COVARIANCE_PRIOR, MAP_PRIOR)
    images = sorted(run["images_per_class"] or 200 for run in runs)  # None: all of the setting
    assert images == 3 * [5] + 3 * [12] + 3 * [45] + 3 * [200]
    stream = SETTINGS["lab-cifar100"].make_stream
    assert (stream.func, stream.args[-1]) == (_few_images, 200)


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"Expected JSONs of benchmarks.gaussian in .* got none"):
        gaussian_report.write_report(tmp_path)


def test_from_the_command_line(tmp_path, monkeypatch, capsys):
    words = ["--method", METHOD, "--setting", TWIN, "--num-experiences", "2", "--epochs", "1"]
    monkeypatch.setattr(sys, "argv", ["gaussian", *words, "--out", str(tmp_path)])
    gaussian.main()
    result = json.loads(
        (tmp_path / f"{TWIN}_{METHOD}_experiences=2_epochs=1_seed0_variants.json").read_text()
    )
    command = f"--method {METHOD} --setting {TWIN} --seed 0 --num-experiences 2 --epochs 1"
    assert command in result["provenance"]["command"]
    monkeypatch.setattr(sys, "argv", ["gaussian_report", str(tmp_path)])
    gaussian_report.main()
    assert "trained linear heads" in capsys.readouterr().out


# Cost --------------------------------------------------------------------------------------------


class ATickPerCall:
    """A clock that moves by a second each time one looks."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        self.now += 1.0
        return self.now


def test_the_cost_is_the_median_of_the_experiences_after_the_first(monkeypatch):
    # looks: the start of `train`, two at each of the plugin's hooks, its end
    clock = ATickPerCall()
    monkeypatch.setattr(gaussian_cost, "time", clock)
    monkeypatch.setattr(gaussian_training, "time", clock)
    stream = tensors_stream(tasks=((0, 1), (2, 3), (4, 5), (6, 7)), per_class=8, size=8)

    class Slow(TimedGaussian):
        def after_training_exp(self, strategy, **kwargs):
            super().after_training_exp(strategy, **kwargs)
            self.seconds += (99.0, 1.0, 4.0, 2.0)[strategy.clock.train_exp_counter]
            clock.now += (99.0, 1.0, 4.0, 2.0)[strategy.clock.train_exp_counter]

    monkeypatch.setattr(gaussian_cost, "TimedGaussian", Slow)
    found = gaussian_cost.measure(stream, head="none", width=4, epochs=3, rounds=3)
    assert found["plugin_seconds"] == [3.0, 6.0, 4.0]
    assert found["epoch_seconds"] == [1.0, 1.0, 1.0]
    assert found["plugin_epochs"] == 4.0


@pytest.mark.parametrize("rounds", [0, 3])
def test_the_cost_of_experiences_that_are_not_there_is_refused(rounds):
    stream = tensors_stream(tasks=((0, 1), (2, 3), (4, 5)), per_class=8, size=8)
    with pytest.raises(ValueError, match=f"Expected 1 to 2 rounds, .*, got {rounds}"):
        gaussian_cost.measure(stream, head="none", width=4, epochs=1, rounds=rounds)


def test_the_readme_tells_the_cost_that_was_measured():
    found = json.loads((RESULTS.parent / "gaussian_cost.json").read_text())
    assert (found["head"], found["width"]) == ("mocov2", 64)
    readme = (RESULTS.parents[2] / "README.md").read_text()
    assert f"as long as {found['plugin_epochs']:.2f} of an epoch" in readme
    ratios = [w / e for w, e in zip(found["plugin_seconds"], found["epoch_seconds"], strict=True)]
    assert statistics.median(ratios) == found["plugin_epochs"]
    assert f"from {min(ratios):.2f} to {max(ratios):.2f}" in readme
    assert f"{found['plugin_epochs']:.1f} % of the\npaper's 100" in readme
    study = (RESULTS / "gaussian.md").read_text().partition("## DLCPA + MoCoV2: ")[2]
    (share,) = re.findall(r"The plugin took ([\d.]+ %) of the time of training", study)
    assert f"In the runs above, of width 16, it took {share} of training." in readme
