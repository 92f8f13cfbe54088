import csv
import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from avalanche.benchmarks.utils.data import AvalancheDataset

from avalanche_dlcpa import NonFiniteLossError
from benchmarks import demo, run, tune
from benchmarks.cells import FORMAT, Cell, check_same, result_path
from benchmarks.experiments import EXPERIMENTS
from benchmarks.grids import GRIDS
from benchmarks.hyperparameters import CHOSEN, PUBLISHED, hyperparameters_of
from benchmarks.json_file import save_json
from benchmarks.loading import cell_of, load_results
from benchmarks.markup import as_markdown
from benchmarks.methods import METHODS
from benchmarks.orders import order_tables
from benchmarks.origin import PACKAGES, commit
from benchmarks.pool import Progress, run_in_processes
from benchmarks.settings import SETTINGS
from benchmarks.tables import comparison_table
from benchmarks.views import ShiftsAndNoise

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"


TWIN = "digits-cifar100-10"


@pytest.mark.parametrize("method", ["naive", "dlcpa-mocov2"])
def test_a_run_gives_the_whole_matrices_and_numbers_that_follow_from_them(method):
    cell = Cell(method, TWIN, 3)
    result = run.run_cell(cell)
    num_tasks = cell.num_experiences
    for scenario in ("class_il", "task_il"):
        summary = result[scenario]
        matrix = np.array(summary["accuracy_matrix"], dtype=float)
        assert matrix.shape == (num_tasks, num_tasks)
        assert np.isnan(matrix[np.triu_indices(num_tasks, 1)]).all()
        assert summary["ACC"] == pytest.approx(matrix[-1].mean())
        assert summary["BWT"] == pytest.approx((matrix[-1] - matrix.diagonal())[:-1].mean())
    assert result["seed"] == 3
    assert result["hyperparameters"] == hyperparameters_of(method, "digits")
    assert result["provenance"]["versions"].keys() == set(PACKAGES)
    assert result["provenance"]["command"].endswith(f"--method {method} --setting {TWIN} --seed 3")
    assert result["training_seconds"] > 0


def test_the_confusion_matrix_counts_the_answers_of_the_last_evaluation():
    result = run.run_cell(Cell("naive", TWIN))
    counts = np.array(result["class_il"]["confusion_matrix"])
    last = result["class_il"]["accuracy_matrix"][-1]
    for accuracy, classes in zip(last, result["classes"], strict=True):
        assert counts[classes, classes].sum() / counts[classes].sum() == pytest.approx(accuracy)
    assert counts.sum() == sum(len(e.dataset) for e in SETTINGS[TWIN].make_stream().test_stream)


def test_joint_learning_has_a_last_row_and_no_backward_transfer():
    result = run.run_cell(trial("joint", lr=0.03))
    matrix = np.array(result["class_il"]["accuracy_matrix"], dtype=float)
    assert np.isfinite(matrix[-1]).all()
    assert np.isnan(matrix[:-1]).all()
    assert result["class_il"]["BWT"] is None
    assert result["class_il"]["ACC"] == pytest.approx(matrix[-1].mean())


def trial(method, **values):
    return Cell(method, TWIN, 0, tuple(sorted(values.items())), validation=True)


def test_memory_counts_what_a_method_carries_along():
    cells = [trial("naive", lr=0.01), trial("stl", lr=0.01)]
    cells += [trial(name, lr=0.01, strength=1.0) for name in ("lwf", "ewc")]
    kept = {cell.method: run.run_cell(cell)["memory"]["kept_bytes"] for cell in cells}
    network = SETTINGS[TWIN].make_network(10)
    weights = sum(tensor.nbytes for tensor in network.state_dict().values())
    assert weights <= kept["naive"] < 1.5 * weights
    assert kept["naive"] + 0.9 * weights < kept["lwf"]  # the teacher
    num_tasks = SETTINGS[TWIN].num_tuning_experiences
    assert kept["naive"] + 1.8 * num_tasks * weights < kept["ewc"]  # importances and weights
    assert kept["naive"] + 0.8 * (num_tasks - 1) * weights < kept["stl"]  # a network a task


def test_the_same_seed_gives_the_same_numbers():
    first, second = (run.run_cell(Cell("dlcpa-mocov2", TWIN, 1)) for _ in range(2))
    assert first["class_il"] == second["class_il"]
    assert first["task_il"] == second["task_il"]


def test_weights_that_are_not_finite_are_no_result():
    with pytest.raises(NonFiniteLossError, match="Expected finite weights after 1 experiences"):
        run.run_cell(Cell("naive", TWIN, 0, (("lr", 1e30),)))


@pytest.mark.parametrize("validation", [True, False])
def test_choosing_hyperparameters_never_evaluates_the_test_set(monkeypatch, validation):
    read = []
    plain = AvalancheDataset.eval
    plan = SETTINGS[TWIN]

    def watched(**options):
        stream = plan.make_stream(**options)
        test = [experience.dataset for experience in stream.test_stream]

        def eval_(dataset):
            read.extend(0 for other in test if other is dataset)
            return plain(dataset)

        monkeypatch.setattr(AvalancheDataset, "eval", eval_)
        return stream

    monkeypatch.setitem(SETTINGS, TWIN, dataclasses.replace(plan, make_stream=watched))
    cell = Cell("naive", TWIN, 0, (("lr", 0.01),), validation=validation)
    result = run.run_cell(cell)
    assert result["judged_on"] == ("valid_stream" if validation else "test_stream")
    learned = cell.num_experiences
    assert len(read) == (0 if validation else learned * (learned + 1) // 2)


@pytest.mark.parametrize("method", ["ewc", "replay", "stl-me-finetuned", "dlcpa-mocov2"])
def test_a_trial_needs_no_test_set(monkeypatch, method):
    plan = SETTINGS[TWIN]

    def without_test_set(**options):
        stream = plan.make_stream(**options)
        valid = getattr(stream, "valid_stream", None)
        return SimpleNamespace(train_stream=stream.train_stream, valid_stream=valid)

    whole = Cell(method, TWIN).hyperparameters
    cell = Cell(method, TWIN, 0, tuple(sorted(whole.items())), validation=True)
    expected = run.run_cell(cell)["task_il"]
    monkeypatch.setitem(SETTINGS, TWIN, dataclasses.replace(plan, make_stream=without_test_set))
    assert run.run_cell(cell)["task_il"] == expected
    with pytest.raises(AttributeError, match="test_stream"):
        run.run_cell(dataclasses.replace(cell, validation=False))


def test_a_method_whose_trial_broke_is_not_chosen():
    trials = [Cell(method, TWIN, validation=True) for method in ("naive", "ewc", "lwf")]
    failures = {trials[0]: "ended with 1: NonFiniteLossError: ...", trials[1]: "ended with -9"}
    assert tune.complete(["naive", "ewc", "lwf"], failures) == ["naive", "lwf"]


def trial_row(words, class_il, task_il, *, seed="0", method="ewc"):
    """A row of tuning.csv."""
    return {
        "setting": "digits",
        "method": method,
        "seed": seed,
        "hyperparameters": words,
        "class_il_ACC": class_il,
        "task_il_ACC": task_il,
        "commit": "0",
    }


def test_the_best_leads_class_il_among_the_near_best_in_task_il():
    rows = [
        trial_row('{"lr": 1}', "0.1", "0.91", seed="0"),
        trial_row('{"lr": 1}', "0.3", "0.89", seed="1"),
        trial_row('{"lr": 2}', "0.25", "0.895", seed="0"),
        trial_row('{"lr": 2}', "0.25", "0.895", seed="1"),
        trial_row('{"lr": 3}', "0.9", "0.88", seed="0"),
        trial_row('{"lr": 3}', "0.9", "0.88", seed="1"),
    ]
    assert tune.best(rows, "digits", "ewc")["hyperparameters"] == {"lr": 2}
    with pytest.raises(ValueError, match="Expected tuning rows of lwf in digits, got none"):
        tune.best(rows, "digits", "lwf")


def test_where_a_scenario_is_undefined_the_other_decides():
    rows = [
        trial_row(f'{{"lr": {lr}}}', "", task_il, method="packnet")
        for lr, task_il in ((1, "0.795"), (2, "0.8"), (3, "0.0"))
    ]
    found = tune.best(rows, "digits", "packnet")
    assert found["hyperparameters"] == {"lr": 2}
    assert (found["class_il_ACC"], found["task_il_ACC"]) == (None, 0.8)


def test_a_trial_that_was_not_tried_with_every_seed_is_not_chosen():
    lucky = trial_row('{"lr": 1}', "0.99", "0.99")
    others = [trial_row('{"lr": 2}', "0.5", "0.5", seed=seed) for seed in ("0", "1")]
    for rows in ([lucky, *others], [lucky, lucky, *others]):  # one that two processes added
        assert tune.best(rows, "digits", "ewc")["hyperparameters"] == {"lr": 2}


def test_hyperparameters_are_those_that_tuning_chose():
    rows = tune.in_grids(tune.read_rows())
    chosen = json.loads(CHOSEN.read_text())
    assert chosen
    for setting, methods in chosen.items():
        for method, entry in methods.items():
            assert entry == tune.best(rows, setting, method), (setting, method)


def test_trials_of_earlier_grids_are_kept_and_not_chosen_from(tmp_path, monkeypatch):
    grids = [{"lr": [0.1, 0.2], "strength": [1.0]}, {"lr": [0.3]}]
    monkeypatch.setitem(GRIDS, "digits", {"ewc": grids})
    joined = '{"lr": 0.2, "strength": 1.0}'
    of_today = [trial_row(words, "0.1", "0.5") for words in ('{"lr": 0.3}', joined)]
    earlier = [trial_row(words, "0.9", "0.9") for words in ('{"lr": 0.1}', '{"lr": 0.4}')]
    other = [trial_row('{"lr": 0.3}', "0.9", "0.9", method="lwf")]
    assert tune.in_grids([*earlier, *of_today, *other]) == of_today
    monkeypatch.setattr(tune, "read_rows", lambda: [*earlier, *of_today])
    tune.choose("digits", ["ewc"], tmp_path / "chosen.json")
    entry = json.loads((tmp_path / "chosen.json").read_text())["digits"]["ewc"]
    assert (entry["hyperparameters"], entry["num_trials"]) == ({"lr": 0.3}, 2)


def test_optuna_goes_through_every_combination_once():
    grid = {"lr": [0.1, 0.2, 0.3], "strength": [1, 2]}
    every = [{"lr": lr, "strength": strength} for lr in grid["lr"] for strength in (1, 2)]
    proposed = tune.propose([grid, {"lr": [9.0]}])
    assert sorted(map(str, proposed)) == sorted(map(str, [*every, {"lr": 9.0}]))
    few = tune.propose([grid], most=4)
    assert len({str(values) for values in few}) == 4
    assert few == tune.propose([grid], most=4)


def test_the_readme_counts_the_methods():
    assert f"Grids of {len(METHODS)} methods" in (ROOT / "README.md").read_text()


def test_what_was_published_is_not_tuned_unless_it_is_asked_for():
    assert set(tune.to_tune("cifar100-10")) >= {"naive", "ewc", "lwf", "joint"}
    assert not set(tune.to_tune("cifar100-10")) & set(PUBLISHED["cifar100-10"])
    assert tune.to_tune("digits") == list(GRIDS["digits"])  # nothing was published for digits
    assert tune.to_tune("mnist-5") == []


def test_tuning_adds_a_row_a_trial_and_runs_none_again(tmp_path, monkeypatch):
    grids = {"naive": [{"lr": [0.01, 1e30]}], "naive-heads": [{"lr": [1e30]}]}
    monkeypatch.setitem(GRIDS, TWIN, grids)
    path = tmp_path / "tuning.csv"
    asked = []

    def run_here(cells):
        asked.append(list(cells))
        return run_in_processes(cells, tmp_path, jobs=1, options=[])

    failures = tune.tune(TWIN, grids, [0], run_here, folder=tmp_path, path=path)
    rows = tune.read_rows(path)
    found = {(row["method"], json.loads(row["hyperparameters"])["lr"]): row for row in rows}
    assert float(found["naive", 0.01]["task_il_ACC"]) > 0.4
    assert [float(row["task_il_ACC"]) for row in rows].count(0) == 2  # diverged: results, too
    assert found["naive", 1e30]["class_il_ACC"] == "0.0"
    assert found["naive-heads", 1e30]["class_il_ACC"] == ""  # it has none
    assert {row["commit"] for row in rows} == {commit()}
    assert len(failures) == 2
    for reason in failures.values():
        assert "NonFiniteLossError" in reason
        assert "logs/" not in reason  # which are gone with the folder
    tune.tune(TWIN, grids, [0], run_here, folder=tmp_path, path=path)
    assert [len(cells) for cells in asked] == [3, 0]
    assert all(cell.validation for cell in asked[0])
    assert tune.best(rows, TWIN, "naive")["hyperparameters"] == {"lr": 0.01}


def test_no_row_is_made_of_a_result_on_the_test_set(tmp_path, monkeypatch):
    monkeypatch.setitem(GRIDS, TWIN, {"naive": [{"lr": [0.01]}]})

    def on_the_test_set(cells):
        for cell in cells:
            accuracy = {"ACC": 0.5}
            found = {"class_il": accuracy, "task_il": accuracy, "provenance": {"commit": "0"}}
            found |= {"judged_on": "test_stream", "format": FORMAT}
            save_json(found, result_path(cell, tmp_path))
            yield [Progress(cell, cell.num_experiences, ended=True)]

    path = tmp_path / "tuning.csv"
    with pytest.raises(ValueError, match="judged on valid_stream, got test_stream"):
        tune.tune(TWIN, ["naive"], [0], on_the_test_set, folder=tmp_path, path=path)
    assert not path.exists()


@pytest.mark.parametrize(("setting", "message"), [
    ("lab-tiny-10", "got 'lab-tiny-10', which runs with what is chosen in lab-cifar100-10: tune"),
    ("lab-tinny-10", "Expected a setting with a grid by name, got 'lab-tinny-10'"),
])  # fmt: skip
def test_a_setting_that_is_not_tuned_is_told_from_one_that_there_is_not(
    setting, message, monkeypatch, capsys
):
    monkeypatch.setattr(sys, "argv", ["tune", "--setting", setting])
    with pytest.raises(SystemExit):
        tune.main()
    assert message in capsys.readouterr().err


def test_ctrl_c_while_tuning_says_how_to_go_on(monkeypatch):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(tune, "tune", stopped)
    monkeypatch.setattr(sys, "argv", ["tune", "--setting", "digits", "--methods", "naive"])
    with pytest.raises(SystemExit, match="has what was tried, and the same command goes on"):
        tune.main()


def test_a_hyperparameter_that_a_method_does_not_have_is_named(tmp_path, monkeypatch):
    words = ["run", "--method", "naive", "--setting", TWIN, "--set", "strength=1"]
    monkeypatch.setattr(sys, "argv", [*words, "--out", str(tmp_path)])
    with pytest.raises(SystemExit, match="Expected hyperparameters that naive has, got strength:"):
        run.main()
    assert not list(tmp_path.iterdir())


def test_finalists_alone_are_tried_with_further_seeds(tmp_path, monkeypatch):
    monkeypatch.setitem(GRIDS, TWIN, {"naive": [{"lr": [0.01, 0.02, 0.03, 1e30]}]})
    path = tmp_path / "tuning.csv"

    def invent(cells):
        for cell in cells:
            lr = dict(cell.changes)["lr"]
            accuracy = {"ACC": {0.01: 0.3, 0.02: 0.5, 0.03: 0.4, 1e30: 0.0}[lr]}
            found = {"class_il": accuracy, "task_il": accuracy, "provenance": {"commit": "0"}}
            found |= {"judged_on": "valid_stream", "format": FORMAT}
            save_json(found, result_path(cell, tmp_path))
            yield [Progress(cell, cell.num_experiences, ended=True)]

    earlier = trial_row('{"lr": 0.5, "momentum": 0.9}', "0.9", "0.9", method="naive")
    with path.open("w", newline="") as file:  # of an earlier grid: it cannot be tried any more
        writer = csv.DictWriter(file, tune.FIELDS)
        writer.writeheader()
        writer.writerow({**earlier, "setting": TWIN})
    for _ in range(2):  # the second time, nothing is missing
        options = {"folder": tmp_path, "path": path, "num_finalists": 2}
        assert tune.tune(TWIN, ["naive"], [0, 1, 2], invent, **options) == {}
    rows = [(row["seed"], json.loads(row["hyperparameters"])["lr"]) for row in tune.read_rows(path)]
    assert rows.pop(0) == ("0", 0.5)
    assert sorted(rows[:4]) == [("0", 0.01), ("0", 0.02), ("0", 0.03), ("0", 1e30)]
    assert sorted(rows[4:]) == [("1", 0.02), ("1", 0.03), ("2", 0.02), ("2", 0.03)]


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    good = {"method": "naive", "rows": [[1, 2], [3, None]]}
    path = save_json(good, tmp_path / "results" / "a.json")
    for bad in (object(), float("nan")):
        with pytest.raises((TypeError, ValueError)):
            save_json({**good, "value": bad}, path)
    assert json.loads(path.read_text()) == good
    assert "[ 1, 2 ]" in path.read_text()
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_the_demo_prints_one_table_and_writes_all_that_it_names(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["demo", "--setting", TWIN, "--out", str(tmp_path)])
    demo.main()
    printed = capsys.readouterr().out
    table, _, named = printed.partition("wrote\n")
    for title in (METHODS[method].title for method in demo.METHODS):
        assert re.search(rf"^{re.escape(title)}( +-?\d+\.\d\d){{4}} +\d+$", table, re.MULTILINE)
    paths = [Path(line.strip()) for line in named.splitlines()]
    assert all(path.stat().st_size > 100 for path in paths)
    assert {path.suffix for path in paths} == {".json", ".png", ".html", ".md", ".tex"}
    assert sum(path.suffix == ".json" for path in paths) == len(demo.METHODS)


def test_digits_are_shifted_each_by_a_pixel_at_most():
    x = torch.arange(64.0).view(1, 1, 8, 8).repeat(400, 1, 1, 1)
    view1, view2 = ShiftsAndNoise(noise=0)(x)
    shifts = view1[:, 0, 4, 4] - x[:, 0, 4, 4]
    assert set(shifts.tolist()) == {dy * 8 + dx for dy in (-1, 0, 1) for dx in (-1, 0, 1)}
    assert (view1 != view2).flatten(1).any(1).float().mean() > 0.7
    down = view1[shifts == 8][0, 0]  # every row but the last comes from the next one
    assert torch.equal(down[:-1], x[0, 0, 1:])
    assert torch.equal(down[-1], x[0, 0, -1])
    noisy, _ = ShiftsAndNoise(noise=0.1)(torch.zeros(100, 1, 8, 8))
    assert noisy.std().item() == pytest.approx(0.1, rel=0.1)


@pytest.mark.parametrize("setting", ["digits", "lab-cifar100"])
def test_the_tables_of_the_readme_are_those_of_the_results(setting):
    results, skipped = load_results(RESULTS)
    assert not skipped
    chosen = [result for result in results if result["setting"] == setting]
    assert {r["method"] for r in chosen} == set(demo.METHODS)
    for result in chosen:
        check_same(result, cell_of(result))
    assert as_markdown(comparison_table(chosen)) in (ROOT / "README.md").read_text()


def test_the_tables_of_the_lab_grid_are_those_of_the_results():
    setting, text = "lab-cifar100-10", (ROOT / "README.md").read_text()
    chosen = [result for result in load_results(RESULTS)[0] if result["setting"] == setting]
    assert {r["method"] for r in chosen} == set(EXPERIMENTS["grid"].methods)
    for result in chosen:
        check_same(result, cell_of(result))
    for table in (comparison_table(chosen), *order_tables("grid", "lab", chosen)):
        assert as_markdown(table) in text
    stl, joint = ([r for r in chosen if r["method"] == name] for name in ("stl", "joint"))
    assert {r["task_il"]["BWT"] for r in stl} == {0.0}
    others = max(r["class_il"]["ACC"] for r in chosen if r["method"] != "joint")
    assert min(r["class_il"]["ACC"] for r in joint) > others


NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def test_what_the_readme_says_of_the_lab_grid():
    text = " ".join((ROOT / "README.md").read_text().split())
    assert "leads the exemplar-free methods of one network in both scenarios" in text
    assert "it falls by four points in both scenarios, more than half of the way to (d)" in text
    found = {}
    for result in load_results(RESULTS)[0]:
        if result["setting"] == "lab-cifar100-10":
            name = ", ".join([result["method"], *result["changes"]])
            pair = [100 * result[scenario]["ACC"] for scenario in ("class_il", "task_il")]
            found.setdefault(name, []).append(pair)
    means = {name: np.mean(pairs, axis=0) for name, pairs in found.items()}
    simclr, *others = (means[f"dlcpa-{ssl}"] for ssl in ("simclr", "mocov2", "byol"))
    ablations = {letter: means[f"dlcpa-{letter}"] for letter in "abcde"}
    leads = simclr - np.max([*ablations.values(), *others], axis=0)
    assert (leads > 0).all()
    assert leads[0] < np.std(found["dlcpa-c"], axis=0, ddof=1)[0]
    free = [means[name] for name in ("stl-me", "naive", "ewc", "lwf", "lwf, lr, strength")]
    gap = np.min([simclr, *others], axis=0) - np.max(free, axis=0)
    assert (
        "the other exemplar-free methods of one network are at least "
        f"{NUMBERS[round(gap[0])]} points of Class-IL and {NUMBERS[round(gap[1])]} of Task-IL "
    ) in text
    before = means["lwf, lr, strength"][1]
    assert f"and has {means['lwf'][1]:.0f} % of Task-IL after ten; with the" in text
    assert f"without the schedule, 0.02 and 10, it has {before:.0f} %." in text
    ahead = means["stl"] - simclr
    assert ahead[1] > 2
    assert abs(ahead[0]) < np.std(found["stl"], axis=0, ddof=1)[0]
    assert means["stl"][1] == max(mean[1] for mean in means.values())
    behind = np.stack([ablations["a"] - ablations[letter] for letter in "ed"])
    assert behind.round().tolist() == [[2, 3], [4, 5]]
    for other in others:
        assert all((abs(other - ablations[letter]) < 2).all() for letter in "ab")
        assert abs(other[1] - ablations["c"][1]) < 1
        assert other[0] < ablations["c"][0]
    assert (means["der++"] < np.min([*(ablations[x] for x in "abc"), *others], axis=0)).all()
    assert (means["ewc"] < means["naive"]).all()
    fall, way = (means["dlcpa-c"] - means[name] for name in ("dlcpa-c, ema_decay", "dlcpa-d"))
    assert fall == pytest.approx(np.full(2, 4), abs=0.5)
    assert (fall > way / 2).all()


def best_of_trials():
    """The best Task-IL in percent of each method, with and without the schedule, at lab scale."""
    best = {}
    for row in tune.read_rows():
        if row["setting"] == "lab-cifar100-10":
            place = row["method"], "last_epochs" in json.loads(row["hyperparameters"])
            best[place] = max(best.get(place, 0.0), 100 * float(row["task_il_ACC"]))
    return best


def test_what_the_readme_says_of_the_schedule():
    text = " ".join((ROOT / "README.md").read_text().split())
    best = best_of_trials()
    gains = {name: (best[name, False], best[name, True]) for name in ("stl", "naive", "lwf")}
    stl, naive, lwf = (f"{before:.0f} to {after:.0f} %" for before, after in gains.values())
    assert (
        f"the schedule took the best Task-IL of STL from {stl}, that of Naive from {naive} and "
        f"that of LwF from {lwf}."
    ) in text
    assert "without the schedule its best trial was behind those of all variants of DLCPA" in text
    dlcpa = [method for method in EXPERIMENTS["grid"].methods if method.startswith("dlcpa")]
    assert best["stl", False] < min(best[method, False] for method in dlcpa)
    waiting = [name for name in EXPERIMENTS["grid"].methods if name not in (*gains, *dlcpa)]
    assert sorted(waiting) == ["der++", "ewc", "gem", "joint", "stl-me", "stl-me-finetuned"]
    assert not [name for name in waiting if (name, True) in best]


def test_every_method_of_the_lab_grid_had_as_many_trials_as_the_readme_says():
    text = " ".join((ROOT / "README.md").read_text().split())
    assert (
        "eight combinations each were tried for every method, and twelve for EWC and DER++" in text
    )
    entries = json.loads(CHOSEN.read_text())["lab-cifar100-10"]
    trials = {name: entries[name]["num_trials"] for name in EXPERIMENTS["grid"].methods}
    others = {"ewc": 12, "der++": 12}
    assert trials == {**dict.fromkeys(trials, 8), **others}


def test_what_the_readme_says_of_a_head_a_task():
    best = best_of_trials()
    said = [f"{best[name, False]:.0f}" for name in ("naive-heads", "ewc-heads", "naive", "ewc")]
    assert said == ["30", "24", "35", "31"]
    text = " ".join((ROOT / "README.md").read_text().split())
    assert (
        "with a head a task, Naive and EWC had 30 and 24 % of Task-IL after the three tasks of the "
        "trials, and 35 and 31 % with one" in text
    )


def test_what_a_method_keeps_does_not_depend_on_the_seed():
    kept = {}
    for result in load_results(RESULTS)[0]:
        if result["method"] in METHODS:
            run = (result["setting"], result["method"], str(result["changes"]))
            kept.setdefault(run, set()).add(result["memory"]["kept_bytes"])
    assert {len(sizes) for sizes in kept.values()} == {1}


def test_the_commits_that_results_name_are_in_the_history():
    def git(*words):
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)

    if commit() == "unknown" or "true" in git("rev-parse", "--is-shallow-repository").stdout:
        pytest.skip("no clone, or one without its history")
    texts = [path.read_text() for path in RESULTS.rglob("*.json")]
    named = {name for text in texts for name in re.findall(r'"commit": "(\w+)\+?"', text)}
    assert len(named) > 5
    lost = [name for name in named if git("merge-base", "--is-ancestor", name, "HEAD").returncode]
    assert lost == []


def test_what_the_readme_says_of_the_last_task_in_the_lab_setting():
    text = " ".join((ROOT / "README.md").read_text().split())
    assert "on the last it is at 8 % where the others" in text
    assert "are above 60 %" in text
    found = {}
    for result in load_results(RESULTS)[0]:
        if result["setting"] == "lab-cifar100":
            last_row = result["class_il"]["accuracy_matrix"][-1]
            found.setdefault(result["method"], []).append(last_row)
    means = {method: 100 * np.mean(rows, axis=0) for method, rows in found.items()}
    ours = means.pop("dlcpa-mocov2")
    assert round(ours[-1]) == 8
    assert ours[:3].min() > ours[3:].max()
    for other in means.values():
        assert other[-1] > 60
        assert other[:-2].max() == 0
